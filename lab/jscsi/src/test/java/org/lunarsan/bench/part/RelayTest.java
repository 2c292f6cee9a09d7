package org.lunarsan.bench.part;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.lunarsan.bench.contestant.OperationData;

/** The delaying relay. No test fails for being too slow, since a machine may stall. */
class RelayTest {
    private static final Duration DELAY = Duration.ofMillis(5);

    @AutoClose
    private ServerSocket echo;

    @BeforeEach
    void start() throws IOException {
        echo = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        Thread.ofPlatform().daemon().start(() -> {
            try (Socket socket = echo.accept()) {
                socket.getInputStream().transferTo(socket.getOutputStream());
            } catch (IOException ended) {
                // The test has ended.
            }
        });
    }

    private static long roundTrip(Relay relay, byte[] sent) throws Exception {
        try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), relay.port())) {
            long begun = System.nanoTime();
            OutputStream output = socket.getOutputStream();
            Thread sender = Thread.ofPlatform().start(() -> {
                try {
                    output.write(sent);
                    socket.shutdownOutput();
                } catch (IOException failed) {
                    // The answer is too short then, and the test fails.
                }
            });
            InputStream input = socket.getInputStream();
            byte[] read = input.readNBytes(sent.length);
            final long nanos = System.nanoTime() - begun;
            assertEquals(-1, input.read(), "the end comes through");
            sender.join();
            assertArrayEquals(sent, read);
            return nanos;
        }
    }

    /** Goal: a byte and its answer take one delay each. */
    @Test
    void delays() throws Exception {
        try (Relay relay = new Relay(echo.getLocalPort(), DELAY, 1 << 20)) {
            assertTrue(roundTrip(relay, new byte[1]) >= 2 * DELAY.toNanos());
        }
    }

    /** Goal: a window passes once in each round trip, and all bytes in order. */
    @Test
    void windows() throws Exception {
        byte[] sent = new byte[256 << 10];
        OperationData.fill(sent, 1);
        int windows = 8;
        try (Relay relay = new Relay(echo.getLocalPort(), DELAY, sent.length / windows)) {
            // The first window does not wait, and the last one need not be acknowledged.
            long least = 2L * (windows - 1) * DELAY.toNanos();
            assertTrue(roundTrip(relay, sent) >= least);
        }
    }
}
