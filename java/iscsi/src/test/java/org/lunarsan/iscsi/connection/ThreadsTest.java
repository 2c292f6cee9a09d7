package org.lunarsan.iscsi.connection;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.Seed;
import org.lunarsan.iscsi.framing.Digests;
import org.lunarsan.iscsi.login.Established;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.pdu.DataIn;
import org.lunarsan.iscsi.pdu.DataOut;
import org.lunarsan.iscsi.pdu.NopOut;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.pdu.Pdu;
import org.lunarsan.iscsi.pdu.ReadyToTransfer;
import org.lunarsan.iscsi.pdu.ScsiCommand;
import org.lunarsan.iscsi.pdu.ScsiResponse;
import org.lunarsan.iscsi.session.InitiatorSession;
import org.lunarsan.iscsi.text.ConnectionParameters;
import org.lunarsan.iscsi.text.SessionParameters;

/** Reader, writer and many callers on each of two connections of one session. */
class ThreadsTest {
    private static final int CONNECTIONS = 2;
    private static final int CALLERS = 8;
    private static final int COMMANDS = 300;
    private static final int BYTES = 50_000;
    private static final int WINDOW = 4;

    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private final AtomicInteger outstanding = new AtomicInteger(CONNECTIONS * CALLERS * COMMANDS);
    private final Semaphore allOver = new Semaphore(0);
    /** Number of commands that the target has received: CmdSN from 100, over both connections. */
    private final AtomicInteger taken = new AtomicInteger();

    /** A command, and the caller that waits for it. */
    private static final class Waiting extends Command {
        final Semaphore over = new Semaphore(0);
    }

    /** One connection, its writer, and its reader, which also acts as the target. */
    private final class Link {
        final InitiatorConnection connection;
        final LinkedBlockingQueue<Pdu> wire = new LinkedBlockingQueue<>();
        final Thread writer;
        final Thread reader;
        volatile boolean woken;
        int statSn = 1;
        int lastCmdSn;

        Link(InitiatorSession session, int cid) {
            writer = new Thread(() -> guard(this::write));
            reader = new Thread(() -> guard(this::read));
            assertTrue(session.open(cid, this::wake).isPresent());
            SessionParameters parameters = Rig.parameters(false, true, 1);
            connection = new InitiatorConnection(System.nanoTime(), session, cid,
                    new Established(7, parameters, new ConnectionParameters(Digests.NONE,
                            Rig.SEGMENT, Rig.SEGMENT), statSn, 100, 99 + WINDOW,
                            OptionalInt.empty(), Optional.empty()),
                    // Without pings: on a machine that stalls the target is not dead.
                    new ConnectionLimits(0, 1, 1, CALLERS, 0), this::wake);
        }

        void wake() {
            woken = true;
            LockSupport.unpark(writer);
        }

        void write() {
            ByteBuffer head = ByteBuffer.allocate(Outgoing.HEADER_BYTES_MAX);
            Outgoing out = new Outgoing();
            while (!connection.isClosed()) {
                woken = false;
                while (connection.poll(System.nanoTime(), head.clear(), out)) {
                    wire.add(Pdu.decode(head.flip()));
                    connection.sent(out);
                    drain();
                }
                drain();
                if (!woken) {
                    LockSupport.parkNanos(connection.nanosToWait(System.nanoTime()));
                }
            }
        }

        void read() throws InterruptedException {
            Receive receive = new Receive();
            while (!connection.isClosed()) {
                Pdu pdu = wire.take();
                switch (pdu) {
                    case ScsiCommand command -> command(command, receive);
                    case DataOut data when (data.flags() & DataOut.FINAL) != 0
                            && data.bufferOffsetBytes() + data.dataSegmentLength() == BYTES ->
                        get(respond(data.initiatorTaskTag()), receive);
                    case DataOut data when (data.flags() & DataOut.FINAL) != 0 ->
                        get(new ReadyToTransfer(Opcode.READY_TO_TRANSFER, 0x80, 0, 0, 0,
                                data.initiatorTaskTag(), 1, statSn, window() - WINDOW + 1,
                                window(), 0, 32_768, BYTES - 32_768), receive);
                    default -> { }
                }
                drain();
            }
        }

