package org.lunarsan.bench.contestant;

import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Device;

/**
 * Ours: an {@code IscsiDevice}, or a pool over two of them.
 *
 * <p>Threads: any, as the device.
 */
final class OursContestant implements Contestant {
    private final Device device;

    /** Of a device that is open. */
    OursContestant(Device device) {
        this.device = device;
    }

    /** To be asked without waiting; a pool cannot. */
    AsyncDevice async() {
        return (AsyncDevice) device;
    }

    @Override
    public int blockSize() {
        return device.blockSize();
    }

    @Override
    public long blockCount() {
        return device.blockCount();
    }

    @Override
    public void read(long address, byte[] buffer) throws Exception {
        device.read(address, buffer);
    }

    @Override
    public void write(long address, byte[] buffer) throws Exception {
        device.write(address, buffer);
    }

    @Override
    public void close() throws Exception {
        device.close();
    }
}
