package org.lunarsan.initiator;

import java.nio.ByteBuffer;
import org.lunarsan.device.Operation;
import org.lunarsan.device.TransferFuture;

/**
 * A read or write by one command for which no thread waits; it is the future of its caller. If the
 * first attempt does not succeed, a virtual thread continues it.
 *
 * <p>Threads: begun by one thread, completed by a reader or a virtual thread.
 */
final class Transfer extends TransferFuture implements Task.Completion {
    private final Disk disk;
    private final boolean write;
    private final long lba;
    private final int blocks;
    private final LentBuffer data;
    private long sentAfter;
    /** Number of the abandoned write in {@link UncertainWrites}, for which later writes wait. */
    private volatile long uncertainWriteNumber = UncertainWrites.NEW;

    /**
     * Creates a transfer of the remaining bytes of {@code buffer}, which is {@code caller} or a
     * copy.
     */
    Transfer(Disk disk, boolean write, long lba, int blocks, ByteBuffer buffer,
            ByteBuffer caller) {
        super(caller);
        this.disk = disk;
        this.write = write;
        this.lba = lba;
        this.blocks = blocks;
        data = new LentBuffer(write, buffer);
    }

    /**
     * Begins the transfer. Waits for a free task at most, and in a reader thread not even for that.
     */
    Transfer begin() {
        sentAfter = disk.attentions().resets();
        Task task = disk.takeNow(write, lba, blocks, !ReaderThread.isCurrent());
        if (task == null) {
            continueInThread(null);
            return this;
        }
        disk.encode(task, write, lba, blocks);
        data.lend(task);
        task.then(this);
        if (!task.home.submit(task)) {
            task.refused();
            continueInThread(task);
        }
        return this;
    }

    @Override
    public void completed(Task task) {
        if (task.isGood()) {
            data.release();
            disk.done(task, write, sentAfter);
            end(null);
        } else {
            continueInThread(task);
        }
    }

    private void continueInThread(Task met) {
        Thread.ofVirtual().name("iscsi transfer").start(() -> {
            try {
                disk.transferWithRetries(
                        CommandRequest.lent(write, lba, blocks, data), met, sentAfter);
                end(null);
            } catch (Failure failure) {
                Operation operation = write ? Operation.WRITE : Operation.READ;
                end(Failures.toDeviceException(disk.name(), operation, lba, blocks, failure));
            } catch (RuntimeException | Error exception) {
                end(exception);
                throw exception;
            }
        });
    }

    /** An abandoned write may be executed until it has ended: later writes wait for it. */
    @Override
    protected void detach() {
        uncertainWriteNumber = write
                ? disk.uncertainWrites().replay(lba, blocks) : UncertainWrites.NEW;
        data.takeBack(uncertainWriteNumber);
    }

    @Override
    protected void ended() {
        if (uncertainWriteNumber != UncertainWrites.NEW) {
            disk.uncertainWrites().replayed(uncertainWriteNumber);
        }
    }
}
