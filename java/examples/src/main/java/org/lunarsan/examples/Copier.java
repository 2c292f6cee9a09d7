package org.lunarsan.examples;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.PoisonedException;

/**
 * Copies with several concurrent transfers: while one part waits for the device, the file is read
 * or written for another.
 *
 * <p>Threads: for one thread.
 */
final class Copier {
    private static final int PART_BYTES = 1 << 20;
    private static final int PARTS = 8;
    /** Limit of the attempts of a copy. */
    private static final int TRIES_MAX = 8;

    private final FileChannel file;
    private final AsyncDevice device;
    private final Progress progress;
    private final int blockSize;
    private final ByteBuffer[] parts = new ByteBuffer[PARTS];
    private final CompletableFuture<?>[] pending = new CompletableFuture<?>[PARTS];

    Copier(FileChannel file, AsyncDevice device, Progress progress) {
        this.file = file;
        this.device = device;
        this.progress = progress;
        blockSize = device.blockSize();
        for (int part = 0; part < PARTS; part++) {
            parts[part] = ByteBuffer.allocateDirect(PART_BYTES);
            pending[part] = CompletableFuture.completedFuture(null);
        }
    }

    /**
     * Copies the file to the first blocks of the device and makes it durable; the rest of the last
     * block stays unchanged. Writes everything again when the device may have lost writes that were
     * not yet durable, as it may when a session ends.
     */
    long toLun() throws IOException {
        long size = file.size();
        if (size > device.blockCount() * blockSize) {
            throw new IOException("the file has " + size + " bytes, the LUN only "
                    + device.blockCount() * blockSize);
        }
        for (int tries = 1;; tries++) {
            writeAll(size);
            try {
                device.flush();
                return size;
            } catch (PoisonedException lost) {
                if (tries == TRIES_MAX) {
                    throw lost;
                }
            }
        }
    }

    private void writeAll(long size) throws IOException {
        try {
            for (long at = 0; at < size; at += PART_BYTES) {
                int slot = slot(at);
                await(slot);
                ByteBuffer part = parts[slot].clear();
                fill(part, at, size);
                pending[slot] = device.writeAsync(at / blockSize, part.flip());
                progress.show(at, size);
            }
        } finally {
            awaitAll();
        }
    }

    private void fill(ByteBuffer part, long at, long size) throws IOException {
        int bytes = (int) Math.min(PART_BYTES, size - at);
        int partialBytes = bytes % blockSize;
        if (partialBytes != 0) {
            int last = bytes - partialBytes;
            device.read((at + last) / blockSize, part.limit(last + blockSize).position(last));
        }
        part.limit(bytes).position(0);
        while (part.hasRemaining()) {
            if (file.read(part, at + part.position()) < 0) {
                throw new EOFException("the file has become shorter");
            }
        }
        part.limit(partialBytes == 0 ? bytes : bytes - partialBytes + blockSize)
                .position(part.limit());
    }

    /** Copies all blocks of the device to the file, zeroes as holes. */
    long toFile() throws IOException {
        long size = device.blockCount() * blockSize;
        file.truncate(0);
        try {
            for (long at = 0; at < size + (long) PARTS * PART_BYTES; at += PART_BYTES) {
                long done = at - (long) PARTS * PART_BYTES;
                int slot = slot(at);
                await(slot);
                if (done >= 0 && done < size) {
                    drain(parts[slot].flip(), done);
                    progress.show(done, size);
                }
                if (at < size) {
                    int bytes = (int) Math.min(PART_BYTES, size - at);
                    pending[slot] =
                            device.readAsync(at / blockSize, parts[slot].clear().limit(bytes));
                }
            }
        } finally {
            awaitAll();
        }
        lengthen(size);
        file.force(true);
        return size;
    }

    private void drain(ByteBuffer part, long at) throws IOException {
        boolean zero = true;
        for (int index = 0; zero && index < part.limit(); index += Long.BYTES) {
            zero = part.getLong(index) == 0;
        }
        while (!zero && part.hasRemaining()) {
            file.write(part, at + part.position());
        }
    }

    private void lengthen(long size) throws IOException {
        if (file.size() < size) {
            file.write(ByteBuffer.allocate(1), size - 1);
        }
    }

    private static int slot(long at) {
        return (int) (at / PART_BYTES % PARTS);
    }

    private void await(int slot) throws IOException {
        try {
            pending[slot].join();
        } catch (CompletionException failed) {
            if (failed.getCause() instanceof IOException cause) {
                throw cause;
            }
            throw failed;
        }
    }

    /** Waits until no transfer is pending, and throws the first failure. */
    private void awaitAll() throws IOException {
        IOException first = null;
        for (int slot = 0; slot < PARTS; slot++) {
            try {
                await(slot);
            } catch (IOException failed) {
                first = first == null ? failed : first;
            }
        }
        if (first != null) {
            throw first;
        }
    }
}
