package org.lunarsan.iscsi.connection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.HashSet;
import java.util.Random;
import java.util.Set;
import java.util.function.BiFunction;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.Seed;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.pdu.DataIn;
import org.lunarsan.iscsi.pdu.LoginResponse;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.pdu.Pdu;
import org.lunarsan.iscsi.pdu.ReadyToTransfer;
import org.lunarsan.iscsi.pdu.ScsiCommand;
import org.lunarsan.iscsi.pdu.ScsiResponse;
import org.lunarsan.iscsi.pdu.TextRequest;
import org.lunarsan.iscsi.pdu.TextResponse;
import org.lunarsan.iscsi.session.ConnectionEnding;

/** A target that breaks the rules of the full feature phase. */
class HostileTest {
    /** Checks that a PDU for a command of 8,192 bytes is reported as this kind of violation. */
    private static void breaks(boolean write, BiFunction<Rig, Integer, Pdu> pdu,
            Class<? extends Violation> kind) {
        Rig rig = new Rig();
        Command command = write ? Rig.write(100_000) : Rig.read(8192);
        rig.submit(command);
        int tag = rig.next(ScsiCommand.class).initiatorTaskTag();
        Pdu sent = pdu.apply(rig, tag);
        rig.gets(sent, new byte[sent.dataSegmentLength()]);
        assertInstanceOf(kind, rig.violation(), sent::toString);
        rig.failed(command, Failure.Kind.LOST);
        assertEquals(ConnectionEnding.VIOLATION, rig.session.ending().orElseThrow());
        assertNull(rig.next(), "nothing is sent after");
        assertTrue(!rig.connection.submit(command));
        assertEquals(Failure.Kind.REFUSED, command.failure().kind());
    }

    /** Goal: each rule for Data-In is enforced. RFC 7143 §11.7. */
    @Test
    void dataIn() {
        breaks(false, (rig, tag) -> rig.dataIn(tag + 1, 0, 0, 8), Violation.UnknownTag.class);
        breaks(false, (rig, tag) -> rig.dataIn(tag ^ 0x0040_0000, 0, 0, 8),
                Violation.UnknownTag.class);
        breaks(false, (rig, tag) -> rig.dataIn(tag, 1, 0, 8), Violation.DataSn.class);
        breaks(false, (rig, tag) -> rig.dataIn(tag, 0, 1, 8), Violation.Malformed.class);
        breaks(false, (rig, tag) -> rig.dataIn(tag, 0, 0, 8193), Violation.TooLong.class);
        breaks(false, (rig, tag) -> rig.dataIn(tag, 0, 8192, 1), Violation.Malformed.class);
        breaks(false, (rig, tag) -> rig.dataIn(tag, 0, -8, 16), Violation.Malformed.class);
        breaks(false, (rig, tag) -> rig.dataIn(tag, 0, Integer.MAX_VALUE, 16),
                Violation.Malformed.class);
        breaks(false, (rig, tag) -> rig.lastDataIn(tag, 0, 0, 4096, 0, 0),
                Violation.MissingData.class);
        breaks(false, (rig, tag) -> rig.lastDataIn(tag, 0, 0, 8192, 6, 0),
                Violation.Malformed.class);
        breaks(false, (rig, tag) -> {
            rig.statSn++;
            return rig.lastDataIn(tag, 0, 0, 8192, 0, 0);
        }, Violation.StatSn.class);
        breaks(false, (rig, tag) -> new DataIn(Opcode.DATA_IN, DataIn.STATUS, 0, 0, 0, 0, tag, 0,
                rig.statSn, 0, 0, 0, 0, 0), Violation.Malformed.class);
        breaks(true, (rig, tag) -> rig.dataIn(tag, 0, 0, 1), Violation.Malformed.class);
    }

