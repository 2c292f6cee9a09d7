package org.lunarsan.device;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * A device that forwards to the inner one, with injected faults. For tests.
 *
 * <p>Thread-safe. With a seed and one caller the same faults occur at the same operations in
 * every run. Misuse is refused first: no fault hides a refusal. It also counts operations.
 */
public final class FaultyDevice extends ForwardingDevice {
    private static final int MILLION = 1_000_000;

    /** Guards all fields below. */
    private final ReentrantLock lock = new ReentrantLock();

    private final Condition changed = lock.newCondition();
    private final List<ArmedFault> faults = new ArrayList<>();
    private final Map<Operation, Long> seen = new EnumMap<>(Operation.class);
    private final Random random;
    private long fired;
    private long releases;
    /** Number of hanging operations that were not released yet. */
    private int hanging;
    private boolean open;
    private boolean poisoned;

    /** A fault with its remaining passes and occurrences. */
    private static final class ArmedFault {
        final Fault fault;
        long passes;
        long times;

        ArmedFault(Fault fault) {
            this.fault = fault;
            passes = fault.passes();
            times = fault.times();
        }
    }

    /**
     * Creates a device without faults.
     *
     * @param inner the inner device, closed
     * @param seed of the random faults
     */
    public FaultyDevice(Device inner, long seed) {
        super(inner);
        random = new Random(seed);
    }

    /**
     * Adds a fault. If several match an operation, only the first has its effect.
     *
     * @param fault the fault
     */
    public void inject(Fault fault) {
        Objects.requireNonNull(fault, "fault");
        locked(() -> faults.add(new ArmedFault(fault)));
    }

    /** Removes all faults and the poison. Hanging operations stay hanging. */
    public void heal() {
        locked(() -> {
            faults.clear();
            poisoned = false;
        });
    }

    /** Releases all operations that hang now. */
    public void release() {
        locked(() -> {
            releases++;
            // Reset here and not when they run: a wait for the next hanging operation must not
            // count these.
            hanging = 0;
            changed.signalAll();
        });
    }

    /**
     * Waits until operations hang.
     *
     * @param count the minimum number
     * @throws InterruptedException when interrupted
     */
    public void awaitHanging(int count) throws InterruptedException {
        lock.lockInterruptibly();
        try {
            while (hanging < count) {
                changed.await();
            }
        } finally {
            lock.unlock();
        }
    }

    /**
     * Number of calls of an operation, without refused ones.
     *
     * @param operation the operation
     * @return the count
     */
    public long seen(Operation operation) {
        lock.lock();
        try {
            return seen.getOrDefault(operation, 0L);
        } finally {
            lock.unlock();
        }
    }

    /**
     * Number of faults that had their effect. A hanging operation counts as soon as it can be
     * released.
     *
     * @return the count
     */
    public long fired() {
        lock.lock();
        try {
            return fired;
        } finally {
            lock.unlock();
        }
    }

    @Override
    public void open() throws DeviceException {
        Fault.Effect effect = takeDueEffect(Operation.OPEN, DeviceException.NO_ADDRESS, 0, true);
        apply(effect, Operation.OPEN, DeviceException.NO_ADDRESS, 0);
        super.open();
        locked(() -> open = true);
    }

    @Override
    public void close() throws DeviceException {
        locked(() -> {
            open = false;
            seen.merge(Operation.CLOSE, 1L, Long::sum);
            changed.signalAll();
        });
        super.close();
    }

    @Override
    public void read(long address, ByteBuffer buffer) throws DeviceException {
        int blocks = check(Operation.READ, address, buffer);
        Fault.Effect effect = takeDueEffect(Operation.READ, address, blocks, false);
        apply(effect, Operation.READ, address, blocks);
        int begin = buffer.position();
        inner().read(address, buffer);
        if (effect instanceof Fault.Flip && blocks > 0) {
            flip(buffer, begin, buffer.limit() - begin);
        }
    }

    @Override
    public void write(long address, ByteBuffer buffer) throws DeviceException {
        int blocks = check(Operation.WRITE, address, buffer);
        Fault.Effect effect = takeDueEffect(Operation.WRITE, address, blocks, false);
        if (effect instanceof Fault.Tear tear) {
            int bytes = (int) Math.min(tear.writtenBlocks(), blocks) * blockSize();
            inner().write(address, buffer.slice(buffer.position(), bytes));
        }
        apply(effect, Operation.WRITE, address, blocks);
        if (effect instanceof Fault.Flip && blocks > 0) {
            ByteBuffer copy = ByteBuffer.allocate(buffer.remaining());
            copy.put(buffer.duplicate()).flip();
            flip(copy, 0, copy.limit());
            inner().write(address, copy);
            buffer.position(buffer.limit());
            return;
        }
        inner().write(address, buffer);
    }

    @Override
    public void flush() throws DeviceException {
        checkOpen(Operation.FLUSH, DeviceException.NO_ADDRESS, 0);
        Fault.Effect effect = takeDueEffect(Operation.FLUSH, DeviceException.NO_ADDRESS, 0, false);
        apply(effect, Operation.FLUSH, DeviceException.NO_ADDRESS, 0);
        inner().flush();
    }

