package org.lunarsan.pool;

import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;

/** Thrown when a member did not answer in time; its call continues. Immutable and thread-safe. */
final class LateMemberException extends DeviceException {
    private static final long serialVersionUID = 1L;

    LateMemberException(String member, Operation operation, long millis) {
        super(member, operation, "it did not answer within " + millis + " ms", null);
    }
}
