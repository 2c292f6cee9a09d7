package org.lunarsan.pool;

import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.SplittableRandom;

/**
 * Mirrors under faults of several members at once, with several writing threads, caches on top, and
 * transfers that are abandoned; {@code scripts/java-trial} runs it. Each read is checked against
 * the possible versions of a block, and at the end of a round the members are compared.
 *
 * <p>A seed repeats the random choices, though not the order of the threads.
 */
final class PoolTrial {
    /** Kind of members, and their faults. */
    enum Mode {
        /** In memory; power cuts that members count, failures, hangs. */
        MEMORY,
        /** Likewise, but only a failed flush reports a power cut. */
        SILENT,
        /** Likewise, and failed flushes leave blocks that are considered clean. */
        GATE,
        /** Failed flushes below a page cache that then considers its blocks clean. */
        PAGES,
        /** Processes of {@code lunar serve} that are killed, stopped and cut off. */
        ISCSI
    }

    private static final int WRITES_OF_A_ROUND = 2000;
    private static final int VIOLATIONS_MAX = 5;

    private final Mode mode;
    private final String binary;
    private final TrialCounts counts = new TrialCounts();
    private int violations;

    PoolTrial(Mode mode, String binary) {
        this.mode = mode;
        this.binary = binary;
    }

    TrialCounts counts() {
        return counts;
    }

    /**
     * Runs rounds until enough was written, or too many violations were found. Returns their
     * number.
     */
    int run(long seed, int writes) throws Exception {
        Random random = new Random(seed);
        int rounds = Math.max(1, writes / WRITES_OF_A_ROUND);
        for (int round = 0; round < rounds && violations < VIOLATIONS_MAX; round++) {
            Random ofRound = new Random(random.nextLong());
            try (TrialMembers members = members(ofRound)) {
                int share = Math.min(writes, WRITES_OF_A_ROUND);
                new TrialRound(members, counts, mode == Mode.PAGES, ofRound, share).run();
            } catch (Exception | AssertionError wrong) {
                violations++;
                System.out.println("round " + round + ": " + wrong);
                wrong.printStackTrace(System.out);
            }
        }
        return violations;
    }

    private TrialMembers members(Random random) throws Exception {
        return switch (mode) {
            case MEMORY -> new TrialMemory(TrialMemory.Kind.COUNTED, random);
            case SILENT -> new TrialMemory(TrialMemory.Kind.SILENT, random);
            case GATE -> new TrialMemory(TrialMemory.Kind.GATE, random);
            case PAGES -> new TrialMemory(TrialMemory.Kind.GATE_ONLY, random);
            case ISCSI -> new TrialIscsi(binary);
        };
    }

    /** Takes {@code MODE WRITES SEED BINARY}; "-" draws a random seed. */
    public static void main(String[] arguments) throws Exception {
        List<String> words = Arrays.asList(arguments);
        Mode mode = Mode.valueOf(words.get(0).toUpperCase(Locale.ROOT));
        int writes = Integer.parseInt(words.get(1));
        long seed = words.get(2).equals("-")
                ? new SplittableRandom().nextLong() : Long.parseLong(words.get(2));
        System.out.println(mode + ": seed " + seed + ", " + writes + " writes");
        PoolTrial trial = new PoolTrial(mode, words.get(3));
        int violations = trial.run(seed, writes);
        System.out.println(mode + ": " + trial.counts + ", " + violations + " violations");
        System.exit(violations == 0 ? 0 : 1);
    }
}
