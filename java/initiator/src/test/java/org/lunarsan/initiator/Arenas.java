package org.lunarsan.initiator;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.nio.ByteBuffer;

/**
 * Arenas of {@code java.lang.foreign}, by name: it is a preview before Java 22.
 *
 * <p>Threads: as the arena.
 */
final class Arenas implements AutoCloseable {
    private final Object arena;
    private boolean closed;

    private Arenas(Object arena) {
        this.arena = arena;
    }

    static Arenas shared() throws Exception {
        return new Arenas(type("Arena").getMethod("ofShared").invoke(null));
    }

    static Arenas confined() throws Exception {
        return new Arenas(type("Arena").getMethod("ofConfined").invoke(null));
    }

    private static Class<?> type(String name) throws ClassNotFoundException {
        return Class.forName("java.lang.foreign." + name);
    }

    ByteBuffer allocate(int bytes) throws Exception {
        try {
            Object segment = MethodHandles.publicLookup().findVirtual(type("Arena"), "allocate",
                            MethodType.methodType(type("MemorySegment"), long.class))
                    .invoke(arena, (long) bytes);
            return (ByteBuffer) MethodHandles.publicLookup().findVirtual(type("MemorySegment"),
                    "asByteBuffer", MethodType.methodType(ByteBuffer.class)).invoke(segment);
        } catch (Exception | Error failed) {
            throw failed;
        } catch (Throwable exception) {
            throw new AssertionError(exception);
        }
    }

    /** Frees the memory of its buffers; may be called again. */
    void end() {
        if (closed) {
            return;
        }
        closed = true;
        try {
            ((AutoCloseable) arena).close();
        } catch (Exception exception) {
            throw new AssertionError(exception);
        }
    }

    @Override
    public void close() {
        end();
    }
}