        /** Returns MaxCmdSN: the commands received so far plus the window. */
        int window() {
            return 99 + taken.get() + WINDOW;
        }

        void command(ScsiCommand command, Receive receive) {
            taken.incrementAndGet();
            assertTrue(command.cmdSn() - lastCmdSn > 0, "numbers ascend on a connection");
            lastCmdSn = command.cmdSn();
            if ((command.flags() & ScsiCommand.READ) == 0) {
                return;
            }
            int tag = command.initiatorTaskTag();
            int number = 0;
            for (int at = 0; at < BYTES; at += Rig.SEGMENT) {
                int bytes = Math.min(Rig.SEGMENT, BYTES - at);
                get(new DataIn(Opcode.DATA_IN, 0, 0, 0, bytes, 0, tag, Rig.TAG_NONE, 0, 0, 0,
                        number++, at, 0), receive);
            }
            get(respond(tag), receive);
        }

        ScsiResponse respond(int tag) {
            return new ScsiResponse(Opcode.SCSI_RESPONSE, 0x80, 0, 0, 0, 0, 0, tag, 0, statSn++,
                    window() - WINDOW + 1, window(), 0, 0, 0);
        }

        void get(Pdu pdu, Receive receive) {
            ByteBuffer header = ByteBuffer.allocate(BasicHeader.HEADER_BYTES);
            pdu.encode(header);
            connection.onHeader(System.nanoTime(), header.flip(), receive);
            if (receive.destination() == Receive.Destination.COMMAND) {
                Command command = receive.command();
                int from = command.dataInAt() + receive.offsetBytes();
                for (int at = 0; at < pdu.dataSegmentLength(); at++) {
                    command.dataInBuffer().put(from + at, command.cdb()[15]);
                }
                connection.onPayload(System.nanoTime(), null, true);
            }
        }

        void drain() {
            for (Request over = connection.pollCompleted(); over != null;
                    over = connection.pollCompleted()) {
                ((Waiting) over).over.release();
            }
        }

        void call(Random random) throws InterruptedException {
            Waiting command = new Waiting();
            ByteBuffer buffer = ByteBuffer.allocate(BYTES + 10);
            for (int round = 0; round < COMMANDS; round++) {
                boolean reads = random.nextInt(4) > 0;
                command.clear();
                command.cdb()[15] = (byte) round;
                if (reads) {
                    command.dataIn(buffer, 5, BYTES);
                } else {
                    command.dataOut(buffer, 5, BYTES);
                }
                assertTrue(connection.submit(command), () -> "" + command.failure());
                command.over.acquire();
                assertNull(command.failure());
                for (int at = 5; reads && at < BYTES + 5; at += 997) {
                    assertEquals((byte) round, buffer.get(at));
                }
                if (outstanding.decrementAndGet() == 0) {
                    allOver.release();
                }
            }
        }
    }

    private interface Work {
        void run() throws InterruptedException;
    }

    private void guard(Work work) {
        try {
            work.run();
        } catch (InterruptedException | RuntimeException | AssertionError thrown) {
            failure.compareAndSet(null, thrown);
            allOver.release();
        }
    }

    /** Goal: all commands of all callers are answered once, each with its own data. */
    @Test
    void manyCallers() throws InterruptedException {
        Random random = Seed.of(ThreadsTest.class);
        InitiatorSession session = new InitiatorSession(1, 100);
        List<Link> links = new ArrayList<>();
        for (int cid = 0; cid < CONNECTIONS; cid++) {
            links.add(new Link(session, cid));
        }
        for (Link link : links) {
            link.writer.start();
            link.reader.start();
            for (int caller = 0; caller < CALLERS; caller++) {
                Random own = new Random(random.nextLong());
                Thread.startVirtualThread(() -> guard(() -> link.call(own)));
            }
        }
        allOver.acquire();
        if (failure.get() != null) {
            throw new AssertionError(failure.get());
        }
        for (Link link : links) {
            assertTrue(link.connection.isIdle());
            link.connection.onLost();
            link.wire.add(new NopOut(0, 0, 0, 0, 0, Rig.TAG_NONE, 0, 0, 0));
            link.writer.join();
            link.reader.join();
            assertInstanceOf(ConnectionEvent.Closed.class, link.connection.pollEvent());
        }
        assertTrue(session.ending().isPresent());
    }
}
