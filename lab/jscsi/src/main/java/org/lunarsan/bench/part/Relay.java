package org.lunarsan.bench.part;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * A relay before a target that delays each byte and limits the pending bytes to a window, in each
 * direction of each connection: the network of {@code lunar bench --delay --window}.
 *
 * <p>Threads: one that accepts, two for each direction of a connection; closing ends them.
 */
final class Relay implements AutoCloseable {
    private final InetSocketAddress target;
    private final Duration delay;
    private final long windowBytes;
    private final ServerSocketChannel listener;
    private final Set<SocketChannel> sockets = ConcurrentHashMap.newKeySet();

    /**
     * Listens on a free port of loopback.
     *
     * @param port of the target
     * @param delay of each byte, each way
     * @param windowBytes limit of pending bytes
     */
    Relay(int port, Duration delay, long windowBytes) throws IOException {
        target = new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
        this.delay = delay;
        this.windowBytes = windowBytes;
        listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        Thread.ofPlatform().daemon().name("relay accepts").start(this::accept);
    }

    int port() {
        return listener.socket().getLocalPort();
    }

    private void accept() {
        try {
            while (true) {
                SocketChannel client = kept(listener.accept());
                SocketChannel server = kept(SocketChannel.open(target));
                client.setOption(StandardSocketOptions.TCP_NODELAY, true);
                server.setOption(StandardSocketOptions.TCP_NODELAY, true);
                new Pipe(client, server, delay, windowBytes).start();
                new Pipe(server, client, delay, windowBytes).start();
            }
        } catch (IOException closed) {
            close();
        }
    }

    private SocketChannel kept(SocketChannel socket) {
        sockets.add(socket);
        return socket;
    }

    @Override
    public void close() {
        try {
            listener.close();
            for (SocketChannel socket : sockets) {
                socket.close();
            }
        } catch (IOException exception) {
            System.err.println("relay: " + exception.getMessage());
        }
    }
}