    /** Goal: each rule for R2T is enforced. RFC 7143 §11.8. */
    @Test
    void readyToTransfer() {
        breaks(true, (rig, tag) -> rig.r2t(tag + 1, 0, 32_768, 1), Violation.UnknownTag.class);
        breaks(true, (rig, tag) -> rig.r2t(tag, 1, 32_768, 1), Violation.DataSn.class);
        breaks(true, (rig, tag) -> rig.r2t(tag, 0, 32_768, 0), Violation.Malformed.class);
        breaks(true, (rig, tag) -> rig.r2t(tag, 0, 32_768, 65_537), Violation.Malformed.class);
        breaks(true, (rig, tag) -> rig.r2t(tag, 0, 32_768, -1), Violation.Malformed.class);
        breaks(true, (rig, tag) -> rig.r2t(tag, 0, 0, 512), Violation.Malformed.class);
        breaks(true, (rig, tag) -> rig.r2t(tag, 0, 99_999, 2), Violation.Malformed.class);
        breaks(false, (rig, tag) -> rig.r2t(tag, 0, 0, 512), Violation.Malformed.class);
        breaks(true, (rig, tag) -> new ReadyToTransfer(Opcode.READY_TO_TRANSFER, 0x80, 0, 0, 0,
                tag, Rig.TAG_NONE, rig.statSn, 0, 0, 0, 32_768, 1), Violation.Malformed.class);
        breaks(true, (rig, tag) -> {
            rig.gets(rig.r2t(tag, 0, 32_768, 10));
            return rig.r2t(tag, 1, 32_778, 10);
        }, Violation.Malformed.class);
    }

    /** Goal: each rule for a response is enforced. RFC 7143 §11.4. */
    @Test
    void responses() {
        breaks(false, (rig, tag) -> rig.response(tag + 1, 0), Violation.UnknownTag.class);
        breaks(false, (rig, tag) -> rig.response(tag, 0), Violation.MissingData.class);
        breaks(false, (rig, tag) -> rig.response(tag, 0x86, 2, 0, 0, 0),
                Violation.Malformed.class);
        breaks(false, (rig, tag) -> rig.response(tag, 0x80, 2, 1, 0, 0), Violation.DataSn.class);
        breaks(false, (rig, tag) -> rig.response(tag, 0x80, 2, 0, 0, 1),
                Violation.Malformed.class);
        breaks(false, (rig, tag) -> new LoginResponse(Opcode.LOGIN_RESPONSE, 0, 0, 0, 0, 0, 0, 0,
                tag, rig.statSn, 0, 0, 0), Violation.Misplaced.class);
        breaks(false, (rig, tag) -> Pdu.decode(ByteBuffer.wrap(new byte[48]).put(0, (byte) 0x3e)),
                Violation.Misplaced.class);
        breaks(false, (rig, tag) -> Pdu.decode(ByteBuffer.wrap(new byte[48])),
                Violation.Misplaced.class);
    }

    /** Goal: a tag that was assigned but not sent yet is unknown to the target. */
    @Test
    void aTagThatWasNotSent() {
        Rig rig = new Rig();
        Command read = Rig.read(8);
        rig.submit(read);
        rig.gets(rig.response(read.tag, 0));
        assertInstanceOf(Violation.UnknownTag.class, rig.violation());
        rig.failed(read, Failure.Kind.REFUSED);
    }

    /** Goal: a digest that does not match ends the connection at ErrorRecoveryLevel 0. */
    @Test
    void digests() {
        Rig rig = new Rig();
        Command read = Rig.read(8);
        rig.submit(read);
        ByteBuffer header = ByteBuffer.allocate(48);
        rig.dataIn(rig.next(ScsiCommand.class).initiatorTaskTag(), 0, 0, 8).encode(header);
        rig.connection.onHeader(rig.now, header.flip(), rig.receive);
        rig.connection.onPayload(rig.now, Rig.NO_DATA, false);
        assertEquals(new Violation.DataDigest(Opcode.DATA_IN), rig.violation());
        rig.failed(read, Failure.Kind.LOST);
    }

    /**
     * Goal: no input of a target throws, hangs, or loses a request. Method: random headers that are
     * nearly valid, with random data, while requests of all kinds are pending.
     */
    @Test
    void anyBytes() {
        Random random = Seed.of(HostileTest.class);
        for (int round = 0; round < 3000; round++) {
            Rig rig = new Rig(Rig.parameters(random.nextBoolean(), random.nextBoolean(), 2));
            Set<Request> openRequests = new HashSet<>();
            for (int step = 0; step < 30 && !rig.connection.isClosed(); step++) {
                Request request = anyRequest(random);
                if (rig.connection.submit(request)) {
                    openRequests.add(request);
                }
                for (int sends = random.nextInt(4); sends > 0; sends--) {
                    rig.next();
                }
                nearlyRight(rig, random);
                drain(rig, openRequests);
            }
            rig.connection.readerStopped();
            drain(rig, openRequests);
            assertTrue(openRequests.isEmpty(), "each comes back once");
            assertNotNull(rig.closed());
        }
    }

