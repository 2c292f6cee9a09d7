package org.lunarsan.initiator;

import java.nio.ByteBuffer;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.lunarsan.device.DeviceException;

/**
 * A long transfer as several commands side by side. While one piece is on the wire the target is at
 * the next, and no piece of a write has to be asked for where the target takes a first burst as
 * long. Each is recovered and sent again by itself; the whole has ended when the last of them has.
 *
 * <p>Threads: no state.
 */
final class Pieces {
    /**
     * The longest piece: what goes in one data segment, and the usual FirstBurstLength. Pieces of a
     * quarter to twice of it were measured to be no faster.
     */
    static final int PIECE_BYTES_MAX = Chunks.SEGMENT_BYTES_MAX;

    private Pieces() {
    }

    /** Blocks of one piece, at most, where the target takes so many in one command. */
    static int blocksMax(int transferBlocks, int blockBytes) {
        return Math.min(transferBlocks, PIECE_BYTES_MAX / blockBytes);
    }

    /**
     * Begins all of them. The buffer's position stays, and each piece has a view of its own.
     *
     * @return fails with what a piece failed with, in a {@link CompletionException}
     */
    static CompletableFuture<Void> begin(Disk disk, boolean write, long address,
            ByteBuffer buffer, int blocks) {
        int most = disk.shape().pieceBlocks();
        int size = disk.shape().geometry().blockSize();
        CompletableFuture<?>[] pieces = new CompletableFuture<?>[Math.ceilDiv(blocks, most)];
        for (int number = 0; number < pieces.length; number++) {
            int done = number * most;
            int count = Math.min(most, blocks - done);
            int at = buffer.position() + done * size;
            ByteBuffer piece = buffer.duplicate().limit(at + count * size).position(at);
            pieces[number] = new Transfer(disk, write, address + done, count, piece).begin();
        }
        return CompletableFuture.allOf(pieces);
    }

    /** Transfers them all, and waits; an interrupt does not shorten it. */
    static void execute(Disk disk, boolean write, long address, ByteBuffer buffer, int blocks)
            throws DeviceException {
        boolean interrupted = Thread.interrupted();
        try {
            begin(disk, write, address, buffer, blocks).join();
            buffer.position(buffer.limit());
        } catch (CompletionException failed) {
            throw told(failed);
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private static DeviceException told(CompletionException failed) {
        return switch (failed.getCause()) {
            case DeviceException known -> known;
            case RuntimeException defect -> throw defect;
            case null, default -> throw failed;
        };
    }

    /** The future of them all, as that of a short transfer: it fails with what a piece met. */
    static CompletableFuture<Void> whole(Disk disk, boolean write, long address,
            ByteBuffer buffer, int blocks) {
        // By hand: a dependent future would fail with an exception around that of the device.
        CompletableFuture<Void> whole = new CompletableFuture<>();
        begin(disk, write, address, buffer, blocks).whenComplete((done, thrown) -> {
            if (thrown == null) {
                buffer.position(buffer.limit());
                whole.complete(null);
            } else {
                whole.completeExceptionally(thrown instanceof CompletionException failed
                        && failed.getCause() != null ? failed.getCause() : thrown);
            }
        });
        return whole;
    }
}
