package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.CachedDevice;
import org.lunarsan.device.CoalescingDevice;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.QueueOptions;

/**
 * One mirror on trial, from its first opening to its last check: threads that write, read and
 * flush, concurrent to faults of its members, which only the thread of {@link #run} injects.
 */
final class TrialRound {
    /** Work done while no call is pending. */
    interface Alone {
        void run() throws Exception;
    }

    private static final int THREADS = 4;
    private static final int LENGTH_MAX = 3;
    /**
     * Around borders of regions of 128 blocks, and in most regions; each thread has its own blocks.
     */
    private static final int[] ADDRESSES = {0, 124, 252, 300, 511, 600, 764, 900, 1008};
    private static final int TRIES_MAX = 60;
    private static final long STALL_SECONDS_MAX = 180;
    private static final long COPY_SECONDS_MAX = 5;

    private final TrialMembers members;
    private final TrialCounts counts;
    private final boolean withPageCache;
    private final Random random;
    private final AtomicInteger toWrite;
    private final TrialLedger ledger = new TrialLedger(Members.BLOCKS);
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private final ReentrantReadWriteLock calls = new ReentrantReadWriteLock(true);
    private final Object lossLock = new Object();

    // Changed while no call is pending.
    private MirroredDevice pool;
    private AsyncDevice front;
    private TrialPageCache pages;
    /** Guarded by the loss lock. */
    private long lossesSeen;

    TrialRound(
            TrialMembers members,
            TrialCounts counts,
            boolean withPageCache,
            Random random,
            int writes) {
        this.members = members;
        this.counts = counts;
        this.withPageCache = withPageCache;
        this.random = random;
        toWrite = new AtomicInteger(writes);
    }

    TrialLedger ledger() {
        return ledger;
    }

    void note(String event) {
        ledger.note(event);
    }

    void dropPages() {
        if (pages != null) {
            pages.drop();
        }
    }

    /** Runs the round to its end; throws a violation or failure. */
    void run() throws Exception {
        open();
        List<Thread> threads = new ArrayList<>();
        for (int index = 0; index < THREADS; index++) {
            Worker worker = new Worker(index, new Random(random.nextLong()));
            threads.add(Thread.ofPlatform().daemon().name("trial " + index).start(worker::run));
        }
        try {
            disturb();
        } catch (Exception | AssertionError wrong) {
            failure.compareAndSet(null, wrong);
        }
        members.heal();
        for (Thread thread : threads) {
            thread.join(TimeUnit.SECONDS.toMillis(STALL_SECONDS_MAX));
            if (thread.isAlive()) {
                failure.compareAndSet(null, stalled(thread));
            }
        }
        if (failure.get() != null) {
            throw new ExecutionException(failure.get());
        }
        end();
    }

    private static AssertionError stalled(Thread thread) {
        AssertionError stalled = new AssertionError("a call does not end, though all members work");
        stalled.setStackTrace(thread.getStackTrace());
        return stalled;
    }

    private boolean isOver() {
        return failure.get() != null || toWrite.get() <= 0;
    }

    private void disturb() throws Exception {
        long began = System.nanoTime();
        int left = toWrite.get();
        while (!isOver()) {
            pause();
            switch (random.nextInt(10)) {
                case 0, 1, 2, 3, 4 -> {
                    counts.faults.increment();
                    members.fault(random, this);
                }
                case 5, 6, 7 -> {
                    members.heal();
                    pool.resync();
                }
                case 8 -> members.heal();
                default -> exclusively(this::recover);
            }
            if (toWrite.get() != left) {
                left = toWrite.get();
                began = System.nanoTime();
            } else if (System.nanoTime() - began > TimeUnit.SECONDS.toNanos(STALL_SECONDS_MAX)) {
                throw new AssertionError("no write has ended for " + STALL_SECONDS_MAX + " s: "
                        + pool.status());
            }
        }
    }

    private void pause() {
        LockSupport.parkNanos(
                TimeUnit.MILLISECONDS.toNanos(1 + random.nextInt(members.pauseMillisMax())));
    }

