package org.lunarsan.initiator;

import java.nio.ByteBuffer;
import java.util.Optional;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.scsi.CachingMode;
import org.lunarsan.iscsi.scsi.Capacity;
import org.lunarsan.iscsi.scsi.Cdb;
import org.lunarsan.iscsi.scsi.Inquiry;
import org.lunarsan.iscsi.scsi.ScsiDataException;
import org.lunarsan.iscsi.scsi.Sense;
import org.lunarsan.iscsi.scsi.VitalPage;

/**
 * One LUN in one session, with queries of its properties. Commands are repeated after unit
 * attentions, which are recorded, and after pauses while the target is busy. Commands lost with the
 * session are not repeated.
 *
 * <p>Threads: any; calls wait.
 */
final class Unit {
    /** Buffer length for INQUIRY data and VPD pages. */
    private static final int INQUIRY_BYTES = 1024;
    private static final int CDB_BYTES = 16;

    private final Session session;
    private final long lun;
    /** Set while only one thread uses the session. */
    private final boolean opening;

    /** Creates a unit in an established session. Interrupts are kept and do not shorten waits. */
    Unit(Session session, long lun) {
        this(session, lun, false);
    }

    private Unit(Session session, long lun, boolean opening) {
        this.session = session;
        this.lun = lun;
        this.opening = opening;
    }

    /**
     * Creates a unit in a session that only this thread uses and that ends when it is interrupted.
     */
    static Unit ofOpening(Session session, long lun) {
        return new Unit(session, lun, true);
    }

    /** Waits until the unit is ready. */
    void testReady() throws Failure {
        byte[] cdb = new byte[CDB_BYTES];
        Cdb.testUnitReady(cdb);
        command(cdb, 0);
    }

    /** Returns the standard INQUIRY data. */
    Inquiry identity() throws Failure {
        byte[] cdb = new byte[CDB_BYTES];
        Cdb.inquiry(cdb, INQUIRY_BYTES);
        try {
            return Inquiry.decode(command(cdb, INQUIRY_BYTES));
        } catch (ScsiDataException exception) {
            throw nonsense(exception);
        }
    }

    /** Returns a vital product data page; empty if the unit has no such page. */
    Optional<VitalPage> vitalPage(int page) throws Failure {
        byte[] cdb = new byte[CDB_BYTES];
        Cdb.vitalPage(cdb, page, INQUIRY_BYTES);
        try {
            return VitalPage.decode(command(cdb, INQUIRY_BYTES), page);
        } catch (Failure failure) {
            // istgt 0.4 rejects a page that it does not have without sense data.
            if (isIllegal(failure) || Sense.UNREADABLE.equals(failure.sense())) {
                return Optional.empty();
            }
            throw failure;
        }
    }

    /** Returns size and block lengths. */
    Capacity capacity() throws Failure {
        byte[] cdb = new byte[CDB_BYTES];
        try {
            Cdb.readCapacity16(cdb);
            return Capacity.decode16(command(cdb, Cdb.CAPACITY_16_BYTES));
        } catch (Failure failure) {
            if (!isIllegal(failure)) {
                throw failure;
            }
        } catch (ScsiDataException exception) {
            throw nonsense(exception);
        }
        try {
            Cdb.readCapacity10(cdb);
            return Capacity.decode10(command(cdb, Cdb.CAPACITY_10_BYTES));
        } catch (ScsiDataException exception) {
            throw nonsense(exception);
        }
    }

    /** Returns caching and write protection, as far as the unit reports them. */
    CachingMode mode() throws Failure {
        byte[] cdb = new byte[CDB_BYTES];
        Cdb.modeSenseCaching(cdb);
        try {
            return CachingMode.decode(command(cdb, Cdb.MODE_BYTES));
        } catch (Failure failure) {
            if (isIllegal(failure)) {
                return new CachingMode(false, false, false);
            }
            throw failure;
        } catch (ScsiDataException exception) {
            return new CachingMode(false, false, false);
        }
    }

    /** Executes a command that must end GOOD; returns the data received. */
    private ByteBuffer command(byte[] cdb, int bytesMax) throws Failure {
        ByteBuffer data = ByteBuffer.allocate(bytesMax);
        CommandRequest order = new CommandRequest(cdb, data, 0, bytesMax, false, false, 0, 0);
        Outcome outcome = new Outcome();
        while (true) {
            Task task = session.take(bytesMax);
            if (task == null) {
                throw session.why().notSent();
            }
            try {
                order.fill(task, lun);
                execute(task);
                if (outcome.interpret(task) == Outcome.Verdict.GOOD) {
                    return data.slice(0, task.dataInBytes());
                }
            } finally {
                task.home.tasks().give(task);
            }
        }
    }

    private void execute(Task task) throws Failure {
        if (!opening) {
            task.execute();
            return;
        }
        // The task completes when the session ends.
        task.execute(session::leaveInHaste);
        if (Thread.currentThread().isInterrupted()) {
            throw Failure.interrupted();
        }
    }

    private static Failure nonsense(ScsiDataException odd) {
        return Failure.of(Kind.PROTOCOL, odd.getMessage(), odd);
    }

    /** True when the unit does not support the command, or this form of it. */
    static boolean isIllegal(Failure failure) {
        return failure.sense() != null && failure.sense().key() == Sense.ILLEGAL_REQUEST;
    }
}
