package org.lunarsan.iscsi.vectors;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.login.ChapAlgorithm;
import org.lunarsan.iscsi.login.ChapAnswer;
import org.lunarsan.iscsi.login.Credential;
import org.lunarsan.iscsi.login.Established;
import org.lunarsan.iscsi.login.InitiatorLogin;
import org.lunarsan.iscsi.login.LoginException;
import org.lunarsan.iscsi.login.LoginOptions;
import org.lunarsan.iscsi.login.LoginRefusedException;
import org.lunarsan.iscsi.login.LoginStep;
import org.lunarsan.iscsi.login.Secret;
import org.lunarsan.iscsi.login.TargetMovedException;
import org.lunarsan.iscsi.pdu.BasicHeader;
import org.lunarsan.iscsi.text.Digest;
import org.lunarsan.iscsi.text.Offer;
import org.lunarsan.iscsi.text.SessionParameters;
import org.lunarsan.iscsi.text.SessionType;
import org.lunarsan.iscsi.text.TaskReporting;

/** {@code testdata/logins.txt}: whole logins of an initiator, byte by byte. */
class LoginVectorsTest {
    private String name;
    private Map<String, String> options;
    private InitiatorLogin login;
    private LoginStep step;

    /** Goal: an initiator sends the requests of the vectors, and reaches their results. */
    @Test
    void transcripts() {
        int ended = 0;
        for (String line : Vectors.lines("logins.txt")) {
            String[] words = line.split(" ", 3);
            switch (words[0]) {
                case "login" -> begin(words[1]);
                case "set" -> options.put(words[1], words[2]);
                case ">" -> request(words[1], words[2]);
                case "<" -> response(words[1], words[2]);
                default -> {
                    start();
                    assertEquals(line, result(), name);
                    ended++;
                }
            }
        }
        assertTrue(ended > 70, ended + " logins");
    }

    private void begin(String which) {
        name = which;
        options = new HashMap<>();
        login = null;
        step = null;
    }

    private void start() {
        if (login == null) {
            login = new InitiatorLogin(loginOptions());
            step = login.start();
        }
    }

    private void request(String header, String data) {
        start();
        LoginStep.Send send = assertInstanceOf(LoginStep.Send.class, step, name);
        ByteBuffer encoded = ByteBuffer.allocate(BasicHeader.HEADER_BYTES);
        send.header().encode(encoded);
        assertArrayEquals(Vectors.bytes(data), send.data(), name + ": data");
        assertArrayEquals(Vectors.bytes(header), encoded.array(), name + ": header");
    }

    private void response(String header, String data) {
        step = login.receive(ByteBuffer.wrap(Vectors.bytes(header)),
                ByteBuffer.wrap(Vectors.bytes(data)));
    }

    private String result() {
        return switch (step) {
            case LoginStep.Complete(Established established) -> complete(established);
            case LoginStep.Failed(LoginException reason) -> failed(reason);
            case LoginStep.Send send -> "goes on: " + send;
        };
    }

    private static String failed(LoginException reason) {
        TargetMovedException moved = reason instanceof TargetMovedException m ? m : null;
        String proven = reason instanceof LoginRefusedException refused
                ? refused.chapAlgorithm().map(hash -> "" + hash.number()).orElse("-") : "-";
        return "failed status=0x%04x address=%s permanent=%s proven_by=%s".formatted(
                reason.status(), moved == null ? "-" : moved.address(),
                moved == null ? "-" : yes(moved.isPermanent()), proven);
    }

    private static String complete(Established established) {
        SessionParameters session = established.session();
        var connection = established.connection();
        return Stream.of("complete",
                "max_connections=" + session.maxConnections(),
                "initial_r2t=" + yes(session.initialR2t()),
                "immediate_data=" + yes(session.immediateData()),
                "max_burst_bytes=" + session.maxBurstBytes(),
                "first_burst_bytes=" + session.firstBurstBytes(),
                "time_to_wait_seconds=" + session.timeToWaitSeconds(),
                "time_to_retain_seconds=" + session.timeToRetainSeconds(),
                "max_outstanding_r2t=" + session.maxOutstandingR2t(),
                "data_pdu_in_order=" + yes(session.dataPduInOrder()),
                "data_sequence_in_order=" + yes(session.dataSequenceInOrder()),
                "error_recovery_level=" + session.errorRecoveryLevel(),
                "task_reporting=" + reporting(session.taskReporting()),
                "protocol_level=" + session.protocolLevel(),
                "header_digest=" + digest(connection.digests().header()),
                "data_digest=" + digest(connection.digests().data()),
                "send_data_segment_bytes_max=" + connection.sendDataSegmentBytesMax(),
                "receive_data_segment_bytes_max=" + connection.receiveDataSegmentBytesMax(),
                "portal_group_tag=" + (established.portalGroupTag().isPresent()
                        ? established.portalGroupTag().getAsInt() : "-"),
                "target_alias=" + established.targetAlias().orElse("-"),
                "tsih=" + established.tsih(),
                "exp_stat_sn=" + established.expStatSn(),
                "exp_cmd_sn=" + established.expCmdSn(),
                "max_cmd_sn=" + established.maxCmdSn())
                .reduce((one, other) -> one + " " + other).orElseThrow();
    }

    private static String yes(boolean value) {
        return value ? "Yes" : "No";
    }

    private static String digest(boolean on) {
        return on ? "CRC32C" : "None";
    }

    private static String reporting(TaskReporting kind) {
        return switch (kind) {
            case RFC3720 -> "RFC3720";
            case RESPONSE_FENCE -> "ResponseFence";
            case FAST_ABORT -> "FastAbort";
        };
    }

    private LoginOptions loginOptions() {
        Offer offer = Offer.initiator().toBuilder()
                .headerDigest(digests("header_digest")).dataDigest(digests("data_digest"))
                .maxConnections(number("max_connections")).build();
        boolean discovery = options.get("session_type").equals("Discovery");
        return new LoginOptions(options.get("initiator_name"), optional("alias"),
                optional("target_name"),
                discovery ? SessionType.DISCOVERY : SessionType.NORMAL,
                Long.parseLong(options.get("isid"), 16), number("tsih"), number("cid"),
                number("initiator_task_tag"), number("cmd_sn"), offer, chap(),
                Vectors.bytes(options.get("entropy")));
    }

    private Optional<ChapAnswer> chap() {
        return credential("chap_user", "chap_secret").map(ours -> new ChapAnswer(
                Stream.of(options.get("chap_algorithms").split(","))
                        .map(number -> ChapAlgorithm.numbered(Long.parseLong(number)).orElseThrow())
                        .toList(),
                ours, credential("target_user", "target_secret")));
    }

    private Optional<Credential> credential(String user, String secret) {
        return optional(user).map(known ->
                new Credential(known, new Secret(Vectors.bytes(options.get(secret)))));
    }

    private Optional<String> optional(String option) {
        return Optional.of(options.get(option)).filter(value -> !value.equals("-"));
    }

    private int number(String option) {
        return Integer.parseInt(options.get(option));
    }

    private List<Digest> digests(String option) {
        return Stream.of(options.get(option).split(","))
                .map(word -> word.equals("CRC32C") ? Digest.CRC32C : Digest.NONE).toList();
    }
}