    @Override
    public void unmap(long address, long blocks) throws DeviceException {
        checkOpen(Operation.UNMAP, address, blocks);
        shape().checkRange(name(), Operation.UNMAP, address, blocks);
        Fault.Effect effect = takeDueEffect(Operation.UNMAP, address, blocks, false);
        apply(effect, Operation.UNMAP, address, blocks);
        inner().unmap(address, blocks);
    }

    /**
     * Returns the effect that is due, or null; a poisoned device refuses an operation before any
     * effect. An operation that has to hang does so here: as soon as its fault is counted, it can
     * be released.
     */
    private Fault.Effect takeDueEffect(Operation operation, long address, long blocks,
            boolean onlyByName) throws DeviceException {
        lock.lock();
        try {
            refusePoisoned(operation, address, blocks);
            seen.merge(operation, 1L, Long::sum);
            for (ArmedFault armed : faults) {
                Fault fault = armed.fault;
                boolean applies = !onlyByName || fault.operation() == operation;
                if (!applies || !fault.fits(operation, address, blocks) || armed.times == 0) {
                    continue;
                }
                if (armed.passes > 0) {
                    armed.passes--;
                    continue;
                }
                if (!fault.isCertain() && random.nextInt(MILLION) >= fault.perMillion()) {
                    continue;
                }
                armed.times = Math.max(armed.times - 1, -1);
                fired++;
                if (fault.effect() instanceof Fault.Hang) {
                    hang(operation, address, blocks);
                }
                return fault.effect();
            }
            return null;
        } finally {
            lock.unlock();
        }
    }

    /** Throws if the device is poisoned. With the lock held. */
    private void refusePoisoned(Operation operation, long address, long blocks)
            throws PoisonedException {
        if (poisoned && (operation == Operation.WRITE || operation == Operation.FLUSH
                || operation == Operation.UNMAP)) {
            String what = "an earlier flush failed by an injected fault";
            throw new PoisonedException(name(), operation, address, blocks, what, null);
        }
    }

    /** Waits or fails as the effect requires; hanging is already over. */
    private void apply(Fault.Effect effect, Operation operation, long address, long blocks)
            throws DeviceException {
        switch (effect) {
            case null -> { }
            case Fault.Flip flip -> { }
            case Fault.Delay delay -> delay(delay.time());
            case Fault.Hang hang -> { }
            case Fault.Tear tear ->
                    throw injected(MediumException::new, operation, address, blocks);
            case Fault.Fail fail -> {
                if (operation == Operation.FLUSH) {
                    locked(() -> poisoned = true);
                }
                throw injected(fail.factory(), operation, address, blocks);
            }
        }
    }

    private DeviceException injected(
            Fault.ExceptionFactory factory, Operation operation, long address, long blocks) {
        return factory.create(name(), operation, address, blocks, "a fault was injected", null);
    }

    /** Waits until the time has passed, or the device is closed. */
    private void delay(Duration time) {
        lock.lock();
        boolean interrupted = false;
        try {
            long end = System.nanoTime() + time.toNanos();
            for (long left = time.toNanos(); left > 0 && open; left = end - System.nanoTime()) {
                try {
                    changed.await(left, TimeUnit.NANOSECONDS);
                } catch (InterruptedException exception) {
                    interrupted = true;
                }
            }
        } finally {
            lock.unlock();
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Waits for a release. With the lock held. */
    private void hang(Operation operation, long address, long blocks) throws DeviceException {
        long before = releases;
        hanging++;
        changed.signalAll();
        while (releases == before && (open || operation == Operation.OPEN)) {
            changed.awaitUninterruptibly();
        }
        if (releases == before) {
            hanging--;
        }
        if (!open && operation != Operation.OPEN) {
            throw Lifecycle.closed(name(), operation, address, blocks);
        }
    }

    private void flip(ByteBuffer buffer, int begin, int bytes) {
        lock.lock();
        try {
            int at = begin + random.nextInt(bytes);
            buffer.put(at, (byte) (buffer.get(at) ^ (1 << random.nextInt(Byte.SIZE))));
        } finally {
            lock.unlock();
        }
    }

    private int check(Operation operation, long address, ByteBuffer buffer)
            throws DeviceException {
        Objects.requireNonNull(buffer, "buffer");
        checkOpen(operation, address, 0);
        int blocks = shape().checkBuffer(name(), operation, address, buffer);
        if (operation == Operation.WRITE && isReadOnly()) {
            String what = "the inner device is read-only";
            throw new ReadOnlyDeviceException(name(), operation, address, blocks, what, null);
        }
        return blocks;
    }

    private void checkOpen(Operation operation, long address, long blocks)
            throws DeviceClosedException {
        lock.lock();
        try {
            if (!open) {
                throw Lifecycle.closed(name(), operation, address, blocks);
            }
        } finally {
            lock.unlock();
        }
    }

    private Geometry shape() {
        return new Geometry(blockSize(), blockCount());
    }

    private void locked(Runnable change) {
        lock.lock();
        try {
            change.run();
        } finally {
            lock.unlock();
        }
    }
}
