package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.testkit.Seed;
import org.lunarsan.iscsi.pdu.DataIn;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.pdu.ReadyToTransfer;
import org.lunarsan.iscsi.pdu.ScsiCommand;

/** Targets that break the protocol: the effect is limited to the end of the session. */
final class HostileTargetTest {
    /** A wrong answer of a target to a command. */
    private interface Wrong {
        void answer(MiniConnection wire, ScsiCommand command) throws IOException;
    }

    private static ReadyToTransfer requestData(MiniConnection wire, ScsiCommand command, int tag,
            int transferTag, int sequence, int offset, int bytes) {
        return new ReadyToTransfer(Opcode.READY_TO_TRANSFER, 0x80, 0, 0, command.lun(), tag,
                transferTag, wire.statSn, wire.expCmdSn, wire.maxCmdSn(), sequence, offset, bytes);
    }

    private static Wrong readyToTransfer(int tagAdd, int transferTag, int sequence, int offset,
            int bytes) {
        return (wire, command) -> wire.send(requestData(wire, command,
                command.initiatorTaskTag() + tagAdd, transferTag, sequence, offset, bytes),
                new byte[0]);
    }

    private static Wrong dataIn(int tagAdd, int flags, int sequence, int offset, int bytes) {
        return (wire, command) -> wire.send(new DataIn(Opcode.DATA_IN, flags, 0, 0, bytes,
                command.lun(), command.initiatorTaskTag() + tagAdd, -1, wire.statSn, wire.expCmdSn,
                wire.maxCmdSn(), sequence, offset, 0), new byte[bytes]);
    }

    /** Goal: invalid R2Ts and Data-In end the session; the command succeeds in the next one. */
    @Test
    void protocolErrorsEndTheSession() throws Exception {
        List<Wrong> writes = List.of(readyToTransfer(0, 1, 0, 4096, 0),
                readyToTransfer(0, 1, 0, 4096, -1), readyToTransfer(0, 1, 0, 1 << 30, 512),
                readyToTransfer(0, 1, 7, 4096, 512), readyToTransfer(0, -1, 0, 4096, 512),
                readyToTransfer(1 << 20, 1, 0, 4096, 512), readyToTransfer(0, 1, 0, -512, 512),
                readyToTransfer(0, 1, 0, 0, Integer.MIN_VALUE));
        for (Wrong wrong : writes) {
            recovers(wrong, true);
        }
        List<Wrong> reads = List.of(dataIn(0, 0x80, 0, 4096, 512), dataIn(0, 0x80, 1, 0, 512),
                dataIn(1 << 20, 0x80, 0, 0, 512), dataIn(0, 0x80, 0, 0, 8192),
                dataIn(0, 0x80, 0, -512, 512), dataIn(0, 0x01, 0, 0, 512),
                dataIn(0, 0x81, 0, 0, 512), readyToTransfer(0, 1, 0, 0, 512),
                (wire, command) -> wire.respond(command, 0, new byte[0], 9, 0),
                (wire, command) -> {
                    // A DataSegmentLength above the one that we declared.
                    ByteBuffer header = ByteBuffer.allocate(48);
                    header.put(0, (byte) Opcode.DATA_IN).putInt(4, 0xff_ffff)
                            .putInt(16, command.initiatorTaskTag());
                    wire.raw(header.array());
                },
                (wire, command) -> wire.raw(new byte[48]),
                (wire, command) -> {
                    byte[] header = new byte[48];
                    header[0] = 0x3f;
                    wire.raw(header);
                });
        for (Wrong wrong : reads) {
            recovers(wrong, false);
        }
    }

