package org.lunarsan.pool;

import java.util.Optional;
import java.util.UUID;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.MediumException;

/** Reads and writes the metadata of a pool on a member. Stateless and thread-safe. */
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
        PoolLabel.Found[] copies = readCopies(device, layout);
        return copies[bestOf(copies)];
    }

    private static PoolLabel.Found[] readCopies(Device device, PoolLayout layout)
            throws DeviceException {
        PoolLabel.Found[] copies = new PoolLabel.Found[COPIES];
        for (int copy = 0; copy < COPIES; copy++) {
            copies[copy] = readCopy(device, layout, copy);
        }
        return copies;
    }

    /** Returns the last of the copies than which no other is better. */
    private static int bestOf(PoolLabel.Found[] copies) {
        int best = 0;
        for (int copy = 1; copy < COPIES; copy++) {
            if (!isBetter(copies[best], copies[copy])) {
                best = copy;
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

    /**
     * Writes the labels durably. At any power cut or failure, one of both is intact: an earlier
     * failure may have left the other one damaged, so the better one is written last.
     */
    static void writeLabel(Device device, PoolLabel label) throws DeviceException {
        PoolLayout layout = PoolLayout.of(device);
        int last = bestOf(readCopies(device, layout));
        for (int copy : new int[] {COPIES - 1 - last, last}) {
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
