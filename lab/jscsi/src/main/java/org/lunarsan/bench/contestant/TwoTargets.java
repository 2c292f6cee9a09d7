package org.lunarsan.bench.contestant;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * RAID 0 and 1 over contestants that have none of their own: a thread for each member transfers its
 * stripes as one run of blocks, gathered and scattered by copies. The storage pool of the published
 * jSCSI, of which Maven Central has no artifact, did the same.
 *
 * <p>Threads: called by one; has one for each member.
 */
final class TwoTargets implements Contestant {
    private final List<Contestant> members;
    private final boolean isMirror;
    private final int stripeBlocks;
    private final ExecutorService executor;

    /** The work of one member. */
    private interface Work {
        void on(int member) throws Exception;
    }

    TwoTargets(List<Contestant> members, Shape shape, int stripeBytes) {
        this.members = members;
        isMirror = shape == Shape.RAID1;
        stripeBlocks = stripeBytes / members.getFirst().blockSize();
        executor = Executors.newFixedThreadPool(members.size());
    }

    @Override
    public int blockSize() {
        return members.getFirst().blockSize();
    }

    @Override
    public long blockCount() {
        return members.getFirst().blockCount() * (isMirror ? 1 : members.size());
    }

    @Override
    public void read(long address, byte[] buffer) throws Exception {
        if (isMirror) {
            members.getFirst().read(address, buffer);
            return;
        }
        requireWhole(address, buffer);
        onAll(member -> {
            byte[] part = new byte[buffer.length / members.size()];
            members.get(member).read(address / members.size(), part);
            copy(member, buffer, part, false);
        });
    }

    @Override
    public void write(long address, byte[] buffer) throws Exception {
        if (isMirror) {
            onAll(member -> members.get(member).write(address, buffer));
            return;
        }
        requireWhole(address, buffer);
        onAll(member -> {
            byte[] part = new byte[buffer.length / members.size()];
            copy(member, buffer, part, true);
            members.get(member).write(address / members.size(), part);
        });
    }

    /** Accepts only whole rows of stripes: nothing else is measured or supported. */
    private void requireWhole(long address, byte[] buffer) {
        long row = (long) stripeBlocks * members.size();
        if (address % row != 0 || buffer.length % (row * blockSize()) != 0) {
            throw new IllegalArgumentException("not a whole number of rows of stripes");
        }
    }

    private void copy(int member, byte[] whole, byte[] part, boolean gather) {
        int stripe = stripeBlocks * blockSize();
        for (int at = 0; at < part.length; at += stripe) {
            int within = at * members.size() + member * stripe;
            if (gather) {
                System.arraycopy(whole, within, part, at, stripe);
            } else {
                System.arraycopy(part, at, whole, within, stripe);
            }
        }
    }

    private void onAll(Work work) throws Exception {
        List<Future<?>> futures = new ArrayList<>(members.size());
        for (int at = 0; at < members.size(); at++) {
            int member = at;
            futures.add(executor.submit(() -> {
                work.on(member);
                return null;
            }));
        }
        for (Future<?> future : futures) {
            try {
                future.get();
            } catch (ExecutionException failed) {
                throw failed.getCause() instanceof Exception cause ? cause : failed;
            }
        }
    }

    @Override
    public void close() throws Exception {
        executor.shutdown();
        for (Contestant member : members) {
            member.close();
        }
    }
}
