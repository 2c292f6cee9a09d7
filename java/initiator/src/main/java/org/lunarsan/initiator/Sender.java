package org.lunarsan.initiator;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.ReentrantLock;
import org.lunarsan.iscsi.connection.InitiatorConnection;
import org.lunarsan.iscsi.connection.Outgoing;
import org.lunarsan.iscsi.framing.Framer;

/**
 * Sends on one connection. One thread at a time sends: a thread that has something to send and
 * finds no other one sending. Other threads leave their PDUs to it. At queue depth 1 a caller
 * writes itself, and many callers share a system call.
 *
 * <p>The channel does not block, because an interrupt of a caller would close a blocking one. When
 * the socket is full, sending is left to the writer thread, which can wait.
 *
 * <p>Threads: {@link #acquire} and {@link #again} any; all others only the thread that acquired it.
 */
final class Sender {
    /** Result of a round of sending. */
    enum Sent {
        /** All data was sent. */
        ALL,
        /** The socket is full: the writer continues, and no other thread may send meanwhile. */
        STALLED
    }

    /** Size of the permanent staging buffer: some hundred headers. */
    private static final int STAGING_BYTES = 8192;
    /** Length from which data of direct buffers is sent without a copy; shorter data is copied. */
    private static final int GATHER_BYTES_MIN = 16_384;
    /** Approximate limit of the bytes sent at once. */
    private static final int ROUND_BYTES = Chunks.SEGMENT_BYTES_MAX;
    /** Limit of PDUs per round whose data is sent without a copy. */
    private static final int GATHERED_MAX = 16;
    /** Length of the header and tail of one PDU. */
    private static final int HEAD_BYTES = Outgoing.HEADER_BYTES_MAX + Framer.TAIL_BYTES_MAX;

    private static final ByteBuffer[] NOTHING = new ByteBuffer[0];

    private static final int IDLE = 0;
    private static final int BUSY = 1;
    private static final int AGAIN = 2;

    private final AtomicInteger state = new AtomicInteger();
    private final SocketChannel channel;
    private final InitiatorConnection machine;
    private final Framer framer;
    private final ByteBuffer small = ByteBuffer.allocateDirect(STAGING_BYTES);
    private ByteBuffer staging = small;
    private int section;
    private int stagedBytes;
    private final List<ByteBuffer> chunks = new ArrayList<>(2);
    private final List<Outgoing> spare = new ArrayList<>(1);
    private final List<Outgoing> held = new ArrayList<>(1);
    private final List<ByteBuffer> gather = new ArrayList<>(1);
    private ByteBuffer[] gathered = NOTHING;
    private int gatheredAt;
    /** The views in {@code gather} that refer to callers' buffers. */
    private final List<Lent> lent = new ArrayList<>(1);
    /** Held while callers' buffers may be read, and released while the socket is full. */
    private final ReentrantLock lock = new ReentrantLock(true);

    /** A data segment that is sent from the caller's buffer. */
    private record Lent(Task task, ByteBuffer view) {
    }

    Sender(SocketChannel channel, InitiatorConnection machine, Framer framer) {
        this.channel = channel;
        this.machine = machine;
        this.framer = framer;
    }

    /**
     * Acquires the right to send. If true, this thread sends until {@link #release} allows it to
     * stop.
     */
    boolean acquire() {
        return state.compareAndSet(IDLE, BUSY);
    }

    /** Makes the sending thread check again before it stops. False: no thread sends. */
    boolean again() {
        return state.compareAndSet(BUSY, AGAIN) || state.get() == AGAIN;
    }

    /** Called before checking for something to send: everything submitted until now is seen. */
    private void look() {
        state.set(BUSY);
    }

    /** Called after all data was sent. False: there may be more. */
    private boolean release() {
        return state.compareAndSet(BUSY, IDLE);
    }

    /** Stops all sending for good. */
    void abandon() {
        lock.lock();
        try {
            for (Outgoing out : held) {
                machine.sent(out);
            }
            held.clear();
            endRound();
        } finally {
            lock.unlock();
        }
    }

    /** Sends all that is due and releases the sender, or stops when the socket is full. */
    Sent send() throws IOException {
        if (round(false) == Round.STALLED) {
            return Sent.STALLED;
        }
        do {
            look();
            Round last = Round.DONE;
            while (last == Round.DONE) {
                last = round(true);
            }
            if (last == Round.STALLED) {
                return Sent.STALLED;
            }
        } while (!release());
        return Sent.ALL;
    }

    /** Result of one round. */
    private enum Round { DONE, NOTHING_DUE, STALLED }

    /** Sends the staged data, after adding PDUs that are due if {@code fills}. */
    private Round round(boolean fills) throws IOException {
        lock.lock();
        try {
            if (fills && !fill()) {
                return Round.NOTHING_DUE;
            }
            return flush() ? Round.DONE : Round.STALLED;
        } finally {
            lock.unlock();
        }
    }

