package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;

/**
 * The reads of members that serve one read of a mirror. Each has separate memory, so that a late
 * one has no effect on the others. For one thread at a time, except for the answers.
 */
final class MemberReads {
    /**
     * End of a read of a member: data from position to limit, or a failure. {@code lost}: the
     * member had a loss that the mirror did not know when the read began.
     */
    record Answer(MirrorMember member, ByteBuffer data, DeviceException failure, boolean lost) {}

    private final Mirror mirror;
    private final long address;
    private final int bytes;
    private final List<MirrorMember> underWay = new ArrayList<>(1);
    private final LinkedBlockingQueue<Answer> answers = new LinkedBlockingQueue<>();

    MemberReads(Mirror mirror, long address, int bytes) {
        this.mirror = mirror;
        this.address = address;
        this.bytes = bytes;
    }

    /** Begins to read from a member. */
    void ask(MirrorMember member) {
        ByteBuffer data = mirror.buffers().take(bytes);
        underWay.add(member);
        long lossesKnown = member.lossesKnown();
        if (mirror.memberWait().equals(Parallel.WITHOUT_END)) {
            read(member, data, lossesKnown);
            return;
        }
        try {
            Thread.ofVirtual().name("pool read").start(
                    () -> read(member, data, lossesKnown));
        } catch (OutOfMemoryError exception) {
            read(member, data, lossesKnown);
        }
    }

    private void read(MirrorMember member, ByteBuffer data, long lossesKnown) {
        DeviceException failure = null;
        boolean lost = false;
        try {
            member.read(address, data.duplicate());
            lost = member.device.losses() != lossesKnown;
        } catch (Throwable thrown) {
            // The buffer is ours: whatever is thrown, the member has failed.
            failure = Parallel.failure(member, Operation.READ, thrown);
        }
        answers.add(new Answer(member, data, failure, lost));
    }

    boolean isAnyUnderWay() {
        return !underWay.isEmpty();
    }

    /**
     * Waits for any pending read.
     *
     * @param bounded whether to wait no longer than the member wait
     * @return null when none has ended by then
     */
    Answer await(boolean bounded) {
        boolean interrupted = false;
        long limit = bounded ? mirror.memberWait().toNanos() : Long.MAX_VALUE;
        long begin = System.nanoTime();
        try {
            while (true) {
                try {
                    long left = limit - (System.nanoTime() - begin);
                    Answer answer = answers.poll(left, TimeUnit.NANOSECONDS);
                    if (answer != null) {
                        underWay.remove(answer.member);
                    }
                    return answer;
                } catch (InterruptedException exception) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Returns the reads that have not ended although another has. */
    List<Parallel.Failed<MirrorMember>> late() {
        for (Answer ended = answers.poll(); ended != null; ended = answers.poll()) {
            underWay.remove(ended.member);
        }
        List<Parallel.Failed<MirrorMember>> late = new ArrayList<>(underWay.size());
        for (MirrorMember member : underWay) {
            late.add(new Parallel.Failed<>(member, new LateMemberException(
                    member.toString(), Operation.READ, mirror.memberWait().toMillis())));
        }
        return late;
    }
}
