package org.lunarsan.device;

import java.time.Duration;
import java.util.Objects;

/**
 * A fault of a {@link FaultyDevice}: its effect, and conditions that all must hold. A value; for
 * any thread.
 *
 * @param effect the effect
 * @param operation only on this one; null: on any that reads or writes, flushes or unmaps
 * @param address only on operations that touch a block from this one on
 * @param blocks number of these blocks; 0: on any block, and on operations without blocks
 * @param passes number of matching operations that pass first
 * @param times number of occurrences; -1: without limit
 * @param perMillion chance per million of matching operations, drawn from the seed of the device
 */
public record Fault(
        Effect effect,
        Operation operation,
        long address,
        long blocks,
        long passes,
        long times,
        int perMillion) {
    private static final int ALWAYS = 1_000_000;

    /** Effect on an operation. */
    public sealed interface Effect {}

    /**
     * The operation fails at once; the inner device does not see it. A failed flush poisons, as a
     * real one does.
     *
     * @param factory creates the exception
     */
    public record Fail(ExceptionFactory factory) implements Effect {
        /** Refuses null. */
        public Fail {
            Objects.requireNonNull(factory, "factory");
        }
    }

    /**
     * The operation begins later.
     *
     * @param time the delay
     */
    public record Delay(Duration time) implements Effect {
        /** Refuses null. */
        public Delay {
            Objects.requireNonNull(time, "time");
        }
    }

    /**
     * The operation begins when {@link FaultyDevice#release()} is called, or the device is closed.
     */
    public record Hang() implements Effect {}

    /**
     * The first blocks of a write are written, then it fails with {@link MediumException}. Other
     * operations fail at once.
     *
     * @param writtenBlocks number of blocks that are written
     */
    public record Tear(long writtenBlocks) implements Effect {}

    /** One bit of the data is changed; the operation succeeds. */
    public record Flip() implements Effect {}

    /** Creates the exception of a failure: the constructor of a {@link DeviceException}. */
    @FunctionalInterface
    public interface ExceptionFactory {
        /**
         * Creates an exception.
         *
         * @param device the name of the device
         * @param operation the operation
         * @param address the first block
         * @param blocks number of blocks
         * @param what the failure
         * @param cause null
         * @return the exception to be thrown
         */
        DeviceException create(
                String device,
                Operation operation,
                long address,
                long blocks,
                String what,
                Throwable cause);
    }

    /** Checks the values. */
    public Fault {
        Objects.requireNonNull(effect, "effect");
    }

    /**
     * Returns a fault of every operation.
     *
     * @param effect the effect
     * @return the fault
     */
    public static Fault of(Effect effect) {
        return new Fault(effect, null, 0, 0, 0, -1, ALWAYS);
    }

    /**
     * Returns a fault that fails every operation like a bad medium.
     *
     * @return the fault
     */
    public static Fault fail() {
        return of(new Fail(MediumException::new));
    }

    /**
     * Restricts the fault to one kind of operation.
     *
     * @param only the operation
     * @return the narrower fault
     */
    public Fault on(Operation only) {
        return new Fault(effect, only, address, blocks, passes, times, perMillion);
    }

    /**
     * Restricts the fault to operations that touch one of these blocks.
     *
     * @param first the first block
     * @param count number of blocks
     * @return the narrower fault
     */
    public Fault at(long first, long count) {
        return new Fault(effect, operation, first, count, passes, times, perMillion);
    }

    /**
     * Lets the first matching operations pass.
     *
     * @param count number of operations
     * @return the narrower fault
     */
    public Fault after(long count) {
        return new Fault(effect, operation, address, blocks, count, times, perMillion);
    }

    /**
     * Limits the number of occurrences.
     *
     * @param count the limit
     * @return the narrower fault
     */
    public Fault times(long count) {
        return new Fault(effect, operation, address, blocks, passes, count, perMillion);
    }

    /**
     * Makes the fault occur by chance.
     *
     * @param chance occurrences per million matching operations
     * @return the narrower fault
     */
    public Fault perMillion(int chance) {
        return new Fault(effect, operation, address, blocks, passes, times, chance);
    }

    /** True if the conditions for operation and blocks hold. */
    boolean fits(Operation asked, long first, long count) {
        if (operation != null && operation != asked) {
            return false;
        }
        return blocks == 0 || (count > 0 && first < address + blocks && address < first + count);
    }

    boolean isCertain() {
        return perMillion >= ALWAYS;
    }
}
