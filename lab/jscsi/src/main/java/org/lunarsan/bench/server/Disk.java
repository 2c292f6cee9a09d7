package org.lunarsan.bench.server;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Comparator;
import java.util.stream.Stream;
import org.lunarsan.bench.contestant.OperationData;

/**
 * A file on tmpfs behind a LUN, written completely; removed when closed.
 *
 * <p>Threads: for one thread.
 */
public final class Disk implements AutoCloseable {
    /** Length of the file. */
    public static final int BYTES = 256 << 20;
    /** Length of a block, on all targets here. */
    public static final int BLOCK_BYTES = 512;

    private static final Path FOLDER = Path.of("/dev/shm");
    private static final int PIECE_BYTES = 1 << 20;

    private final Path path;
    private final FileChannel channel;

    /**
     * Creates and writes the file.
     *
     * @param name distinguishes it from others of this process
     * @throws IOException when there is no space, or no tmpfs
     */
    public Disk(String name) throws IOException {
        path = FOLDER.resolve("lunar-bench-java-" + ProcessHandle.current().pid() + "-" + name);
        channel = FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.READ,
                StandardOpenOption.WRITE);
        byte[] piece = new byte[PIECE_BYTES];
        for (int at = 0; at < BYTES; at += PIECE_BYTES) {
            OperationData.fill(piece, at);
            channel.write(ByteBuffer.wrap(piece), at);
        }
    }

    /**
     * Path of the file.
     *
     * @return a path in tmpfs
     */
    public Path path() {
        return path;
    }

    /**
     * Reads the content of the file, bypassing all targets and contestants.
     *
     * @param address first block
     * @param blocks number of blocks
     * @return their bytes
     * @throws IOException when it cannot be read
     */
    public byte[] bytes(long address, int blocks) throws IOException {
        ByteBuffer buffer = ByteBuffer.allocate(blocks * BLOCK_BYTES);
        while (buffer.hasRemaining()) {
            if (channel.read(buffer, address * BLOCK_BYTES + buffer.position()) < 0) {
                throw new IOException(path + " ends before block " + (address + blocks));
            }
        }
        return buffer.array();
    }

    @Override
    public void close() throws IOException {
        channel.close();
        Files.deleteIfExists(path);
        // The state that Lunar keeps beside a file.
        Path state = Path.of(path + ".lunar");
        if (Files.isDirectory(state)) {
            try (Stream<Path> within = Files.walk(state)) {
                for (Path one : within.sorted(Comparator.reverseOrder()).toList()) {
                    Files.delete(one);
                }
            }
        }
    }
}
