package org.lunarsan.iscsi.text;

/** How a value comes to be: the "Result function" of RFC 7143 §13. */
public enum Rule {
    /** The lower number. */
    MINIMUM,

    /** The higher number. */
    MAXIMUM,

    /** Yes if both say Yes. */
    AND,

    /** Yes if one says Yes. */
    OR,

    /** The first of the proposer's list that the acceptor supports. RFC 7143 §6.2.1. */
    FIRST_SUPPORTED,

    /** One side tells, nothing is answered. */
    DECLARE,

    /** A question of full feature phase: SendTargets. */
    QUERY,

    /** A step of an authentication method. */
    AUTHENTICATION,

    /**
     * Obsolete, always refused: with {@code Reject}, or by a target with {@code No} where that is a
     * value. RFC 7143 §13.25.
     */
    OBSOLETE
}
