package org.lunarsan.iscsi.connection;

/**
 * A ping of the target. It completes without a {@link #failure} if the target answered with the
 * same data, up to the length that we can receive. RFC 7143 §11.18.
 *
 * <p>Threads: as {@link Request}.
 */
public final class Ping extends Request {
    final byte[] data;
    /** Set for a ping that checks whether the target is alive. */
    boolean keepAlive;
    /**
     * Set for a ping that takes the CmdSN of a command that the target rejected and so did not
     * count: the gap would block all later commands. RFC 7143 §7.3.
     */
    boolean fillsGap;
    int gapCmdSn;

    /**
     * Creates a ping.
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

    static Ping fillsGap(int missing) {
        Ping ping = new Ping(new byte[0]);
        ping.internal = true;
        ping.fillsGap = true;
        ping.gapCmdSn = missing;
        return ping;
    }
}
