package org.lunarsan.bench.contestant;

import org.lunarsan.device.AsyncDevice;
import org.lunarsan.device.Device;

/**
 * Our initiator: an {@code IscsiDevice}, or a pool over two of them.
 *
 * <p>Threads: any, as the device.
 */
final class OursContestant implements Contestant {
    private final Device device;

    /** Creates a contestant of a device that is open. */
    OursContestant(Device device) {
        this.device = device;
    }

    /** Returns the device for asynchronous calls, which a pool does not have. */
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
