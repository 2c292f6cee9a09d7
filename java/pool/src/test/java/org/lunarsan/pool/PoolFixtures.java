package org.lunarsan.pool;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Geometry;
import org.lunarsan.device.MemoryDevice;

/**
 * Members of pools in {@code testdata/pools/}, which Rust and Java open. A file has the members of
 * one pool: a line {@code disk NAME BLOCK_BYTES BLOCK_COUNT} begins each, and a line {@code OFFSET
 * LENGTH HEX} fills LENGTH bytes with repetitions of HEX. All other bytes are 0.
 */
final class PoolFixtures {
    /** Length of a line of bytes; equal bytes are joined over lines. */
    private static final int LINE_BYTES = 16;

    private PoolFixtures() {}

    /** Returns the closed members of a pool. */
    static List<MemoryDevice> members(String pool) throws DeviceException {
        List<MemoryDevice> disks = new ArrayList<>();
        MemoryDevice disk = null;
        for (String line : lines(pool)) {
            String[] words = line.split(" ");
            if (words[0].equals("disk")) {
                close(disk);
                Geometry shape = new Geometry(Integer.parseInt(words[2]), Long.parseLong(words[3]));
                disk = new MemoryDevice(words[1], shape);
                disk.open();
                disks.add(disk);
            } else {
                fill(disk, Long.parseLong(words[0]), Integer.parseInt(words[1]),
                        HexFormat.of().parseHex(words[2]));
            }
        }
        close(disk);
        return disks;
    }

    private static List<String> lines(String pool) {
        Path at = Path.of("").toAbsolutePath();
        while (!Files.exists(at.resolve("testdata/pools"))) {
            at = at.getParent();
        }
        try {
            return Files.readAllLines(at.resolve("testdata/pools/" + pool + ".txt")).stream()
                    .filter(line -> !line.isEmpty() && !line.startsWith("#")).toList();
        } catch (IOException missing) {
            throw new UncheckedIOException(missing);
        }
    }

    private static void close(MemoryDevice disk) throws DeviceException {
        if (disk != null) {
            disk.close();
        }
    }

    private static void fill(MemoryDevice disk, long offset, int length, byte[] pattern)
            throws DeviceException {
        int block = disk.blockSize();
        long first = offset / block;
        int blocks = (int) ((offset + length - 1) / block - first + 1);
        byte[] bytes = new byte[blocks * block];
        disk.read(first, bytes);
        for (int at = 0; at < length; at++) {
            bytes[(int) (offset % block) + at] = pattern[at % pattern.length];
        }
        disk.write(first, bytes);
    }

    /** Returns the lines of a file for closed members. */
    static List<String> lines(List<MemoryDevice> disks) throws DeviceException {
        List<String> lines = new ArrayList<>();
        for (MemoryDevice disk : disks) {
            disk.open();
            lines.add("disk " + disk.name() + " " + disk.blockSize() + " " + disk.blockCount());
            byte[] all = new byte[(int) disk.blockCount() * disk.blockSize()];
            disk.read(0, ByteBuffer.wrap(all));
            disk.close();
            for (int at = 0; at < all.length;) {
                int end = at + LINE_BYTES;
                byte value = all[at];
                boolean isFilled = isFilled(all, at, value);
                while (isFilled && end < all.length && isFilled(all, end, value)) {
                    end += LINE_BYTES;
                }
                byte[] line = Arrays.copyOfRange(all, at, at + (isFilled ? 1 : LINE_BYTES));
                if (!isFilled || value != 0) {
                    lines.add(at + " " + (end - at) + " " + HexFormat.of().formatHex(line));
                }
                at = end;
            }
        }
        return lines;
    }

    /** True if a line has only one value. */
    private static boolean isFilled(byte[] all, int line, byte value) {
        for (int at = line; at < line + LINE_BYTES; at++) {
            if (all[at] != value) {
                return false;
            }
        }
        return true;
    }
}
