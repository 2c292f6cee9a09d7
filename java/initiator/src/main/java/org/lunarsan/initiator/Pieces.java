package org.lunarsan.initiator;

import java.nio.ByteBuffer;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.TransferFuture;

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

    /** Begins all of them. The buffer's position stays, and each piece has a view of its own. */
    private static Transfer[] begin(Disk disk, boolean write, long address, ByteBuffer buffer,
            int blocks) {
        int most = disk.shape().pieceBlocks();
        int size = disk.shape().geometry().blockSize();
        Transfer[] pieces = new Transfer[Math.ceilDiv(blocks, most)];
        for (int number = 0; number < pieces.length; number++) {
            int done = number * most;
            int count = Math.min(most, blocks - done);
            int at = buffer.position() + done * size;
            ByteBuffer piece = buffer.duplicate().limit(at + count * size).position(at);
            pieces[number] =
                    new Transfer(disk, write, address + done, count, piece, piece).begin();
        }
        return pieces;
    }

    /** Transfers them all, and waits; an interrupt does not shorten it. */
    static void execute(Disk disk, boolean write, long address, ByteBuffer buffer, int blocks)
            throws DeviceException {
        boolean interrupted = Thread.interrupted();
        try {
            CompletableFuture.allOf(begin(disk, write, address, buffer, blocks)).join();
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
    private static final class Whole extends TransferFuture {
        private final Transfer[] pieces;

        Whole(ByteBuffer caller, Transfer[] pieces) {
            super(caller);
            this.pieces = pieces;
        }

        /** Completes it when the last piece has ended. */
        Whole follow() {
            // By hand: a dependent future would fail with an exception around that of the device.
            CompletableFuture.allOf(pieces).whenComplete((done, thrown) ->
                    end(thrown instanceof CompletionException failed
                            && failed.getCause() != null ? failed.getCause() : thrown));
            return this;
        }

        @Override
        protected void detach() {
            for (Transfer piece : pieces) {
                piece.takeBack();
            }
        }
    }

    /** Begins them all, with {@code data} that is that of {@code caller} or a copy of it. */
    static CompletableFuture<Void> whole(Disk disk, boolean write, long address, int blocks,
            ByteBuffer data, ByteBuffer caller) {
        return new Whole(caller, begin(disk, write, address, data, blocks)).follow();
    }
}
