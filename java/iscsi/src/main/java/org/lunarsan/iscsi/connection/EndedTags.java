package org.lunarsan.iscsi.connection;

/**
 * Tags of tasks that management functions ended before the target reported it. Late PDUs with these
 * tags are ignored, while any other unknown tag is a violation.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class EndedTags {
    /** Number of tags kept; late PDUs for older ones are violations. */
    static final int ENDED_TAGS_MAX = 1024;

    private int[] tags = new int[0];
    private int oldest;
    private int count;

    void add(int tag) {
        if (tags.length == 0) {
            tags = new int[ENDED_TAGS_MAX];
        }
        if (count == ENDED_TAGS_MAX) {
            oldest = (oldest + 1) % ENDED_TAGS_MAX;
            count--;
        }
        tags[place(count)] = tag;
        count++;
    }

    boolean contains(int tag) {
        return find(tag) >= 0;
    }

    void remove(int tag) {
        int at = find(tag);
        if (at < 0) {
            return;
        }
        for (int from = at; from < count - 1; from++) {
            tags[place(from)] = tags[place(from + 1)];
        }
        count--;
    }

    private int find(int tag) {
        for (int at = 0; at < count; at++) {
            if (tags[place(at)] == tag) {
                return at;
            }
        }
        return -1;
    }

    private int place(int at) {
        return (oldest + at) % ENDED_TAGS_MAX;
    }
}
