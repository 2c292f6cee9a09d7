package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;

/**
 * A read or write of a run of blocks of a striped pool, sent to all members at the same time in
 * chunks. A chunk is a stripe, straight from the caller's memory. If stripes are so narrow that
 * commands cost more than a copy, it is a contiguous run of a member, through a buffer.
 *
 * <p>Confined to the caller's thread, except for its chunks, each of which belongs to the thread
 * that works on it.
 */
final class StripeTransfer {
    /** Narrower stripes are gathered: 8 MiB of them would be more than 128 commands. */
    static final int DIRECT_BYTES_MIN = 64 << 10;

    /** The same limit for members with only blocking calls, where each transfer takes a thread. */
    static final int DIRECT_BLOCKING_BYTES_MIN = 512 << 10;

    /** Limit of concurrent chunks of a member with only blocking calls. */
    private static final int CHAINS = 16;

    private final Operation operation;
    private final StripedDevice.Opened pool;
    private final long address;
    private final ByteBuffer data;
    private final int blockSize;

    StripeTransfer(
            Operation operation, StripedDevice.Opened pool, long address, ByteBuffer data) {
        this.operation = operation;
        this.pool = pool;
        this.address = address;
        this.data = data;
        blockSize = pool.label().blockSize();
    }

    /**
     * Blocks of a member, from {@code first} to before {@code end}, and the next chunk of its
     * thread.
     */
    final class Chunk {
        final int member;
        final long first;
        final long end;
        Chunk next;

        Chunk(int member, long first, long end) {
            this.member = member;
            this.first = first;
            this.end = end;
        }

        MemberDevice device() {
            return pool.members().get(member);
        }

        @Override
        public String toString() {
            return device().name();
        }
    }

    /** Transfers all chunks; returns those that failed. */
    List<Parallel.Failed<Chunk>> run() {
        return Parallel.run(operation, chunks(), new Parallel.Work<>() {
            @Override
            public void run(Chunk first) throws DeviceException {
                for (Chunk chunk = first; chunk != null; chunk = chunk.next) {
                    transfer(chunk);
                }
            }

            @Override
            public CompletableFuture<Void> begin(Chunk chunk) throws DeviceException {
                return chunk.device().isAsync() ? StripeTransfer.this.begin(chunk) : null;
            }
        });
    }

    /** Builds the chunks, alternating between members, so that all of them begin soon. */
    private List<Chunk> chunks() {
        int members = pool.members().size();
        long blocks = data.remaining() / blockSize;
        long[] at = new long[members];
        Chunk[][] tails = new Chunk[members][];
        List<Chunk> heads = new ArrayList<>();
        for (int member = 0; member < members; member++) {
            at[member] = pool.map().firstFrom(member, address);
        }
        boolean more = true;
        for (int turn = 0; more; turn++) {
            more = false;
            for (int member = 0; member < members; member++) {
                long end = pool.map().firstFrom(member, address + blocks);
                if (at[member] < end) {
                    Chunk chunk = new Chunk(member, at[member], end(member, at[member], end));
                    at[member] = chunk.end;
                    more = true;
                    if (chunk.device().isAsync()) {
                        heads.add(chunk);
                    } else {
                        if (tails[member] == null) {
                            tails[member] = new Chunk[CHAINS];
                        }
                        append(chunk, tails[member], turn % CHAINS, heads);
                    }
                }
            }
        }
        return heads;
    }

    private static void append(Chunk chunk, Chunk[] tails, int chain, List<Chunk> heads) {
        if (tails[chain] == null) {
            heads.add(chunk);
        } else {
            tails[chain].next = chunk;
        }
        tails[chain] = chunk;
    }

    /**
     * Returns the end of the chunk that begins at {@code first}, within a run that ends at
     * {@code end}.
     */
    private long end(int member, long first, long end) {
        long stripe = pool.map().stripeBlocks();
        int least = pool.members().get(member).isAsync()
                ? DIRECT_BYTES_MIN
                : DIRECT_BLOCKING_BYTES_MIN;
        if (stripe * blockSize >= least) {
            return Math.min(end, first + pool.map().contiguousBlocks(first));
        }
        return Math.min(end, first + PieceBuffers.PIECE_BYTES / blockSize);
    }

    /** Returns the chunk's slice of the caller's memory; null: it is not contiguous there. */
    private ByteBuffer direct(Chunk chunk) {
        return chunk.end - chunk.first <= pool.map().contiguousBlocks(chunk.first)
                ? piece(chunk, chunk.first)
                : null;
    }

    /**
     * Returns the slice of the caller's memory for a block of a chunk and the rest of its stripe.
     */
    private ByteBuffer piece(Chunk chunk, long block) {
        long blocks = Math.min(pool.map().contiguousBlocks(block), chunk.end - block);
        long at = pool.map().address(chunk.member, block) - address;
        return data.slice(
                data.position() + (int) at * blockSize, (int) blocks * blockSize);
    }

    private ByteBuffer gather(Chunk chunk) {
        ByteBuffer buffer = pool.buffers().take((int) (chunk.end - chunk.first) * blockSize);
        boolean gathered = false;
        try {
            if (operation == Operation.WRITE) {
                for (long block = chunk.first; buffer.hasRemaining(); ) {
                    ByteBuffer piece = piece(chunk, block);
                    block += piece.remaining() / blockSize;
                    buffer.put(piece);
                }
                buffer.flip();
            }
            gathered = true;
            return buffer;
        } finally {
            if (!gathered) {
                // The caller's memory cannot be read.
                pool.buffers().release(buffer);
            }
        }
    }

    private void scatter(Chunk chunk, ByteBuffer buffer) {
        buffer.flip();
        for (long block = chunk.first; buffer.hasRemaining(); ) {
            ByteBuffer piece = piece(chunk, block);
            block += piece.remaining() / blockSize;
            int end = buffer.position() + piece.remaining();
            piece.put(buffer.slice(buffer.position(), piece.remaining()));
            buffer.position(end);
        }
    }

    private void transfer(Chunk chunk) throws DeviceException {
        ByteBuffer direct = direct(chunk);
        if (direct != null) {
            transfer(chunk, direct);
            return;
        }
        ByteBuffer buffer = gather(chunk);
        try {
            transfer(chunk, buffer);
            if (operation == Operation.READ) {
                scatter(chunk, buffer);
            }
        } finally {
            pool.buffers().release(buffer);
        }
    }

    private void transfer(Chunk chunk, ByteBuffer buffer) throws DeviceException {
        long first = pool.dataStart() + chunk.first;
        if (operation == Operation.READ) {
            chunk.device().read(first, buffer);
        } else {
            chunk.device().write(first, buffer);
        }
    }

    private CompletableFuture<Void> begin(Chunk chunk) throws DeviceException {
        long first = pool.dataStart() + chunk.first;
        ByteBuffer direct = direct(chunk);
        if (direct != null) {
            return chunk.device().begin(operation, first, direct);
        }
        ByteBuffer buffer = gather(chunk);
        CompletableFuture<Void> begun = null;
        try {
            begun = chunk.device().begin(operation, first, buffer);
        } finally {
            if (begun == null) {
                pool.buffers().release(buffer);
            }
        }
        return begun.whenComplete((done, thrown) -> {
            try {
                if (thrown == null && operation == Operation.READ) {
                    scatter(chunk, buffer);
                }
            } finally {
                pool.buffers().release(buffer);
            }
        });
    }
}
