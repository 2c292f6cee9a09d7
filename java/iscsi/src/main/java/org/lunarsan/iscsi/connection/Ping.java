package org.lunarsan.iscsi.connection;

/**
 * A ping of the target. It comes back without a {@link #failure} if the target lives, and sent the
 * data back as it was, up to what we can receive. RFC 7143 §11.18.
 *
 * <p>Threads: as {@link Request}.
 */
public final class Ping extends Request {
    final byte[] data;
    /** To see whether the target lives. */
    boolean keepAlive;
    /**
     * Takes the CmdSN of a command that the target rejected and so never counted: a gap would hold
     * up all that follows. RFC 7143 §7.3.
     */
    boolean plug;
    int plugged;

    /**
     * A ping.
     *
     * @param data to be echoed; at most the target's MaxRecvDataSegmentLength, not copied
     */
    public Ping(byte[] data) {
        this.data = data;
        this.immediate = true;
    }

    static Ping keepAlive() {
        Ping ping = new Ping(new byte[0]);
        ping.internal = true;
        ping.keepAlive = true;
        return ping;
    }

    static Ping plug(int missing) {
        Ping ping = new Ping(new byte[0]);
        ping.internal = true;
        ping.plug = true;
        ping.plugged = missing;
        return ping;
    }
}
