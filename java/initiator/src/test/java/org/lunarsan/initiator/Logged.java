package org.lunarsan.initiator;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;

/** Captures the warnings and errors that the initiator logs for one portal, until it is closed. */
final class Logged extends Handler implements AutoCloseable {
    private static final Logger LOGGER = Logger.getLogger("org.lunarsan.initiator");

    private final String portal;
    private final List<LogRecord> records = new CopyOnWriteArrayList<>();
    private final CompletableFuture<LogRecord> found = new CompletableFuture<>();
    private final String awaited;
    private final Level before = LOGGER.getLevel();
    private final boolean parents = LOGGER.getUseParentHandlers();

    /** {@code awaited}: the text that {@link #await} waits for. */
    Logged(String portal, String awaited) {
        this.portal = portal;
        this.awaited = awaited;
        LOGGER.setUseParentHandlers(false);
        LOGGER.setLevel(Level.WARNING);
        LOGGER.addHandler(this);
    }

    @Override
    public void publish(LogRecord record) {
        if (record.getMessage().startsWith(portal)) {
            records.add(record);
            if (record.getMessage().contains(awaited)) {
                found.complete(record);
            }
        }
    }

    /** Returns the first line that contains the awaited text. */
    LogRecord await() throws Exception {
        return found.get(10, TimeUnit.MINUTES);
    }

    /** Counts the lines that contain this text. */
    long count(String words) {
        return records.stream().filter(record -> record.getMessage().contains(words)).count();
    }

    @Override
    public void flush() {
        // Nothing is buffered.
    }

    @Override
    public void close() {
        LOGGER.removeHandler(this);
        LOGGER.setLevel(before);
        LOGGER.setUseParentHandlers(parents);
    }
}
