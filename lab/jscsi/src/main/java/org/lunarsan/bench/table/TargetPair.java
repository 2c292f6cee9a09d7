package org.lunarsan.bench.table;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.List;
import org.lunarsan.bench.contestant.Shape;
import org.lunarsan.bench.server.Disk;
import org.lunarsan.bench.server.LunarTarget;
import org.lunarsan.bench.server.Target;
import org.lunarsan.bench.server.TgtTarget;

/**
 * Two targets of one kind, each a separate process with a LUN for plain blocks and one for each
 * shape of pool that keeps labels on its members.
 *
 * <p>Threads: for one thread.
 */
public final class TargetPair implements AutoCloseable {
    /** LUNs of each target: plain, then for pools with labels of RAID 0, and of RAID 1. */
    private static final List<String> LUNS = List.of("plain", "raid0", "raid1");
    private static final List<String> TARGETS = List.of("a", "b");

    private final Deque<AutoCloseable> open = new ArrayDeque<>();
    private final List<Target> targets = new ArrayList<>();

    /**
     * Creates the files and starts the targets.
     *
     * @param kind {@code lunar} or {@code tgt}
     * @param lunar the release build of lunar
     * @throws IOException when something does not start
     */
    public TargetPair(String kind, String lunar) throws IOException {
        try {
            for (String name : TARGETS) {
                List<Disk> disks = new ArrayList<>();
                for (String lun : LUNS) {
                    disks.add(opened(new Disk(kind + "-" + name + "-" + lun)));
                }
                targets.add(opened(kind.equals("tgt")
                        ? new TgtTarget(name, disks)
                        : new LunarTarget(lunar, name, disks)));
            }
        } catch (IOException failed) {
            close();
            throw failed;
        }
    }

    private <T extends AutoCloseable> T opened(T one) {
        open.push(one);
        return one;
    }

    /**
     * Name of the serving program.
     *
     * @return {@code lunar} or {@code tgt}
     */
    public String name() {
        return targets.getFirst().name();
    }

    /**
     * Both targets.
     *
     * @return in order
     */
    public List<Target> targets() {
        return targets;
    }

    /**
     * URLs of the members of a disk.
     *
     * @param shape determines the number of URLs
     * @param hasLabels whether to use the LUNs reserved for pools with labels
     * @return URLs
     */
    public List<String> urls(Shape shape, boolean hasLabels) {
        int lun = hasLabels ? shape.ordinal() : 0;
        return targets.stream().limit(shape.members())
                .map(target -> target.url(target.luns().get(lun))).toList();
    }

    /** Returns the bytes of a plain disk from the files, with stripes joined. */
    byte[] bytes(Shape shape, int stripeBytes, long address, int blocks) throws IOException {
        if (shape == Shape.SINGLE) {
            return plain(0).bytes(address, blocks);
        }
        if (shape == Shape.RAID1) {
            byte[] first = plain(0).bytes(address, blocks);
            if (!Arrays.equals(first, plain(1).bytes(address, blocks))) {
                throw new IOException("the members of RAID 1 differ at block " + address);
            }
            return first;
        }
        int stripe = stripeBytes / Disk.BLOCK_BYTES;
        byte[] whole = new byte[blocks * Disk.BLOCK_BYTES];
        for (int done = 0; done < blocks; done += stripe) {
            long row = (address + done) / stripe;
            byte[] part = plain((int) (row % targets.size()))
                    .bytes(row / targets.size() * stripe, stripe);
            System.arraycopy(part, 0, whole, done * Disk.BLOCK_BYTES, part.length);
        }
        return whole;
    }

    private Disk plain(int target) {
        return targets.get(target).disks().getFirst();
    }

    @Override
    public void close() {
        while (!open.isEmpty()) {
            try {
                open.pop().close();
            } catch (Exception exception) {
                System.err.println("left behind: " + exception);
            }
        }
    }
}
