package org.lunarsan.initiator;

import java.util.Optional;
import java.util.OptionalInt;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;
import org.lunarsan.iscsi.scsi.Sense;

/**
 * What a session or its target has to say of a failure: the kind, the SCSI status and sense, and
 * what to do.
 *
 * <p>Where {@link org.lunarsan.device} has a kind for the failure (a medium error, a lost
 * connection, a device that is read-only), that kind is thrown and this is its cause; else this
 * itself is thrown. {@link #in} finds it either way.
 *
 * <p>Threads: as all exceptions.
 */
public final class IscsiException extends DeviceException {
    private static final long serialVersionUID = 1L;

    /** The kind of a failure. */
    public enum Kind {
        /** No TCP connection to the portal. */
        CONNECT,
        /** The target refused who we are, or did not prove who it is. */
        AUTHENTICATION,
        /** The target refused the login for another reason. */
        LOGIN,
        /** The session is gone. Whether commands in flight had an effect is not known. */
        SESSION_LOST,
        /** The command had no effect: it was not sent, or the target discarded it. */
        NOT_SENT,
        /**
         * The target did not answer the command in time. Whether it had an effect is not known: it
         * is aborted, and what is written to the same blocks from now on waits until that is done.
         */
        TIMED_OUT,
        /** The unit is not the one that was opened, or has shrunk. Nothing was read or written. */
        CHANGED,
        /**
         * Writes that were acknowledged before they were made durable may be lost, because the
         * target's cache was, for example by a restart.
         */
        CACHE_LOST,
        /** The target did not take the request, or we did not. */
        REFUSED,
        /** CHECK CONDITION; {@link #sense} says why. */
        SENSE,
        /** Any other SCSI status but GOOD; {@link #status} is it. */
        STATUS,
        /** The target answered something that cannot be. */
        PROTOCOL,
        /** The device is closed, or was meanwhile. */
        CLOSED,
        /** The calling thread was interrupted while it opened or discovered; it still is. */
        INTERRUPTED
    }

    /** The kind. */
    private final Kind kind;
    /** SAM status, or negative. */
    private final int status;
    /** The sense data, or null. */
    private final transient Sense sense;
    /** What to do, or null. */
    private final String hint;
    /** What failed and what to do, without the device. */
    private final String what;

    IscsiException(String device, Operation operation, long address, long blocks,
            Failure failure) {
        super(device, operation, address, blocks, failure.inWords(), failure.getCause());
        kind = failure.kind();
        status = failure.status();
        sense = failure.sense();
        hint = failure.hint();
        what = failure.inWords();
    }

    String what() {
        return what;
    }

    /**
     * Finds it in an exception that a device threw.
     *
     * @param thrown the exception
     * @return itself, or the nearest of its causes that is one
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
     * What to do.
     *
     * @return an advice, if there is one
     */
    public Optional<String> hint() {
        return Optional.ofNullable(hint);
    }
}
