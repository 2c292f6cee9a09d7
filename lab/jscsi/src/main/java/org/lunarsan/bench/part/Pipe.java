package org.lunarsan.bench.part;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;

/**
 * One direction of one connection. Each byte arrives one delay after it was taken; its
 * acknowledgement reaches the sender one delay later, and the sender has at most a window of
 * unacknowledged bytes.
 *
 * <p>Threads: one takes, one delivers, behind one lock.
 */
final class Pipe {
    private static final int PIECE_BYTES = 64 << 10;
    /** Smallest read from a sender: smaller pieces would cost more than they carry. */
    private static final long PIECE_MIN = 16 << 10;
    /** Tolerated lateness of the relay itself. */
    private static final long LATE_NANOS = 400_000;

    private final SocketChannel from;
    private final SocketChannel to;
    private final long delayNanos;
    private final long windowBytes;
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();
    /** Pieces taken, and not delivered yet. */
    private final Deque<Piece> arriving = new ArrayDeque<>();
    /** Bytes delivered whose acknowledgement has not reached the sender yet. */
    private final Deque<Credit> credits = new ArrayDeque<>();
    private long underWay;
    private boolean isEnded;

    /** Bytes, and the time of their arrival. */
    private record Piece(long at, ByteBuffer bytes) {
    }

    /** Number of bytes, and the time of their acknowledgement. */
    private record Credit(long at, int bytes) {
    }

    Pipe(SocketChannel from, SocketChannel to, Duration delay, long windowBytes) {
        this.from = from;
        this.to = to;
        delayNanos = delay.toNanos();
        this.windowBytes = windowBytes;
    }

    void start() {
        Thread.ofPlatform().daemon().name("relay takes").start(this::take);
        Thread.ofPlatform().daemon().name("relay delivers").start(this::deliver);
    }

    private void take() {
        try {
            while (true) {
                ByteBuffer bytes = ByteBuffer.allocateDirect((int) Math.min(PIECE_BYTES, room()));
                if (from.read(bytes) < 0) {
                    break;
                }
                bytes.flip();
                lock.lock();
                try {
                    underWay += bytes.remaining();
                    arriving.add(new Piece(System.nanoTime() + delayNanos, bytes));
                    changed.signalAll();
                } finally {
                    lock.unlock();
                }
            }
        } catch (IOException | InterruptedException ignored) {
            // The other side is notified in the same way as of an end.
        }
        lock.lock();
        try {
            isEnded = true;
            changed.signalAll();
        } finally {
            lock.unlock();
        }
    }

    /** Waits until some bytes may be taken; returns their number. */
    private long room() throws InterruptedException {
        long least = Math.min(PIECE_MIN, (windowBytes + 3) / 4);
        lock.lock();
        try {
            while (true) {
                long now = System.nanoTime();
                while (!credits.isEmpty() && credits.peek().at() - now <= 0) {
                    underWay -= credits.poll().bytes();
                }
                if (windowBytes - underWay >= least) {
                    return windowBytes - underWay;
                }
                if (credits.isEmpty()) {
                    changed.await();
                } else {
                    changed.await(credits.peek().at() - now, TimeUnit.NANOSECONDS);
                }
            }
        } finally {
            lock.unlock();
        }
    }

    private void deliver() {
        try {
            for (Piece piece = next(); piece != null; piece = next()) {
                for (long left = piece.at() - System.nanoTime(); left > 0;
                        left = piece.at() - System.nanoTime()) {
                    LockSupport.parkNanos(left);
                }
                int bytes = piece.bytes().remaining();
                while (piece.bytes().hasRemaining()) {
                    to.write(piece.bytes());
                }
                // A short lateness is caused by the relay's wake-up, not by a busy receiver.
                long now = System.nanoTime();
                long taken = now - piece.at() <= LATE_NANOS ? piece.at() : now;
                lock.lock();
                try {
                    credits.add(new Credit(taken + delayNanos, bytes));
                    changed.signalAll();
                } finally {
                    lock.unlock();
                }
            }
            to.shutdownOutput();
        } catch (IOException | InterruptedException ignored) {
            // The receiver is gone.
        }
    }

    /** Returns the next piece that arrives; null: nothing more. */
    private Piece next() throws InterruptedException {
        lock.lock();
        try {
            while (arriving.isEmpty() && !isEnded) {
                changed.await();
            }
            return arriving.poll();
        } finally {
            lock.unlock();
        }
    }
}
