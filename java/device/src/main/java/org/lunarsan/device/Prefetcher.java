package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.LinkedList;
import java.util.List;

/**
 * Sees who reads sequentially, and keeps what was read ahead for them. Confined to the lock of its
 * device; no I/O.
 *
 * <p>A reader is sequential when it goes on where it stopped for the second time. Then the next
 * blocks are read ahead, and again whenever less than that is left before it.
 */
final class Prefetcher {
    /** Readers that are told apart. */
    private static final int STREAMS_MAX = 8;

    /** So often a reader goes on where it stopped before anything is read ahead. */
    private static final int HITS_MIN = 2;

    private static final int SEGMENTS_MAX = 2;

    private final Geometry geometry;
    private final long blocksAhead;
    /** The one used last comes first. */
    private final LinkedList<Stream> streams = new LinkedList<>();

    /** One sequential reader. */
    private static final class Stream {
        long next;
        int hits;
        /** What was read ahead or is being read, in order. */
        final List<QueuedRequest> segments = new ArrayList<>();
    }

    Prefetcher(Geometry geometry, int prefetchBytes) {
        this.geometry = geometry;
        blocksAhead = prefetchBytes / geometry.blockSize();
    }

    boolean isOff() {
        return blocksAhead == 0;
    }

    /** What was or is being read ahead and has all blocks of a read; null when nothing has. */
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

    /** Notes a read; what should be read ahead now, or null. */
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
        QueuedRequest segment = QueuedRequest.ahead(from, blocks, data);
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

    /** Forgets what a change makes wrong. */
    void drop(QueuedRequest change) {
        for (Stream stream : streams) {
            stream.segments.removeIf(segment -> segment.goesBefore(change));
        }
    }

    /** Forgets all that was read ahead or is being read; readers stay known. */
    void forget() {
        streams.forEach(stream -> stream.segments.clear());
    }

    /** Forgets what could not be read. */
    void failed(QueuedRequest segment) {
        streams.forEach(stream -> stream.segments.remove(segment));
    }
}
