package org.lunarsan.initiator;

import java.nio.ByteBuffer;
import java.util.concurrent.CompletableFuture;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;

/**
 * A read or write of blocks of one command for which no thread waits: the future of its caller.
 * When it meets trouble, a virtual thread goes on with it.
 *
 * <p>Threads: begun by one thread, completed by a reader or a virtual thread.
 */
final class Transfer extends CompletableFuture<Void> implements Task.Completion {
    private final Disk disk;
    private final boolean write;
    private final long lba;
    private final int blocks;
    private final ByteBuffer data;
    private final int position;
    private final int limit;
    private long sentAfter;

    Transfer(Disk disk, boolean write, long lba, int blocks, ByteBuffer data) {
        this.disk = disk;
        this.write = write;
        this.lba = lba;
        this.blocks = blocks;
        this.data = data;
        position = data.position();
        limit = data.limit();
    }

    /** Begins it; waits for a place at most, and not even that where a reader must not. */
    Transfer begin() {
        sentAfter = disk.attentions().resets();
        Task task = disk.takeNow(write, lba, blocks, !ReaderThread.isCurrent());
        if (task == null) {
            goOn(null);
            return this;
        }
        disk.fill(task, write, lba, blocks, data, position, false);
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
            disk.done(task, write, sentAfter);
            finish(null);
        } else {
            goOn(task);
        }
    }

    private void goOn(Task met) {
        Thread.ofVirtual().name("iscsi goes on").start(() -> {
            try {
                disk.transferPatiently(write, lba, blocks, data, position, met, sentAfter);
                finish(null);
            } catch (Failure failure) {
                Operation operation = write ? Operation.WRITE : Operation.READ;
                finish(Failures.told(disk.name(), operation, lba, blocks, failure));
            } catch (RuntimeException | Error defect) {
                completeExceptionally(defect);
                throw defect;
            }
        });
    }

    private void finish(DeviceException failure) {
        data.limit(limit).position(failure == null ? limit : position);
        if (failure == null) {
            complete(null);
        } else {
            completeExceptionally(failure);
        }
    }
}
