package org.lunarsan.device;

/**
 * Options of a {@link QueueingDevice}. Immutable and thread-safe.
 *
 * @param depth limit of concurrent transfers of the device, at least 1
 * @param requestsMax limit of unfinished requests, waiting or running; further callers wait
 * @param transferBytesMax requests are joined up to this many bytes; 0: never
 * @param prefetchBytes bytes prefetched at once for a sequential reader; 0: none. Twice as much is
 *        kept for each of up to 8 readers. No other code may write to a device whose blocks are
 *        prefetched: such writes would not be detected
 */
public record QueueOptions(int depth, int requestsMax, int transferBytesMax, int prefetchBytes) {
    /** 8 transfers, 256 requests, joined up to 1 MiB, no prefetching. */
    public static final QueueOptions DEFAULT = new QueueOptions(8, 256, 1 << 20, 0);

    /**
     * Checks the options.
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
     * Returns the options with another depth.
     *
     * @param transfers limit of concurrent transfers
     * @return the options with it
     */
    public QueueOptions withDepth(int transfers) {
        return new QueueOptions(transfers, requestsMax, transferBytesMax, prefetchBytes);
    }

    /**
     * Returns the options with another limit of requests.
     *
     * @param requests limit of unfinished requests
     * @return the options with it
     */
    public QueueOptions withRequestsMax(int requests) {
        return new QueueOptions(depth, requests, transferBytesMax, prefetchBytes);
    }

    /**
     * Returns the options with another limit of joined transfers.
     *
     * @param bytes of a joined transfer
     * @return the options with it
     */
    public QueueOptions withTransferBytesMax(int bytes) {
        return new QueueOptions(depth, requestsMax, bytes, prefetchBytes);
    }

    /**
     * Returns the options with another prefetch length.
     *
     * @param bytes prefetched at once
     * @return the options with it
     */
    public QueueOptions withPrefetchBytes(int bytes) {
        return new QueueOptions(depth, requestsMax, transferBytesMax, bytes);
    }
}
