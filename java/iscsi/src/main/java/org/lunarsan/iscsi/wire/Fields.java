package org.lunarsan.iscsi.wire;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * Reads and writes big-endian numbers in a buffer. Position, limit and byte order of the buffer are
 * neither used nor changed, except that the limit is the end.
 *
 * <p>Threads: no state.
 */
public final class Fields {
    private static final VarHandle SHORT = view(short[].class);
    private static final VarHandle INT = view(int[].class);
    private static final VarHandle LONG = view(long[].class);

    private Fields() {
    }

    private static VarHandle view(Class<?> array) {
        return MethodHandles.byteBufferViewVarHandle(array, ByteOrder.BIG_ENDIAN);
    }

    /**
     * One byte, 0 to 255.
     *
     * @param bytes the buffer
     * @param at absolute index
     * @return the number
     */
    public static int u8(ByteBuffer bytes, int at) {
        return bytes.get(at) & 0xff;
    }

    /**
     * Two bytes, 0 to 65,535.
     *
     * @param bytes the buffer
     * @param at absolute index of the first
     * @return the number
     */
    public static int u16(ByteBuffer bytes, int at) {
        return (short) SHORT.get(bytes, at) & 0xffff;
    }

    /**
     * Three bytes, 0 to 2^24 - 1.
     *
     * @param bytes the buffer
     * @param at absolute index of the first
     * @return the number
     */
    public static int u24(ByteBuffer bytes, int at) {
        return u8(bytes, at) << 16 | u16(bytes, at + 1);
    }

    /**
     * Four bytes, as the {@code int} of the same bits.
     *
     * @param bytes the buffer
     * @param at absolute index of the first
     * @return the number
     */
    public static int i32(ByteBuffer bytes, int at) {
        return (int) INT.get(bytes, at);
    }

    /**
     * Six bytes, 0 to 2^48 - 1.
     *
     * @param bytes the buffer
     * @param at absolute index of the first
     * @return the number
     */
    public static long u48(ByteBuffer bytes, int at) {
        return (long) u16(bytes, at) << 32 | Integer.toUnsignedLong(i32(bytes, at + 2));
    }

    /**
     * Eight bytes, as the {@code long} of the same bits.
     *
     * @param bytes the buffer
     * @param at absolute index of the first
     * @return the number
     */
    public static long i64(ByteBuffer bytes, int at) {
        return (long) LONG.get(bytes, at);
    }

    /**
     * Writes the low byte of a number.
     *
     * @param bytes the buffer
     * @param at absolute index
     * @param value the number
     */
    public static void putU8(ByteBuffer bytes, int at, int value) {
        bytes.put(at, (byte) value);
    }

    /**
     * Writes the low two bytes of a number.
     *
     * @param bytes the buffer
     * @param at absolute index of the first
     * @param value the number
     */
    public static void putU16(ByteBuffer bytes, int at, int value) {
        SHORT.set(bytes, at, (short) value);
    }

    /**
     * Writes the low three bytes of a number.
     *
     * @param bytes the buffer
     * @param at absolute index of the first
     * @param value the number
     */
    public static void putU24(ByteBuffer bytes, int at, int value) {
        putU8(bytes, at, value >>> 16);
        putU16(bytes, at + 1, value);
    }

    /**
     * Writes four bytes.
     *
     * @param bytes the buffer
     * @param at absolute index of the first
     * @param value the number
     */
    public static void putI32(ByteBuffer bytes, int at, int value) {
        INT.set(bytes, at, value);
    }

    /**
     * Writes the low six bytes of a number.
     *
     * @param bytes the buffer
     * @param at absolute index of the first
     * @param value the number
     */
    public static void putU48(ByteBuffer bytes, int at, long value) {
        putU16(bytes, at, (int) (value >>> 32));
        putI32(bytes, at + 2, (int) value);
    }

    /**
     * Writes eight bytes.
     *
     * @param bytes the buffer
     * @param at absolute index of the first
     * @param value the number
     */
    public static void putI64(ByteBuffer bytes, int at, long value) {
        LONG.set(bytes, at, value);
    }
}
