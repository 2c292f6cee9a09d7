package org.lunarsan.pool;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DisconnectedException;
import org.lunarsan.device.Fault;
import org.lunarsan.device.FaultyDevice;
import org.lunarsan.device.MemoryDevice;
import org.lunarsan.device.Operation;

/** Members in memory with a volatile cache. */
final class TrialMemory implements TrialMembers {
    /** Ways in which members lose acknowledged writes. */
    enum Kind {
        /** By power cuts, which they count. */
        COUNTED,
        /** By power cuts, each reported by one failed flush. */
        SILENT,
        /** By power cuts, and by failed flushes that leave blocks considered clean. */
        GATE,
        /** By failed flushes alone, of all members or one; power cuts follow a successful flush. */
        GATE_ONLY
    }

    private static final long WAIT_MILLIS = 5;
    private static final Operation[] OPERATIONS =
            {Operation.WRITE, Operation.READ, Operation.FLUSH};

    private final Kind kind;
    private final List<MemoryDevice> disks;
    private final List<VolatileDevice> caches;
    private final List<FaultyDevice> faulty;

    TrialMemory(Kind kind, Random random) throws DeviceException {
        this.kind = kind;
        disks = Members.memories(2 + random.nextInt(2));
        Members.mirror(disks);
        caches = disks.stream().map(disk -> kind == Kind.SILENT
                ? VolatileDevice.withoutCount(disk) : new VolatileDevice(disk)).toList();
        faulty = Members.faulty(caches, random.nextLong());
    }

    @Override
    public List<? extends Device> devices() {
        return faulty;
    }

    @Override
    public void fault(Random random, TrialRound round) throws Exception {
        if (kind == Kind.GATE_ONLY) {
            if (random.nextInt(4) == 0) {
                round.exclusively(() -> checkCutAfterFlush(round));
            } else {
                failFlush(random, round);
            }
            return;
        }
        if (kind == Kind.SILENT && random.nextInt(3) == 0) {
            round.exclusively(() -> checkCutThatWasRead(random, round));
            return;
        }
        if (kind == Kind.GATE && random.nextInt(3) > 0) {
            failFlush(random, round);
            if (random.nextBoolean()) {
                round.exclusively(() -> {
                    for (VolatileDevice cache : some(caches, random)) {
                        cache.evict(random, 1 + random.nextInt(3));
                    }
                });
            }
            return;
        }
        switch (random.nextInt(4)) {
            case 0, 1 -> {
                if (kind == Kind.GATE) {
                    // Blocks considered clean are lost silently: no read may run beside a failed
                    // flush.
                    round.exclusively(() -> cut(random, round));
                } else {
                    cut(random, round);
                }
            }
            case 2 -> injectSame(random, round);
            default -> {
                for (FaultyDevice member : some(faulty, random)) {
                    inject(member, random, round);
                }
            }
        }
    }

    private void failFlush(Random random, TrialRound round) {
        List<VolatileDevice> failing = random.nextInt(4) > 0 ? caches : some(caches, random);
        round.note("the next flush fails of " + failing.size() + " members");
        failing.forEach(VolatileDevice::failNextFlush);
    }

    private void cut(Random random, TrialRound round) throws DeviceException {
        if (kind == Kind.SILENT) {
            round.ledger().cutUnreported();
        }
        for (VolatileDevice cache : some(caches, random)) {
            round.note("power cut of " + cache.name());
            cache.cutPower(random, 1 + random.nextInt(3));
        }
    }

    /** Cuts power and lets a cache above read the lost data before a flush reports the loss. */
    private void checkCutThatWasRead(Random random, TrialRound round) throws Exception {
        cut(random, round);
        round.readAll(false);
        round.flushUntilGood();
        round.readAll(true);
    }

    private void checkCutAfterFlush(TrialRound round) throws Exception {
        round.flushUntilGood();
        // The content returned by the cache above counts.
        round.checkAll();
        round.note("power cut of all after a flush");
        cutAfterFlush();
        round.dropPages();
        round.checkAll();
    }

    /** Injects the same fault into several members: all hang, or all lose their connection. */
    private void injectSame(Random random, TrialRound round) {
        Operation operation = OPERATIONS[random.nextInt(OPERATIONS.length)];
        Fault fault = switch (random.nextInt(3)) {
            case 0 -> Fault.of(new Fault.Hang()).times(1);
            case 1 -> Fault.of(new Fault.Fail(DisconnectedException::new)).times(1);
            default -> Fault.fail().times(1 + random.nextInt(2));
        };
        List<FaultyDevice> hit = random.nextBoolean() ? faulty : some(faulty, random);
        round.note(fault.effect() + " at " + operation + " of " + hit.size() + " members");
        hit.forEach(member -> member.inject(fault.on(operation)));
    }

    private static void inject(FaultyDevice member, Random random, TrialRound round) {
        Operation operation = OPERATIONS[random.nextInt(OPERATIONS.length)];
        Fault fault = switch (random.nextInt(4)) {
            case 0 -> Fault.of(new Fault.Hang()).on(operation).times(1);
            case 1 -> Fault.of(new Fault.Delay(Duration.ofMillis(4 * WAIT_MILLIS)))
                    .on(operation).times(1);
            case 2 -> Fault.of(new Fault.Tear(1)).on(Operation.WRITE).times(1);
            default -> Fault.fail().on(operation).times(1);
        };
        round.note(fault.effect() + " at " + fault.operation() + " of " + member.name());
        member.inject(fault);
    }

    private static <T> List<T> some(List<T> all, Random random) {
        int first = random.nextInt(all.size());
        int count = 1 + random.nextInt(all.size());
        List<T> found = new ArrayList<>();
        for (int index = 0; index < count; index++) {
            found.add(all.get((first + index) % all.size()));
        }
        return found;
    }

    @Override
    public void heal() {
        faulty.forEach(FaultyDevice::heal);
        faulty.forEach(FaultyDevice::release);
    }

    @Override
    public void loseClean() throws DeviceException {
        for (VolatileDevice cache : caches) {
            cache.cancelFailNextFlush();
            cache.evict(new Random(0), 1);
        }
    }

    @Override
    public void cutAfterFlush() throws DeviceException {
        for (VolatileDevice cache : caches) {
            cache.cutPower();
        }
    }

    @Override
    public List<byte[]> contents() throws DeviceException {
        List<byte[]> all = new ArrayList<>();
        for (MemoryDevice disk : disks) {
            try (MemoryDevice copy = disk.snapshot()) {
                copy.open();
                byte[] bytes = new byte[Members.BLOCKS * Members.BLOCK];
                copy.read(PoolLayout.of(copy).dataStart(), ByteBuffer.wrap(bytes));
                all.add(bytes);
            }
        }
        return all;
    }

    @Override
    public long memberMillisMax() {
        return WAIT_MILLIS;
    }

    @Override
    public int pauseMillisMax() {
        return 10;
    }

    @Override
    public void close() {
        heal();
    }
}