    private static void recovers(Wrong wrong, boolean write) throws Exception {
        try (MiniTarget target = new MiniTarget(64).withoutWait()) {
            target.offer = target.offer.toBuilder().firstBurstBytes(1024).build();
            try (IscsiDevice disk = IscsiDevice.open(target.url())) {
                byte[] data = new byte[4096];
                Arrays.fill(data, (byte) 9);
                disk.write(0, data);
                AtomicInteger left = new AtomicInteger(1);
                int opcode = write ? 0x8a : 0x88;
                target.script = (wire, pdu, bytes) -> {
                    boolean hit = pdu instanceof ScsiCommand command
                            && (command.cdb()[0] & 0xff) == opcode && left.getAndDecrement() == 1;
                    if (hit) {
                        wire.expCmdSn = ((ScsiCommand) pdu).cmdSn() + 1;
                        wrong.answer(wire, (ScsiCommand) pdu);
                    }
                    return hit;
                };
                if (write) {
                    disk.write(0, data);
                }
                byte[] found = new byte[4096];
                disk.read(0, found);
                assertArrayEquals(data, found);
                assertEquals(2, target.sessions.get());
            }
        }
    }

    /** Goal: several R2Ts at once, and the smallest bursts, transfer all data. */
    @Test
    void smallBurstsMoveAll() throws Exception {
        for (int segment : new int[] {512, 1000, 8192}) {
            try (MiniTarget target = new MiniTarget(4096).withoutWait()) {
                target.offer = target.offer.toBuilder().firstBurstBytes(512).maxBurstBytes(512)
                        .maxRecvDataSegmentBytes(segment).initialR2t(true).immediateData(false)
                        .build();
                try (IscsiDevice disk = IscsiDevice.open(target.url())) {
                    byte[] data = new byte[100 * 512];
                    new Random(segment).nextBytes(data);
                    disk.write(5, data);
                    ByteBuffer direct = ByteBuffer.allocateDirect(data.length).put(data).flip();
                    disk.write(200, direct);
                    byte[] found = new byte[data.length];
                    disk.read(200, found);
                    assertArrayEquals(data, found);
                    disk.read(5, found);
                    assertArrayEquals(data, found);
                }
            }
        }
    }

    /** Goal: random bytes at any time have no effect beyond the end of the session. */
    @Test
    void randomBytesEndOnlyTheSession() {
        Seed.run(random -> {
            try (MiniTarget target = new MiniTarget(256).withoutWait()) {
                IscsiOptions options =
                        IscsiOptions.builder().pingInterval(Duration.ofMillis(50))
                                .pingTime(Duration.ofSeconds(2)).build();
                AtomicInteger noises = new AtomicInteger(60);
                target.script = (wire, pdu, data) -> {
                    boolean noisy;
                    byte[] noise = new byte[48 + 4 * 64];
                    synchronized (random) {
                        noisy = pdu instanceof ScsiCommand && random.nextInt(4) == 0
                                && noises.decrementAndGet() >= 0;
                        random.nextBytes(noise);
                        // Mostly an existing opcode, with a length that does not end the stream.
                        noise[0] = (byte) (0x20 + random.nextInt(32));
                        ByteBuffer.wrap(noise).putInt(4, random.nextInt(200));
                        if (random.nextBoolean() && pdu instanceof ScsiCommand command) {
                            ByteBuffer.wrap(noise).putInt(16, command.initiatorTaskTag())
                                    .putInt(24, wire.statSn);
                        }
                    }
                    if (noisy) {
                        wire.raw(noise);
                    }
                    return noisy;
                };
                try (IscsiDevice disk = opened(target, options)) {
                    byte[] block = new byte[512];
                    for (int step = 0; step < 200; step++) {
                        try {
                            block[0] = (byte) step;
                            disk.write(step, block);
                            disk.read(step, block);
                        } catch (DeviceException failure) {
                            assertTrue(failure.getMessage() != null);
                        }
                    }
                }
            }
        });
    }

    /** Opens the device repeatedly, because the first login is not retried automatically. */
    private static IscsiDevice opened(MiniTarget target, IscsiOptions options) {
        while (true) {
            try {
                return IscsiDevice.open(target.url(), options);
            } catch (DeviceException exception) {
                Thread.onSpinWait();
            }
        }
    }
}
