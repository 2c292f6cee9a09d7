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
 * One LUN in one session, and what it tells of itself. Unit attentions are taken note of and the
 * command is sent again; a busy target is given time. What is lost with the session is not
 * repeated.
 *
 * <p>Threads: any; calls wait.
 */
final class Unit {
    /** Room for INQUIRY data and VPD pages. */
    private static final int INQUIRY_BYTES = 1024;
    private static final int CDB_BYTES = 16;

    private final Session session;
    private final long lun;
    /** Nobody but one thread uses the session yet. */
    private final boolean opening;

    /** In a session at work. Interrupts are kept, and shorten nothing. */
    Unit(Session session, long lun) {
        this(session, lun, false);
    }

    private Unit(Session session, long lun, boolean opening) {
        this.session = session;
        this.lun = lun;
        this.opening = opening;
    }

    /** In a session that is for the current thread alone, and ends when that is interrupted. */
    static Unit ofOpening(Session session, long lun) {
        return new Unit(session, lun, true);
    }

    /** Waits until the unit is ready. */
    void testReady() throws Failure {
        byte[] cdb = new byte[CDB_BYTES];
        Cdb.testUnitReady(cdb);
        command(cdb, 0);
    }

    /** Standard INQUIRY data. */
    Inquiry identity() throws Failure {
        byte[] cdb = new byte[CDB_BYTES];
        Cdb.inquiry(cdb, INQUIRY_BYTES);
        try {
            return Inquiry.decode(command(cdb, INQUIRY_BYTES));
        } catch (ScsiDataException odd) {
            throw nonsense(odd);
        }
    }

    /** A vital product data page; empty if the unit has no such page. */
    Optional<VitalPage> vitalPage(int page) throws Failure {
        byte[] cdb = new byte[CDB_BYTES];
        Cdb.vitalPage(cdb, page, INQUIRY_BYTES);
        try {
            return VitalPage.decode(command(cdb, INQUIRY_BYTES), page);
        } catch (Failure failure) {
            // istgt 0.4 refuses a page that it does not have without sense data.
            if (isIllegal(failure) || Sense.UNREADABLE.equals(failure.sense())) {
                return Optional.empty();
            }
            throw failure;
        }
    }

    /** Size and block lengths. */
    Capacity capacity() throws Failure {
        byte[] cdb = new byte[CDB_BYTES];
        try {
            Cdb.readCapacity16(cdb);
            return Capacity.decode16(command(cdb, Cdb.CAPACITY_16_BYTES));
        } catch (Failure failure) {
            if (!isIllegal(failure)) {
                throw failure;
            }
        } catch (ScsiDataException odd) {
            throw nonsense(odd);
        }
        try {
            Cdb.readCapacity10(cdb);
            return Capacity.decode10(command(cdb, Cdb.CAPACITY_10_BYTES));
        } catch (ScsiDataException odd) {
            throw nonsense(odd);
        }
    }

    /** Caching and write protection, as far as the unit tells. */
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
        } catch (ScsiDataException odd) {
            return new CachingMode(false, false, false);
        }
    }

    /** Executes a command that must end GOOD; gives the data that came. */
    private ByteBuffer command(byte[] cdb, int bytesMax) throws Failure {
        ByteBuffer data = ByteBuffer.allocate(bytesMax);
        Order order = new Order(cdb, data, 0, bytesMax, false, false, 0, 0);
        Outcome outcome = new Outcome();
        while (true) {
            Task task = session.take(bytesMax);
            if (task == null) {
                throw session.why().notSent();
            }
            try {
                order.fill(task, lun);
                execute(task);
                if (outcome.judge(task) == Outcome.Verdict.GOOD) {
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
        // It comes back when the session ends.
        task.execute(session::leaveInHaste);
        if (Thread.currentThread().isInterrupted()) {
            throw Failure.interrupted();
        }
    }

    private static Failure nonsense(ScsiDataException odd) {
        return Failure.of(Kind.PROTOCOL, odd.getMessage(), odd);
    }

    /** The unit does not know the command, or this form of it. */
    static boolean isIllegal(Failure failure) {
        return failure.sense() != null && failure.sense().key() == Sense.ILLEGAL_REQUEST;
    }
}
