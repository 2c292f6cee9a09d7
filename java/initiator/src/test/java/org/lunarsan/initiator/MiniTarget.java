package org.lunarsan.initiator;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import org.lunarsan.iscsi.login.ChapAlgorithm;
import org.lunarsan.iscsi.pdu.Pdu;
import org.lunarsan.iscsi.text.Key;
import org.lunarsan.iscsi.text.Offer;

/**
 * A small target in this process that can be scripted to misbehave as real ones do not. A disk in
 * memory, one LUN, any number of connections.
 *
 * <p>Threads: one for each connection; settings have to be made before they are used.
 */
final class MiniTarget implements AutoCloseable {
    static final String NAME = "iqn.2026-11.org.lunarsan.test:mini";
    static final int BLOCK_BYTES = 512;

    /** Handles PDUs in place of a correct target. */
    interface Script {
        /** Returns true if it handled the PDU. */
        boolean handle(MiniConnection wire, Pdu pdu, byte[] data) throws IOException;
    }

    /** Called before a PDU is sent. */
    interface Censor {
        /** Returns true if the PDU may be sent. */
        boolean allows(MiniConnection wire, Pdu pdu) throws IOException;
    }

    /** Credentials of initiators and of the target. */
    record Chap(ChapAlgorithm algorithm, String user, String secret, String ownUser,
            String ownSecret) {
    }

    final byte[] disk;
    final ConcurrentLinkedQueue<byte[]> sense = new ConcurrentLinkedQueue<>();
    final AtomicInteger logins = new AtomicInteger();
    final AtomicInteger sessions = new AtomicInteger();
    final List<MiniConnection> wires = new CopyOnWriteArrayList<>();
    volatile Script script = (wire, pdu, data) -> false;
    volatile Censor censor = (wire, pdu) -> true;
    /** With the default DefaultTime2Wait of the RFC, 2 s; see {@link #withoutWait}. */
    volatile Offer offer = Offer.target();
    /** Closes the connection at a CmdSN that is not the next of the session, as SPDK does. */
    volatile boolean wantsOrder;
    /** Closes the connection instead of answering a login with one of these keys. */
    volatile Set<Key> closesOn = Set.of();
    /** TSIH of sessions. */
    volatile int tsih = 7;
    volatile Optional<Chap> chap = Optional.empty();
    /** Login status and, for a redirect, the address. */
    volatile int loginStatus;
    volatile String redirect;
    volatile String serial = "mini-1";
    volatile int group = 1;
    volatile long blocks;
    volatile int blockBytes = BLOCK_BYTES;
    volatile boolean writeCache;
    volatile boolean writeProtected;
    volatile boolean thin = true;
    volatile int transferBlocksMax;
    /** Unit attention of a new session: additional sense code and qualifier; 0: none. */
    volatile int firstAttention = 0x2907;
    private final ServerSocket server;
    private volatile boolean closed;

    MiniTarget(int blocks) throws IOException {
        this(blocks, BLOCK_BYTES);
    }

    MiniTarget(long blocks, int blockBytes) throws IOException {
        this.blocks = blocks;
        this.blockBytes = blockBytes;
        disk = new byte[Math.toIntExact(blocks * blockBytes)];
        server = new ServerSocket();
        server.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        Thread.ofVirtual().start(this::accept);
    }

    String portal() {
        return "127.0.0.1:" + server.getLocalPort();
    }

    String url() {
        return "iscsi://" + portal() + "/" + NAME + "/0";
    }

    private void accept() {
        while (!closed) {
            try {
                Socket socket = server.accept();
                MiniConnection wire = new MiniConnection(this, socket);
                wires.add(wire);
                Thread.ofVirtual().start(wire);
            } catch (IOException exception) {
                return;
            }
        }
    }

    /** Cuts the session with the same ISID, which this login replaces. RFC 7143 §6.3.5. */
    void replace(long isid, MiniConnection by) {
        for (MiniConnection wire : wires) {
            if (wire != by && wire.isid == isid) {
                wire.cut();
            }
        }
    }

    /** Sets DefaultTime2Wait to 0 for the next sessions. */
    MiniTarget withoutWait() {
        offer = offer.toBuilder().timeToWaitSeconds(0).build();
        return this;
    }

    /** Cuts all connections. */
    void cutAll() {
        wires.forEach(MiniConnection::cut);
    }

    /** Answers the next command with a unit attention or any other sense. */
    void say(int key, int code) {
        sense.add(senseOf(key, code, -1));
    }

    /** Builds fixed-format sense data; {@code information} below 0: none. */
    static byte[] senseOf(int key, int code, long information) {
        byte[] sense = new byte[18];
        sense[0] = (byte) (information < 0 ? 0x70 : 0xf0);
        sense[2] = (byte) key;
        for (int at = 0; at < 4 && information >= 0; at++) {
            sense[3 + at] = (byte) (information >>> 24 - 8 * at);
        }
        sense[7] = 10;
        sense[12] = (byte) (code >> 8);
        sense[13] = (byte) code;
        return sense;
    }

    @Override
    public void close() throws IOException {
        closed = true;
        server.close();
        cutAll();
    }
}
