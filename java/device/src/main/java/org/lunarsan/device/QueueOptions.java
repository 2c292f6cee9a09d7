package org.lunarsan.device;

/**
 * How a {@link QueueingDevice} queues. A value; for any thread.
 *
 * @param depth how many transfers the device does at the same time, at least 1
 * @param requestsMax how many requests may be unfinished, waiting ones and those under way; who
 *     comes with one more waits
 * @param transferBytesMax requests are joined up to this many bytes; 0: never
 * @param prefetchBytes how much is read ahead of a sequential reader at once; 0: nothing. Twice as
 *     much is kept for each of up to 8 readers. Nobody else may write to a device whose blocks are
 *     read ahead: that would not be noticed
 */
public record QueueOptions(int depth, int requestsMax, int transferBytesMax, int prefetchBytes) {
    /** 8 transfers, 256 requests, joined up to 1 MiB, nothing is read ahead. */
    public static final QueueOptions DEFAULT = new QueueOptions(8, 256, 1 << 20, 0);

    /**
     * Checks.
     *
     * @throws IllegalArgumentException when a number is too small
     */
    public QueueOptions {
        if (depth < 1 || requestsMax < 1 || transferBytesMax < 0 || prefetchBytes < 0) {
            throw new IllegalArgumentException("depth " + depth + " and requestsMax " + requestsMax
                    + " are at least 1, transferBytesMax " + transferBytesMax
                    + " and prefetchBytes " + prefetchBytes + " at least 0");
        }
    }

    /**
     * Another depth.
     *
     * @param transfers at the same time
     * @return the options with it
     */
    public QueueOptions withDepth(int transfers) {
        return new QueueOptions(transfers, requestsMax, transferBytesMax, prefetchBytes);
    }

    /**
     * Another bound of the queue.
     *
     * @param requests unfinished at the same time
     * @return the options with it
     */
    public QueueOptions withRequestsMax(int requests) {
        return new QueueOptions(depth, requests, transferBytesMax, prefetchBytes);
    }

    /**
     * Another longest transfer.
     *
     * @param bytes of a joined transfer
     * @return the options with it
     */
    public QueueOptions withTransferBytesMax(int bytes) {
        return new QueueOptions(depth, requestsMax, bytes, prefetchBytes);
    }

    /**
     * Another length to be read ahead.
     *
     * @param bytes to be read ahead at once
     * @return the options with it
     */
    public QueueOptions withPrefetchBytes(int bytes) {
        return new QueueOptions(depth, requestsMax, transferBytesMax, bytes);
    }
}
