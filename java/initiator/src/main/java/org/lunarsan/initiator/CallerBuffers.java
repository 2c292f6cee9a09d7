package org.lunarsan.initiator;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.nio.Buffer;
import java.nio.ByteBuffer;

/**
 * Checks a caller's buffer before other threads use it. Memory of an arena may be closed at any
 * time or belong to one thread; a mapped file may become shorter.
 *
 * <p>Threads: no state.
 */
final class CallerBuffers {
    /** Named by a string: {@code java.lang.foreign} is a preview before Java 22. */
    private static final String SEGMENT = "java.lang.foreign.MemorySegment";
    private static final MethodHandle OF_BUFFER = handle("ofBuffer", true,
            MethodType.methodType(type(SEGMENT), Buffer.class),
            MethodType.methodType(Object.class, ByteBuffer.class));
    private static final MethodHandle SCOPE = handle("scope", false,
            MethodType.methodType(type(SEGMENT + "$Scope")),
            MethodType.methodType(Object.class, Object.class));
    private static final MethodHandle IS_MAPPED = handle("isMapped", false,
            MethodType.methodType(boolean.class),
            MethodType.methodType(boolean.class, Object.class));
    private static final MethodHandle IS_ACCESSIBLE_BY = handle("isAccessibleBy", false,
            MethodType.methodType(boolean.class, Thread.class),
            MethodType.methodType(boolean.class, Object.class, Thread.class));
    /** A thread that is never started and owns no memory. */
    private static final Thread OTHER = new Thread(() -> { });

    /**
     * True for scopes that can never be closed, judged by the names that the JDK gives their
     * classes.
     */
    private static final ClassValue<Boolean> STAYS_OPEN = new ClassValue<>() {
        @Override
        protected Boolean computeValue(Class<?> scope) {
            String name = scope.getName();
            return name.startsWith("jdk.internal.foreign.GlobalSession")
                    || name.startsWith("jdk.internal.foreign.ImplicitSession");
        }
    };

    private CallerBuffers() {
    }

    private static Class<?> type(String name) {
        try {
            return Class.forName(name);
        } catch (ClassNotFoundException exception) {
            throw new ExceptionInInitializerError(exception);
        }
    }

    private static MethodHandle handle(String name, boolean isStatic, MethodType is,
            MethodType as) {
        MethodHandles.Lookup lookup = MethodHandles.publicLookup();
        try {
            MethodHandle found = isStatic ? lookup.findStatic(type(SEGMENT), name, is)
                    : lookup.findVirtual(type(SEGMENT), name, is);
            return found.asType(as);
        } catch (ReflectiveOperationException exception) {
            throw new ExceptionInInitializerError(exception);
        }
    }

    /**
     * Reads the first and the last byte of the buffer.
     *
     * @throws IllegalStateException when its arena is closed
     * @throws WrongThreadException when it belongs to another thread
     */
    static void touch(ByteBuffer buffer) {
        if (buffer.hasRemaining()) {
            buffer.get(buffer.position());
            buffer.get(buffer.limit() - 1);
        }
    }

    /**
     * True when any thread can read the buffer's memory for as long as the buffer is referenced.
     * Data of any other buffer is copied, because a half-sent PDU cannot be withdrawn.
     */
    static boolean isLasting(ByteBuffer buffer) {
        if (!buffer.isDirect()) {
            return true;
        }
        try {
            Object segment = (Object) OF_BUFFER.invokeExact(buffer);
            return !(boolean) IS_MAPPED.invokeExact(segment)
                    && STAYS_OPEN.get(((Object) SCOPE.invokeExact(segment)).getClass());
        } catch (Throwable exception) {
            throw unchecked(exception);
        }
    }

    /** True when only one thread may use the buffer. */
    static boolean isConfined(ByteBuffer buffer) {
        if (!buffer.isDirect()) {
            return false;
        }
        try {
            Object segment = (Object) OF_BUFFER.invokeExact(buffer);
            return !(boolean) IS_ACCESSIBLE_BY.invokeExact(segment, OTHER);
        } catch (Throwable exception) {
            throw unchecked(exception);
        }
    }

    private static RuntimeException unchecked(Throwable odd) {
        return odd instanceof RuntimeException known ? known : new IllegalStateException(odd);
    }

    /** Returns a copy of the remaining bytes in heap memory. */
    static ByteBuffer copyOf(ByteBuffer buffer) {
        return ByteBuffer.allocate(buffer.remaining()).put(buffer.duplicate()).flip();
    }
}
