package org.lunarsan.initiator;

import java.util.OptionalLong;
import org.lunarsan.device.ChangedException;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DeviceOpenException;
import org.lunarsan.device.DisconnectedException;
import org.lunarsan.device.MediumException;
import org.lunarsan.device.NoSpaceException;
import org.lunarsan.device.Operation;
import org.lunarsan.device.OutOfRangeException;
import org.lunarsan.device.PoisonedException;
import org.lunarsan.device.ReadOnlyDeviceException;
import org.lunarsan.iscsi.scsi.Sense;

/**
 * Converts failures of a session to the exceptions of devices.
 *
 * <p>Threads: no state.
 */
final class Failures {
    private Failures() {
    }

    /**
     * Returns the exception for an operation on some blocks. {@code address} is
     * {@link DeviceException#NO_ADDRESS} if the operation has none.
     */
    static DeviceException toDeviceException(String device, Operation operation, long address,
            long blocks, Failure failure) {
        IscsiException cause = cause(device, operation, address, blocks, failure);
        String what = failure.describe();
        if (operation == Operation.OPEN) {
            return new DeviceOpenException(device, operation, what, cause);
        }
        return switch (failure.kind()) {
            case CLOSED -> new DeviceClosedException(device, operation, address, blocks, what,
                    null);
            case CHANGED -> new ChangedException(device, operation, address, blocks, what, cause);
            case SESSION_LOST, NOT_SENT, AUTHENTICATION, PROTOCOL, CONNECT, LOGIN ->
                new DisconnectedException(device, operation, address, blocks, what, cause);
            case CACHE_LOST -> new PoisonedException(device, operation, address, blocks, what,
                    cause);
            case SENSE -> sensed(device, operation, address, blocks, failure.sense(), cause);
            case TIMED_OUT, REFUSED, STATUS, INTERRUPTED -> cause;
        };
    }

    private static DeviceException sensed(String device, Operation operation, long address,
            long blocks, Sense sense, IscsiException cause) {
        String what = cause.what();
        if (sense.is(Sense.DATA_PROTECT, Sense.SPACE_ALLOCATION_FAILED)) {
            return new NoSpaceException(device, operation, address, blocks, what, cause);
        }
        if (sense.key() == Sense.DATA_PROTECT) {
            return new ReadOnlyDeviceException(device, operation, address, blocks, what, cause);
        }
        if (sense.is(Sense.ILLEGAL_REQUEST, Sense.LBA_OUT_OF_RANGE)) {
            return new OutOfRangeException(device, operation, address, blocks, what, cause);
        }
        return new MediumException(device, operation, address, blocks, what, cause);
    }

    /** Uses the block that the sense data name if it is one of those requested. */
    private static IscsiException cause(String device, Operation operation, long address,
            long blocks, Failure failure) {
        Sense sense = failure.sense();
        boolean isLba = sense != null && (sense.key() == Sense.MEDIUM_ERROR
                || sense.key() == Sense.HARDWARE_ERROR);
        OptionalLong named = isLba ? sense.information() : OptionalLong.empty();
        long at = named.orElse(-1);
        boolean inside = at >= address && at - address < blocks;
        return inside ? new IscsiException(device, operation, at, 1, failure)
                : new IscsiException(device, operation, address, blocks, failure);
    }
}
