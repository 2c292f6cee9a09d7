package org.lunarsan.initiator;

import java.nio.ByteBuffer;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.TransferFuture;

/**
 * A long transfer as several concurrent commands. The target works on one piece while another is on
 * the wire, and no piece of a write has to be solicited if the target accepts a first burst of that
 * length. Each piece is recovered and sent again by itself; the transfer ends with its last piece.
 *
 * <p>Threads: no state.
 */
final class Pieces {
    /**
     * The longest piece: the length of one data segment, and the usual FirstBurstLength. Pieces of
     * a quarter to twice that length were measured to be no faster.
     */
    static final int PIECE_BYTES_MAX = Chunks.SEGMENT_BYTES_MAX;

    private Pieces() {
    }

    /**
     * Returns the largest number of blocks of one piece, within the target's limit for one command.
     */
    static int blocksMax(int transferBlocks, int blockBytes) {
        return Math.min(transferBlocks, PIECE_BYTES_MAX / blockBytes);
    }

    /** Begins all pieces. The buffer's position stays, and each piece has a separate view. */
    private static Transfer[] begin(Disk disk, boolean write, long address, ByteBuffer buffer,
            int blocks) {
        int most = disk.limits().pieceBlocks();
        int size = disk.limits().geometry().blockSize();
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

    /** Transfers all pieces and waits; an interrupt does not shorten the wait. */
    static void execute(Disk disk, boolean write, long address, ByteBuffer buffer, int blocks)
            throws DeviceException {
        boolean interrupted = Thread.interrupted();
        try {
            CompletableFuture.allOf(begin(disk, write, address, buffer, blocks)).join();
            buffer.position(buffer.limit());
        } catch (CompletionException failed) {
            throw toDeviceException(failed);
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private static DeviceException toDeviceException(CompletionException failed) {
        return switch (failed.getCause()) {
            case DeviceException known -> known;
            case RuntimeException defect -> throw defect;
            case null, default -> throw failed;
        };
    }

    /**
     * The future of all pieces, as that of a short transfer: it fails with the failure of a piece.
     */
    private static final class Whole extends TransferFuture {
        private final Transfer[] pieces;

        Whole(ByteBuffer caller, Transfer[] pieces) {
            super(caller);
            this.pieces = pieces;
        }

        /** Completes this future when the last piece has ended. */
        Whole follow() {
            // Completed directly: a dependent future would wrap the device's exception in another
            // one.
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

    /** Begins all pieces; {@code data} is the memory of {@code caller} or a copy of it. */
    static CompletableFuture<Void> whole(Disk disk, boolean write, long address, int blocks,
            ByteBuffer data, ByteBuffer caller) {
        return new Whole(caller, begin(disk, write, address, data, blocks)).follow();
    }
}
