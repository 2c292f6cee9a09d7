package org.lunarsan.initiator;

import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.scsi.Capacity;
import org.lunarsan.iscsi.scsi.Inquiry;
import org.lunarsan.iscsi.scsi.VitalPage;
import org.lunarsan.iscsi.scsi.VitalPage.Designator;

/**
 * Properties that identify a unit, and may not differ when a new session finds it again.
 *
 * <p>Threads: immutable.
 *
 * @param designators of the unit itself, in order. SPC-4 §7.8.6
 * @param product product and serial number of a unit without designators; else empty
 * @param blockBytes length of a block
 * @param blockCount number of blocks
 */
record Fingerprint(List<Designator> designators, String product, int blockBytes, long blockCount) {
    private static final int OF_THE_UNIT = 0;

    /** Queries the designators, or the serial number of a unit without designators. */
    static Fingerprint of(Unit unit, Inquiry identity, Capacity capacity) throws Failure {
        Optional<VitalPage> page = unit.vitalPage(VitalPage.DEVICE_IDENTIFICATION);
        List<Designator> designators = page.map(VitalPage::designators).orElse(List.of()).stream()
                .filter(designator -> designator.association() == OF_THE_UNIT)
                .sorted(Comparator.comparing(Designator::type).thenComparing(Designator::text))
                .toList();
        String product = "";
        if (designators.isEmpty()) {
            String serial = unit.vitalPage(VitalPage.SERIAL_NUMBER).map(VitalPage::serialNumber)
                    .orElse("without number");
            product = identity.vendor() + " " + identity.product() + " " + serial;
        }
        return new Fingerprint(designators, product, capacity.blockBytes(), capacity.blockCount());
    }

    /** Returns why {@code now} is another unit or has become too small, or null if it matches. */
    Failure differs(Fingerprint now) {
        if (!designators.equals(now.designators) || !product.equals(now.product)) {
            return changed("a different unit responds: " + now.knownBy()
                    + " instead of " + knownBy());
        }
        if (blockBytes != now.blockBytes) {
            return changed("the block size changed from " + blockBytes + " to " + now.blockBytes
                    + " bytes");
        }
        if (now.blockCount < blockCount) {
            return changed("the disk has shrunk from " + blockCount + " to " + now.blockCount
                    + " blocks");
        }
        return null;
    }

    private static Failure changed(String what) {
        return Failure.of(Kind.CHANGED, what)
                .hint("nothing was read or written; reopen the device if the change is intended");
    }

    private String knownBy() {
        return "`" + (designators.isEmpty() ? product : designators.getFirst().text()) + "`";
    }
}