    private static void drain(Rig rig, Set<Request> openRequests) {
        for (Request over = rig.connection.pollCompleted(); over != null;
                over = rig.connection.pollCompleted()) {
            assertTrue(openRequests.remove(over), "each comes back once");
        }
    }

    private static Request anyRequest(Random random) {
        return switch (random.nextInt(8)) {
            case 0 -> new Ping(new byte[random.nextInt(9)]);
            case 1 -> TextExchange.sendTargets("All");
            case 2 -> new Management(1 + random.nextInt(12), 0);
            case 3 -> new Management(1, Rig.read(8));
            case 4 -> random.nextInt(20) == 0 ? new Logout(random.nextInt(3), 1) : Rig.write(9000);
            case 5 -> Rig.read(8192).immediate(random.nextBoolean());
            default -> Rig.read(random.nextInt(100_000));
        };
    }

    private static void nearlyRight(Rig rig, Random random) {
        int[] opcodes = {0x20, 0x21, 0x22, 0x24, 0x25, 0x25, 0x26, 0x31, 0x32, 0x3f};
        ByteBuffer header = ByteBuffer.wrap(Seed.bytes(random, 48));
        header.put(0, (byte) opcodes[random.nextInt(opcodes.length)]);
        if (random.nextInt(4) > 0) {
            header.putInt(4, random.nextInt(3) == 0 ? random.nextInt(100) : 0);
            // A tag as the machine assigns them: small slots, small generations.
            header.putInt(16, random.nextInt(4) == 0 ? -1
                    : (1 + random.nextInt(2)) << 12 | random.nextInt(8));
            header.putInt(24, rig.statSn);
            header.putInt(28, rig.expCmdSn).putInt(32, rig.maxCmdSn);
            header.putInt(36, random.nextInt(2)).putInt(40, random.nextInt(2) * 8);
            header.putInt(44, random.nextInt(64));
        }
        int bytes = BasicHeader.dataSegmentLength(header, 0);
        int statSn = header.getInt(24);
        rig.connection.onHeader(rig.now, header, rig.receive);
        Receive.Destination destination = rig.receive.destination();
        if (destination == Receive.Destination.COMMAND) {
            Command command = rig.receive.command();
            assertTrue(rig.receive.offsetBytes() >= 0
                    && rig.receive.offsetBytes() + bytes <= command.dataInBytesMax());
        }
        if (destination != Receive.Destination.NOTHING
                && destination != Receive.Destination.CLOSED) {
            rig.connection.onPayload(rig.now, ByteBuffer.wrap(Seed.bytes(random, bytes)), true);
        }
        boolean counts = BasicHeader.opcode(header, 0) != Opcode.READY_TO_TRANSFER;
        if (statSn == rig.statSn && counts && !rig.connection.isClosed()) {
            rig.statSn = rig.connection.expStatSnForTests();
        }
    }

    /** Goal: a second Text Response for one request is a violation. */
    @Test
    void textTwice() {
        Rig rig = new Rig();
        TextExchange question = TextExchange.sendTargets("All");
        rig.submit(question);
        int tag = rig.next(TextRequest.class).initiatorTaskTag();
        for (int round = 0; round < 2; round++) {
            rig.gets(new TextResponse(Opcode.TEXT_RESPONSE, 0, 0, 0, 0, tag, 1, rig.statSn++,
                    rig.expCmdSn, rig.maxCmdSn));
        }
        assertInstanceOf(Violation.Malformed.class, rig.violation());
        rig.failed(question, Failure.Kind.LOST);
        rig.nothingCompletes();
    }

    /** Goal: SenseLength must fit. RFC 7143 §11.4.7. */
    @Test
    void senseLength() {
        Rig rig = new Rig();
        rig.submit(Rig.read(8));
        int tag = rig.next(ScsiCommand.class).initiatorTaskTag();
        rig.gets(rig.response(tag, ScsiResponse.FINAL, 2, 0, 0, 4), new byte[] {0, 3, 1, 2});
        assertInstanceOf(Violation.Malformed.class, rig.violation());
    }
}
