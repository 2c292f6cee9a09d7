package org.lunarsan.initiator;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.net.ConnectException;
import java.net.InetSocketAddress;
import java.net.SocketTimeoutException;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.SocketChannel;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.framing.Digests;
import org.lunarsan.iscsi.login.Established;
import org.lunarsan.iscsi.login.InitiatorLogin;
import org.lunarsan.iscsi.login.LoginException;
import org.lunarsan.iscsi.login.LoginOptions;
import org.lunarsan.iscsi.login.LoginStep;
import org.lunarsan.iscsi.pdu.BasicHeader;

/**
 * The login of one connection over a socket, PDU by PDU, with a deadline. Reads nothing beyond the
 * last login PDU. An interrupt of its thread closes the socket, as with any blocking channel.
 *
 * <p>Threads: for one thread, which waits.
 */
final class Login {
    private static final long MILLI = 1_000_000L;

    private final String portal;
    private final long until;
    private boolean closedOverNewerKeys;

    /**
     * Creates a login to {@code portal}; {@code until} is its deadline on the clock of
     * {@link System#nanoTime}.
     */
    Login(String portal, long until) {
        this.portal = portal;
        this.until = until;
    }

    /** Connects a socket to this address. */
    SocketChannel connect(InetSocketAddress address) throws Failure {
        SocketChannel channel = null;
        try {
            channel = SocketChannel.open();
            channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
            channel.socket().connect(address, millisLeft());
            refuseSelfConnection(channel);
            return channel;
        } catch (IOException | RuntimeException refused) {
            close(channel);
            throw unreachable(portal, refused);
        }
    }

    /**
     * Rejects a socket that is connected to itself. If no server listens on a local port in the
     * ephemeral range, the system may choose this very port as the source port of the connection
     * and connect the socket to itself (RFC 9293, simultaneous open). Closing the socket frees the
     * port for the server.
     */
    static void refuseSelfConnection(SocketChannel channel) throws IOException {
        if (channel.getLocalAddress().equals(channel.getRemoteAddress())) {
            // Avoid TIME-WAIT, which would keep the port in use.
            channel.setOption(StandardSocketOptions.SO_LINGER, 0);
            throw new ConnectException("Connection refused");
        }
    }

    /** Logs in. Throws {@link LoginException} when the target refuses. */
    Established run(SocketChannel channel, LoginOptions options) throws Failure, LoginException {
        AtomicBoolean ended = new AtomicBoolean();
        Thread watch = Thread.ofVirtual().name("iscsi " + portal + " login watch").start(() -> {
            // Only closing the channel ends a write that the target does not accept.
            for (long left = left(); left > 0 && !ended.get(); left = left()) {
                LockSupport.parkNanos(left);
            }
            if (ended.compareAndSet(false, true)) {
                close(channel);
            }
        });
        try {
            Established established = steps(channel, options);
            if (!ended.compareAndSet(false, true)) {
                throw tooLate();
            }
            return established;
        } finally {
            ended.set(true);
            LockSupport.unpark(watch);
        }
    }

    /**
     * True when the target closed the connection instead of answering keys that it may not support.
     */
    boolean wasClosedOverNewerKeys() {
        return closedOverNewerKeys;
    }

    private Established steps(SocketChannel channel, LoginOptions options)
            throws Failure, LoginException {
        InitiatorLogin login = new InitiatorLogin(options);
        try {
            InputStream in = channel.socket().getInputStream();
            LoginStep step = login.start();
            while (step instanceof LoginStep.Send send) {
                write(channel, send);
                step = receive(login, channel, in);
            }
            return switch (step) {
                case LoginStep.Complete complete -> complete.established();
                case LoginStep.Failed failed -> throw failed.reason();
                case LoginStep.Send send -> throw new IllegalStateException("handled above");
            };
        } catch (LoginException refused) {
            throw refused;
        } catch (SocketTimeoutException exception) {
            throw tooLate();
        } catch (EOFException closed) {
            closedOverNewerKeys = login.newerKeysAreUnanswered();
            throw Failure.of(Kind.SESSION_LOST, portal + " closed the connection", closed);
        } catch (IOException broken) {
            if (left() <= 0) {
                throw tooLate();
            }
            closedOverNewerKeys = login.newerKeysAreUnanswered()
                    && !(broken instanceof ClosedByInterruptException);
            throw Failure.of(Kind.SESSION_LOST, "the connection to " + portal + " failed: "
                    + broken.getMessage(), broken);
        }
    }

    private static void write(SocketChannel channel, LoginStep.Send send) throws IOException {
        byte[] data = send.data();
        int padding = Digests.paddingBytes(data.length);
        ByteBuffer pdu =
                ByteBuffer.allocate(BasicHeader.HEADER_BYTES + data.length + padding);
        send.header().encode(pdu);
        pdu.put(data).clear();
        while (pdu.hasRemaining()) {
            channel.write(pdu);
        }
    }

    private LoginStep receive(InitiatorLogin login, SocketChannel channel, InputStream in)
            throws IOException, Failure {
        byte[] bytes = new byte[BasicHeader.HEADER_BYTES];
        fill(channel, in, bytes);
        ByteBuffer header = ByteBuffer.wrap(bytes);
        fill(channel, in, new byte[4 * BasicHeader.totalAhsWords(header, 0)]);
        int length = BasicHeader.dataSegmentLength(header, 0);
        if (length > InitiatorLogin.LOGIN_SEGMENT_BYTES_MAX) {
            // The state machine reports the violation.
            return login.receive(header, ByteBuffer.allocate(0));
        }
        byte[] data = new byte[length + Digests.paddingBytes(length)];
        fill(channel, in, data);
        return login.receive(header, ByteBuffer.wrap(data, 0, length));
    }

    private void fill(SocketChannel channel, InputStream in, byte[] bytes)
            throws IOException, Failure {
        int at = 0;
        while (at < bytes.length) {
            channel.socket().setSoTimeout(millisLeft());
            int read = in.read(bytes, at, bytes.length - at);
            if (read < 0) {
                throw new EOFException();
            }
            at += read;
        }
    }

    private long left() {
        return until - System.nanoTime();
    }

    private int millisLeft() throws Failure {
        long left = left() / MILLI;
        if (left <= 0) {
            throw tooLate();
        }
        return (int) Math.min(left, Integer.MAX_VALUE);
    }

    private Failure tooLate() {
        return Failure.of(Kind.SESSION_LOST, portal + " did not answer the login in time")
                .hint("check that this is an iSCSI target, and that its server is not stopped or"
                        + " overloaded");
    }

    static Failure unreachable(String portal, Exception why) {
        String text = why.getMessage() == null ? why.getClass().getSimpleName() : why.getMessage();
        return Failure.of(Kind.CONNECT, "cannot connect to " + portal + ": " + text, why)
                .hint("check the address, and whether the server is running");
    }

    static void close(SocketChannel channel) {
        if (channel == null) {
            return;
        }
        try {
            channel.close();
        } catch (IOException ignored) {
            // The channel is not used any more.
        }
    }
}
