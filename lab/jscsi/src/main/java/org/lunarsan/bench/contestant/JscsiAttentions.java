package org.lunarsan.bench.contestant;

import java.nio.ByteBuffer;
import org.jscsi.exception.InternetSCSIException;
import org.jscsi.initiator.connection.Connection;
import org.jscsi.initiator.connection.state.IState;
import org.jscsi.parser.OperationCode;
import org.jscsi.parser.ProtocolDataUnit;
import org.jscsi.parser.ProtocolDataUnitFactory;
import org.jscsi.parser.scsi.SCSICommandParser;
import org.jscsi.parser.scsi.SCSIResponseParser;
import org.jscsi.parser.scsi.SCSIStatus;

/**
 * Code that {@link JscsiLoader} adds to the published jSCSI: the LUN, and TEST UNIT READY until no
 * unit attention is left (SAM-5 §5.14).
 *
 * <p>Threads: all of one process use one LUN; it is set before the first login.
 */
public final class JscsiAttentions {
    /** Limit of the pending unit attentions of a target. */
    private static final int ATTENTIONS_MAX = 16;
    private static final int CDB_BYTES = 16;
    private static final String NO_DIGEST = "None";
    /** Peripheral device addressing: the number is the second byte of eight. SAM-5 §4.7. */
    private static final int LUN_SHIFT = 48;

    private static volatile long lun;

    private JscsiAttentions() {
    }

    static void setLun(int number) {
        lun = (long) number << LUN_SHIFT;
    }

    /**
     * Content of the LUN field.
     *
     * @return eight bytes
     */
    public static long lun() {
        return lun;
    }

    /**
     * Takes all pending unit attentions.
     *
     * @param connection just logged in
     * @throws InternetSCSIException when the target sends too many
     */
    public static void take(Connection connection) throws InternetSCSIException {
        for (int asked = 0; asked < ATTENTIONS_MAX; asked++) {
            TestUnitReady state = new TestUnitReady(connection);
            connection.nextState(state);
            if (state.isGood) {
                return;
            }
        }
        throw new InternetSCSIException("the unit does not become ready");
    }

    /** One TEST UNIT READY. */
    private static final class TestUnitReady implements IState {
        private final Connection connection;
        private boolean isGood;

        private TestUnitReady(Connection connection) {
            this.connection = connection;
        }

        @Override
        public void execute() throws InternetSCSIException {
            ProtocolDataUnit command = new ProtocolDataUnitFactory().create(false, true,
                    OperationCode.SCSI_COMMAND, NO_DIGEST, NO_DIGEST);
            SCSICommandParser parser =
                    (SCSICommandParser) command.getBasicHeaderSegment().getParser();
            parser.setReadExpectedFlag(false);
            parser.setWriteExpectedFlag(false);
            parser.setTaskAttributes(SCSICommandParser.TaskAttributes.SIMPLE);
            parser.setExpectedDataTransferLength(0);
            parser.setCommandDescriptorBlock(ByteBuffer.allocate(CDB_BYTES));
            connection.send(command);
            Object answer = connection.receive().getBasicHeaderSegment().getParser();
            isGood = answer instanceof SCSIResponseParser response
                    && response.getStatus() == SCSIStatus.GOOD;
        }

        @Override
        public boolean nextStateFollowing() {
            return false;
        }

        @Override
        public Exception isCorrect(ProtocolDataUnit answer) {
            return null;
        }
    }
}
