package org.lunarsan.initiator;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedSelectorException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import org.lunarsan.iscsi.connection.InitiatorConnection;
import org.lunarsan.iscsi.connection.Receive;
import org.lunarsan.iscsi.framing.Deframer;
import org.lunarsan.iscsi.pdu.BasicHeader;

/**
 * Receives on one connection. Takes many PDUs from one read, and reads long data straight into the
 * caller's buffer if that is a direct one.
 *
 * <p>Threads: its {@link ReaderThread}.
 */
final class Reader implements Runnable {
    /** Size of the permanent input buffer: the whole answer to a 4 KiB read. */
    private static final int INPUT_BYTES = 8192;
    /** Number of missing bytes from which data is read straight into its destination. */
    private static final int SCATTER_BYTES_MIN = 4096;
    private static final Consumer<SelectionKey> NOTHING = key -> { };
    private static final ByteBuffer EMPTY = ByteBuffer.allocate(0);

    private final Connection connection;
    private final SocketChannel channel;
    private final InitiatorConnection machine;
    private final Deframer deframer;
    private final Waker waker;
    private final Selector selector;
    private final Receive receive = new Receive();
    private final ByteBuffer small = ByteBuffer.allocateDirect(INPUT_BYTES);
    private final ByteBuffer[] scatter = new ByteBuffer[2];
    private ByteBuffer input = small;
    /** Destination of the current payload; null: discarded. */
    private ByteBuffer destination;
    /** Task of the current payload, or null. */
    private Task receiving;
    /** Held while a caller's buffer may be written to. */
    private final ReentrantLock lock = new ReentrantLock(true);
    /** Set when the byte stream cannot be parsed any more. */
    private boolean lost;

    Reader(Connection connection, SocketChannel channel, InitiatorConnection machine,
            Deframer deframer) throws IOException {
        this.connection = connection;
        this.channel = channel;
        this.machine = machine;
        this.deframer = deframer;
        waker = connection.waker();
        selector = channel.provider().openSelector();
        channel.register(selector, SelectionKey.OP_READ);
    }

    /** Makes the reader check whether its connection is over. Threads: any. */
    void wakeUp() {
        selector.wakeup();
    }

    @Override
    public void run() {
        ReaderThread thread = (ReaderThread) Thread.currentThread();
        Throwable why = null;
        try {
            while (!connection.isOver() && !lost) {
                await();
                read(thread);
            }
        } catch (IOException | ClosedSelectorException ended) {
            why = ended;
        } catch (RuntimeException | Error exception) {
            connection.failed(exception);
            throw exception;
        } finally {
            release();
            machine.readerStopped();
            try {
                connection.readerStopped(why);
                thread.sendNoted();
            } finally {
                waker.close();
                thread.wakeAnswered(waker, System.nanoTime());
            }
            closeSelector();
        }
    }

    /** Waits until there is something to read, or until an overdue wake-up has to be done here. */
    private void await() throws IOException {
        if (waker.isBusy()) {
            selector.select(NOTHING, Waker.WAKE_MILLIS);
            waker.wakeIfLate(System.nanoTime());
        } else {
            selector.select(NOTHING);
        }
    }

    /** Reads until no more data is available. */
    private void read(ReaderThread thread) throws IOException {
        boolean full = true;
        while (full && !connection.isOver() && !lost) {
            long now;
            lock.lock();
            try {
                if (receiveSome() < 0) {
                    throw new EOFException("the target closed the connection");
                }
                full = !input.hasRemaining();
                now = System.nanoTime();
                parse(now, input.flip());
                input.clear();
            } finally {
                lock.unlock();
            }
            connection.handleCompletions();
            thread.sendNoted();
            thread.wakeAnswered(waker, now);
        }
        fitInput(full);
    }

    private int receiveSome() throws IOException {
        int missing = deframer.payloadMissing();
        if (missing >= SCATTER_BYTES_MIN && destination != null && destination.isDirect()) {
            return scatter();
        }
        return receiveInput();
    }

