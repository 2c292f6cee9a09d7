package org.lunarsan.iscsi.text;

/** Rule that determines a value: the "Result function" of RFC 7143 §13. */
public enum Rule {
    /** The lower number. */
    MINIMUM,

    /** The higher number. */
    MAXIMUM,

    /** Yes if both sides say Yes. */
    AND,

    /** Yes if one side says Yes. */
    OR,

    /** The first of the proposer's list that the acceptor supports. RFC 7143 §6.2.1. */
    FIRST_SUPPORTED,

    /** One side declares, without an answer. */
    DECLARE,

    /** A query of full feature phase: SendTargets. */
    QUERY,

    /** A step of an authentication method. */
    AUTHENTICATION,

    /**
     * Obsolete, always rejected: with {@code Reject}, or by a target with {@code No} if that is a
     * value. RFC 7143 §13.25.
     */
    OBSOLETE
}
