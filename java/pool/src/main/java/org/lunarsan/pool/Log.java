package org.lunarsan.pool;

import java.util.function.Supplier;

/**
 * Writes events of pools to the platform logger {@code org.lunarsan.pool}. A line names the pool,
 * the event and its consequence, and never contains data. Thread-safe.
 */
final class Log {
    private static final System.Logger LOGGER = System.getLogger("org.lunarsan.pool");

    private Log() {}

    static void warn(Supplier<String> what) {
        LOGGER.log(System.Logger.Level.WARNING, what);
    }

    static void info(Supplier<String> what) {
        LOGGER.log(System.Logger.Level.INFO, what);
    }
}
