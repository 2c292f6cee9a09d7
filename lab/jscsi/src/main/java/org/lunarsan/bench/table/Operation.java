package org.lunarsan.bench.table;

import org.lunarsan.bench.contestant.Shape;
import org.lunarsan.bench.server.Disk;

/** The measured operations: rows of the paper's Table 1. Threads: immutable. */
public enum Operation {
    /** On one target. */
    READ_40_KB("read-40k", "Read 40 kB", false, 40 << 10, Shape.SINGLE),
    /** On one target. */
    READ_400_KB("read-400k", "Read 400 kB", false, 400 << 10, Shape.SINGLE),
    /** On one target. */
    WRITE_8_MB("write-8m", "Write 8 MB, no RAID, 1 target", true, 8 << 20, Shape.SINGLE),
    /** Stripes over two targets. */
    WRITE_8_MB_RAID0("write-8m-raid0", "Write 8 MB, RAID 0, 2 targets", true, 8 << 20,
            Shape.RAID0),
    /** The same blocks on two targets. */
    WRITE_8_MB_RAID1("write-8m-raid1", "Write 8 MB, RAID 1, 2 targets", true, 8 << 20,
            Shape.RAID1);

    private final String key;
    private final String title;
    private final boolean isWrite;
    private final int bytes;
    private final Shape shape;

    Operation(String key, String title, boolean isWrite, int bytes, Shape shape) {
        this.key = key;
        this.title = title;
        this.isWrite = isWrite;
        this.bytes = bytes;
        this.shape = shape;
    }

    /**
     * The name of the operation for programs.
     *
     * @return such as {@code read-40k}
     */
    public String key() {
        return key;
    }

    /**
     * The name of the operation for people, as in the paper.
     *
     * @return words
     */
    public String title() {
        return title;
    }

    /**
     * Length of the operation; 1 kB is 1,024 bytes.
     *
     * @return bytes
     */
    public int bytes() {
        return bytes;
    }

    /**
     * Length of the operation in blocks.
     *
     * @return blocks
     */
    public int blocks() {
        return bytes / Disk.BLOCK_BYTES;
    }

    /**
     * Direction of the operation.
     *
     * @return {@code read} or {@code write}
     */
    public String verb() {
        return isWrite ? "write" : "read";
    }

    /**
     * True if it changes the disk.
     *
     * @return true for writes
     */
    public boolean isWrite() {
        return isWrite;
    }

    /**
     * Shape of the disk.
     *
     * @return the shape
     */
    public Shape shape() {
        return shape;
    }
}
