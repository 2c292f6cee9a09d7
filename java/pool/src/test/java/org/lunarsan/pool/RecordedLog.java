package org.lunarsan.pool;

import java.util.List;
import java.util.ResourceBundle;
import java.util.concurrent.ConcurrentLinkedQueue;

/** The platform logger in the tests of this module; records the lines of pools. */
public final class RecordedLog extends System.LoggerFinder {
    private static final ConcurrentLinkedQueue<String> LINES = new ConcurrentLinkedQueue<>();
    private static final int LINES_MAX = 10_000;

    /** Called by the service loader. */
    public RecordedLog() {}

    /** Returns level and text of each line so far, oldest first. */
    static List<String> lines() {
        return List.copyOf(LINES);
    }

    @Override
    public System.Logger getLogger(String name, Module module) {
        return new System.Logger() {
            @Override
            public String getName() {
                return name;
            }

            @Override
            public boolean isLoggable(Level level) {
                return level.compareTo(Level.INFO) >= 0 && name.startsWith("org.lunarsan");
            }

            @Override
            public void log(Level level, ResourceBundle words, String text, Throwable thrown) {
                add(level, text);
            }

            @Override
            public void log(Level level, ResourceBundle words, String text, Object... values) {
                add(level, text);
            }

            private void add(Level level, String text) {
                if (isLoggable(level)) {
                    LINES.add(level + " " + text);
                    if (LINES.size() > LINES_MAX) {
                        LINES.poll();
                    }
                }
            }
        };
    }
}
