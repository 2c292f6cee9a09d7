package org.lunarsan.pool;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;

/**
 * Closes a mirror: waits for pending changes, flushes, removes the marks or leaves failed members
 * out, and closes the members. Each step is bounded by a limit. Changes that did not end in time
 * leave their marks, and are reported. Confined to the thread that closes.
 */
final class MirrorClosing {
    private final Mirror mirror;
    private final Membership membership;
    private final Duration limit;
    private final List<String> troubles = new ArrayList<>();
    private final List<DeviceException> failures = new ArrayList<>();

    MirrorClosing(Mirror mirror, Duration limit) {
        this.mirror = mirror;
        this.membership = mirror.membership();
        this.limit = limit;
    }

    /**
     * Closes everything, whatever fails.
     *
     * @throws DeviceException with the calls that did not end, and the regions that are marked for
     *         the next opening
     */
    void run() throws DeviceException {
        membership.beginClosing();
        boolean drained = tryLock(membership.writeLock(), limit);
        try {
            int marked = mirror.intents().dirtyCount();
            if (drained) {
                flushLast();
                if (marked > 0 && mirror.hasUnrecordedFailure()) {
                    troubles.add("a member missed a change and could not be left out");
                }
            } else {
                troubles.add("pending calls did not end within " + limit.toMillis() + " ms");
            }
            if (membership.hasUnreportedLoss()) {
                troubles.add("acknowledged writes may be lost, and no flush has reported it");
            }
            if (!troubles.isEmpty()) {
                troubles.add(marked + (marked == 1 ? " marked region is" : " marked regions are")
                        + " copied by the next opening");
            }
            note("a member failed", closeMembers());
        } finally {
            if (drained) {
                membership.writeLock().unlock();
            }
        }
        if (!troubles.isEmpty()) {
            throw closeFailure();
        }
    }

    /**
     * Flushes for the last time. A member that fails may have lost writes that the others have: if
     * it stayed current, the next opening could copy from it.
     */
    private void flushLast() {
        List<Parallel.Failed<MirrorMember>> failed = mirror.flushAndRemoveMarks(limit);
        note("the last flush failed", failed);
        if (!failed.isEmpty()
                && membership.leaveOutClosing(Membership.recordFailures(failed), limit)) {
            troubles.add("the failed member is left out, the others have all data;"
                    + " resync() copies the data to the member");
        }
    }

    private List<Parallel.Failed<MirrorMember>> closeMembers() {
        List<MirrorMember> there =
                membership.members().stream().filter(member -> member.device != null).toList();
        // First: a detached call of one member must not continue on another.
        there.forEach(member -> member.device.shut());
        return Parallel.runWithin(
                limit, Operation.CLOSE, there, member -> member.device.close());
    }

    private void note(String what, List<Parallel.Failed<MirrorMember>> failed) {
        for (Parallel.Failed<MirrorMember> bad : failed) {
            troubles.add(what + ": " + bad.failure().getMessage());
            failures.add(bad.failure());
        }
    }

    private DeviceException closeFailure() {
        DeviceException failure = new DeviceException(membership.name(), Operation.CLOSE,
                String.join("; ", troubles), failures.isEmpty() ? null : failures.getFirst());
        failures.stream().skip(1).forEach(failure::addSuppressed);
        return failure;
    }

    private static boolean tryLock(Lock lock, Duration limit) {
        boolean interrupted = Thread.interrupted();
        try {
            while (true) {
                try {
                    return lock.tryLock(limit.toNanos(), TimeUnit.NANOSECONDS);
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
}
