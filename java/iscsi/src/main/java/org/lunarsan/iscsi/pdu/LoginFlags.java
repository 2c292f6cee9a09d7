package org.lunarsan.iscsi.pdu;

/**
 * Byte 1 of a Login Request or Response: T, C, CSG and NSG. RFC 7143 §11.12.1 to §11.12.4.
 *
 * <p>Threads: no state.
 */
public final class LoginFlags {
    /** T: the next stage is proposed or granted. */
    public static final int TRANSIT = 0x80;

    /** C: the text continues in the next PDU. */
    public static final int CONTINUE = 0x40;

    /** SecurityNegotiation. */
    public static final int SECURITY_NEGOTIATION = 0;

    /** LoginOperationalNegotiation. */
    public static final int OPERATIONAL_NEGOTIATION = 1;

    /** FullFeaturePhase; 2 does not exist. */
    public static final int FULL_FEATURE_PHASE = 3;

    private LoginFlags() {
    }

    /**
     * Returns the flags of a PDU that stays in its stage.
     *
     * @param current CSG
     * @return the byte
     */
    public static int stage(int current) {
        return current << 2;
    }

    /**
     * Returns the flags of a PDU that proposes or grants the transit to a stage.
     *
     * @param current CSG
     * @param next NSG
     * @return the byte
     */
    public static int transit(int current, int next) {
        return TRANSIT | current << 2 | next;
    }

    /**
     * CSG, the current stage.
     *
     * @param flags the byte
     * @return 0 to 3
     */
    public static int current(int flags) {
        return flags >> 2 & 0x03;
    }

    /**
     * NSG, the next stage; valid only with T.
     *
     * @param flags the byte
     * @return 0 to 3
     */
    public static int next(int flags) {
        return flags & 0x03;
    }
}
