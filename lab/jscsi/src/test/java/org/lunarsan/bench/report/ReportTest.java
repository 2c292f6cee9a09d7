package org.lunarsan.bench.report;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** Goals and their formats. */
class ReportTest {
    private static Verdict verdict(boolean isAtLeast, double... rounds) {
        return new Verdict("w", "f", 2, isAtLeast, rounds, "", null);
    }

    /** Goal: the median of the rounds is compared with the bound in the right direction. */
    @Test
    void outcomes() {
        assertEquals("pass", verdict(true, 1, 2, 3).outcome());
        assertEquals("miss", verdict(true, 1, 1.9, 3).outcome());
        assertEquals("pass", verdict(false, 1, 2, 9).outcome());
        assertEquals("miss", verdict(false, 1, 2.1, 2.2).outcome());
        assertEquals("not_measured", verdict(true).outcome());
    }

    /**
     * Goal: a goal has the members that `make bench --goals-from` requires, and null if allowed.
     */
    @Test
    void members() {
        assertEquals("{\"part\":\"java\",\"what\":\"w\",\"from\":\"f\",\"wanted\":2.00000,"
                + "\"is_at_least\":true,\"got\":null,\"least\":null,\"most\":null,\"unit\":\"\","
                + "\"outcome\":\"not_measured\",\"note\":null}",
                Json.text(verdict(true).members()));
    }

    /** Goal: text is quoted as JSON requires, infinite numbers and NaN become null. */
    @Test
    void json() {
        assertEquals("{\"a\\\"\\u000a\":[1,null,true,\"b\"]}",
                Json.text(Map.of("a\"\n", Arrays.asList(1, Double.NaN, true, "b"))));
    }

    /** Goal: one missed goal is enough to fail the report. */
    @Test
    void met() {
        Report report = new Report("c", Map.of(), List.of(new Section("k", "t", List.of("a", "b"),
                List.of(List.of("1", "2")), List.of(), List.of(), List.of(verdict(true, 3)))));
        assertTrue(report.isMet());
        assertTrue(report.markdown().contains("| pass | w | 3.00 (3.00 to 3.00) |"));
        Report missed = new Report("c", Map.of(), List.of(new Section("k", "t", List.of("a", "b"),
                List.of(), List.of(), List.of(), List.of(verdict(true, 3), verdict(true, 1)))));
        assertFalse(missed.isMet());
    }
}
