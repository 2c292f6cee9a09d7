package org.lunarsan.initiator;

import java.util.Optional;
import java.util.OptionalInt;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;
import org.lunarsan.iscsi.scsi.Sense;

/**
 * Details of a failure of a session or its target: kind, SCSI status, sense data, and advice.
 *
 * <p>If {@link org.lunarsan.device} has an exception for the failure (a medium error, a lost
 * connection, a read-only device), that exception is thrown with this one as its cause; otherwise
 * this one is thrown. {@link #in} finds it in both cases.
 *
 * <p>Threads: as all exceptions.
 */
public final class IscsiException extends DeviceException {
    private static final long serialVersionUID = 1L;

    /** The kind of a failure. */
    public enum Kind {
        /** No TCP connection to the portal could be made. */
        CONNECT,
        /** The target rejected the credentials of this initiator, or did not prove its own. */
        AUTHENTICATION,
        /** The target refused the login for another reason. */
        LOGIN,
        /** The session is gone. The outcome of commands in flight is unknown. */
        SESSION_LOST,
        /** The command had no effect: it was not sent, or the target discarded it. */
        NOT_SENT,
        /**
         * The target did not answer the command in time. The outcome is unknown: the command is
         * aborted, and later writes to the same blocks wait until the abort is done.
         */
        TIMED_OUT,
        /** The unit is not the one that was opened, or has shrunk. No block was read or written. */
        CHANGED,
        /**
         * Acknowledged writes that were not yet durable may be lost, because the target lost its
         * cache, for example by a restart.
         */
        CACHE_LOST,
        /** The target or this initiator did not accept the request. */
        REFUSED,
        /** CHECK CONDITION; {@link #sense} holds the reason. */
        SENSE,
        /** Any other SCSI status but GOOD; {@link #status} returns it. */
        STATUS,
        /** The target sent an invalid answer. */
        PROTOCOL,
        /** The device is closed, or was closed during the call. */
        CLOSED,
        /**
         * The calling thread was interrupted during opening or discovery; its interrupt status
         * stays set.
         */
        INTERRUPTED
    }

    /** The kind. */
    private final Kind kind;
    /** SAM status, or negative. */
    private final int status;
    /** The sense data, or null. */
    private final transient Sense sense;
    /** Advice, or null. */
    private final String hint;
    /** Failure and advice, without the device. */
    private final String what;

    IscsiException(String device, Operation operation, long address, long blocks,
            Failure failure) {
        super(device, operation, address, blocks, failure.describe(), failure.getCause());
        kind = failure.kind();
        status = failure.status();
        sense = failure.sense();
        hint = failure.hint();
        what = failure.describe();
    }

    String what() {
        return what;
    }

    /**
     * Finds an {@code IscsiException} in an exception that a device threw.
     *
     * @param thrown the exception
     * @return the exception itself, or the nearest of its causes that is one
     */
    public static Optional<IscsiException> in(Throwable thrown) {
        Throwable look = thrown;
        while (look != null && !(look instanceof IscsiException)) {
            look = look.getCause();
        }
        return Optional.ofNullable((IscsiException) look);
    }

    /**
     * The kind of the failure.
     *
     * @return never null
     */
    public Kind kind() {
        return kind;
    }

    /**
     * The SCSI status that the target answered with. SAM-5 §5.3.
     *
     * @return the status byte; empty when the target gave none
     */
    public OptionalInt status() {
        return status < 0 ? OptionalInt.empty() : OptionalInt.of(status);
    }

    /**
     * The sense data of a CHECK CONDITION: key, additional sense code, block.
     *
     * @return the sense; empty when none came, or it cannot be read
     */
    public Optional<Sense> sense() {
        return Optional.ofNullable(sense);
    }

    /**
     * Advice on how to proceed.
     *
     * @return the advice, if there is any
     */
    public Optional<String> hint() {
        return Optional.ofNullable(hint);
    }
}