    /** Does work while no call is pending; heals the members, so that calls end. */
    void exclusively(Alone work) throws Exception {
        members.heal();
        if (!calls.writeLock().tryLock(STALL_SECONDS_MAX, TimeUnit.SECONDS)) {
            throw new AssertionError("calls do not end, though all members work");
        }
        try {
            work.run();
        } finally {
            calls.writeLock().unlock();
        }
    }

    private void recover() throws Exception {
        if (pool.status().health() == PoolStatus.Health.FAILED || random.nextInt(4) == 0) {
            reopen();
        } else if (random.nextBoolean()) {
            resync();
        }
    }

    /** Copies to stale members, for a limited time, because a fault may take effect late. */
    private void resync() throws Exception {
        try {
            pool.resync().get(COPY_SECONDS_MAX, TimeUnit.SECONDS);
        } catch (ExecutionException | TimeoutException failed) {
            // A member failed during the copy.
            members.heal();
        }
    }

    /** Reopens the pool. Closing is no flush for callers: data that was not flushed may be gone. */
    private void reopen() throws Exception {
        members.loseClean();
        try {
            front.close();
        } catch (DeviceException thrown) {
            // The exception lists what could not be flushed, and what the next opening copies.
        }
        ledger.lost("closed");
        open();
    }

    private void open() throws Exception {
        for (int tries = 1; ; tries++) {
            pool = MirroredDevice.of(members.devices(),
                    MirrorOptions.DEFAULT.withMemberMillisMax(members.memberMillisMax()));
            stack(pool);
            try {
                front.open();
                break;
            } catch (DeviceException failed) {
                if (tries == TRIES_MAX) {
                    throw failed;
                }
                members.heal();
                pause();
            }
        }
        synchronized (lossLock) {
            lossesSeen = front.losses();
        }
        counts.openings.increment();
        note("opened " + states());
    }

    /** Builds the layers on top of the pool. */
    private void stack(MirroredDevice bottom) {
        Device top = bottom;
        pages = null;
        if (withPageCache) {
            pages = new TrialPageCache(bottom);
            top = pages;
        } else if (random.nextInt(3) > 0) {
            top = new CachedDevice(bottom, (16 + random.nextInt(200)) * Members.BLOCK);
        }
        int ahead = random.nextBoolean() ? 8 * Members.BLOCK : 0;
        front = random.nextBoolean()
                ? AsyncDevice.of(top)
                : new CoalescingDevice(top, QueueOptions.DEFAULT.withPrefetchBytes(ahead));
    }

    private List<String> states() {
        return pool.status().members().stream()
                .map(member -> member.state() + "/" + member.regionsToCopy()).toList();
    }

    /** Records reported losses: all data that was not flushed may be gone. */
    private void noteLosses() {
        synchronized (lossLock) {
            long now = front.losses();
            if (now != lossesSeen) {
                lossesSeen = now;
                counts.losses.increment();
                ledger.lost("counted");
            }
        }
    }

    private boolean flush() {
        TrialLedger.Flush begun = ledger.beginFlush();
        boolean done = false;
        try {
            front.flush();
            done = true;
        } catch (DeviceException failed) {
            counts.flushesFailed.increment();
        }
        noteLosses();
        ledger.endFlush(begun, done);
        counts.flushes.increment();
        return done;
    }

    void flushUntilGood() throws Exception {
        for (int tries = 0; !flush(); tries++) {
            if (tries == TRIES_MAX) {
                throw new AssertionError("no flush succeeds, though all members work: "
                        + pool.status());
            }
            members.heal();
            if (pool.status().health() == PoolStatus.Health.FAILED) {
                reopen();
            }
        }
    }

    /** Reads and checks every block; no other call runs. */
    void checkAll() throws DeviceException {
        for (int first = 0; first < Members.BLOCKS; first += 64) {
            check(first, 64, true, ByteBuffer.allocate(64 * Members.BLOCK));
        }
    }

