package org.lunarsan.device.testkit;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import org.junit.jupiter.api.Assumptions;

/**
 * Buffers over {@code java.lang.foreign}, by reflection: the API is final since Java 22, and this
 * module is compiled for 21, where it is a preview. A test that needs it is skipped on a JDK
 * without it.
 *
 * <p>Any access to a buffer of a closed arena throws {@link IllegalStateException}; to one of a
 * confined arena, {@link WrongThreadException} in every thread except its owner. Neither can be
 * detected from the buffer beforehand.
 */
final class ForeignMemory {
    private final Object arena;

    private ForeignMemory(Object arena) {
        this.arena = arena;
    }

    /** Memory that only the calling thread may access. */
    static ForeignMemory confined() {
        return new ForeignMemory(invoke("java.lang.foreign.Arena", "ofConfined", null));
    }

    /** Memory that any thread may access. */
    static ForeignMemory shared() {
        return new ForeignMemory(invoke("java.lang.foreign.Arena", "ofShared", null));
    }

    /** Returns a buffer of zeroes. */
    ByteBuffer allocate(int bytes) {
        Object segment =
                invoke("java.lang.foreign.SegmentAllocator", "allocate", arena, (long) bytes);
        return (ByteBuffer) invoke("java.lang.foreign.MemorySegment", "asByteBuffer", segment);
    }

    /** Makes its buffers unusable. For confined memory, call it in the owning thread. */
    void close() {
        invoke("java.lang.foreign.Arena", "close", arena);
    }

    /** Works as {@link #close()}; retries while a system call uses the memory. */
    void closeWhenUnused() {
        while (true) {
            try {
                close();
                return;
            } catch (IllegalStateException exception) {
                Thread.yield();
            }
        }
    }

    private static Object invoke(String type, String name, Object target, long... arguments) {
        try {
            Class<?> declared = Class.forName(type);
            if (arguments.length == 0) {
                return declared.getMethod(name).invoke(target);
            }
            Method method = declared.getMethod(name, long.class);
            return method.invoke(target, arguments[0]);
        } catch (InvocationTargetException thrown) {
            if (thrown.getCause() instanceof RuntimeException cause) {
                throw cause;
            }
            throw new IllegalStateException(thrown.getCause());
        } catch (ReflectiveOperationException missing) {
            Assumptions.abort("this JDK has no java.lang.foreign: " + missing);
            throw new AssertionError(missing);
        }
    }
}
