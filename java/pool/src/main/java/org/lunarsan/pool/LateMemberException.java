package org.lunarsan.pool;

import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;

/** A member did not answer in time; the call on it goes on. Immutable; for any thread. */
final class LateMemberException extends DeviceException {
    private static final long serialVersionUID = 1L;

    LateMemberException(String member, Operation operation, long millis) {
        super(member, operation, "it did not answer within " + millis + " ms", null);
    }
}