    /**
     * Reads each written block, one by one, while no call is pending. The order decides whether the
     * oldest blocks of a cache are read last or first.
     */
    void readAll(boolean newestFirst) {
        for (int index = 0; index < ADDRESSES.length; index++) {
            int address = ADDRESSES[newestFirst ? ADDRESSES.length - 1 - index : index];
            for (int block = 0; block < THREADS * LENGTH_MAX; block++) {
                int at = address + (newestFirst ? THREADS * LENGTH_MAX - 1 - block : block);
                try {
                    check(at, 1, true, ByteBuffer.allocate(Members.BLOCK));
                } catch (DeviceException failed) {
                    counts.readsFailed.increment();
                }
            }
        }
    }

    private void check(int first, int count, boolean own, ByteBuffer buffer)
            throws DeviceException {
        TrialLedger.Look look = ledger.beginRead(first, count);
        front.read(first, buffer.clear());
        noteLosses();
        checkVersions(look, buffer.flip(), own);
    }

    private void checkVersions(TrialLedger.Look look, ByteBuffer found, boolean own) {
        int[] versions = new int[found.remaining() / Members.BLOCK];
        for (int index = 0; index < versions.length; index++) {
            int at = index * Members.BLOCK;
            versions[index] = found.getInt(at);
            for (int word = at; own && word < at + Members.BLOCK; word += Integer.BYTES) {
                if (found.getInt(word) != versions[index]) {
                    throw new TrialLedger.Violation("block " + (look.first() + index)
                            + " is torn");
                }
            }
        }
        ledger.endRead(look, versions, own);
        counts.reads.increment();
    }

    private void end() throws Exception {
        flushUntilGood();
        checkAll();
        writeLast();
        for (int tries = 0; !isSettled(); tries++) {
            if (tries == TRIES_MAX) {
                throw new AssertionError("not healthy, though all members work: "
                        + pool.status());
            }
            members.heal();
            if (pool.status().health() == PoolStatus.Health.FAILED) {
                reopen();
            }
            resync();
            pause();
        }
        front.close();
        List<byte[]> contents = members.contents();
        for (byte[] one : contents) {
            int at = Arrays.mismatch(contents.getFirst(), one);
            if (at >= 0) {
                throw new TrialLedger.Violation("members differ at block " + at / Members.BLOCK);
            }
        }
        counts.comparisons.increment();
        open();
        pool.copies().exceptionally(thrown -> null).join();
        checkAll();
        front.close();
    }

    /**
     * Writes all blocks after the abandoned writes: none of those is pending when it has returned.
     */
    private void writeLast() throws DeviceException {
        for (int address : ADDRESSES) {
            int blocks = THREADS * LENGTH_MAX;
            int version = counts.nextVersion();
            ByteBuffer data = ByteBuffer.allocate(blocks * Members.BLOCK);
            while (data.hasRemaining()) {
                data.putInt(version);
            }
            long losses = ledger.beginWrite(address, blocks, version);
            front.write(address, data.flip());
            ledger.endWrite(address, blocks, true, false, losses);
        }
    }

    /** True if all members are current, and stay so while all blocks are read and power is cut. */
    private boolean isSettled() throws Exception {
        flushUntilGood();
        if (pool.status().health() != PoolStatus.Health.HEALTHY) {
            return false;
        }
        members.cutAfterFlush();
        dropPages();
        checkAll();
        flushUntilGood();
        return pool.status().health() == PoolStatus.Health.HEALTHY;
    }

    /** One thread that writes to its own blocks. */
    private final class Worker {
        private final int number;
        private final Random random;
        /** Buffer of an abandoned read, which the device must not touch. */
        private ByteBuffer abandoned;

        Worker(int number, Random random) {
            this.number = number;
            this.random = random;
        }

        void run() {
            try {
                while (!isOver()) {
                    calls.readLock().lock();
                    try {
                        step();
                    } finally {
                        calls.readLock().unlock();
                    }
                }
            } catch (Throwable wrong) {
                failure.compareAndSet(null, wrong);
            }
        }

