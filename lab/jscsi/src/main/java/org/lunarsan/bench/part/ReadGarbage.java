package org.lunarsan.bench.part;

import java.nio.ByteBuffer;
import java.util.concurrent.TimeUnit;
import org.lunarsan.bench.contestant.OperationData;
import org.lunarsan.initiator.IscsiDevice;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Level;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;

/**
 * Reads 4 KiB at a time, for the GC profiler of JMH: measures the memory that a read
 * allocates. Threads: as JMH runs it, one.
 */
@State(Scope.Benchmark)
@BenchmarkMode(Mode.Throughput)
@OutputTimeUnit(TimeUnit.SECONDS)
public class ReadGarbage {
    private static final int BYTES = 4096;
    private static final long SEED = 1;

    /** The LUN. */
    @Param("")
    private String url;

    private final byte[] array = new byte[BYTES];
    private final ByteBuffer direct = ByteBuffer.allocateDirect(BYTES);
    private IscsiDevice device;
    private int blocks;
    private long range;
    private long number;

    /** Called by JMH. */
    public ReadGarbage() {
    }

    /**
     * Logs in.
     *
     * @throws Exception when the login fails
     */
    @Setup(Level.Trial)
    public void open() throws Exception {
        device = IscsiDevice.open(url);
        blocks = BYTES / device.blockSize();
        range = device.blockCount();
    }

    /** Logs out. */
    @TearDown(Level.Trial)
    public void close() {
        device.close();
    }

    private long address() {
        return OperationData.address(SEED, number++, blocks, range);
    }

    /**
     * Reads into an array.
     *
     * @return the data
     * @throws Exception when it fails
     */
    @Benchmark
    public byte[] array() throws Exception {
        device.read(address(), array);
        return array;
    }

    /**
     * Reads into a direct buffer.
     *
     * @return the data
     * @throws Exception when it fails
     */
    @Benchmark
    public ByteBuffer direct() throws Exception {
        device.read(address(), direct.clear());
        return direct;
    }

    /**
     * Reads by a future.
     *
     * @return the data
     */
    @Benchmark
    public ByteBuffer future() {
        device.readAsync(address(), direct.clear()).join();
        return direct;
    }
}
