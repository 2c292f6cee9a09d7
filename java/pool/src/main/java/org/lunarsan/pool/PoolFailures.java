package org.lunarsan.pool;

import java.util.List;
import org.lunarsan.device.ChangedException;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceClosedException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DisconnectedException;
import org.lunarsan.device.MediumException;
import org.lunarsan.device.NoSpaceException;
import org.lunarsan.device.Operation;
import org.lunarsan.device.PoisonedException;
import org.lunarsan.device.ReadOnlyDeviceException;

/** Builds the failures of a pool from those of its members. Stateless and thread-safe. */
final class PoolFailures {
    private PoolFailures() {}

    /** Returns the failure of a pool, of the kind of its first member's failure. */
    static <T> DeviceException of(
            String pool,
            Operation operation,
            long address,
            long blocks,
            List<Parallel.Failed<T>> failed) {
        DeviceException cause = failed.getFirst().failure();
        DeviceException failure = ofKind(pool, operation, address, blocks, cause);
        for (Parallel.Failed<T> other : failed.subList(1, failed.size())) {
            failure.addSuppressed(other.failure());
        }
        return failure;
    }

    private static DeviceException ofKind(
            String pool, Operation operation, long address, long blocks, DeviceException cause) {
        String what = "a member failed: " + cause.getMessage();
        return switch (cause) {
            case MediumException medium ->
                    new MediumException(pool, operation, address, blocks, what, cause);
            case NoSpaceException full ->
                    new NoSpaceException(pool, operation, address, blocks, what, cause);
            case PoisonedException poisoned ->
                    new PoisonedException(pool, operation, address, blocks, what, cause);
            case DisconnectedException lost ->
                    new DisconnectedException(pool, operation, address, blocks, what, cause);
            case ChangedException changed ->
                    new ChangedException(pool, operation, address, blocks, what, cause);
            case DeviceClosedException closed ->
                    new DeviceClosedException(pool, operation, address, blocks, what, cause);
            default -> new DeviceException(pool, operation, address, blocks, what, cause);
        };
    }

    /** Refuses before any member is written, which would be left out for its refusal. */
    static void refuseReadOnly(Device pool, Operation operation, long address, long blocks)
            throws ReadOnlyDeviceException {
        if (pool.isReadOnly()) {
            throw readOnly(pool.name(), operation, address, blocks);
        }
    }

    static ReadOnlyDeviceException readOnly(
            String pool, Operation operation, long address, long blocks) {
        return new ReadOnlyDeviceException(
                pool, operation, address, blocks, "a member is read-only", null);
    }

    static DeviceClosedException closed(String pool, Operation operation, long address) {
        String what = "the pool is not open";
        return new DeviceClosedException(pool, operation, address, 0, what, null);
    }
}
