package org.lunarsan.iscsi.login;

import static org.lunarsan.iscsi.login.LoginState.NO_STAGE;

import java.nio.ByteBuffer;
import java.util.List;
import org.lunarsan.iscsi.login.LoginState.LoginViolation;
import org.lunarsan.iscsi.login.LoginState.ExpectOperational;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.pdu.LoginFlags;
import org.lunarsan.iscsi.pdu.LoginRequest;
import org.lunarsan.iscsi.pdu.LoginResponse;
import org.lunarsan.iscsi.pdu.LoginStatus;
import org.lunarsan.iscsi.pdu.Opcode;
import org.lunarsan.iscsi.text.Key;
import org.lunarsan.iscsi.text.KeyStage;
import org.lunarsan.iscsi.text.Negotiation;
import org.lunarsan.iscsi.text.Pair;
import org.lunarsan.iscsi.text.Pairs;
import org.lunarsan.iscsi.text.Reassembler;
import org.lunarsan.iscsi.text.Role;
import org.lunarsan.iscsi.text.Segmenter;
import org.lunarsan.iscsi.text.SentKeys;
import org.lunarsan.iscsi.text.SessionType;
import org.lunarsan.iscsi.text.TextBuilder;
import org.lunarsan.iscsi.text.TextViolation;
import org.lunarsan.iscsi.text.TextViolation.Kind;

/**
 * The login of one connection in the initiator role. RFC 7143 §6.3, §11.12, §11.13, §12.
 *
 * <p>Contract: call {@link #start} once, then pass each Login Response to {@link #receive}, until a
 * step is {@link LoginStep.Complete} or {@link LoginStep.Failed}. There are no digests on the wire
 * until then. The caller has to limit the duration.
 *
 * <p>Threads: for one thread.
 */
public final class InitiatorLogin {
    /**
     * Longest data segment of a login PDU in bytes, both ways: the default
     * MaxRecvDataSegmentLength holds during login. RFC 7143 §6.3.
     */
    public static final int LOGIN_SEGMENT_BYTES_MAX = 8192;

    /**
     * Limit of the Login PDUs of one login. RFC 7143 §6.2 requires at least six exchanges; the
     * limit leaves room for text in small pieces.
     */
    public static final int LOGIN_PDUS_MAX = 256;

    private final LoginOptions options;
    private final Reassembler incoming = new Reassembler();
    private final SentKeys seen = new SentKeys();
    private final TargetDeclarations declarations = new TargetDeclarations();
    private Segmenter outgoing = new Segmenter(new byte[0]);
    private LoginState state = new LoginState.Over();
    private int stage = LoginFlags.OPERATIONAL_NEGOTIATION;
    /** The next stage that the outstanding request proposes. */
    private int asked = NO_STAGE;
    /** A transit to be proposed when all of the text was sent. */
    private int pending = NO_STAGE;
    private boolean outstanding;
    /** Set when the operational keys were sent, and no response has arrived since. */
    private boolean proposalUnanswered;
    private int responses;
    private int expStatSn;

    /**
     * Creates a login that has sent nothing.
     *
     * @param options the options of the login
     */
    public InitiatorLogin(LoginOptions options) {
        this.options = options;
    }

    /**
     * Starts the login. Call it once.
     *
     * @return the first request, or the reason why the login cannot begin
     */
    public LoginStep start() {
        try {
            TextBuilder text = new TextBuilder();
            open(text);
            state = LoginState.first(options, text);
            stage = state.stage() == KeyStage.SECURITY ? LoginFlags.SECURITY_NEGOTIATION
                    : LoginFlags.OPERATIONAL_NEGOTIATION;
            proposalUnanswered = stage == LoginFlags.OPERATIONAL_NEGOTIATION;
            return say(text, state.proposedStage());
        } catch (LoginViolation | TextViolation broken) {
            return failed(violation(broken.getMessage()));
        }
    }

