package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import org.lunarsan.device.QueueingDevice.Outcome;

/** Does what workers take from the queue: one request, or neighbours as one transfer. */
final class Transfers {
    private Transfers() {}

    /** Does a run of requests; how each of them ended. */
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
                case READ -> device.readBlocks(request.address, request.buffer.duplicate());
                case WRITE -> device.writeBlocks(request.address, request.buffer.duplicate());
                case FLUSH -> device.flushBlocks();
                case UNMAP -> device.unmapBlocks(request.address, request.blocks);
                default -> throw new IllegalStateException("queued: " + request.operation);
            }
            return new Outcome(null);
        } catch (Throwable failure) {
            // Also a lack of memory: whoever waits for the request has to be told.
            return new Outcome(failure);
        }
    }

    /** True when all is done; false when each request has to be done alone. */
    private static boolean joined(QueueingDevice device, List<QueuedRequest> run) {
        QueuedRequest first = run.getFirst();
        int bytes = 0;
        for (QueuedRequest request : run) {
            bytes += request.buffer.remaining();
        }
        try {
            ByteBuffer all = ByteBuffer.allocate(bytes);
            if (first.operation == Operation.READ) {
                device.readBlocks(first.address, all.duplicate());
                run.forEach(read -> read.takeFrom(all, first.address, device.blockSize()));
                return true;
            }
            run.forEach(write -> all.put(write.buffer.duplicate()));
            device.writeBlocks(first.address, all.flip());
            return true;
        } catch (Throwable failure) {
            return false;
        }
    }
}
