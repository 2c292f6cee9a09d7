package org.lunarsan.initiator;

import java.nio.ByteBuffer;
import java.util.concurrent.locks.LockSupport;
import org.lunarsan.iscsi.connection.Command;
import org.lunarsan.iscsi.connection.Residual;
import org.lunarsan.iscsi.pdu.ServiceResponse;

/**
 * A reusable slot for one command of one connection, and the thread or {@link Completion} that
 * waits for it.
 *
 * <p>Threads: the thread that took it from its {@link Tasks}, until it is submitted; then the
 * connection's; after completion the waiting thread again.
 */
final class Task extends Command {
    /** No use of a task. */
    static final long NO_USE = 0;

    private static final int STATUS_GOOD = 0;
    /** Action at an interrupt: none, the interrupt status is kept. */
    private static final Runnable KEEP = () -> { };

    /** Called when a task has completed for which no thread waits. */
    interface Completion {
        /** Called once, by a reader or a virtual thread. Has to give the task back to its tasks. */
        void completed(Task task);
    }

    final Connection home;
    /** The next task in the list of free ones. */
    Task next;
    /** The data-in buffer; the reader owns its position and limit. */
    ByteBuffer view;
    /**
     * Time at which the command is aborted, on the clock of {@link System#nanoTime}; set before
     * each use.
     */
    private long deadline;
    /** Number of the current use, so that a finding about one use is not applied to the next. */
    private volatile long use;
    /** Number of the use that was not answered in time, and is being aborted. */
    private volatile long expiredUse;
    /** Set when the caller's buffer could not be written to: its data is incomplete. */
    private volatile Throwable broken;
    /** Set when incoming data is discarded. Owned by the reader, behind its lock. */
    private boolean discards;
    /** Number of bytes counted for the task among the pending ones. */
    long weight;
    private Completion completion;
    private Thread waiter;
    private volatile boolean done = true;

    Task(Connection home) {
        this.home = home;
    }

    /**
     * Directs data-in to {@code buffer} through {@code own}, a view whose position no other code
     * uses.
     */
    Task into(ByteBuffer buffer, int at, int bytes, ByteBuffer own) {
        dataIn(buffer, at, bytes);
        view = own;
        return this;
    }

    /** Resets the task for its next use. */
    void renew() {
        broken = null;
        discards = false;
    }

    /** Records that the caller's buffer cannot be used; the first reason counts. */
    void broke(Throwable why) {
        if (broken == null) {
            broken = why;
        }
    }

    /** Returns why the caller's buffer could not be used, or null. */
    Throwable broken() {
        return broken;
    }

    void discard() {
        discards = true;
    }

    boolean discards() {
        return discards;
    }

    /** Makes this thread the waiting one. */
    void waitHere() {
        completion = null;
        waiter = Thread.currentThread();
        begin();
    }

    /** Makes a completion run instead of a waiting thread. */
    void then(Completion what) {
        completion = what;
        waiter = null;
        begin();
    }

    /**
     * The timeout check sees the task from the last line on, so the deadline has to be set first.
     */
    private void begin() {
        deadline = home.deadline();
        use = use + 1;
        done = false;
    }

    /** Returns the current use if it is overdue for the first time; else {@link #NO_USE}. */
    long expire(long now) {
        long looked = use;
        boolean late = !done && expiredUse != looked && deadline - now <= 0;
        // The task may have completed and begun anew in between.
        if (!late || use != looked) {
            return NO_USE;
        }
        expiredUse = looked;
        return looked;
    }

    /** True when the command was not answered in time and is being aborted. */
    boolean isExpired() {
        return expiredUse == use;
    }

    /** Returns the use that has not completed; else {@link #NO_USE}. */
    long useUnderWay() {
        long looked = use;
        return done ? NO_USE : looked;
    }

    /** True when this use has not completed. */
    boolean isUnderWay(long which) {
        return use == which && !done;
    }

    /**
     * Completes the task. True: the waiting thread was woken; false: call {@link #runCompletion}.
     */
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

    /** Resets a task that was not accepted; {@link #failure} holds the reason. */
    void refused() {
        view = null;
        waiter = null;
        completion = null;
        done = true;
    }

    /** Submits the task and waits until it has completed or was not accepted. */
    void execute() {
        execute(KEEP);
    }

    /**
     * Same as {@link #execute()}; runs {@code atInterrupt} at the first interrupt and continues to
     * wait.
     */
    void execute(Runnable atInterrupt) {
        waitHere();
        if (home.submit(this)) {
            await(atInterrupt);
        } else {
            refused();
        }
    }

    /** Waits until the task has completed; an interrupt does not shorten the wait. */
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

    /** True when the target executed the whole command with status GOOD and no residual. */
    boolean isGood() {
        return broken == null && failure() == null
                && response() == ServiceResponse.COMMAND_COMPLETED && status() == STATUS_GOOD
                && residual() == Residual.NONE && dataInBytes() == dataInBytesMax();
    }
}
