package org.lunarsan.examples;

import java.util.Locale;

/**
 * The part of JSON that one document needs. RFC 8259.
 *
 * <p>Threads: no state.
 */
final class Json {
    private Json() {
    }

    static String text(String value) {
        StringBuilder text = new StringBuilder("\"");
        for (char letter : value.toCharArray()) {
            if (letter == '"' || letter == '\\') {
                text.append('\\').append(letter);
            } else if (letter < ' ') {
                text.append("\\u%04x".formatted((int) letter));
            } else {
                text.append(letter);
            }
        }
        return text.append('"').toString();
    }

    static String number(double value) {
        return String.format(Locale.ROOT, "%.3f", value);
    }
}
