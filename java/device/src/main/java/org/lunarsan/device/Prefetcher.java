package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.LinkedList;
import java.util.List;

/**
 * Detects sequential readers, and keeps the blocks prefetched for them. Confined to the lock of its
 * device; no I/O.
 *
 * <p>A reader is sequential when it continues at its last end for the second time. Then the next
 * blocks are prefetched, and again whenever less than that is left before it.
 */
final class Prefetcher {
    /** Number of readers that are distinguished. */
    private static final int STREAMS_MAX = 8;

    /** Number of times a reader must continue at its last end before anything is prefetched. */
    private static final int HITS_MIN = 2;

    private static final int SEGMENTS_MAX = 2;

    private final Geometry geometry;
    private final long blocksAhead;
    /** The most recently used first. */
    private final LinkedList<Stream> streams = new LinkedList<>();

    /** One sequential reader. */
    private static final class Stream {
        long next;
        int hits;
        /** Segments that were or are being prefetched, in order. */
        final List<QueuedRequest> segments = new ArrayList<>();
    }

    Prefetcher(Geometry geometry, int prefetchBytes) {
        this.geometry = geometry;
        blocksAhead = prefetchBytes / geometry.blockSize();
    }

    boolean isOff() {
        return blocksAhead == 0;
    }

    /** Returns the segment that has all blocks of a read; null when there is none. */
    QueuedRequest find(QueuedRequest read) {
        for (Stream stream : streams) {
            for (QueuedRequest segment : stream.segments) {
                if (segment.covers(read)) {
                    return segment;
                }
            }
        }
        return null;
    }

    /** Records a read; returns the segment to be prefetched now, or null. */
    QueuedRequest note(QueuedRequest read) {
        Stream stream = streamAt(read.address);
        stream.next = read.end();
        stream.segments.removeIf(segment -> segment.end() <= stream.next);
        if (++stream.hits <= HITS_MIN || stream.segments.size() >= SEGMENTS_MAX) {
            return null;
        }
        long from = stream.next;
        for (QueuedRequest segment : stream.segments) {
            from = Math.max(from, segment.end());
        }
        long blocks = Math.min(blocksAhead, geometry.blockCount() - from);
        if (blocks <= 0 || from - stream.next >= blocksAhead) {
            return null;
        }
        ByteBuffer data = ByteBuffer.allocate((int) (blocks * geometry.blockSize()));
        QueuedRequest segment = QueuedRequest.prefetch(from, blocks, data);
        stream.segments.add(segment);
        return segment;
    }

    private Stream streamAt(long address) {
        Stream found = null;
        for (Stream stream : streams) {
            if (stream.next == address) {
                found = stream;
                break;
            }
        }
        if (found != null) {
            streams.remove(found);
        } else {
            found = new Stream();
            if (streams.size() == STREAMS_MAX) {
                streams.removeLast();
            }
        }
        streams.addFirst(found);
        return found;
    }

    /** Drops the segments that a change invalidates. */
    void drop(QueuedRequest change) {
        for (Stream stream : streams) {
            stream.segments.removeIf(segment -> segment.goesBefore(change));
        }
    }

    /** Drops all segments; readers stay known. */
    void forget() {
        streams.forEach(stream -> stream.segments.clear());
    }

    /** Drops a segment that could not be read. */
    void failed(QueuedRequest segment) {
        streams.forEach(stream -> stream.segments.remove(segment));
    }
}
