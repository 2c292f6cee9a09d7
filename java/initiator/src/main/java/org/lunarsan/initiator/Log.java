package org.lunarsan.initiator;

import java.util.function.Supplier;

/**
 * What happens to sessions, told to the platform's logger {@code org.lunarsan.initiator}. Secrets
 * and data are never among it.
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

    /** With the stack trace of what was thrown. */
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
