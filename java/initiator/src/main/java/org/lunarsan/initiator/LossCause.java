package org.lunarsan.initiator;

/** Cause for which acknowledged writes may be lost. Threads: immutable. */
enum LossCause {
    /** The unit reported a reset or another medium: 29h/00h to 29h/04h, 28h/00h. */
    RESET("the unit has reported a restart, a reset or another medium"),
    /** The unit did not report in a new session that only the nexus was lost. */
    SESSION("the session was lost, and the target did not report whether its cache is intact"),
    /** A unit reports a reset once, and the report may have been on the lost connection. */
    ANSWERS("a connection was lost before all commands on it were answered"),
    /** The unit reported a deferred error, or a flush failed. */
    WRITE_ERROR("the target could not write acknowledged data");

    private final String words;

    LossCause(String words) {
        this.words = words;
    }

    /** Returns a clause for messages. */
    String words() {
        return words;
    }
}
