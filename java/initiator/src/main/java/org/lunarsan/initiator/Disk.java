package org.lunarsan.initiator;

import java.nio.ByteBuffer;
import java.util.Optional;
import java.util.concurrent.locks.ReentrantLock;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.scsi.CachingMode;
import org.lunarsan.iscsi.scsi.Capacity;
import org.lunarsan.iscsi.scsi.Inquiry;
import org.lunarsan.iscsi.wire.Lun;

/**
 * A unit of a target as an open disk, across all its sessions. Commands that end well in an
 * established session take the fast path here; {@link RepeatedCommand} handles all others.
 *
 * <p>Threads: any.
 */
final class Disk {
    /** Time for which the finding that another unit answers is cached. */
    private static final long WRONG_NANOS = 1_000_000_000L;
    /** Interval at which closing checks whether commands have ended. */
    private static final long DRAIN_POLL_NANOS = 1_000_000L;

    private final String name;
    private final long lun;
    private final SessionSupervisor supervisor;
    private final UnitAttentions attentions;
    private final UncertainWrites uncertainWrites;
    private final FlushTracker unflushed;
    private final UnitLimits limits;
    private final Fingerprint fingerprint;
    private volatile CachingMode mode;
    private volatile Examined examined;
    /** Held by the first thread that queries the unit in a session. */
    private final ReentrantLock beginning = new ReentrantLock();
    /** Number of the last session in which the unit was queried. */
    private volatile long begun;

    /**
     * Result of examining the unit in a session, valid for this count of unit attentions.
     * {@code wrong}: why the unit cannot be used, or null.
     */
    private record Examined(long session, long attentions, Failure wrong, long at) {
        boolean holds(Session now, long attentionsNow) {
            return session == now.number() && attentions == attentionsNow;
        }
    }

    private Disk(
            String name, long lun, SessionSupervisor supervisor, UnitAttentions attentions,
            UncertainWrites uncertainWrites, UnitLimits limits, Fingerprint fingerprint,
            CachingMode mode) {
        this.name = name;
        this.lun = lun;
        this.supervisor = supervisor;
        this.attentions = attentions;
        this.uncertainWrites = uncertainWrites;
        this.limits = limits;
        this.fingerprint = fingerprint;
        this.mode = mode;
        unflushed = new FlushTracker(attentions.resets());
        attentions.onLost(() -> unflushed.lost(LossCause.WRITE_ERROR));
    }

    /** Logs in and queries the unit's identity and limits. */
    static Disk open(IscsiUrl url, IscsiOptions options, long isid) throws Failure {
        IscsiUrl.Unit unit = url.unit().orElseThrow(() -> Failure.of(Kind.LOGIN,
                "the URL contains no target").hint("write iscsi://HOST/TARGET/LUN"));
        UnitAttentions attentions = new UnitAttentions();
        UncertainWrites uncertainWrites = new UncertainWrites();
        TargetConnector route = TargetConnector.to(url, Optional.of(unit.target()), options, isid);
        SessionSupervisor supervisor = new SessionSupervisor(route, attentions, uncertainWrites);
        Session session = supervisor.connect();
        try {
            long lun = Lun.of(unit.lun());
            Unit asked = Unit.ofOpening(session, lun);
            Inquiry identity = asked.identity();
            requireDisk(identity);
            asked.testReady();
            Capacity capacity = asked.capacity();
            Fingerprint fingerprint = Fingerprint.of(asked, identity, capacity);
            UnitLimits limits = UnitLimits.of(asked, capacity);
            CachingMode mode = asked.mode();
            addConnections(session, options);
            return new Disk(url.toString(), lun, supervisor, attentions, uncertainWrites, limits,
                    fingerprint, mode);
        } catch (Failure | RuntimeException refused) {
            supervisor.close();
            session.leave();
            throw refused;
        }
    }