    /**
     * Processes one PDU of the target.
     *
     * @param header its Basic Header Segment, from the position
     * @param data its data segment, from the position to the limit
     * @return the next step
     */
    public LoginStep receive(ByteBuffer header, ByteBuffer data) {
        if (isOver()) {
            return failed(violation("the login has ended"));
        }
        int opcode = BasicHeader.opcode(header, header.position());
        LoginResponse response = LoginResponse.decode(header.duplicate());
        try {
            checkHeader(opcode, response);
            outstanding = false;
            proposalUnanswered = false;
            expStatSn = response.statSn() + 1;
            if (response.status() != LoginStatus.SUCCESS) {
                byte[] text = new byte[Math.min(data.remaining(), LOGIN_SEGMENT_BYTES_MAX)];
                data.get(text);
                return failed(Refusal.of(options, response.status(), text, state.chapAlgorithm()));
            }
            return take(response, data);
        } catch (LoginViolation | TextViolation broken) {
            return failed(violation(broken.getMessage()));
        }
    }

    /**
     * True when the login is complete or has failed.
     *
     * @return whether nothing more is expected
     */
    public boolean isOver() {
        return state instanceof LoginState.Over;
    }

    /**
     * True when keys that RFC 3720 does not define were proposed, and the target has not answered
     * since. Old targets close the connection over them.
     *
     * @return whether it is so
     */
    public boolean newerKeysAreUnanswered() {
        return proposalUnanswered && state.hasProposedNewerKeys();
    }

    /**
     * Adds the names, which the first request of every connection carries, and the session type,
     * which only the leading login declares: LIO refuses a further connection that does. RFC 7143
     * §6.3.1, §13.21.
     */
    private void open(TextBuilder text) throws TextViolation {
        text.key(Key.INITIATOR_NAME, options.initiatorName());
        options.alias().ifPresent(alias -> text.key(Key.INITIATOR_ALIAS, alias));
        options.targetName().ifPresent(name -> text.key(Key.TARGET_NAME, name));
        boolean normal = options.sessionType() == SessionType.NORMAL;
        if (options.isLeading()) {
            text.key(Key.SESSION_TYPE, normal ? "Normal" : "Discovery");
        }
        if (normal && options.targetName().isEmpty()) {
            throw new TextViolation(Kind.MISSING, Key.TARGET_NAME.wireName());
        }
    }

    /** Checks the rules for the header alone. RFC 7143 §6.3, §11.13. */
    private void checkHeader(int opcode, LoginResponse response) throws LoginViolation {
        responses++;
        require(opcode == Opcode.LOGIN_RESPONSE,
                "the target answered the login with another PDU than a Login Response");
        require(outstanding, "a Login Response without a request");
        require(responses <= LOGIN_PDUS_MAX, "the login takes too many PDUs");
        require(response.initiatorTaskTag() == options.initiatorTaskTag(),
                "a Login Response with another Initiator Task Tag");
        require(response.dataSegmentLength() <= LOGIN_SEGMENT_BYTES_MAX,
                "the data segment of a Login Response exceeds 8192 bytes");
        if (response.status() != LoginStatus.SUCCESS) {
            return;
        }
        require(response.versionActive() == 0, "an unsupported iSCSI version");
        require(LoginFlags.current(response.flags()) == stage,
                "a Login Response for another stage");
        checkTransit(response.flags());
    }

    /**
     * Checks that a transit was proposed and goes forward, but not beyond the proposal. RFC 7143
     * §6.3.
     */
    private void checkTransit(int flags) throws LoginViolation {
        if ((flags & LoginFlags.TRANSIT) == 0) {
            return;
        }
        int next = LoginFlags.next(flags);
        require((flags & LoginFlags.CONTINUE) == 0, "T and C in one response");
        require(asked != NO_STAGE, "a stage transition that was not requested");
        require(next <= asked && next > stage && next != 2,
                "a transition to a stage that was not requested");
    }

