package org.lunarsan.pool;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Objects;
import java.util.UUID;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DeviceOpenException;
import org.lunarsan.device.Operation;

/** Makes a pool of devices by writing the first labels. Stateless and thread-safe. */
final class PoolFormatter {
    /**
     * Last sequence number of the intent pages of a new mirror; pages of later writes have higher
     * ones.
     */
    static final long INTENT_SEQUENCE_LAST = 1;

    private PoolFormatter() {}

    /** Copies the list of members; throws with a name for each null. */
    static List<Device> listed(List<? extends Device> members) {
        Objects.requireNonNull(members, "members");
        members.forEach(member -> Objects.requireNonNull(member, "a member"));
        return List.copyOf(members);
    }

    /**
     * Labels devices, which are closed before and after.
     *
     * @param stripeBlocks blocks of a stripe; ignored for a mirror
     * @param erase whether to erase all data first, so that the members are equal
     * @throws DeviceOpenException when a device does not fit, or carries a label already
     */
    static UUID create(PoolKind kind, List<Device> devices, long stripeBlocks, boolean erase)
            throws DeviceException {
        List<Device> opened = new ArrayList<>();
        try {
            for (Device device : devices) {
                device.open();
                opened.add(device);
            }
            PoolLabel label = layOut(kind, devices, stripeBlocks);
            if (erase) {
                eraseAll(devices, label);
            }
            for (int slot = 0; slot < devices.size(); slot++) {
                Device device = devices.get(slot);
                if (kind == PoolKind.MIRRORED) {
                    writeIntents(device, label, !erase);
                }
                MemberArea.writeLabel(device, label.at(slot));
            }
            return label.pool();
        } finally {
            for (Device device : opened) {
                device.close();
            }
        }
    }

    /** Makes all data read as zeroes, durably, on each device. */
    private static void eraseAll(List<Device> devices, PoolLabel label) throws DeviceException {
        for (Device device : devices) {
            if (!device.unmapReadsZeroes()) {
                throw refuse(device.name(),
                        "it cannot be erased: its blocks need not read as zeroes after an unmap");
            }
        }
        for (Device device : devices) {
            device.unmap(PoolLayout.of(device).dataStart(), label.dataBlocks());
            device.flush();
        }
    }

    /**
     * Writes the intent pages. If the contents of the members are unknown, all regions are marked:
     * the first opening copies them, as after a power cut.
     */
    private static void writeIntents(Device device, PoolLabel label, boolean marked)
            throws DeviceException {
        int regions = (int) PoolLayout.regions(label.dataBlocks(), label.unitBlocks());
        BitSet dirty = new BitSet();
        dirty.set(0, marked ? regions : 0);
        for (long sequence = 0; sequence <= INTENT_SEQUENCE_LAST; sequence++) {
            MemberArea.writeIntent(
                    device, new IntentPage(label.pool(), sequence, regions, dirty));
        }
    }

    private static PoolLabel layOut(PoolKind kind, List<Device> devices, long stripeBlocks)
            throws DeviceException {
        int count = devices.size();
        if (count < PoolLabel.MEMBERS_MIN || count > PoolLabel.MEMBERS_MAX) {
            throw refuse("a pool", "it has from 2 to 64 members, not " + count);
        }
        int blockSize = devices.getFirst().blockSize();
        long dataBlocks = Long.MAX_VALUE;
        for (Device device : devices) {
            if (device.blockSize() != blockSize) {
                throw refuse(device.name(), "it has blocks of " + device.blockSize()
                        + " bytes, the first member of " + blockSize);
            }
            refuseLabelled(device);
            dataBlocks = Math.min(dataBlocks, PoolLayout.of(device).dataBlocksMax());
        }
        if (kind == PoolKind.STRIPED && stripeBlocks > 0) {
            dataBlocks -= dataBlocks % stripeBlocks;
            dataBlocks = Math.min(dataBlocks,
                    Long.MAX_VALUE / blockSize / count / stripeBlocks * stripeBlocks);
        }
        if (dataBlocks < 1) {
            throw refuse("a pool", "its smallest member is too small: 1 MiB and 4 KiB are for"
                    + " labels, and there must be room for data");
        }
        long unit = kind == PoolKind.STRIPED
                ? stripeBlocks
                : PoolLayout.regionBlocks(blockSize, dataBlocks);
        BitSet all = new BitSet();
        all.set(0, count);
        return new PoolLabel(kind, UUID.randomUUID(), 0, count, blockSize, dataBlocks, unit, 1, all,
                PoolLabel.newHistory());
    }

    static void refuseLabelled(Device device) throws DeviceException {
        if (PoolLayout.of(device).dataBlocksMax() < 1) {
            throw refuse(device.name(), "it is too small for a member of a pool");
        }
        String clear = ": if it is not needed any more, PoolLabels.clear";
        switch (MemberArea.readLabel(device)) {
            case PoolLabel.None none -> { }
            case PoolLabel.Unusable bad -> throw refuse(device.name(),
                    "it has a label that cannot be used, " + bad.why() + clear);
            case PoolLabel.Valid valid -> throw refuse(device.name(),
                    "it is a member of pool " + valid.label().pool() + " already" + clear);
        }
    }

    static DeviceOpenException refuse(String device, String why) {
        return new DeviceOpenException(device, Operation.OPEN, why, null);
    }
}