    /**
     * Adds further connections. If a target ends the session because of one, the device is open all
     * the same and creates sessions until one lasts.
     */
    private static void addConnections(Session session, IscsiOptions options) throws Failure {
        session.addConnections(System.nanoTime() + options.loginTime.toNanos());
        if (Thread.currentThread().isInterrupted()) {
            throw Failure.interrupted();
        }
    }

    private static void requireDisk(Inquiry identity) throws Failure {
        if (identity.qualifier() != 0) {
            throw Failure.of(Kind.REFUSED, "no such LUN, or this initiator may not see it")
                    .hint("check the LUN in the URL, and the LUN mapping of the target");
        }
        if (identity.deviceType() != Inquiry.DISK) {
            throw Failure.of(Kind.REFUSED, "the LUN is not a disk (device type %02xh)"
                    .formatted(identity.deviceType())).hint("check the LUN");
        }
    }

    /**
     * Returns the session if the unit was examined in it, is the right one, and has reported no
     * unit attention since; else null.
     */
    Session readyNow() {
        Session session = supervisor.now();
        Examined last = examined;
        boolean ready = session != null && last != null && last.wrong == null
                && last.holds(session, attentions.count());
        return ready ? session : null;
    }

    /**
     * Returns a task for a read or write if nothing but a free task has to be waited for; else
     * null.
     */
    Task takeNow(boolean write, long lba, int blocks, boolean mayWait) {
        Session session = readyNow();
        if (session == null
                || write && uncertainWrites.overlaps(lba, blocks, UncertainWrites.NEW)) {
            return null;
        }
        long bytes = (long) blocks * limits.geometry().blockSize();
        return mayWait ? session.take(bytes) : session.tryTake(bytes);
    }

    /** Encodes a read or write in a task, without its data. */
    void encode(Task task, boolean write, long lba, int blocks) {
        CommandRequest.encode(task.cdb(), write, lba, blocks);
        task.lun(lun);
    }

    /** Encodes a read or write in a task, with its data. */
    private void fill(Task task, boolean write, long lba, int blocks, ByteBuffer data, int at) {
        int bytes = blocks * limits.geometry().blockSize();
        encode(task, write, lba, blocks);
        // Use a separate view, whose limit no caller can change meanwhile.
        ByteBuffer view = data.duplicate();
        if (write) {
            task.dataOut(view, at, bytes);
        } else {
            task.into(view, at, bytes, view);
        }
    }

    /** Reads or writes blocks by one command, and waits for it. */
    void transfer(boolean write, long lba, int blocks, ByteBuffer data, int at) throws Failure {
        long sentAfter = attentions.resets();
        Task task = takeNow(write, lba, blocks, true);
        if (task != null) {
            fill(task, write, lba, blocks, data, at);
            task.execute();
            if (task.isGood()) {
                done(task, write, sentAfter);
                return;
            }
        }
        int bytes = blocks * limits.geometry().blockSize();
        transferWithRetries(
                CommandRequest.transfer(write, lba, blocks, data, at, bytes), task, sentAfter);
    }

    /**
     * Sends a request until it succeeds or time is up; {@code first} is the task of a first
     * attempt, or null.
     */
    void transferWithRetries(CommandRequest request, Task first, long sentAfter) throws Failure {
        long sentLast = new RepeatedCommand(this).send(request, first, sentAfter);
        if (request.changes()) {
            acknowledged(sentLast);
        }
    }

    /** Releases a task that ended well. */
    void done(Task task, boolean write, long sentAfter) {
        task.home.tasks().give(task);
        if (write) {
            acknowledged(sentAfter);
        }
    }

    private void acknowledged(long sentAfter) {
        if (mode.hasWriteCache()) {
            unflushed.acknowledged(sentAfter, attentions.resets());
        }
    }

