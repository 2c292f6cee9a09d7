package org.lunarsan.initiator;

import java.util.function.Supplier;

/**
 * Writes events of sessions to the platform logger {@code org.lunarsan.initiator}. Messages never
 * contain secrets or data.
 *
 * <p>Threads: any.
 */
final class Log {
    private static final System.Logger LOGGER = System.getLogger("org.lunarsan.initiator");

    private Log() {
    }

    static void warn(Supplier<String> what) {
        LOGGER.log(System.Logger.Level.WARNING, what);
    }

    /** Logs a warning with a stack trace. */
    static void warn(Supplier<String> what, Throwable thrown) {
        LOGGER.log(System.Logger.Level.WARNING, what, thrown);
    }

    static void info(Supplier<String> what) {
        LOGGER.log(System.Logger.Level.INFO, what);
    }

    static void debug(Supplier<String> what) {
        LOGGER.log(System.Logger.Level.DEBUG, what);
    }
}
