package org.lunarsan.bench.report;

import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * Formats values as JSON text: maps, lists, strings, numbers, Booleans, null. Threads: without
 * state.
 */
public final class Json {
    private static final int FIRST_PRINTABLE = 0x20;

    private Json() {
    }

    /**
     * Formats a value.
     *
     * @param value of the kinds above; infinite numbers and NaN become null
     * @return JSON (RFC 8259)
     */
    public static String text(Object value) {
        return switch (value) {
            case null -> "null";
            case Map<?, ?> map -> map.entrySet().stream()
                    .map(entry -> quoted(entry.getKey().toString()) + ":" + text(entry.getValue()))
                    .collect(Collectors.joining(",", "{", "}"));
            case List<?> list -> list.stream().map(Json::text)
                    .collect(Collectors.joining(",", "[", "]"));
            case Double number -> Double.isFinite(number)
                    ? String.format(Locale.ROOT, "%.6g", number) : "null";
            case Number number -> number.toString();
            case Boolean truth -> truth.toString();
            default -> quoted(value.toString());
        };
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        text.chars().forEach(character -> {
            if (character == '"' || character == '\\') {
                quoted.append('\\').append((char) character);
            } else if (character < FIRST_PRINTABLE) {
                quoted.append(String.format(Locale.ROOT, "\\u%04x", character));
            } else {
                quoted.append((char) character);
            }
        });
        return quoted.append('"').toString();
    }
}
