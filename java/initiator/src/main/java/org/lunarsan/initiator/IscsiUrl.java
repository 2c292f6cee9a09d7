package org.lunarsan.initiator;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.Objects;
import java.util.Optional;
import org.lunarsan.iscsi.text.Digest;
import org.lunarsan.iscsi.wire.Lun;

/**
 * An {@code iscsi://} URL of a portal or of a LUN of a target. Its form is that of libiscsi and
 * QEMU, without secrets:
 * {@code iscsi://[user@]host[:port][/target/lun][?header_digest=…&data_digest=…]}.
 *
 * <p>Threads: immutable.
 *
 * @param user CHAP user, if named
 * @param portal the portal
 * @param unit the LUN; empty in the URL of a portal
 * @param headerDigest HeaderDigest to require
 * @param dataDigest DataDigest to require
 */
public record IscsiUrl(Optional<String> user, Portal portal, Optional<Unit> unit,
        Optional<Digest> headerDigest, Optional<Digest> dataDigest) {
    /** Default port of iSCSI. RFC 7143 §4.2.7; IANA. */
    public static final int PORT_DEFAULT = 3260;

    /** The longest iSCSI name in bytes. RFC 7143 §4.2.7.1. */
    public static final int NAME_BYTES_MAX = 223;

    private static final String SCHEME = "iscsi://";
    private static final int PORT_MAX = 65_535;
    private static final int PORT_DIGITS_MAX = 5;

    /** Refuses null. */
    public IscsiUrl {
        Objects.requireNonNull(user, "user");
        Objects.requireNonNull(portal, "portal");
        Objects.requireNonNull(unit, "unit");
        Objects.requireNonNull(headerDigest, "headerDigest");
        Objects.requireNonNull(dataDigest, "dataDigest");
    }

    /**
     * A network portal.
     *
     * @param host host name or address; IPv6 without brackets
     * @param port TCP port, 1 to 65535
     */
    public record Portal(String host, int port) {
        /** Refuses null. */
        public Portal {
            Objects.requireNonNull(host, "host");
        }

        /**
         * Reads {@code host}, {@code host:port}, {@code [v6]} or {@code [v6]:port}.
         *
         * @param text the text
         * @return the portal
         * @throws IscsiUrlException when it is none of these
         */
        public static Portal parse(String text) {
            Objects.requireNonNull(text, "text");
            if (text.startsWith("[")) {
                return parseBracketed(text);
            }
            int colon = text.indexOf(':');
            if (colon != text.lastIndexOf(':')) {
                throw wrong("`" + text + "`: an IPv6 address without brackets",
                        "write [" + text + "]");
            }
            return colon < 0 ? of(text, null)
                    : of(text.substring(0, colon), text.substring(colon + 1));
        }

        private static Portal parseBracketed(String text) {
            int close = text.indexOf(']');
            if (close < 0) {
                throw wrong("`" + text + "`: the bracket is not closed",
                        "write [2001:db8::1]:3260");
            }
            String host = text.substring(1, close);
            if (!isIpv6(host.split("%", 2)[0])) {
                throw wrong("`" + host + "` is not an IPv6 address",
                        "use brackets only for IPv6 addresses");
            }
            String rest = text.substring(close + 1);
            if (!rest.isEmpty() && !rest.startsWith(":")) {
                throw wrong("unexpected `" + rest + "` after the bracket", "write [ADDRESS]:PORT");
            }
            return of(host, rest.isEmpty() ? null : rest.substring(1));
        }

        private static Portal of(String host, String port) {
            if (host.isEmpty()) {
                throw wrong("no host is named", "write HOST or HOST:PORT");
            }
            return new Portal(host, port == null ? PORT_DEFAULT : parsePort(port));
        }

        /** {@code host:port}, IPv6 in brackets. */
        @Override
        public String toString() {
            return host.indexOf(':') >= 0 ? "[" + host + "]:" + port : host + ":" + port;
        }
    }

    /**
     * A LUN of a target.
     *
     * @param target iSCSI name of the target
     * @param lun 0 to 16,383
     */
    public record Unit(String target, int lun) {
        /** Refuses null. */
        public Unit {
            Objects.requireNonNull(target, "target");
        }
    }

    /**
     * True when a text begins like an {@code iscsi://} URL.
     *
     * @param text any text
     * @return whether it begins with the scheme
     */
    public static boolean isIscsiUrl(String text) {
        Objects.requireNonNull(text, "text");
        return text.regionMatches(true, 0, SCHEME, 0, SCHEME.length());
    }

    /**
     * Parses a URL.
     *
     * @param text the text
     * @return the URL
     * @throws IscsiUrlException when the URL is not valid, or holds a secret
     */
    public static IscsiUrl parse(String text) {
        Objects.requireNonNull(text, "text");
        // First, so that no message below can repeat a secret.
        refuseSecret(text);
        if (!isIscsiUrl(text)) {
            throw wrong("`" + text + "` does not begin with " + SCHEME,
                    "write iscsi://HOST[:PORT] or iscsi://HOST[:PORT]/TARGET/LUN");
        }
        refuseOddCharacters(text);
        String rest = text.substring(SCHEME.length());
        int mark = rest.indexOf('?');
        String query = mark < 0 ? "" : rest.substring(mark + 1);
        rest = mark < 0 ? rest : rest.substring(0, mark);
        int slash = rest.indexOf('/');
        String authority = slash < 0 ? rest : rest.substring(0, slash);
        String path = slash < 0 ? "" : rest.substring(slash + 1);
        int at = authority.lastIndexOf('@');
        if (at == 0) {
            throw wrong("the user before @ is empty", "write USER@HOST");
        }
        Optional<String> user = at < 0 ? Optional.empty() : Optional.of(authority.substring(0, at));
        Portal portal = Portal.parse(authority.substring(at + 1));
        Optional<Unit> unit = path.isEmpty() ? Optional.empty() : Optional.of(parseUnit(path));
        IscsiUrl url = new IscsiUrl(user, portal, unit, Optional.empty(), Optional.empty());
        for (String option : query.split("&")) {
            url = option.isEmpty() ? url : url.with(option);
        }
        return url;
    }

    /** The form {@code user%secret@} of libiscsi would put the secret into process lists. */
    private static void refuseSecret(String text) {
        int scheme = text.indexOf("://");
        String authority = scheme < 0 ? text : text.substring(scheme + 3);
        int at = authority.lastIndexOf('@');
        String user;
        if (at >= 0) {
            user = authority.substring(0, at);
        } else {
            // `%` in brackets begins the zone of a link-local address.
            user = authority.startsWith("[") ? "" : authority.split("[/?]", 2)[0];
        }
        if (user.indexOf('%') >= 0 || at >= 0 && user.indexOf(':') >= 0) {
            throw wrong("the URL contains a secret, which other users of this machine could read",
                    "write only USER@ and give the secret with the options (chapSecretFile), or in"
                            + " the environment variable " + IscsiOptions.SECRET_VARIABLE);
        }
    }

    private static void refuseOddCharacters(String text) {
        text.codePoints().filter(IscsiUrl::isOdd).findFirst().ifPresent(odd -> {
            throw wrong("the URL contains the character U+%04X".formatted(odd),
                    "remove spaces and control characters");
        });
    }

    private static boolean isOdd(int character) {
        return Character.isWhitespace(character) || Character.isSpaceChar(character)
                || Character.isISOControl(character);
    }

    private static boolean isIpv6(String text) {
        if (!text.matches("[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")) {
            return false;
        }
        try {
            // Brackets allow only a literal: no name is looked up.
            InetAddress.getByName("[" + text + "]");
            return true;
        } catch (UnknownHostException exception) {
            return false;
        }
    }

    private static int parsePort(String text) {
        boolean digits = text.matches("[0-9]{1," + PORT_DIGITS_MAX + "}");
        int port = digits ? Integer.parseInt(text) : 0;
        if (port < 1 || port > PORT_MAX) {
            throw wrong("`" + text + "` is not a port", "write a port from 1 to 65535");
        }
        return port;
    }

    private static Unit parseUnit(String path) {
        int slash = path.indexOf('/');
        if (slash < 0) {
            throw wrong("the URL contains the target " + path + " but no LUN",
                    "write iscsi://HOST/TARGET/LUN, for example …/0");
        }
        String target = path.substring(0, slash);
        String lun = path.substring(slash + 1);
        int bytes = target.getBytes(StandardCharsets.UTF_8).length;
        if (bytes < 1 || bytes > NAME_BYTES_MAX) {
            throw wrong("a target name must have 1 to " + NAME_BYTES_MAX + " bytes",
                    "write iscsi://HOST/TARGET/LUN");
        }
        boolean digits = lun.matches("[0-9]{1,5}");
        int number = digits ? Integer.parseInt(lun) : -1;
        if (number < 0 || number > Lun.UNIT_MAX) {
            throw wrong("`" + lun + "` is not a LUN",
                    "write a LUN from 0 to " + Lun.UNIT_MAX);
        }
        return new Unit(target, number);
    }

    private IscsiUrl with(String option) {
        int equals = option.indexOf('=');
        String key = equals < 0 ? option : option.substring(0, equals);
        String value = equals < 0 ? "" : option.substring(equals + 1);
        boolean header = key.equals("header_digest");
        if (!header && !key.equals("data_digest")) {
            throw wrong("unknown option `" + key + "` in the URL",
                    "the options are header_digest and data_digest");
        }
        if ((header ? headerDigest : dataDigest).isPresent()) {
            throw wrong("`" + key + "` is given twice in the URL", "leave one out");
        }
        Optional<Digest> digest = Optional.of(switch (value.toLowerCase(Locale.ROOT)) {
            case "crc32c" -> Digest.CRC32C;
            case "none" -> Digest.NONE;
            default -> throw wrong("invalid value of " + key + ": `" + value + "`",
                    "write crc32c or none");
        });
        return header ? new IscsiUrl(user, portal, unit, digest, dataDigest)
                : new IscsiUrl(user, portal, unit, headerDigest, digest);
    }

    /** Formats the URL so that {@link #parse} can read it; always with the port. */
    @Override
    public String toString() {
        StringBuilder text = new StringBuilder(SCHEME);
        user.ifPresent(name -> text.append(name).append('@'));
        text.append(portal);
        unit.ifPresent(named -> text.append('/').append(named.target()).append('/')
                .append(named.lun()));
        char separator = '?';
        if (headerDigest.isPresent()) {
            text.append(separator).append("header_digest=").append(word(headerDigest.get()));
            separator = '&';
        }
        if (dataDigest.isPresent()) {
            text.append(separator).append("data_digest=").append(word(dataDigest.get()));
        }
        return text.toString();
    }

    private static String word(Digest digest) {
        return digest.name().toLowerCase(Locale.ROOT);
    }

    private static IscsiUrlException wrong(String what, String hint) {
        return new IscsiUrlException(what, hint);
    }
}
