package org.lunarsan.device;

import java.time.Duration;
import java.util.Objects;

/**
 * What {@link FaultyDevice} does wrong, and when. The bounds add up: all must hold. A value; for
 * any thread.
 *
 * @param effect what happens
 * @param operation only on this one; null: on any that reads or writes, flushes or unmaps
 * @param address only on operations that touch a block from this one on
 * @param blocks so many from there; 0: on any block, and on operations without blocks
 * @param passes not on the first so many operations that fit
 * @param times so many times, then never again; -1: without end
 * @param perMillion by chance, drawn from the seed of the device: so many in a million that fit
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

    /** What happens to an operation. */
    public sealed interface Effect {}

    /**
     * It fails at once; the device inside does not see it. A failed flush poisons, as a real one
     * does.
     *
     * @param kind makes the exception
     */
    public record Fail(Kind kind) implements Effect {
        /** Refuses null. */
        public Fail {
            Objects.requireNonNull(kind, "kind");
        }
    }

    /**
     * It begins later.
     *
     * @param time how much
     */
    public record Delay(Duration time) implements Effect {
        /** Refuses null. */
        public Delay {
            Objects.requireNonNull(time, "time");
        }
    }

    /** It begins when {@link FaultyDevice#release()} is called, or the device is closed. */
    public record Hang() implements Effect {}

    /**
     * Of a write, so many blocks from its beginning are written, then it fails as
     * {@link MediumException}. Other operations fail at once.
     *
     * @param writtenBlocks blocks that are written
     */
    public record Tear(long writtenBlocks) implements Effect {}

    /** One bit is changed of what is read or written; the operation succeeds. */
    public record Flip() implements Effect {}

    /** Makes the exception of a failure: the constructor of a {@link DeviceException}. */
    @FunctionalInterface
    public interface Kind {
        /**
         * An exception.
         *
         * @param device the name of the device
         * @param operation what it was asked to do
         * @param address the first block
         * @param blocks how many
         * @param what what failed
         * @param cause null
         * @return the exception to be thrown
         */
        DeviceException make(
                String device,
                Operation operation,
                long address,
                long blocks,
                String what,
                Throwable cause);
    }

    /** Checks. */
    public Fault {
        Objects.requireNonNull(effect, "effect");
    }

    /**
     * An effect on every operation.
     *
     * @param effect what happens
     * @return the fault
     */
    public static Fault of(Effect effect) {
        return new Fault(effect, null, 0, 0, 0, -1, ALWAYS);
    }

    /**
     * Every operation fails as of a bad medium.
     *
     * @return the fault
     */
    public static Fault fail() {
        return of(new Fail(MediumException::new));
    }

    /**
     * Only on one kind of operation.
     *
     * @param only which
     * @return the narrower fault
     */
    public Fault on(Operation only) {
        return new Fault(effect, only, address, blocks, passes, times, perMillion);
    }

    /**
     * Only on operations that touch one of these blocks.
     *
     * @param first the first block
     * @param count how many
     * @return the narrower fault
     */
    public Fault at(long first, long count) {
        return new Fault(effect, operation, first, count, passes, times, perMillion);
    }

    /**
     * Not on the first operations that fit.
     *
     * @param count how many pass
     * @return the narrower fault
     */
    public Fault after(long count) {
        return new Fault(effect, operation, address, blocks, count, times, perMillion);
    }

    /**
     * So many times, then never again.
     *
     * @param count how often
     * @return the narrower fault
     */
    public Fault times(long count) {
        return new Fault(effect, operation, address, blocks, passes, count, perMillion);
    }

    /**
     * By chance.
     *
     * @param chance so many in a million operations that fit
     * @return the narrower fault
     */
    public Fault perMillion(int chance) {
        return new Fault(effect, operation, address, blocks, passes, times, chance);
    }

    /** Whether the bounds of operation and blocks hold. */
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
