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
 * What goes out on one connection. One thread at a time sends, whoever has something and finds
 * nobody at it; others leave theirs for it to be taken along. So a caller at depth 1 writes
 * himself, and many callers share a system call.
 *
 * <p>The channel does not block: a caller that is interrupted in a write would close a blocking
 * one. Where the socket takes no more, the sending is left to the writer thread, which can wait.
 *
 * <p>Threads: {@link #acquire}, {@link #again} any; the rest is of the one who acquired it.
 */
final class Sender {
    /** How a round of sending ended. */
    enum Sent {
        /** All is out. */
        ALL,
        /** The socket takes no more: the writer goes on, and nobody else may send meanwhile. */
        STALLED
    }

    /** Permanent room: some hundred headers. */
    private static final int STAGING_BYTES = 8192;
    /** Data of direct buffers is sent from there when it is so long; else it is copied. */
    private static final int GATHER_BYTES_MIN = 16_384;
    /** About so much is sent at once. */
    private static final int ROUND_BYTES = Chunks.SEGMENT_BYTES_MAX;
    /** PDUs whose data is sent from where it is, at once. */
    private static final int GATHERED_MAX = 16;
    /** Header and tail of one PDU. */
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
    /** Those of {@code gather} that are callers' buffers. */
    private final List<Lent> lent = new ArrayList<>(1);
    /** Held while callers' buffers may be read, and not while the socket takes no more. */
    private final ReentrantLock lock = new ReentrantLock(true);

    /** A data segment that is sent from where it is. */
    private record Lent(Task task, ByteBuffer view) {
    }

    Sender(SocketChannel channel, InitiatorConnection machine, Framer framer) {
        this.channel = channel;
        this.machine = machine;
        this.framer = framer;
    }

    /** True: this thread sends from now on, until {@link #release} says that it may stop. */
    boolean acquire() {
        return state.compareAndSet(IDLE, BUSY);
    }

    /** Whoever sends looks again before it stops; false: nobody sends. */
    boolean again() {
        return state.compareAndSet(BUSY, AGAIN) || state.get() == AGAIN;
    }

    /** Before a look at what there is to send: what came until now is seen by it. */
    private void look() {
        state.set(BUSY);
    }

    /** After all is out; false: there is more. */
    private boolean release() {
        return state.compareAndSet(BUSY, IDLE);
    }

    /** Nobody sends any more, ever. */
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

    /** Sends all there is, and lets go; or what the socket takes. */
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

    /** How one round ended. */
    private enum Round { DONE, NOTHING_DUE, STALLED }

    /** What is staged, with what is due if wanted. */
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
     * From any thread: from when this returns on, the data of a task is taken from {@code copy}; it
     * began at {@code shift} in the caller's buffer.
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

    /** Encodes what is due, as much as fits; whether there was anything. */
    private boolean fill() {
        long now = System.nanoTime();
        boolean any = false;
        while (stagedBytes < ROUND_BYTES && held.size() < GATHERED_MAX && makeRoom(HEAD_BYTES)) {
            int at = staging.position();
            Outgoing out = spare.isEmpty() ? new Outgoing() : spare.removeLast();
            // Held from now on: whatever is thrown here, its buffer is given back.
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

    /** So many bytes can be staged one behind the other; always true. */
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

    /** Writes what is staged; false when the socket takes no more. */
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

    /** Nearly always: some headers and short data, one behind the other. */
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
