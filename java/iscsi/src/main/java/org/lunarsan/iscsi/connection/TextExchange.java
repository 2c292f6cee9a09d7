package org.lunarsan.iscsi.connection;

import java.io.ByteArrayOutputStream;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.text.Key;
import org.lunarsan.iscsi.text.TextBuilder;

/**
 * A text exchange: keys and values for the target, and its answer. A connection runs one exchange
 * at a time, others wait. RFC 7143 §11.10.
 *
 * <p>Threads: as {@link Request}.
 */
public final class TextExchange extends Request {
    /**
     * Limit of Text Responses of one exchange; each may be empty, so their bytes do not bound them.
     */
    static final int ROUNDS_MAX = 256;

    final byte[] text;
    final ByteArrayOutputStream gathered = new ByteArrayOutputStream(0);
    int rounds;
    /** Set when the next request of the exchange is due. */
    boolean continues;
    long lun;
    int targetTransferTag = BasicHeader.TAG_RESERVED;

    /**
     * Creates an exchange with any text.
     *
     * @param text keys and values, each pair ended by a zero byte; at most the target's
     *        MaxRecvDataSegmentLength
     */
    public TextExchange(TextBuilder text) {
        this.text = text.toBytes();
    }

    /**
     * Creates a query for targets; {@link org.lunarsan.iscsi.text.TargetRecord#parse} parses the
     * answer. RFC 7143 Appendix C.
     *
     * @param which {@code All} in discovery sessions, the name of a target, or an empty text for
     *        the target that this session is logged in to
     * @return the exchange
     */
    public static TextExchange sendTargets(String which) {
        return new TextExchange(new TextBuilder().key(Key.SEND_TARGETS, which));
    }

    /**
     * The answer of the target.
     *
     * @return keys and values, each pair ended by a zero byte
     */
    public byte[] answer() {
        return gathered.toByteArray();
    }

    @Override
    void begin() {
        super.begin();
        gathered.reset();
        rounds = 0;
        continues = false;
        lun = 0;
        targetTransferTag = BasicHeader.TAG_RESERVED;
    }
}
