package org.lunarsan.bench.report;

import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;

/**
 * A goal and its result: a row like those of {@code make bench} (lab/src/bench/target/results.rs),
 * so that its {@code --goals-from} can show both in one table.
 *
 * <p>Threads: immutable.
 *
 * @param what the goal in words
 * @param from how it was measured
 * @param wanted the bound
 * @param isAtLeast whether the bound is the minimum; else it is the maximum
 * @param rounds result of each round; empty: not measured. The median counts
 * @param unit of these figures; empty: a ratio
 * @param note an explanation if the result needs one; or null
 */
public record Verdict(String what, String from, double wanted, boolean isAtLeast, double[] rounds,
        String unit, String note) {
    /** Column of these goals. */
    private static final String PART = "java";

    /** Returns the median, or NaN. */
    private double got() {
        return rounds.length == 0 ? Double.NaN : Spread.of(rounds).median();
    }

    /**
     * Result in the words of {@code make bench}.
     *
     * @return pass, miss or not_measured
     */
    public String outcome() {
        if (rounds.length == 0) {
            return "not_measured";
        }
        return (isAtLeast ? got() >= wanted : got() <= wanted) ? "pass" : "miss";
    }

    /**
     * Result for people.
     *
     * @return such as {@code 3.21 (2.90 to 3.40)}
     */
    public String gotText() {
        if (rounds.length == 0) {
            return "-";
        }
        Spread spread = Spread.of(rounds);
        return number(spread.median()) + " (" + number(spread.least()) + " to "
                + number(spread.most()) + ")" + (unit.isEmpty() ? "" : " " + unit);
    }

    /**
     * Bound for people.
     *
     * @return such as {@code at least 3}
     */
    public String wantedText() {
        return (isAtLeast ? "at least " : "at most ") + number(wanted)
                + (unit.isEmpty() ? "" : " " + unit);
    }

    private static String number(double value) {
        return String.format(Locale.ROOT, Math.abs(value) >= 1000 ? "%,.0f" : "%.2f", value);
    }

    /**
     * Members for programs.
     *
     * @return members as in lab/src/bench/target/results.rs
     */
    public Map<String, Object> members() {
        Map<String, Object> members = new LinkedHashMap<>();
        boolean isMeasured = rounds.length > 0;
        members.put("part", PART);
        members.put("what", what);
        members.put("from", from);
        members.put("wanted", wanted);
        members.put("is_at_least", isAtLeast);
        members.put("got", isMeasured ? got() : null);
        members.put("least", isMeasured ? Spread.of(rounds).least() : null);
        members.put("most", isMeasured ? Spread.of(rounds).most() : null);
        members.put("unit", unit);
        members.put("outcome", outcome());
        members.put("note", note);
        return members;
    }
}
