package org.lunarsan.iscsi.vectors;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.OptionalLong;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.lunarsan.iscsi.text.ConnectionParameters;
import org.lunarsan.iscsi.text.Digest;
import org.lunarsan.iscsi.text.Negotiation;
import org.lunarsan.iscsi.text.Offer;
import org.lunarsan.iscsi.text.Pairs;
import org.lunarsan.iscsi.text.Role;
import org.lunarsan.iscsi.text.SessionParameters;
import org.lunarsan.iscsi.text.SessionType;
import org.lunarsan.iscsi.text.TaskReporting;
import org.lunarsan.iscsi.text.TextBuilder;
import org.lunarsan.iscsi.text.TextViolation;
import org.lunarsan.iscsi.text.Values;

/** {@code testdata/negotiation.txt}: results of keys and values. */
class NegotiationVectorsTest {
    private static final String ERROR = "error";

    /** Goal: negotiations and values have the results of the vectors. */
    @Test
    void rows() {
        int rows = 0;
        for (String line : Vectors.lines("negotiation.txt")) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "target" -> assertEquals(words[4] + " " + words[5],
                        target(words[1], words[2], words[3]), line);
                case "initiator" -> assertEquals(words[4],
                        initiator(words[1], words[2], words[3]), line);
                case "declare" -> assertEquals(words[2], receive(negotiation(Role.INITIATOR,
                        "MaxRecvDataSegmentLength", "-"), "MaxRecvDataSegmentLength",
                        words[1])[1], line);
                case "number" -> assertEquals(words[2], number(words[1]), line);
                case "binary" -> assertArrayEquals(
                        words[3].equals(ERROR) ? null : Vectors.bytes(words[3]),
                        Values.binary(words[2], Integer.parseInt(words[1])).orElse(null), line);
                default -> throw new AssertionError(line);
            }
            rows++;
        }
        assertTrue(rows > 500, rows + " rows");
    }

    private static String number(String said) {
        OptionalLong number = Values.number(said);
        return number.isPresent() ? Long.toUnsignedString(number.getAsLong()) : ERROR;
    }

    private static String target(String key, String offered, String ours) {
        String said = offered.equals("-") ? "" : offered;
        String[] became = receive(negotiation(Role.TARGET, key, ours), key, said);
        return became[0] + " " + (became[0].equals(ERROR) ? "-" : became[1]);
    }

    private static String initiator(String key, String ours, String answered) {
        Negotiation negotiation = negotiation(Role.INITIATOR, key, ours);
        negotiation.propose(new TextBuilder());
        String[] became = receive(negotiation, key, answered);
        assertTrue(became[0].isEmpty() || became[0].equals(ERROR), "an answer is not answered");
        return became[1];
    }

    private static Negotiation negotiation(Role role, String key, String ours) {
        return new Negotiation(role, wanting(role, key, ours), SessionType.NORMAL, true);
    }

    /** Receives {@code key=said} from the other side; returns our answer and the result. */
    private static String[] receive(Negotiation negotiation, String key, String said) {
        TextBuilder answers = new TextBuilder();
        try {
            byte[] text = new TextBuilder().pair(key, said).toBytes();
            negotiation.receive(Pairs.parse(text), answers);
        } catch (TextViolation violation) {
            return new String[] {ERROR, ERROR};
        }
        String text = new String(answers.toBytes(), StandardCharsets.UTF_8).replace("\0", "");
        String answer = text.substring(text.indexOf('=') + 1);
        try {
            return new String[] {answer, result(key, negotiation.sessionParameters(),
                    negotiation.connectionParameters())};
        } catch (TextViolation exception) {
            return new String[] {answer, ERROR};
        }
    }

    private static String result(String key, SessionParameters session,
            ConnectionParameters connection) {
        return switch (key) {
            case "MaxConnections" -> "" + session.maxConnections();
            case "MaxBurstLength" -> "" + session.maxBurstBytes();
            case "FirstBurstLength" -> "" + session.firstBurstBytes();
            case "DefaultTime2Wait" -> "" + session.timeToWaitSeconds();
            case "DefaultTime2Retain" -> "" + session.timeToRetainSeconds();
            case "MaxOutstandingR2T" -> "" + session.maxOutstandingR2t();
            case "ErrorRecoveryLevel" -> "" + session.errorRecoveryLevel();
            case "iSCSIProtocolLevel" -> "" + session.protocolLevel();
            case "InitialR2T" -> yes(session.initialR2t());
            case "ImmediateData" -> yes(session.immediateData());
            case "DataPDUInOrder" -> yes(session.dataPduInOrder());
            case "DataSequenceInOrder" -> yes(session.dataSequenceInOrder());
            case "HeaderDigest" -> digest(connection.digests().header());
            case "DataDigest" -> digest(connection.digests().data());
            case "TaskReporting" -> REPORTING.get(session.taskReporting().ordinal());
            case "MaxRecvDataSegmentLength" -> "" + connection.sendDataSegmentBytesMax();
            default -> "-";
        };
    }

    private static final List<String> REPORTING = List.of("RFC3720", "ResponseFence", "FastAbort");

    private static String yes(boolean value) {
        return value ? "Yes" : "No";
    }

    private static String digest(boolean on) {
        return on ? "CRC32C" : "None";
    }

    /** Returns an offer with the value {@code ours} of {@code key}. */
    private static Offer wanting(Role role, String key, String ours) {
        Offer.Builder offer =
                (role == Role.TARGET ? Offer.target() : Offer.initiator()).toBuilder();
        boolean yes = ours.equals("Yes");
        int number = ours.matches("\\d+") ? Integer.parseInt(ours) : 0;
        return (switch (key) {
            case "MaxConnections" -> offer.maxConnections(number);
            case "MaxBurstLength" -> offer.maxBurstBytes(number);
            case "FirstBurstLength" -> offer.firstBurstBytes(number).maxBurstBytes(0xff_ffff);
            case "DefaultTime2Wait" -> offer.timeToWaitSeconds(number);
            case "DefaultTime2Retain" -> offer.timeToRetainSeconds(number);
            case "MaxOutstandingR2T" -> offer.maxOutstandingR2t(number);
            case "ErrorRecoveryLevel" -> offer.errorRecoveryLevel(number);
            case "iSCSIProtocolLevel" -> offer.protocolLevel(number);
            case "InitialR2T" -> offer.initialR2t(yes);
            case "ImmediateData" -> offer.immediateData(yes);
            case "DataPDUInOrder" -> offer.dataPduInOrder(yes);
            case "DataSequenceInOrder" -> offer.dataSequenceInOrder(yes);
            case "HeaderDigest" -> offer.headerDigest(digests(ours));
            case "DataDigest" -> offer.dataDigest(digests(ours));
            case "TaskReporting" -> offer.taskReporting(Stream.of(ours.split(","))
                    .map(word -> TaskReporting.values()[REPORTING.indexOf(word)]).toList());
            default -> offer;
        }).build();
    }

    private static List<Digest> digests(String words) {
        return Stream.of(words.split(","))
                .map(word -> word.equals("CRC32C") ? Digest.CRC32C : Digest.NONE).toList();
    }
}
