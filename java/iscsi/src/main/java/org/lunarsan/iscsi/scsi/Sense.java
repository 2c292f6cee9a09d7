package org.lunarsan.iscsi.scsi;

import java.nio.ByteBuffer;
import java.util.OptionalLong;
import org.lunarsan.iscsi.wire.Fields;

/**
 * Sense data: the reason why a command failed. SPC-4 §4.5. Decoding accepts any bytes; missing
 * information is absent.
 *
 * <p>Threads: immutable.
 *
 * @param key sense key, 0 to 15
 * @param code additional sense code and qualifier, as {@code 0xAAQQ}
 * @param information INFORMATION: an LBA, or the offset of a miscompare
 * @param isDeferred whether it concerns an earlier command
 */
public record Sense(int key, int code, OptionalLong information, boolean isDeferred) {
    /** NO SENSE. */
    public static final int NO_SENSE = 0x0;

    /** RECOVERED ERROR. */
    public static final int RECOVERED_ERROR = 0x1;

    /** NOT READY. */
    public static final int NOT_READY = 0x2;

    /** MEDIUM ERROR. */
    public static final int MEDIUM_ERROR = 0x3;

    /** HARDWARE ERROR. */
    public static final int HARDWARE_ERROR = 0x4;

    /** ILLEGAL REQUEST. */
    public static final int ILLEGAL_REQUEST = 0x5;

    /** UNIT ATTENTION. */
    public static final int UNIT_ATTENTION = 0x6;

    /** DATA PROTECT. */
    public static final int DATA_PROTECT = 0x7;

    /** ABORTED COMMAND. */
    public static final int ABORTED_COMMAND = 0xb;

    /** MISCOMPARE. */
    public static final int MISCOMPARE = 0xe;

    /** With ILLEGAL REQUEST: LOGICAL BLOCK ADDRESS OUT OF RANGE. */
    public static final int LBA_OUT_OF_RANGE = 0x2100;

    /** With ILLEGAL REQUEST: INVALID COMMAND OPERATION CODE. */
    public static final int INVALID_OPERATION_CODE = 0x2000;

    /** With ILLEGAL REQUEST: LOGICAL UNIT NOT SUPPORTED. */
    public static final int LOGICAL_UNIT_NOT_SUPPORTED = 0x2500;

    /** With DATA PROTECT: WRITE PROTECTED. */
    public static final int WRITE_PROTECTED = 0x2700;

    /** With DATA PROTECT: SPACE ALLOCATION FAILED WRITE PROTECT. */
    public static final int SPACE_ALLOCATION_FAILED = 0x2707;

    /** With UNIT ATTENTION: CAPACITY DATA HAS CHANGED. */
    public static final int CAPACITY_DATA_HAS_CHANGED = 0x2a09;

    /** The value for sense data that cannot be read. */
    public static final Sense UNREADABLE = new Sense(NO_SENSE, 0, OptionalLong.empty(), false);

    private static final int CURRENT_FIXED = 0x70;
    private static final int DEFERRED_FIXED = 0x71;
    private static final int CURRENT_DESCRIPTOR = 0x72;
    private static final int DEFERRED_DESCRIPTOR = 0x73;
    private static final int RESPONSE_CODE_MASK = 0x7f;
    private static final int VALID = 0x80;
    private static final int DESCRIPTOR_INFORMATION = 0x00;
    private static final int DESCRIPTORS_AT = 8;

    /**
     * Decodes sense data, without a SenseLength before it.
     *
     * @param data the bytes
     * @return the value; {@link #UNREADABLE} if the bytes have no information
     */
    public static Sense decode(byte[] data) {
        ByteBuffer bytes = ByteBuffer.wrap(data);
        int code = data.length == 0 ? 0 : data[0] & RESPONSE_CODE_MASK;
        return switch (code) {
            case CURRENT_FIXED, DEFERRED_FIXED -> fixed(bytes, code == DEFERRED_FIXED);
            case CURRENT_DESCRIPTOR, DEFERRED_DESCRIPTOR ->
                descriptors(bytes, code == DEFERRED_DESCRIPTOR);
            default -> UNREADABLE;
        };
    }

    private static Sense fixed(ByteBuffer data, boolean deferred) {
        if (data.limit() < 3) {
            return UNREADABLE;
        }
        boolean valid = (Fields.u8(data, 0) & VALID) != 0 && data.limit() >= 7;
        OptionalLong information = !valid ? OptionalLong.empty()
                : OptionalLong.of(Integer.toUnsignedLong(Fields.i32(data, 3)));
        int code = data.limit() >= 14 ? Fields.u16(data, 12) : 0;
        return new Sense(Fields.u8(data, 2) & 0x0f, code, information, deferred);
    }

    private static Sense descriptors(ByteBuffer data, boolean deferred) {
        if (data.limit() < 4) {
            return UNREADABLE;
        }
        int sentBytes = data.limit() < DESCRIPTORS_AT ? 0 : DESCRIPTORS_AT + Fields.u8(data, 7);
        OptionalLong information = information(data, Math.min(sentBytes, data.limit()));
        return new Sense(Fields.u8(data, 1) & 0x0f, Fields.u16(data, 2), information, deferred);
    }

    private static OptionalLong information(ByteBuffer data, int end) {
        final int informationBytes = 12;
        int at = DESCRIPTORS_AT;
        while (end - at >= 2) {
            boolean whole = end - at >= informationBytes;
            if (Fields.u8(data, at) == DESCRIPTOR_INFORMATION && whole) {
                boolean valid = (Fields.u8(data, at + 2) & VALID) != 0;
                return valid ? OptionalLong.of(Fields.i64(data, at + 4)) : OptionalLong.empty();
            }
            at += 2 + Fields.u8(data, at + 1);
        }
        return OptionalLong.empty();
    }

    /**
     * True if it has this key and additional code.
     *
     * @param wantedKey sense key
     * @param wantedCode additional code and qualifier
     * @return whether it has
     */
    public boolean is(int wantedKey, int wantedCode) {
        return key == wantedKey && code == wantedCode;
    }

    /**
     * The key, for messages.
     *
     * @return its name
     */
    public String keyName() {
        return switch (key) {
            case NO_SENSE -> "NO SENSE";
            case RECOVERED_ERROR -> "RECOVERED ERROR";
            case NOT_READY -> "NOT READY";
            case MEDIUM_ERROR -> "MEDIUM ERROR";
            case HARDWARE_ERROR -> "HARDWARE ERROR";
            case ILLEGAL_REQUEST -> "ILLEGAL REQUEST";
            case UNIT_ATTENTION -> "UNIT ATTENTION";
            case DATA_PROTECT -> "DATA PROTECT";
            case ABORTED_COMMAND -> "ABORTED COMMAND";
            case MISCOMPARE -> "MISCOMPARE";
            default -> "sense key 0x%x".formatted(key);
        };
    }

    @Override
    public String toString() {
        String where = information.isPresent()
                ? ", information " + Long.toUnsignedString(information.getAsLong()) : "";
        return "%s, additional code %04x%s%s".formatted(keyName(), code, where,
                isDeferred ? ", deferred" : "");
    }
}
