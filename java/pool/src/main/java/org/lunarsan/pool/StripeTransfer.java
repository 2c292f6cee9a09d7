package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;

/**
 * A read or write of a run of blocks of a striped pool, sent to all members at the same time in
 * parcels. A parcel is a stripe, straight from the caller's memory. If stripes are so narrow that
 * commands cost more than a copy, it is a contiguous run of a member, through a buffer.
 *
 * <p>Confined to the caller's thread, except for its parcels, each of which belongs to the thread
 * that works on it.
 */
final class StripeTransfer {
    /** Narrower stripes are gathered: 8 MiB of them would be more than 128 commands. */
    static final int DIRECT_BYTES_MIN = 64 << 10;

    /** The same limit for members with only blocking calls, where each transfer takes a thread. */
    static final int DIRECT_BLOCKING_BYTES_MIN = 512 << 10;

    /** Limit of concurrent parcels of a member with only blocking calls. */
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
     * Blocks of a member, from {@code first} to before {@code end}, and the next parcel of its
     * thread.
     */
    final class Parcel {
        final int member;
        final long first;
        final long end;
        Parcel next;

        Parcel(int member, long first, long end) {
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

    /** Transfers all parcels; returns those that failed. */
    List<Parallel.Failed<Parcel>> run() {
        return Parallel.run(operation, parcels(), new Parallel.Work<>() {
            @Override
            public void run(Parcel first) throws DeviceException {
                for (Parcel parcel = first; parcel != null; parcel = parcel.next) {
                    transfer(parcel);
                }
            }

            @Override
            public CompletableFuture<Void> begin(Parcel parcel) throws DeviceException {
                return parcel.device().isAsync() ? StripeTransfer.this.begin(parcel) : null;
            }
        });
    }

    /** Builds the parcels, alternating between members, so that all of them begin soon. */
    private List<Parcel> parcels() {
        int members = pool.members().size();
        long blocks = data.remaining() / blockSize;
        long[] at = new long[members];
        Parcel[][] tails = new Parcel[members][];
        List<Parcel> heads = new ArrayList<>();
        for (int member = 0; member < members; member++) {
            at[member] = pool.map().firstFrom(member, address);
        }
        boolean more = true;
        for (int turn = 0; more; turn++) {
            more = false;
            for (int member = 0; member < members; member++) {
                long end = pool.map().firstFrom(member, address + blocks);
                if (at[member] < end) {
                    Parcel parcel = new Parcel(member, at[member], end(member, at[member], end));
                    at[member] = parcel.end;
                    more = true;
                    if (parcel.device().isAsync()) {
                        heads.add(parcel);
                    } else {
                        if (tails[member] == null) {
                            tails[member] = new Parcel[CHAINS];
                        }
                        append(parcel, tails[member], turn % CHAINS, heads);
                    }
                }
            }
        }
        return heads;
    }

    private static void append(Parcel parcel, Parcel[] tails, int chain, List<Parcel> heads) {
        if (tails[chain] == null) {
            heads.add(parcel);
        } else {
            tails[chain].next = parcel;
        }
        tails[chain] = parcel;
    }

    /**
     * Returns the end of the parcel that begins at {@code first}, within a run that ends at
     * {@code end}.
     */
    private long end(int member, long first, long end) {
        long stripe = pool.map().stripeBlocks();
        int least = pool.members().get(member).isAsync()
                ? DIRECT_BYTES_MIN
                : DIRECT_BLOCKING_BYTES_MIN;
        if (stripe * blockSize >= least) {
            return Math.min(end, first + pool.map().together(first));
        }
        return Math.min(end, first + PieceBuffers.PIECE_BYTES / blockSize);
    }

    /** Returns the parcel's slice of the caller's memory; null: it is not contiguous there. */
    private ByteBuffer direct(Parcel parcel) {
        return parcel.end - parcel.first <= pool.map().together(parcel.first)
                ? piece(parcel, parcel.first)
                : null;
    }

    /**
     * Returns the slice of the caller's memory for a block of a parcel and the rest of its stripe.
     */
    private ByteBuffer piece(Parcel parcel, long block) {
        long blocks = Math.min(pool.map().together(block), parcel.end - block);
        long at = pool.map().address(parcel.member, block) - address;
        return data.slice(
                data.position() + (int) at * blockSize, (int) blocks * blockSize);
    }

    private ByteBuffer gather(Parcel parcel) {
        ByteBuffer buffer = pool.buffers().take((int) (parcel.end - parcel.first) * blockSize);
        boolean gathered = false;
        try {
            if (operation == Operation.WRITE) {
                for (long block = parcel.first; buffer.hasRemaining(); ) {
                    ByteBuffer piece = piece(parcel, block);
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
                pool.buffers().give(buffer);
            }
        }
    }

    private void scatter(Parcel parcel, ByteBuffer buffer) {
        buffer.flip();
        for (long block = parcel.first; buffer.hasRemaining(); ) {
            ByteBuffer piece = piece(parcel, block);
            block += piece.remaining() / blockSize;
            int end = buffer.position() + piece.remaining();
            piece.put(buffer.slice(buffer.position(), piece.remaining()));
            buffer.position(end);
        }
    }

    private void transfer(Parcel parcel) throws DeviceException {
        ByteBuffer direct = direct(parcel);
        if (direct != null) {
            transfer(parcel, direct);
            return;
        }
        ByteBuffer buffer = gather(parcel);
        try {
            transfer(parcel, buffer);
            if (operation == Operation.READ) {
                scatter(parcel, buffer);
            }
        } finally {
            pool.buffers().give(buffer);
        }
    }

    private void transfer(Parcel parcel, ByteBuffer buffer) throws DeviceException {
        long first = pool.dataStart() + parcel.first;
        if (operation == Operation.READ) {
            parcel.device().read(first, buffer);
        } else {
            parcel.device().write(first, buffer);
        }
    }

    private CompletableFuture<Void> begin(Parcel parcel) throws DeviceException {
        long first = pool.dataStart() + parcel.first;
        ByteBuffer direct = direct(parcel);
        if (direct != null) {
            return parcel.device().begin(operation, first, direct);
        }
        ByteBuffer buffer = gather(parcel);
        CompletableFuture<Void> begun = null;
        try {
            begun = parcel.device().begin(operation, first, buffer);
        } finally {
            if (begun == null) {
                pool.buffers().give(buffer);
            }
        }
        return begun.whenComplete((done, thrown) -> {
            try {
                if (thrown == null && operation == Operation.READ) {
                    scatter(parcel, buffer);
                }
            } finally {
                pool.buffers().give(buffer);
            }
        });
    }
}