    /** Reads long data straight into its destination. */
    private int scatter() throws IOException {
        int at = destination.position();
        scatter[0] = destination;
        scatter[1] = input;
        long bytes;
        try {
            bytes = channel.read(scatter);
        } catch (RuntimeException | InternalError unusable) {
            lose(unusable);
            return receiveInput();
        } finally {
            scatter[0] = null;
        }
        int inPlace = destination.position() - at;
        if (bytes > 0) {
            try {
                deframer.received(destination, at, inPlace);
            } catch (RuntimeException | InternalError unusable) {
                lose(unusable);
                deframer.receivedUnread(inPlace);
            }
        }
        return bytes < 0 ? -1 : 1;
    }

    private int receiveInput() throws IOException {
        int bytes = channel.read(input);
        if (!input.hasRemaining() && input == small) {
            // More data is available: use a chunk.
            input = Chunks.take();
            input.put(small.flip());
            bytes += Math.max(channel.read(input), 0);
            small.clear();
        }
        return bytes;
    }

    /** Gives the chunk back when nothing is pending. */
    private void fitInput(boolean full) {
        if (input != small && !full && connection.isIdle()) {
            Chunks.give(input);
            input = small;
        }
    }

    private void release() {
        if (input != small) {
            Chunks.give(input);
            input = small;
        }
    }

    private void parse(long now, ByteBuffer bytes) {
        while (!lost) {
            switch (deframer.next(bytes)) {
                case NEED_MORE -> {
                    return;
                }
                case HEADER -> onHeader(now);
                case PAYLOAD -> take(bytes);
                case PAYLOAD_END -> onPayload(now, true);
                case PAYLOAD_DIGEST_ERROR -> onPayload(now, false);
                case HEADER_DIGEST_ERROR -> {
                    machine.onHeaderDigestError();
                    lost = true;
                }
                case TOO_LONG -> {
                    machine.onTooLong(deframer.header());
                    lost = true;
                }
            }
        }
    }

    private void onHeader(long now) {
        ByteBuffer header = deframer.header();
        machine.onHeader(now, header, receive);
        receiving = null;
        switch (receive.destination()) {
            case NOTHING, DISCARD -> destination = null;
            case CONTROL -> destination =
                    ByteBuffer.allocate(BasicHeader.dataSegmentLength(header, header.position()));
            case COMMAND -> {
                Task task = (Task) receive.command();
                int at = task.dataInAt() + receive.offsetBytes();
                int bytes = BasicHeader.dataSegmentLength(header, header.position());
                receiving = task;
                destination = task.discards() ? null : task.view.limit(at + bytes).position(at);
            }
            case CLOSED -> lost = true;
        }
    }

    private void take(ByteBuffer bytes) {
        if (destination != null) {
            try {
                deframer.take(bytes, destination);
                return;
            } catch (RuntimeException | InternalError unusable) {
                lose(unusable);
            }
        }
        deframer.discard(bytes);
    }

    /** Handles a caller's buffer that cannot be used: only the call with that buffer fails. */
    private void lose(Throwable unusable) {
        if (receiving == null) {
            throw new IllegalStateException("the received data cannot be stored", unusable);
        }
        receiving.broke(unusable);
        receiving.discard();
        destination = null;
    }

    /** Discards data that arrives for a task after this call returns. Threads: any. */
    void discard(Task task) {
        lock.lock();
        try {
            task.discard();
            if (receiving == task) {
                destination = null;
            }
        } finally {
            lock.unlock();
        }
    }

    private void onPayload(long now, boolean digestOk) {
        boolean control = receive.destination() == Receive.Destination.CONTROL;
        ByteBuffer data = control ? destination.flip() : EMPTY;
        destination = null;
        receiving = null;
        machine.onPayload(now, data, digestOk);
    }

    private void closeSelector() {
        try {
            selector.close();
        } catch (IOException ignored) {
            // The selector is not used any more.
        }
    }
}