    /**
     * Makes the data of a task come from {@code copy}, which begins at {@code shift} of the
     * caller's buffer, after this call returns. Threads: any.
     */
    void moveDataOut(Task task, ByteBuffer copy, int shift) {
        lock.lock();
        try {
            machine.moveDataOut(task, copy, 0);
            for (int index = 0; index < lent.size(); index++) {
                ByteBuffer view = lent.get(index).view;
                if (lent.get(index).task == task) {
                    replace(index, copy.duplicate().limit(view.limit() - shift)
                            .position(view.position() - shift));
                }
            }
        } finally {
            lock.unlock();
        }
    }

    private void replace(int index, ByteBuffer by) {
        Lent before = lent.set(index, new Lent(lent.get(index).task, by));
        gather.replaceAll(each -> each == before.view ? by : each);
        for (int at = 0; at < gathered.length; at++) {
            gathered[at] = gathered[at] == before.view ? by : gathered[at];
        }
    }

    /** Encodes PDUs that are due, as many as fit. True if there were any. */
    private boolean fill() {
        long now = System.nanoTime();
        boolean any = false;
        while (stagedBytes < ROUND_BYTES && held.size() < GATHERED_MAX && makeRoom(HEAD_BYTES)) {
            int at = staging.position();
            Outgoing out = spare.isEmpty() ? new Outgoing() : spare.removeLast();
            // Held from now on: if anything below throws, its buffer is still given back.
            held.add(out);
            if (!machine.poll(now, staging, out)) {
                spare.add(held.removeLast());
                break;
            }
            any = true;
            framer.endHeader(staging, at);
            stagedBytes += staging.position() - at;
            stage(out);
        }
        return any;
    }

    /** Stages the data segment of a PDU. */
    private void stage(Outgoing out) {
        int bytes = out.bytes();
        if (bytes == 0) {
            spare.add(held.removeLast());
            return;
        }
        ByteBuffer data = out.data();
        stagedBytes += bytes;
        boolean stays = data.isDirect() && bytes >= GATHER_BYTES_MIN;
        if (stays) {
            endSection();
            gather(out, data.duplicate().limit(out.at() + bytes).position(out.at()));
            makeRoom(Framer.TAIL_BYTES_MAX);
        } else {
            makeRoom(bytes + Framer.TAIL_BYTES_MAX);
            staging.put(staging.position(), data, out.at(), bytes);
            staging.position(staging.position() + bytes);
        }
        framer.endData(data, out.at(), bytes, staging);
        if (!stays) {
            machine.sent(held.removeLast());
            spare.add(out);
        }
    }

    private void gather(Outgoing out, ByteBuffer view) {
        gather.add(view);
        if (out.request() instanceof Task task) {
            lent.add(new Lent(task, view));
        }
    }

    /** Makes room for {@code bytes} consecutive staged bytes; always true. */
    private boolean makeRoom(int bytes) {
        if (staging.remaining() < bytes) {
            endSection();
            ByteBuffer chunk = Chunks.take();
            chunks.add(chunk);
            staging = chunk;
            section = 0;
        }
        return true;
    }

    private void endSection() {
        if (staging.position() > section) {
            gather.add(staging.duplicate().limit(staging.position()).position(section));
            section = staging.position();
        }
    }

    /** Writes the staged data. False when the socket is full. */
    private boolean flush() throws IOException {
        if (gather.isEmpty()) {
            return flushStaging();
        }
        if (gatheredAt == 0 && gathered.length == 0) {
            endSection();
            gathered = gather.toArray(ByteBuffer[]::new);
        }
        while (gatheredAt < gathered.length) {
            if (channel.write(gathered, gatheredAt, gathered.length - gatheredAt) == 0) {
                return false;
            }
            while (gatheredAt < gathered.length && !gathered[gatheredAt].hasRemaining()) {
                gatheredAt++;
            }
        }
        endRound();
        return true;
    }

    /** The usual case: some headers and short data in one contiguous range. */
    private boolean flushStaging() throws IOException {
        int end = staging.position();
        while (section < end) {
            staging.limit(end).position(section);
            int bytes = channel.write(staging);
            staging.limit(staging.capacity()).position(end);
            if (bytes == 0) {
                return false;
            }
            section += bytes;
        }
        endRound();
        return true;
    }

    private void endRound() {
        gathered = NOTHING;
        gatheredAt = 0;
        gather.clear();
        lent.clear();
        for (Outgoing out : held) {
            machine.sent(out);
            spare.add(out);
        }
        held.clear();
        for (ByteBuffer chunk : chunks) {
            Chunks.give(chunk);
        }
        chunks.clear();
        staging = small;
        staging.clear();
        section = 0;
        stagedBytes = 0;
    }
}
