package org.lunarsan.initiator;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.UUID;

/** The iSCSI name of this initiator. RFC 7143 §4.2.7. Threads: no state. */
final class InitiatorName {
    private static final String PREFIX = "iqn.2026-11.org.lunarsan:";
    private static final Path HOST_NAME = Path.of("/proc/sys/kernel/hostname");
    private static final String FORM = "(iqn|eui|naa)\\.[a-z0-9.:-]+";

    private InitiatorName() {
    }

    /** Derives the name from this host's name, or draws a random one if that does not fit. */
    static String ofThisHost() {
        String name = PREFIX + hostName().strip().toLowerCase(Locale.ROOT);
        return isValid(name) && name.length() > PREFIX.length() ? name
                : PREFIX + UUID.randomUUID().toString().replace("-", "");
    }

    static String checked(String name) {
        if (!isValid(name)) {
            throw new IllegalArgumentException("`" + name + "` is not an iSCSI name: it begins with"
                    + " iqn., eui. or naa., has a-z, 0-9, `.`, `:` and `-`, and at most "
                    + IscsiUrl.NAME_BYTES_MAX + " bytes");
        }
        return name;
    }

    private static boolean isValid(String name) {
        return name.length() <= IscsiUrl.NAME_BYTES_MAX && name.matches(FORM);
    }

    private static String hostName() {
        try {
            return Files.readString(HOST_NAME, StandardCharsets.UTF_8);
        } catch (IOException | SecurityException exception) {
            String windows = System.getenv("COMPUTERNAME");
            return windows == null ? "" : windows;
        }
    }
}
