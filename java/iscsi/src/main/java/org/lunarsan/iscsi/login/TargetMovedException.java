package org.lunarsan.iscsi.login;

import org.lunarsan.iscsi.pdu.LoginStatus;

/**
 * Thrown when the target redirects to another address: status class 1, "redirection". RFC 7143
 * §11.13.5.
 *
 * <p>Threads: immutable.
 */
public final class TargetMovedException extends LoginException {
    private static final long serialVersionUID = 1;

    /** The new address. */
    private final String address;

    TargetMovedException(int status, String address, String what) {
        super(status, what, "log in at " + address);
        this.address = address;
    }

    /**
     * The address for the next login. It comes from a peer that has not authenticated itself yet.
     *
     * @return TargetAddress as received, {@code host[:port][,tag]}
     */
    public String address() {
        return address;
    }

    /**
     * True if the target moved permanently.
     *
     * @return whether it did
     */
    public boolean isPermanent() {
        return status() == LoginStatus.TARGET_MOVED_PERMANENTLY;
    }
}
