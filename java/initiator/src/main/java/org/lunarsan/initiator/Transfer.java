package org.lunarsan.initiator;

import java.nio.ByteBuffer;
import org.lunarsan.device.Operation;
import org.lunarsan.device.TransferFuture;

/**
 * A read or write of blocks of one command for which no thread waits: the future of its caller.
 * When it meets trouble, a virtual thread goes on with it.
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
    /** Its number among the writes that later ones wait for, once it is given up. */
    private volatile long givenUp = Doubts.NEW;

    /** What remains of {@code buffer}, which is that of {@code caller} or a copy of it. */
    Transfer(Disk disk, boolean write, long lba, int blocks, ByteBuffer buffer,
            ByteBuffer caller) {
        super(caller);
        this.disk = disk;
        this.write = write;
        this.lba = lba;
        this.blocks = blocks;
        data = new LentBuffer(write, buffer);
    }

    /** Begins it; waits for a place at most, and not even that where a reader must not. */
    Transfer begin() {
        sentAfter = disk.attentions().resets();
        Task task = disk.takeNow(write, lba, blocks, !ReaderThread.isCurrent());
        if (task == null) {
            goOn(null);
            return this;
        }
        disk.encode(task, write, lba, blocks);
        data.lend(task);
        task.then(this);
        if (!task.home.submit(task)) {
            task.refused();
            goOn(task);
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
            goOn(task);
        }
    }

    private void goOn(Task met) {
        Thread.ofVirtual().name("iscsi goes on").start(() -> {
            try {
                disk.transferPatiently(Order.lent(write, lba, blocks, data), met, sentAfter);
                end(null);
            } catch (Failure failure) {
                Operation operation = write ? Operation.WRITE : Operation.READ;
                end(Failures.told(disk.name(), operation, lba, blocks, failure));
            } catch (RuntimeException | Error defect) {
                end(defect);
                throw defect;
            }
        });
    }

    /** A write that is given up may be executed until it has ended: later ones wait for it. */
    @Override
    protected void detach() {
        givenUp = write ? disk.doubts().replay(lba, blocks) : Doubts.NEW;
        data.takeBack(givenUp);
    }

    @Override
    protected void ended() {
        if (givenUp != Doubts.NEW) {
            disk.doubts().replayed(givenUp);
        }
    }
}
