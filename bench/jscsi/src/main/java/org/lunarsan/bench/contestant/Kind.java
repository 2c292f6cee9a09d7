package org.lunarsan.bench.contestant;

import java.util.ArrayList;
import java.util.List;

/** The contestants in Java. Threads: immutable. */
enum Kind {
    /** The published one, with its own settings. */
    JSCSI("jscsi") {
        @Override
        Contestant open(Shape shape, int stripeBytes, List<String> urls) throws Exception {
            return published(shape, stripeBytes, urls, JscsiContestant.SEGMENT_BYTES_DEFAULT);
        }
    },
    /** The published one, with segments as large as its bursts. */
    JSCSI_LARGE("jscsi-large") {
        @Override
        Contestant open(Shape shape, int stripeBytes, List<String> urls) throws Exception {
            return published(shape, stripeBytes, urls, SEGMENT_BYTES_LARGE);
        }
    };

    private static final int SEGMENT_BYTES_LARGE = 262_144;

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

    /** Logs in; as many URLs as the shape has members. */
    abstract Contestant open(Shape shape, int stripeBytes, List<String> urls) throws Exception;

    private static Contestant published(Shape shape, int stripeBytes, List<String> urls,
            int segmentBytes) throws Exception {
        List<Contestant> members = new ArrayList<>(urls.size());
        JscsiLoader loader = new JscsiLoader();
        for (String url : urls) {
            members.add(loader.open(url, segmentBytes));
        }
        return shape == Shape.SINGLE
                ? members.getFirst()
                : new TwoTargets(members, shape, stripeBytes);
    }
}
