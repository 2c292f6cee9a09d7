package org.lunarsan.iscsi.text;

import java.util.EnumSet;
import java.util.HashSet;
import java.util.Set;
import org.lunarsan.iscsi.text.TextViolation.Kind;

/**
 * The keys that one side has sent in a negotiation, to detect repeated ones. RFC 7143 §6.3, §6.4.
 *
 * <p>Threads: for one thread.
 */
public final class SentKeys {
    private final Set<Key> known = EnumSet.noneOf(Key.class);
    private final Set<String> unknown = new HashSet<>();

    /** Creates an empty set. */
    public SentKeys() {
    }

    /**
     * Adds a known key.
     *
     * @param key the key
     */
    public void mark(Key key) {
        known.add(key);
    }

    /**
     * Adds the key of a pair.
     *
     * @param pair the pair
     * @throws TextViolation if the key was sent before (TargetAddress may be repeated), or after
     *         {@link Pairs#PAIRS_MAX} unknown ones
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
     * True if a key was sent.
     *
     * @param key the key
     * @return whether it was sent
     */
    public boolean has(Key key) {
        return known.contains(key);
    }
}
