package org.lunarsan.pool;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * A TCP proxy of an iSCSI target whose connections can be cut. Sets DefaultTime2Wait to 0, so that
 * sessions are re-established at once. Threads: three virtual ones for each connection.
 */
final class TrialProxy implements AutoCloseable {
    private static final String WAIT = "DefaultTime2Wait=";

    private final ServerSocket server;
    private final int targetPort;
    private final Map<Socket, Socket> open = new ConcurrentHashMap<>();
    private volatile boolean refuses;

    TrialProxy(int targetPort) throws IOException {
        this.targetPort = targetPort;
        server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        Thread.ofVirtual().start(this::accept);
    }

    int port() {
        return server.getLocalPort();
    }

    /** Cuts all connections; new ones may be refused until {@link #heal()}. */
    void cut(boolean refuse) {
        refuses = refuse;
        open.forEach((client, target) -> {
            drop(client);
            drop(target);
        });
    }

    void heal() {
        refuses = false;
    }

    private void accept() {
        while (!server.isClosed()) {
            try {
                Socket client = server.accept();
                Thread.ofVirtual().start(() -> relay(client));
            } catch (IOException ignored) {
                // The server socket is closed, which ends the loop.
            }
        }
    }

    private void relay(Socket client) {
        try {
            if (refuses) {
                throw new IOException("the connection is refused");
            }
            Socket target = new Socket(InetAddress.getLoopbackAddress(), targetPort);
            open.put(client, target);
            Thread.ofVirtual().start(() -> forward(client, target, false));
            forward(target, client, true);
        } catch (IOException exception) {
            drop(client);
        }
    }

    private void forward(Socket from, Socket to, boolean fromTarget) {
        byte[] bytes = new byte[1 << 16];
        try {
            to.setTcpNoDelay(true);
            InputStream in = from.getInputStream();
            OutputStream out = to.getOutputStream();
            for (int count = in.read(bytes); count >= 0; count = in.read(bytes)) {
                if (fromTarget) {
                    clearTime2Wait(bytes, count);
                }
                out.write(bytes, 0, count);
            }
        } catch (IOException ignored) {
            // Both sides are closed below.
        }
        drop(from);
        drop(to);
        open.remove(fromTarget ? to : from);
    }

    private static void clearTime2Wait(byte[] bytes, int count) {
        int at = new String(bytes, 0, count, StandardCharsets.ISO_8859_1).indexOf(WAIT);
        if (at >= 0 && at + WAIT.length() < count) {
            bytes[at + WAIT.length()] = '0';
        }
    }

    private static void drop(Socket socket) {
        try {
            socket.close();
        } catch (IOException closed) {
            // The socket is closed in any case.
        }
    }

    @Override
    public void close() throws IOException {
        server.close();
        cut(true);
    }
}