    /** Makes all acknowledged writes durable. */
    void flush() throws Failure {
        FlushTracker.Flush flush = unflushed.begin(attentions.resets());
        if (flush == null) {
            throw cacheLost();
        }
        RepeatedCommand repeated = new RepeatedCommand(this);
        try {
            repeated.send(CommandRequest.plain(limits.synchronizeCache()), null, 0);
        } catch (Failure failure) {
            // A unit without a cache may not support the command; then there is nothing to flush.
            if (!Unit.isIllegal(failure) || mode.hasWriteCache()) {
                throw failure;
            }
        }
        // The unit attention that reports a cache lost before this flush may have been returned to
        // an earlier command: on another connection, or to a thread that has not yet processed it.
        if (unflushed.isNeeded(flush) && !repeated.answeredIn().awaitPendingAnswers()) {
            unflushed.lost(LossCause.ANSWERS);
        }
        if (!unflushed.end(flush, attentions.resets())) {
            throw cacheLost();
        }
    }

    /** Number of times that acknowledged writes may have been lost. */
    long losses() {
        return unflushed.losses(attentions.resets());
    }

    private Failure cacheLost() {
        LossCause cause = unflushed.cause(attentions.resetCause());
        return Failure.of(Kind.CACHE_LOST, cause.words()
                + "; acknowledged writes that were not yet durable may be lost")
                .hint("repeat the writes since the last successful flush");
    }

    /** Tells the unit that blocks are no longer needed. */
    void unmap(long lba, long blocks) throws Failure {
        limits.unmap(lba, blocks,
                request -> acknowledged(new RepeatedCommand(this).send(request, null, 0)));
    }

    /**
     * Returns the session if the unit was found valid in it; empty if the unit has to be examined.
     */
    Optional<Session> verdict(Session session) throws Failure {
        Examined last = examined;
        if (last == null || !last.holds(session, attentions.count())) {
            return Optional.empty();
        }
        if (last.wrong == null) {
            return Optional.of(session);
        }
        // An unused unit would not report that the right one is back: examine it again.
        if (System.nanoTime() - last.at > WRONG_NANOS) {
            return Optional.empty();
        }
        throw last.wrong;
    }

    /** Queries the identity of the unit, after it has reported its pending unit attentions. */
    void examine(Session session) throws Failure {
        Unit unit = new Unit(session, lun);
        begin(unit, session);
        // Count attentions from here on: a later one causes another examination.
        long before = attentions.count();
        Inquiry identity = unit.identity();
        Capacity capacity = unit.capacity();
        Fingerprint now = Fingerprint.of(unit, identity, capacity);
        mode = unit.mode();
        Failure wrong = fingerprint.differs(now);
        if (wrong != null) {
            Log.warn(() -> name + ": " + wrong.getMessage());
        }
        examined = new Examined(session.number(), before, wrong, System.nanoTime());
    }

    /**
     * Runs the first command of a session alone, because it returns the unit attentions that
     * precede the session. A second command beside it could end well before they are seen, and the
     * unit would be taken for one that has none.
     */
    private void begin(Unit unit, Session session) throws Failure {
        if (begun == session.number()) {
            unit.testReady();
            return;
        }
        beginning.lock();
        try {
            unit.testReady();
            attentions.recordSessionStart(session.number());
            begun = session.number();
        } finally {
            beginning.unlock();
        }
    }

    /**
     * Closes the disk. Waits up to the logout time for commands to end, and as long again for the
     * answer to the logout.
     */
    void close() {
        Session last = supervisor.close();
        if (last == null) {
            return;
        }
        long nanos = supervisor.route().options().logoutTime.toNanos();
        long until = System.nanoTime() + nanos;
        while (!last.isIdle() && !last.isOver() && until - System.nanoTime() > 0) {
            UninterruptedWaits.pause(DRAIN_POLL_NANOS);
        }
        last.logOut(nanos);
    }

    String name() {
        return name;
    }

    long lun() {
        return lun;
    }

    SessionSupervisor supervisor() {
        return supervisor;
    }

    UnitAttentions attentions() {
        return attentions;
    }

    UncertainWrites uncertainWrites() {
        return uncertainWrites;
    }

    UnitLimits limits() {
        return limits;
    }

    CachingMode mode() {
        return mode;
    }
}
