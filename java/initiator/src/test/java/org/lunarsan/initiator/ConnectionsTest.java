package org.lunarsan.initiator;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.pdu.ScsiCommand;

/** Several connections of one session. */
final class ConnectionsTest {
    /** Goal: all connections of one session take commands, as many as the target allows. */
    @Test
    void allConnectionsTakeCommands() throws Exception {
        try (MiniTarget target = new MiniTarget(1024)) {
            Set<MiniConnection> used = ConcurrentHashMap.newKeySet();
            CompletableFuture<Void> all = new CompletableFuture<>();
            target.script = (wire, pdu, data) -> {
                if (pdu instanceof ScsiCommand command && command.cdb()[0] == (byte) 0x8a) {
                    used.add(wire);
                    if (used.size() == 4) {
                        all.complete(null);
                    }
                    // A connection whose commands always end first would get all of them.
                    all.completeOnTimeout(null, 1, TimeUnit.MINUTES).join();
                }
                return false;
            };
            IscsiOptions four = IscsiOptions.builder().connections(4).build();
            try (IscsiDevice disk = IscsiDevice.open(target.url(), four)) {
                assertEquals(4, disk.connections());
                disk.read(0, new byte[512]);
                writeMany(disk);
                assertEquals(4, used.size());
                assertEquals(1, target.sessions.get());
            }
            target.offer = target.offer.toBuilder().maxConnections(2).build();
            try (IscsiDevice disk = IscsiDevice.open(target.url(), four)) {
                assertEquals(2, disk.connections());
                writeMany(disk);
            }
        }
    }

    private static void writeMany(IscsiDevice disk) throws Exception {
        byte[] data = new byte[1024 * 512];
        new Random(3).nextBytes(data);
        List<CompletableFuture<Void>> writes = new ArrayList<>();
        for (int block = 0; block < 1024; block++) {
            writes.add(disk.writeAsync(block, ByteBuffer.wrap(data, block * 512, 512)));
        }
        writes.forEach(CompletableFuture::join);
        byte[] found = new byte[data.length];
        disk.read(0, found);
        assertArrayEquals(data, found);
    }

    /** Goal: a connection that is lost while idle is made again. */
    @Test
    void idleConnectionsComeBack() throws Exception {
        IscsiOptions three = IscsiOptions.builder().connections(3).build();
        try (MiniTarget target = new MiniTarget(1024);
                IscsiDevice disk = IscsiDevice.open(target.url(), three)) {
            disk.read(0, new byte[512]);
            CompletableFuture<Void> again = new CompletableFuture<>();
            int logins = target.logins.get();
            target.censor = (wire, pdu) -> {
                if (target.logins.get() > logins) {
                    again.complete(null);
                }
                return true;
            };
            target.wires.get(2).cut();
            again.join();
            while (disk.connections() < 3) {
                Thread.onSpinWait();
            }
            writeMany(disk);
            assertEquals(1, target.sessions.get());
            assertTrue(target.logins.get() >= 4);
        }
    }
}
