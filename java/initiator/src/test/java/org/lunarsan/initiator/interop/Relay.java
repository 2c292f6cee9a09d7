package org.lunarsan.initiator.interop;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicReference;
import org.lunarsan.iscsi.framing.Digests;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.pdu.LoginFlags;
import org.lunarsan.iscsi.pdu.Opcode;

/**
 * A relay that parses PDUs and cuts connections at a chosen one: before it, in its middle, or after
 * it. Sets DefaultTime2Wait to 0. Threads: two for each connection.
 */
final class Relay implements AutoCloseable {
    /**
     * Position of a cut.
     *
     * @param opcode kind of the PDU
     * @param skip number of PDUs of this kind that pass first
     * @param part part of the PDU that is passed on, in quarters
     * @param done completes after the cut
     */
    record Cut(int opcode, int skip, int part, CompletableFuture<Void> done) {
        Cut(int opcode, int skip, int part) {
            this(opcode, skip, part, new CompletableFuture<>());
        }
    }

    private static final String WAIT = "DefaultTime2Wait=";

    private final ServerSocket server;
    private final int targetPort;
    private final boolean headerDigest;
    private final boolean dataDigest;
    private final AtomicReference<Cut> next = new AtomicReference<>();
    private final Map<Integer, Integer> cuts = new HashMap<>();
    private final Map<Socket, Socket> open = new ConcurrentHashMap<>();

    Relay(int targetPort, boolean headerDigest, boolean dataDigest) throws IOException {
        this.targetPort = targetPort;
        this.headerDigest = headerDigest;
        this.dataDigest = dataDigest;
        server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        Thread.ofVirtual().start(this::accept);
    }

    /** Returns the URL of a LUN behind the relay. */
    String url(String target) {
        return "iscsi://127.0.0.1:" + server.getLocalPort() + "/" + target + "/0";
    }

    /** Cuts a connection at this position, once. */
    void cutAt(Cut cut) {
        next.set(cut);
    }

    /** Returns the number of cuts at this kind of PDU. */
    int cuts(int opcode) {
        synchronized (cuts) {
            return cuts.getOrDefault(opcode, 0);
        }
    }

    /** Draws a random position at this kind of PDU. */
    static Cut random(Random random, int opcode) {
        return new Cut(opcode, random.nextInt(20), random.nextInt(5));
    }

    private void accept() {
        while (true) {
            try {
                relay(server.accept());
            } catch (IOException exception) {
                if (server.isClosed()) {
                    return;
                }
            }
        }
    }

    private void relay(Socket client) throws IOException {
        try {
            Socket target = new Socket(InetAddress.getLoopbackAddress(), targetPort);
            open.put(client, target);
            boolean[] full = new boolean[1];
            Thread.ofVirtual().start(() -> pass(client, target, full));
            Thread.ofVirtual().start(() -> pass(target, client, full));
        } catch (IOException exception) {
            client.close();
        }
    }

    private void pass(Socket from, Socket to, boolean[] full) {
        try (from; to) {
            from.setTcpNoDelay(true);
            to.setTcpNoDelay(true);
            DataInputStream in =
                    new DataInputStream(new BufferedInputStream(from.getInputStream(), 1 << 16));
            OutputStream out = to.getOutputStream();
            while (passOne(in, out, full)) {
                out.flush();
            }
        } catch (IOException ignored) {
            // The other direction detects the end by itself.
        }
    }

    /** Relays one PDU. False: the connection was cut here. */
    private boolean passOne(DataInputStream in, OutputStream out, boolean[] full)
            throws IOException {
        byte[] header = new byte[BasicHeader.HEADER_BYTES];
        in.readFully(header);
        ByteBuffer bytes = ByteBuffer.wrap(header);
        int opcode = BasicHeader.opcode(bytes, 0);
        int length = BasicHeader.dataSegmentLength(bytes, 0);
        boolean digests = full[0];
        int rest = 4 * BasicHeader.totalAhsWords(bytes, 0) + length + Digests.paddingBytes(length)
                + (digests && headerDigest ? 4 : 0) + (digests && dataDigest && length > 0 ? 4 : 0);
        byte[] pdu = new byte[header.length + rest];
        System.arraycopy(header, 0, pdu, 0, header.length);
        in.readFully(pdu, header.length, rest);
        if (opcode == Opcode.LOGIN_RESPONSE) {
            doNotWait(pdu);
        }
        int flags = BasicHeader.flags(bytes, 0);
        full[0] |= opcode == Opcode.LOGIN_RESPONSE && (flags & LoginFlags.TRANSIT) != 0
                && LoginFlags.next(flags) == LoginFlags.FULL_FEATURE_PHASE;
        Cut cut = hit(opcode);
        out.write(pdu, 0, cut == null ? pdu.length : pdu.length * cut.part() / 4);
        return cut == null;
    }

    /**
     * Our server requires two seconds between a loss and the next login, which would slow the test.
     */
    private static void doNotWait(byte[] pdu) {
        String text = new String(pdu, StandardCharsets.ISO_8859_1);
        int at = text.indexOf(WAIT);
        if (at >= 0) {
            pdu[at + WAIT.length()] = '0';
        }
    }

    private Cut hit(int opcode) {
        Cut now = next.get();
        if (now == null || now.opcode() != opcode) {
            return null;
        }
        if (now.skip() > 0) {
            next.compareAndSet(now, new Cut(opcode, now.skip() - 1, now.part(), now.done()));
            return null;
        }
        if (!next.compareAndSet(now, null)) {
            return null;
        }
        synchronized (cuts) {
            cuts.merge(opcode, 1, Integer::sum);
        }
        now.done().complete(null);
        return now;
    }

    @Override
    public void close() throws IOException {
        server.close();
        for (Map.Entry<Socket, Socket> pair : open.entrySet()) {
            pair.getKey().close();
            pair.getValue().close();
        }
    }
}
