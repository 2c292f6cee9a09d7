package org.lunarsan.device;

/** Tracks whether a device is open. Thread-safe. */
final class Lifecycle {
    private final String device;
    private volatile boolean open;

    Lifecycle(String device) {
        this.device = device;
    }

    /** Changes the state from closed to open. */
    synchronized void open() throws DeviceOpenException {
        if (open) {
            throw alreadyOpen(device);
        }
        open = true;
    }

    /** Changes the state to closed; false when it was closed. */
    synchronized boolean close() {
        boolean was = open;
        open = false;
        return was;
    }

    boolean isOpen() {
        return open;
    }

    void check(Operation operation, long address, long blocks) throws DeviceClosedException {
        if (!open) {
            throw closed(device, operation, address, blocks);
        }
    }

    void check(Operation operation) throws DeviceClosedException {
        check(operation, DeviceException.NO_ADDRESS, 0);
    }

    static DeviceClosedException closed(
            String device, Operation operation, long address, long blocks) {
        String what = "the device is not open";
        return new DeviceClosedException(device, operation, address, blocks, what, null);
    }

    static DeviceOpenException alreadyOpen(String device) {
        String what = "the device is already open; one owner opens a device and lends it to others";
        return new DeviceOpenException(device, Operation.OPEN, what, null);
    }

    static IllegalStateException neverOpened(String device) {
        return new IllegalStateException(device + " was never opened: its size is not known yet");
    }
}
