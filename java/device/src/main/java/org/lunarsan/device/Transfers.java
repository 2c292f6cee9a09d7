package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import org.lunarsan.device.QueueingDevice.Outcome;

/**
 * Performs the requests that workers take from the queue: one request, or neighbours as one
 * transfer.
 */
final class Transfers {
    private Transfers() {}

    /** Does a run of requests; returns the outcome of each. */
    static Outcome[] run(QueueingDevice device, List<QueuedRequest> run) {
        if (run.size() > 1 && joined(device, run)) {
            Outcome[] outcomes = new Outcome[run.size()];
            Arrays.fill(outcomes, new Outcome(null));
            return outcomes;
        }
        return each(device, run);
    }

    /** Does each request alone. */
    static Outcome[] each(QueueingDevice device, List<QueuedRequest> requests) {
        return requests.stream().map(request -> one(device, request)).toArray(Outcome[]::new);
    }

    private static Outcome one(QueueingDevice device, QueuedRequest request) {
        try {
            switch (request.operation) {
                case READ, WRITE -> move(device, request);
                case FLUSH -> device.flushBlocks();
                case UNMAP -> device.unmapBlocks(request.address, request.blocks);
                default -> throw new IllegalStateException("queued: " + request.operation);
            }
            return new Outcome(null);
        } catch (Throwable failure) {
            // Including a lack of memory, since the waiting caller needs a result.
            return new Outcome(failure);
        }
    }

    private static void move(QueueingDevice device, QueuedRequest request) throws DeviceException {
        boolean read = request.operation == Operation.READ;
        LentTransfer.Call call = read
                ? data -> device.readBlocks(request.address, data)
                : data -> device.writeBlocks(request.address, data);
        LentTransfer transfer = request.transfer;
        if (transfer == null) {
            call.run(request.buffer.duplicate());
        } else if (device.innerAsync() != null) {
            transfer.lend(data -> read
                    ? device.innerAsync().readAsync(request.address, data)
                    : device.innerAsync().writeAsync(request.address, data));
        } else if (read) {
            transfer.read(call);
        } else {
            transfer.write(call);
        }
    }

    /** True when all is done; false when each request has to be done alone. */
    private static boolean joined(QueueingDevice device, List<QueuedRequest> run) {
        QueuedRequest first = run.getFirst();
        int bytes = 0;
        for (QueuedRequest request : run) {
            bytes += Math.toIntExact(request.blocks * device.blockSize());
        }
        try {
            ByteBuffer all = ByteBuffer.allocate(bytes);
            if (first.operation == Operation.READ) {
                device.readBlocks(first.address, all.duplicate());
                run.forEach(read -> read.takeFrom(all, first.address, device.blockSize()));
                return true;
            }
            for (QueuedRequest write : run) {
                if (!write.copyTo(all)) {
                    return false;
                }
            }
            device.writeBlocks(first.address, all.flip());
            return true;
        } catch (Throwable failure) {
            return false;
        }
    }
}
