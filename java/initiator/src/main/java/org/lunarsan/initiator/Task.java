package org.lunarsan.initiator;

import java.nio.ByteBuffer;
import java.util.concurrent.locks.LockSupport;
import org.lunarsan.iscsi.connection.Command;
import org.lunarsan.iscsi.connection.Residual;
import org.lunarsan.iscsi.pdu.ServiceResponse;

/**
 * A place for one command of one connection, used again and again, and who waits for it: a thread,
 * or a {@link Completion}.
 *
 * <p>Threads: of the one who took it from its {@link Tasks}, until it is submitted; then the
 * connection's; of the one who waits again when it came back.
 */
final class Task extends Command {
    /** There is none that is asked for. */
    static final long NO_USE = 0;

    private static final int STATUS_GOOD = 0;
    /** Interrupts are kept, and nothing else is done. */
    private static final Runnable KEEP = () -> { };

    /** What is done when a task came back, where no thread waits. */
    interface Completion {
        /** Called once, by a reader or a virtual thread. It gives the task back to its tasks. */
        void completed(Task task);
    }

    final Connection home;
    /** In the list of free ones. */
    Task next;
    /** The data-in buffer: its position and limit are the reader's. */
    ByteBuffer view;
    /** When it is aborted, on the clock of {@link System#nanoTime}; set before each use. */
    private long deadline;
    /** Counts its uses, so that what was found out about one is not taken for the next. */
    private volatile long use;
    /** The use that was not answered in time, and for which ABORT TASK is asked for. */
    private volatile long expiredUse;
    /** The caller's buffer could not be written to any more: not all is there. */
    private volatile Throwable broken;
    /** What comes for it is thrown away. The reader's, behind its lock. */
    private boolean discards;
    /** It is counted among the bytes under way. */
    long weight;
    private Completion completion;
    private Thread waiter;
    private volatile boolean done = true;

    Task(Connection home) {
        this.home = home;
    }

    /** Data goes to {@code buffer} through {@code own}, whose position nobody else uses. */
    Task into(ByteBuffer buffer, int at, int bytes, ByteBuffer own) {
        dataIn(buffer, at, bytes);
        view = own;
        return this;
    }

    /** For the next one who takes it. */
    void renew() {
        broken = null;
        discards = false;
    }

    /** The caller's buffer cannot be written to; the first reason counts. */
    void broke(Throwable why) {
        if (broken == null) {
            broken = why;
        }
    }

    /** Why the caller's buffer could not be used, or null. */
    Throwable broken() {
        return broken;
    }

    void discard() {
        discards = true;
    }

    boolean discards() {
        return discards;
    }

    /** This thread will wait. */
    void waitHere() {
        completion = null;
        waiter = Thread.currentThread();
        begin();
    }

    /** Nobody will wait. */
    void then(Completion what) {
        completion = what;
        waiter = null;
        begin();
    }

    /** The watch looks at it from the last line on, so its time has to be set by then. */
    private void begin() {
        deadline = home.deadline();
        use = use + 1;
        done = false;
    }

    /** The use in hand, if that is overdue and was not found so before; else {@link #NO_USE}. */
    long expire(long now) {
        long looked = use;
        boolean late = !done && expiredUse != looked && deadline - now <= 0;
        // In between it may have come back and begun anew.
        if (!late || use != looked) {
            return NO_USE;
        }
        expiredUse = looked;
        return looked;
    }

    /** It was not answered in time, and ABORT TASK is asked for. */
    boolean isExpired() {
        return expiredUse == use;
    }

    /** The use that has not come back; else {@link #NO_USE}. */
    long useUnderWay() {
        long looked = use;
        return done ? NO_USE : looked;
    }

    /** This use of it has not come back. */
    boolean isUnderWay(long which) {
        return use == which && !done;
    }

    /** It came back. True: whoever waits knows; false: {@link #runCompletion} is to be called. */
    boolean comeBack() {
        view = null;
        Thread waits = waiter;
        if (waits == null) {
            return false;
        }
        done = true;
        if (waits.isVirtual() && Thread.currentThread() instanceof ReaderThread reader) {
            reader.answered(waits);
        } else {
            LockSupport.unpark(waits);
        }
        return true;
    }

    void runCompletion() {
        Completion what = completion;
        completion = null;
        done = true;
        what.completed(this);
    }

    /** It was not submitted after all; {@link #failure} says why. */
    void refused() {
        view = null;
        waiter = null;
        completion = null;
        done = true;
    }

    /** Submits it and waits until it came back, or was not accepted. */
    void execute() {
        execute(KEEP);
    }

    /** The same; at the first interrupt this is run, and then it is waited for all the same. */
    void execute(Runnable atInterrupt) {
        waitHere();
        if (home.submit(this)) {
            await(atInterrupt);
        } else {
            refused();
        }
    }

    /** Waits until it came back; an interrupt does not shorten it. */
    private void await(Runnable atInterrupt) {
        boolean interrupted = false;
        while (!done) {
            LockSupport.park(this);
            if (Thread.interrupted() && !interrupted) {
                interrupted = true;
                atInterrupt.run();
            }
        }
        waiter = null;
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** The target did it all, and has nothing to say of it. */
    boolean isGood() {
        return broken == null && failure() == null
                && response() == ServiceResponse.COMMAND_COMPLETED && status() == STATUS_GOOD
                && residual() == Residual.NONE && dataInBytes() == dataInBytesMax();
    }
}
