package org.lunarsan.iscsi.login;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import org.lunarsan.iscsi.text.Key;
import org.lunarsan.iscsi.text.Negotiation;
import org.lunarsan.iscsi.text.Pair;
import org.lunarsan.iscsi.text.Senders;
import org.lunarsan.iscsi.text.TextBuilder;
import org.lunarsan.iscsi.text.TextViolation;
import org.lunarsan.iscsi.text.TextViolation.Kind;
import org.lunarsan.iscsi.text.Values;

/**
 * Declarations of a target that are valid in any stage.
 *
 * <p>Threads: for one thread.
 */
final class TargetDeclarations {
    private static final int GROUP_TAG_MAX = 65_535;

    private OptionalInt portalGroupTag = OptionalInt.empty();
    private Optional<String> targetAlias = Optional.empty();

    /** Handles keys valid in any stage, answers unknown ones, and returns the rest. */
    List<Pair> sort(List<Pair> pairs, TextBuilder answers) throws TextViolation {
        List<Pair> rest = new ArrayList<>();
        for (Pair pair : pairs) {
            Key key = pair.key();
            if (key == null) {
                Negotiation.receiveUnknown(pair, answers);
            } else if (key == Key.TARGET_PORTAL_GROUP_TAG) {
                portalGroupTag = OptionalInt.of(groupTag(pair.value()));
            } else if (key == Key.TARGET_ALIAS) {
                targetAlias = Optional.of(pair.value());
            } else if (key.senders() == Senders.INITIATOR) {
                throw new TextViolation(Kind.WRONG_SENDER, key.wireName());
            } else if (key != Key.TARGET_ADDRESS && key != Key.NODE_ARCHITECTURE) {
                // TargetAddress and X#NodeArchitecture are ignored here; RFC 7143 §13.8, §13.26.2.
                rest.add(pair);
            }
        }
        return rest;
    }

    private static int groupTag(String value) throws TextViolation {
        OptionalLong tag = Values.number(value);
        boolean fits = tag.isPresent() && tag.getAsLong() >= 0 && tag.getAsLong() <= GROUP_TAG_MAX;
        if (!fits) {
            throw new TextViolation(Kind.BAD_VALUE, Key.TARGET_PORTAL_GROUP_TAG.wireName());
        }
        return (int) tag.getAsLong();
    }

    OptionalInt portalGroupTag() {
        return portalGroupTag;
    }

    Optional<String> targetAlias() {
        return targetAlias;
    }
}
