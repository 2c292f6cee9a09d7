package org.lunarsan.iscsi.connection;

import java.io.ByteArrayOutputStream;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.text.Key;
import org.lunarsan.iscsi.text.TextBuilder;

/**
 * A text exchange: keys and values for the target, and what it answers. One is under way at a time
 * on a connection, others wait. RFC 7143 §11.10.
 *
 * <p>Threads: as {@link Request}.
 */
public final class TextQuestion extends Request {
    /** Text Responses of one exchange; each may be empty, so their bytes are no bound. */
    static final int ROUNDS_MAX = 256;

    final byte[] text;
    final ByteArrayOutputStream gathered = new ByteArrayOutputStream(0);
    int rounds;
    /** It was sent, and the next request of the exchange is due. */
    boolean goesOn;
    long lun;
    int targetTransferTag = BasicHeader.TAG_RESERVED;

    /**
     * Any text.
     *
     * @param text keys and values, each pair ended by a zero byte; at most the target's
     *        MaxRecvDataSegmentLength
     */
    public TextQuestion(TextBuilder text) {
        this.text = text.toBytes();
    }

    /**
     * Which targets are there? {@link org.lunarsan.iscsi.text.TargetRecord#parse} reads the answer.
     * RFC 7143 Appendix C.
     *
     * @param which {@code All} in discovery sessions, the name of one, or nothing for the one that
     *        this session is logged in to
     * @return the question
     */
    public static TextQuestion sendTargets(String which) {
        return new TextQuestion(new TextBuilder().key(Key.SEND_TARGETS, which));
    }

    /**
     * What the target answered.
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
        goesOn = false;
        lun = 0;
        targetTransferTag = BasicHeader.TAG_RESERVED;
    }
}
