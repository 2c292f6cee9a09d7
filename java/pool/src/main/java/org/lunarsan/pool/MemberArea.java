package org.lunarsan.pool;

import java.util.Optional;
import java.util.UUID;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.MediumException;

/** Reads and writes the metadata of a pool on a member. No state; for any thread. */
final class MemberArea {
    private static final int COPIES = 2;

    private MemberArea() {}

    /**
     * Returns the better of both labels: a valid one of the highest generation, else what was
     * found.
     */
    static PoolLabel.Found readLabel(Device device) throws DeviceException {
        PoolLayout layout = PoolLayout.of(device);
        if (layout.dataBlocksMax() < 1) {
            return new PoolLabel.None();
        }
        PoolLabel.Found best = new PoolLabel.None();
        for (int copy = 0; copy < COPIES; copy++) {
            PoolLabel.Found found = readCopy(device, layout, copy);
            if (isBetter(found, best)) {
                best = found;
            }
        }
        return best;
    }

    private static PoolLabel.Found readCopy(Device device, PoolLayout layout, int copy)
            throws DeviceException {
        byte[] bytes = new byte[PoolLabel.BYTES];
        try {
            device.read(layout.label(copy), bytes);
        } catch (MediumException unreadable) {
            return new PoolLabel.Unusable("it cannot be read: " + unreadable.getMessage());
        }
        PoolLabel.Found found = PoolLabel.decode(bytes);
        if (found instanceof PoolLabel.Valid valid) {
            Optional<String> why = valid.label().contradicts(layout);
            return why.isPresent() ? new PoolLabel.Unusable(why.get()) : found;
        }
        return found;
    }

    private static boolean isBetter(PoolLabel.Found found, PoolLabel.Found than) {
        if (found instanceof PoolLabel.Valid valid) {
            return !(than instanceof PoolLabel.Valid other)
                    || valid.label().generation() > other.label().generation();
        }
        return found instanceof PoolLabel.Unusable && than instanceof PoolLabel.None;
    }

    /** Writes the labels durably. At any power cut, one of both is intact. */
    static void writeLabel(Device device, PoolLabel label) throws DeviceException {
        PoolLayout layout = PoolLayout.of(device);
        for (int copy = 0; copy < COPIES; copy++) {
            device.write(layout.label(copy), label.encode());
            device.flush();
        }
    }

    /** Clears both labels, durably. */
    static void clearLabel(Device device) throws DeviceException {
        PoolLayout layout = PoolLayout.of(device);
        for (int copy = 0; copy < COPIES; copy++) {
            device.write(layout.label(copy), new byte[PoolLabel.BYTES]);
        }
        device.flush();
    }

    /** Returns the valid page; empty when neither is intact. */
    static Optional<IntentPage> readIntent(Device device, UUID pool, long regions)
            throws DeviceException {
        PoolLayout layout = PoolLayout.of(device);
        Optional<IntentPage> best = Optional.empty();
        for (int slot = 0; slot < COPIES; slot++) {
            byte[] bytes = new byte[IntentPage.BYTES];
            try {
                device.read(layout.intentPage(slot), bytes);
            } catch (MediumException unreadable) {
                // The unreadable page may have been the valid one, and its content is unknown.
                return Optional.empty();
            }
            Optional<IntentPage> page = IntentPage.decode(bytes, pool, regions);
            if (page.isPresent()
                    && (best.isEmpty() || page.get().sequence() > best.get().sequence())) {
                best = page;
            }
        }
        return best;
    }

    /** Writes a page to the slot of its sequence number; durable only after a flush. */
    static void writeIntent(Device device, IntentPage page) throws DeviceException {
        int slot = (int) (page.sequence() % COPIES);
        device.write(PoolLayout.of(device).intentPage(slot), page.encode());
    }
}
