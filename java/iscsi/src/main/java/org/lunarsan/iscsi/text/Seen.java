package org.lunarsan.iscsi.text;

import java.util.EnumSet;
import java.util.HashSet;
import java.util.Set;
import org.lunarsan.iscsi.text.TextViolation.Kind;

/**
 * Which keys one side has sent in a negotiation, so that none comes twice. RFC 7143 §6.3, §6.4.
 *
 * <p>Threads: for one thread.
 */
public final class Seen {
    private final Set<Key> known = EnumSet.noneOf(Key.class);
    private final Set<String> unknown = new HashSet<>();

    /** None so far. */
    public Seen() {
    }

    /**
     * Notes a known key.
     *
     * @param key the key
     */
    public void mark(Key key) {
        known.add(key);
    }

    /**
     * Notes one more.
     *
     * @param pair what came
     * @throws TextViolation if it was there before (TargetAddress may come again), or once
     *         {@link Pairs#PAIRS_MAX} unknown ones came
     */
    public void note(Pair pair) throws TextViolation {
        if (pair.key() == Key.TARGET_ADDRESS) {
            return;
        }
        if (pair.key() == null && unknown.size() == Pairs.PAIRS_MAX
                && !unknown.contains(pair.name())) {
            throw new TextViolation(Kind.TOO_MANY_PAIRS, Pairs.PAIRS_MAX);
        }
        boolean isNew = pair.key() == null ? unknown.add(pair.name()) : known.add(pair.key());
        if (!isNew) {
            throw new TextViolation(Kind.REPEATED, pair.name());
        }
    }

    /**
     * Whether a key came.
     *
     * @param key the key
     * @return whether it came
     */
    public boolean has(Key key) {
        return known.contains(key);
    }
}
