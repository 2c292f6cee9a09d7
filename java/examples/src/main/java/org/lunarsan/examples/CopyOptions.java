package org.lunarsan.examples;

import java.util.ArrayList;
import java.util.List;
import org.lunarsan.initiator.IscsiOptions;
import org.lunarsan.initiator.IscsiUrl;
import org.lunarsan.initiator.IscsiUrlException;

/**
 * What was typed.
 *
 * <p>Threads: immutable.
 *
 * @param source a file or a URL
 * @param destination likewise; one of both is a URL
 * @param connections of the session
 * @param protocolLevel iSCSIProtocolLevel to propose
 * @param json one document at the end, and no progress
 * @param help only the help is wanted
 */
record CopyOptions(String source, String destination, int connections, int protocolLevel,
        boolean json, boolean help) {
    static final String HELP = """
            usage: lunar-copy [--connections N] [--protocol-level N] [--json] SOURCE DESTINATION

            Copies a file to a LUN of an iSCSI target, or a LUN to a file. One of SOURCE and
            DESTINATION is a path, the other iscsi://[USER@]HOST[:PORT]/TARGET/LUN. The CHAP secret
            of USER is in the environment variable LUNAR_CHAP_SECRET.

              --connections N      connections of the session, 1 to 16 (1)
              --protocol-level N   iSCSIProtocolLevel to propose, 1 or 2 (2); 1 for targets that
                                   close the connection on keys newer than they are
              --json               one JSON document at the end instead of words
              --help               this

            example: lunar-copy disk.img iscsi://vm@san.example/iqn.2026-11.org.example:vm/0
            Exit status: 0 done, 1 it failed, 2 it was asked for the wrong way.
            """;


    /** It was asked for the wrong way. */
    static final class Usage extends Exception {
        private static final long serialVersionUID = 1L;

        Usage(String what) {
            super(what);
        }
    }

    static CopyOptions parse(String[] arguments) throws Usage {
        int connections = 1;
        int protocolLevel = IscsiOptions.PROTOCOL_LEVEL_MAX;
        boolean json = false;
        boolean help = false;
        List<String> ends = new ArrayList<>();
        for (int at = 0; at < arguments.length; at++) {
            switch (arguments[at]) {
                case "--help", "-h" -> help = true;
                case "--json" -> json = true;
                case "--connections" -> {
                    at++;
                    connections = number("--connections", arguments, at, 1,
                            IscsiOptions.CONNECTIONS_MAX);
                }
                case "--protocol-level" -> {
                    at++;
                    protocolLevel = number("--protocol-level", arguments, at,
                            IscsiOptions.PROTOCOL_LEVEL_MIN, IscsiOptions.PROTOCOL_LEVEL_MAX);
                }
                default -> ends.add(plain(arguments[at]));
            }
        }
        if (help) {
            return new CopyOptions("", "", connections, protocolLevel, json, true);
        }
        if (ends.size() != 2 || isUrl(ends.get(0)) == isUrl(ends.get(1))) {
            throw new Usage("one path and one iscsi:// URL are wanted");
        }
        return new CopyOptions(ends.get(0), ends.get(1), connections, protocolLevel, json, false);
    }

    private static String plain(String argument) throws Usage {
        if (argument.startsWith("--")) {
            throw new Usage("unknown option " + argument);
        }
        try {
            if (isUrl(argument) && IscsiUrl.parse(argument).unit().isEmpty()) {
                throw new Usage("the URL names no LUN; write iscsi://HOST/TARGET/LUN");
            }
        } catch (IscsiUrlException wrong) {
            throw new Usage(wrong.getMessage());
        }
        return argument;
    }

    private static int number(String option, String[] arguments, int at, int least, int most)
            throws Usage {
        String text = at < arguments.length ? arguments[at] : "";
        boolean digits = text.matches("[0-9]{1,2}");
        int number = digits ? Integer.parseInt(text) : 0;
        if (number < least || number > most) {
            throw new Usage(option + " wants a number from " + least + " to " + most);
        }
        return number;
    }

    private static boolean isUrl(String text) {
        return IscsiUrl.isOne(text);
    }

    boolean writesLun() {
        return isUrl(destination);
    }
}
