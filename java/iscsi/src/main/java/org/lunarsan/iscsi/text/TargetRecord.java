package org.lunarsan.iscsi.text;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.OptionalLong;
import org.lunarsan.iscsi.text.TextViolation.Kind;

/**
 * One target of a SendTargets answer. RFC 7143 Appendix C.
 *
 * <p>Threads: immutable.
 *
 * @param name TargetName
 * @param addresses its portals, in the target's order; empty: the portal that was queried
 */
public record TargetRecord(String name, List<Address> addresses) {
    /** Limit of the answer to SendTargets, in bytes. */
    public static final int TARGETS_BYTES_MAX = 1 << 20;

    private static final int GROUP_TAG_MAX = 65_535;

    /**
     * One TargetAddress.
     *
     * @param hostAndPort {@code host[:port]}, as received
     * @param groupTag portal group tag; 1 if none was sent
     */
    public record Address(String hostAndPort, int groupTag) {
    }

    /**
     * Parses a SendTargets answer. Other keys are ignored.
     *
     * @param text the whole text
     * @return the records in the target's order
     * @throws TextViolation of the format; for an address before any name; for {@code SendTargets}
     *         itself, which then is a refusal
     */
    public static List<TargetRecord> parse(byte[] text) throws TextViolation {
        List<TargetRecord> records = new ArrayList<>();
        for (Pair pair : Pairs.parse(text, TARGETS_BYTES_MAX)) {
            if (pair.key() == Key.TARGET_NAME) {
                records.add(new TargetRecord(pair.value(), new ArrayList<>()));
            } else if (pair.key() == Key.TARGET_ADDRESS) {
                if (records.isEmpty()) {
                    throw TextViolation.of(Kind.MISSING, Key.TARGET_NAME);
                }
                records.getLast().addresses.add(address(pair.value()));
            } else if (pair.key() == Key.SEND_TARGETS) {
                throw TextViolation.of(Kind.BAD_ANSWER, Key.SEND_TARGETS);
            }
        }
        records.replaceAll(record -> new TargetRecord(record.name,
                Collections.unmodifiableList(record.addresses)));
        return records;
    }

    /** Parses {@code host[:port][,tag]}. */
    private static Address address(String text) throws TextViolation {
        int comma = text.lastIndexOf(',');
        String host = comma < 0 ? text : text.substring(0, comma);
        OptionalLong tag = Values.number(comma < 0 ? "1" : text.substring(comma + 1));
        boolean fits = tag.isPresent() && tag.getAsLong() >= 0 && tag.getAsLong() <= GROUP_TAG_MAX;
        if (host.isEmpty() || !fits) {
            throw TextViolation.of(Kind.BAD_VALUE, Key.TARGET_ADDRESS);
        }
        return new Address(host, (int) tag.getAsLong());
    }
}
