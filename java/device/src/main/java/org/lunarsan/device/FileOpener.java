package org.lunarsan.device;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.OverlappingFileLockException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Creates, claims, opens and locks the file of a {@link FileDevice}, with messages for failures.
 * The device calls it behind the lock under which it opens and closes.
 */
final class FileOpener {
    /**
     * Keys of the open files. Closing any channel of a file drops all locks of this process on it,
     * so a second one is never opened.
     */
    private static final Set<Object> OPEN = ConcurrentHashMap.newKeySet();

    private final Path path;
    private final String name;
    private final int blockSize;
    private final boolean readOnly;
    /** Key of this device's file among the open files. */
    private Object claimed;
    /** Makes a new file durable; replaced in tests. */
    FileDevice.Work force = file -> file.force(true);

    FileOpener(Path path, int blockSize, boolean readOnly) {
        this.path = Objects.requireNonNull(path, "path");
        this.name = path.toString();
        this.blockSize = blockSize;
        this.readOnly = readOnly;
    }

    /** Creates a new file of zeroes. */
    void create(long blockCount) throws DeviceException {
        Geometry shape = Geometry.of(name, blockSize, blockCount);
        OpenOption[] options = {
            StandardOpenOption.WRITE, StandardOpenOption.CREATE_NEW, StandardOpenOption.SPARSE
        };
        FileChannel made;
        try {
            made = FileChannel.open(path, options);
        } catch (FileAlreadyExistsException exception) {
            throw cannotOpen("the file exists already", exception);
        } catch (IOException failure) {
            throw cannotOpen("the file cannot be created: " + failure, failure);
        }
        // From here on this method owns the file, and completes or deletes it.
        boolean whole = false;
        try {
            lengthen(made, shape.bytes());
            whole = true;
        } catch (IOException failure) {
            throw cannotOpen("the file cannot be created: " + failure, failure);
        } finally {
            if (!whole) {
                deleteQuietly();
            }
        }
    }

    /** Sets the length of the file, makes it durable, and closes it. */
    private void lengthen(FileChannel made, long bytes) throws IOException {
        try (made) {
            made.write(ByteBuffer.allocate(1), bytes - 1);
            force.run(made);
        }
    }

    private void deleteQuietly() {
        try {
            Files.deleteIfExists(path);
        } catch (IOException ignored) {
            // The failure that led here is reported.
        }
    }

    /**
     * Claims the file, so that no other device of this process opens it, until {@link #unclaim()}.
     */
    void claim() throws DeviceOpenException {
        Object file;
        try {
            file = Files.readAttributes(path, BasicFileAttributes.class).fileKey();
            if (file == null) {
                file = path.toRealPath();
            }
        } catch (NoSuchFileException missing) {
            throw cannotOpen("there is no such file", missing);
        } catch (IOException failure) {
            throw cannotOpen(failure.toString(), failure);
        }
        if (!OPEN.add(file)) {
            throw cannotOpen("another device of this process has it open", null);
        }
        claimed = file;
    }

    void unclaim() {
        OPEN.remove(claimed);
    }

    /** Returns the shape of the opened file. */
    Geometry shapeOf(FileChannel opened) throws DeviceException {
        long bytes;
        try {
            bytes = opened.size();
        } catch (IOException failure) {
            throw cannotOpen("its size cannot be determined: " + failure, failure);
        }
        if (blockSize > 0 && bytes % blockSize != 0) {
            throw cannotOpen("its size of " + bytes + " bytes is not a whole number of blocks of "
                    + blockSize + " bytes", null);
        }
        return Geometry.of(name, blockSize, bytes / Math.max(blockSize, 1));
    }

    /** Opens the file, with a lock that lasts as long as the channel. */
    FileChannel openAndLock() throws DeviceException {
        OpenOption[] options = readOnly
                ? new OpenOption[] {StandardOpenOption.READ}
                : new OpenOption[] {StandardOpenOption.READ, StandardOpenOption.WRITE};
        if (Files.isDirectory(path)) {
            throw cannotOpen("it is a directory", null);
        }
        FileChannel opened = null;
        boolean locked = false;
        try {
            opened = FileChannel.open(path, options);
            locked = opened.tryLock(0, Long.MAX_VALUE, readOnly) != null;
            if (!locked) {
                throw cannotOpen("another process has it open", null);
            }
            return opened;
        } catch (OverlappingFileLockException exception) {
            throw cannotOpen("another device of this process has it open", exception);
        } catch (NoSuchFileException missing) {
            throw cannotOpen("there is no such file", missing);
        } catch (DeviceException refused) {
            throw refused;
        } catch (IOException failure) {
            throw cannotOpen(failure.toString(), failure);
        } finally {
            if (!locked && opened != null) {
                closeQuietly(opened);
            }
        }
    }

    private DeviceOpenException cannotOpen(String what, Throwable cause) {
        return new DeviceOpenException(name, Operation.OPEN, what, cause);
    }

    static void closeQuietly(FileChannel opened) {
        try {
            opened.close();
        } catch (IOException ignored) {
            // The failure that led here is reported.
        }
    }
}
