package org.lunarsan.bench.contestant;

import java.util.ArrayList;
import java.util.List;
import org.lunarsan.device.Device;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.DeviceOpenException;
import org.lunarsan.initiator.IscsiDevice;
import org.lunarsan.initiator.IscsiOptions;
import org.lunarsan.initiator.IscsiUrl;
import org.lunarsan.pool.MirroredDevice;
import org.lunarsan.pool.StripedDevice;

/** The contestants in Java. Threads: immutable. */
enum Kind {
    /** Our initiator. */
    LUNAR("lunar-java") {
        @Override
        Contestant open(Shape shape, int stripeBytes, List<String> urls) throws Exception {
            return ours(shape, stripeBytes, urls);
        }
    },
    /** The published jSCSI, with its own settings. */
    JSCSI("jscsi") {
        @Override
        Contestant open(Shape shape, int stripeBytes, List<String> urls) throws Exception {
            return published(shape, stripeBytes, urls, JscsiContestant.SEGMENT_BYTES_DEFAULT);
        }
    },
    /** The published jSCSI, with segments as large as its bursts. */
    JSCSI_LARGE("jscsi-large") {
        @Override
        Contestant open(Shape shape, int stripeBytes, List<String> urls) throws Exception {
            return published(shape, stripeBytes, urls, SEGMENT_BYTES_LARGE);
        }
    };

    private static final int SEGMENT_BYTES_LARGE = 262_144;
    /** One for the process, so that code compiled by the JIT stays. */
    private static final JscsiLoader JSCSI_CLASSES = new JscsiLoader();
    /** Block size of all targets here. */
    private static final int BLOCK_BYTES = 512;
    private static final IscsiOptions OPTIONS = IscsiOptions.builder()
            .initiatorName("iqn.2026-11.org.lunarsan.bench:java").build();

    private final String word;

    Kind(String word) {
        this.word = word;
    }

    static Kind of(String word) {
        for (Kind kind : values()) {
            if (kind.word.equals(word)) {
                return kind;
            }
        }
        throw new IllegalArgumentException("no contestant is called " + word);
    }

    /** Logs in; {@code urls} has one URL for each member of the shape. */
    abstract Contestant open(Shape shape, int stripeBytes, List<String> urls) throws Exception;

    private static Contestant ours(Shape shape, int stripeBytes, List<String> urls)
            throws DeviceException {
        if (shape == Shape.SINGLE) {
            return new OursContestant(IscsiDevice.open(urls.getFirst(), OPTIONS));
        }
        List<IscsiDevice> members = new ArrayList<>(urls.size());
        for (String url : urls) {
            members.add(IscsiDevice.of(IscsiUrl.parse(url), OPTIONS));
        }
        Device pool = shape == Shape.RAID0
                ? StripedDevice.of(members) : MirroredDevice.of(members);
        try {
            pool.open();
        } catch (DeviceOpenException exception) {
            // The first time; a restarted contestant finds its pool.
            create(shape, members, stripeBytes);
            pool.open();
        }
        if (pool instanceof MirroredDevice mirror) {
            // A new mirror copies one member to the other; that is not measured.
            mirror.copies().join();
        }
        return new OursContestant(pool);
    }

    private static void create(Shape shape, List<IscsiDevice> members, int stripeBytes)
            throws DeviceException {
        if (shape == Shape.RAID0) {
            StripedDevice.create(members, stripeBytes / BLOCK_BYTES);
        } else {
            MirroredDevice.create(members);
        }
    }

    private static Contestant published(Shape shape, int stripeBytes, List<String> urls,
            int segmentBytes) throws Exception {
        List<Contestant> members = new ArrayList<>(urls.size());
        for (String url : urls) {
            members.add(JSCSI_CLASSES.open(url, segmentBytes));
        }
        return shape == Shape.SINGLE
                ? members.getFirst()
                : new TwoTargets(members, shape, stripeBytes);
    }
}