    /** Adds a data segment; a complete text is passed to the state. */
    private LoginStep take(LoginResponse response, ByteBuffer data)
            throws LoginViolation, TextViolation {
        boolean more = (response.flags() & LoginFlags.CONTINUE) != 0;
        if (!outgoing.isEmpty()) {
            if (more || data.hasRemaining()) {
                throw new TextViolation(Kind.OUT_OF_TURN);
            }
            return emit();
        }
        byte[] text = incoming.add(data, more);
        if (text == null) {
            // RFC 7143 §6.2: an empty request solicits the rest.
            return send(NO_STAGE, false, new byte[0]);
        }
        boolean transit = (response.flags() & LoginFlags.TRANSIT) != 0;
        int granted = transit ? LoginFlags.next(response.flags()) : NO_STAGE;
        List<Pair> pairs = Pairs.parse(text);
        for (Pair pair : pairs) {
            seen.note(pair);
        }
        TextBuilder answers = new TextBuilder();
        List<Pair> rest = declarations.sort(pairs, answers);
        LoginState before = state;
        state = new LoginState.Over();
        LoginState next = before.next(options, rest, granted, answers);
        if (granted == LoginFlags.FULL_FEATURE_PHASE) {
            return new LoginStep.Complete(established(response, next));
        }
        stage = transit ? granted : stage;
        state = next;
        proposalUnanswered = granted == LoginFlags.OPERATIONAL_NEGOTIATION;
        return say(answers, next.proposedStage());
    }

    private Established established(LoginResponse response, LoginState last)
            throws LoginViolation, TextViolation {
        int known = options.tsih();
        // No connection ever joins a discovery session, and old targets assign no TSIH to it.
        boolean needed = options.sessionType() == SessionType.NORMAL;
        require((response.tsih() != 0 || !needed) && (known == 0 || response.tsih() == known),
                "the final Login Response has no TSIH");
        Negotiation negotiation = last instanceof ExpectOperational(Negotiation ours) ? ours
                : new Negotiation(Role.INITIATOR, options.offer(), options.sessionType(),
                        options.isLeading());
        return new Established(response.tsih(), negotiation.sessionParameters(),
                negotiation.connectionParameters(), expStatSn, response.expCmdSn(),
                response.maxCmdSn(), declarations.portalGroupTag(), declarations.targetAlias());
    }

    /** Sends a text, proposing a stage with its last piece. */
    private LoginStep say(TextBuilder text, int next) {
        outgoing = new Segmenter(text.toBytes());
        pending = next;
        return emit();
    }

    private LoginStep emit() {
        byte[] text = outgoing.next(LOGIN_SEGMENT_BYTES_MAX);
        boolean more = !outgoing.isEmpty();
        return send(more ? NO_STAGE : pending, more, text);
    }

    private LoginStep send(int next, boolean more, byte[] text) {
        asked = next;
        outstanding = true;
        int flags = (next == NO_STAGE ? LoginFlags.stage(stage) : LoginFlags.transit(stage, next))
                | (more ? LoginFlags.CONTINUE : 0);
        return new LoginStep.Send(new LoginRequest(Opcode.LOGIN_REQUEST | Opcode.IMMEDIATE, flags,
                0, 0, 0, text.length, options.isid(), options.tsih(), options.initiatorTaskTag(),
                options.cid(), options.cmdSn(), expStatSn), text);
    }

    private static void require(boolean kept, String what) throws LoginViolation {
        if (!kept) {
            throw new LoginViolation(what);
        }
    }

    private LoginException violation(String what) {
        String where = options.targetName().orElse("the portal");
        return new LoginViolationException(0, "login to " + where + " failed: " + what, what);
    }

    private LoginStep failed(LoginException reason) {
        state = new LoginState.Over();
        incoming.reset();
        outgoing = new Segmenter(new byte[0]);
        return new LoginStep.Failed(reason);
    }
}
