package org.lunarsan.iscsi.login;

import org.lunarsan.iscsi.pdu.LoginStatus;

/**
 * The target is to be found elsewhere: status class 1, "redirection". RFC 7143 §11.13.5.
 *
 * <p>Threads: immutable.
 */
public final class TargetMovedException extends LoginException {
    private static final long serialVersionUID = 1;

    /** Where to. */
    private final String address;

    TargetMovedException(int status, String address, String what) {
        super(status, what, "log in at " + address);
        this.address = address;
    }

    /**
     * Where to log in instead. It comes from a peer that has proven nothing yet.
     *
     * @return TargetAddress as it came, {@code host[:port][,tag]}
     */
    public String address() {
        return address;
    }

    /**
     * Whether it moved for good.
     *
     * @return whether it did
     */
    public boolean isPermanent() {
        return status() == LoginStatus.TARGET_MOVED_PERMANENTLY;
    }
}