        private void step() throws Exception {
            switch (random.nextInt(24)) {
                case 0 -> flush();
                case 1, 2, 3, 4, 5, 6 -> read(number, true);
                case 7, 8 -> read(random.nextInt(THREADS), false);
                case 9, 10 -> readAsync();
                default -> write();
            }
        }

        /** Returns a random address; blocks of two threads never overlap, but share regions. */
        private int address(int thread) {
            return ADDRESSES[random.nextInt(ADDRESSES.length)] + thread * LENGTH_MAX;
        }

        private ByteBuffer buffer(int blocks, int fill) {
            int bytes = blocks * Members.BLOCK;
            ByteBuffer made = random.nextInt(3) == 0
                    ? ByteBuffer.allocateDirect(bytes) : ByteBuffer.allocate(bytes);
            fill(made, fill);
            return made;
        }

        private void fill(ByteBuffer buffer, int with) {
            for (int at = 0; at < buffer.capacity(); at += Integer.BYTES) {
                buffer.putInt(at, with);
            }
        }

        private void read(int thread, boolean own) {
            int blocks = 1 + random.nextInt(LENGTH_MAX);
            try {
                check(address(thread), blocks, own, buffer(blocks, TrialLedger.NOISE));
            } catch (DeviceException failed) {
                counts.readsFailed.increment();
            }
        }

        private void write() throws InterruptedException {
            int first = address(number);
            int blocks = 1 + random.nextInt(LENGTH_MAX);
            int version = counts.nextVersion();
            ByteBuffer data = buffer(blocks, version);
            long losses = ledger.beginWrite(first, blocks, version);
            boolean[] abandoned = new boolean[1];
            boolean done = random.nextBoolean() ? waitedWrite(first, data)
                    : endOrAbandon(front.writeAsync(first, data), () -> abandoned[0] = true);
            // The buffer is ours again, however the write has ended.
            fill(data, TrialLedger.NOISE);
            ledger.endWrite(first, blocks, done, abandoned[0], losses);
            counts.abandoned.add(abandoned[0] ? 1 : 0);
            (done ? counts.writes : counts.writesFailed).increment();
            toWrite.decrementAndGet();
        }

        private boolean waitedWrite(int first, ByteBuffer data) {
            try {
                front.write(first, data);
                return true;
            } catch (DeviceException failed) {
                return false;
            }
        }

        private void readAsync() throws InterruptedException {
            checkAbandoned();
            int first = address(number);
            int blocks = 1 + random.nextInt(LENGTH_MAX);
            ByteBuffer into = buffer(blocks, TrialLedger.NOISE);
            TrialLedger.Look look = ledger.beginRead(first, blocks);
            if (endOrAbandon(front.readAsync(first, into), () -> { })) {
                noteLosses();
                checkVersions(look, into.flip(), true);
            } else {
                fill(into, TrialLedger.NOISE);
                abandoned = into;
            }
        }

        private void checkAbandoned() {
            for (int at = 0; abandoned != null && at < abandoned.capacity(); at += Integer.BYTES) {
                if (abandoned.getInt(at) != TrialLedger.NOISE) {
                    throw new TrialLedger.Violation("a read that was abandoned went on");
                }
            }
        }

        /** Waits for a transfer, or gives it up after some time. */
        private boolean endOrAbandon(CompletableFuture<Void> transfer, Runnable onAbandon)
                throws InterruptedException {
            boolean bounded = random.nextBoolean();
            if (bounded) {
                transfer.orTimeout(random.nextInt(5000), TimeUnit.MICROSECONDS);
            } else if (random.nextInt(16) == 0 && transfer.cancel(false)) {
                onAbandon.run();
            }
            try {
                transfer.get();
                return true;
            } catch (ExecutionException failed) {
                if (failed.getCause() instanceof TimeoutException) {
                    onAbandon.run();
                }
                return false;
            } catch (CancellationException exception) {
                return false;
            }
        }
    }
}
