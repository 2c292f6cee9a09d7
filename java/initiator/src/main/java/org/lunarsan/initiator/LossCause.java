package org.lunarsan.initiator;

/** Why writes that a target acknowledged may be lost. Threads: immutable. */
enum LossCause {
    /** The unit said so: 29h/00h to 29h/04h, 28h/00h. */
    RESET("the unit has reported a restart, a reset or another medium"),
    /** The unit did not say in a new session that no more than the nexus was lost. */
    SESSION("the session was lost, and the target has not told whether its cache is whole"),
    /** A unit tells of a reset once; that may have been on the connection that was lost. */
    ANSWERS("a connection was lost before all commands on it were answered"),
    /** A deferred error, or a flush that failed. */
    WRITE_ERROR("the target could not write what it had acknowledged");

    private final String words;

    LossCause(String words) {
        this.words = words;
    }

    /** A clause for messages. */
    String words() {
        return words;
    }
}
