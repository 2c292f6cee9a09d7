package org.lunarsan.examples;

import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.lunarsan.initiator.IscsiOptions;
import java.util.Optional;
import org.lunarsan.initiator.IscsiUrl;
import org.lunarsan.initiator.IscsiUrlException;

/**
 * The options of the command line.
 *
 * <p>Threads: immutable.
 *
 * @param source a file or a URL
 * @param destination a file or a URL; exactly one of source and destination is a URL
 * @param connections of the session
 * @param protocolLevel iSCSIProtocolLevel to propose
 * @param mutual credentials required of the target
 * @param json whether to print one document at the end, and no progress
 * @param help whether to print only the help
 */
record CopyOptions(String source, String destination, int connections, int protocolLevel,
        Optional<Mutual> mutual, boolean json, boolean help) {
    static final String HELP = """
            usage: lunar-copy [OPTIONS] SOURCE DESTINATION

            Copies a file to a LUN of an iSCSI target, or a LUN to a file. One of SOURCE and
            DESTINATION is a path, the other iscsi://[USER@]HOST[:PORT]/TARGET/LUN. The CHAP secret
            of USER is in the environment variable LUNAR_CHAP_SECRET.

              --connections N      connections of the session, 1 to 16 (1)
              --protocol-level N   iSCSIProtocolLevel to propose, 1 or 2 (2); 1 for old
                                   targets that close the connection when they
                                   receive unknown keys
              --mutual-chap-user NAME
                                   name with which the target must authenticate
                                   itself (mutual CHAP)
              --mutual-chap-secret-file FILE
                                   file with the secret of the target
              --json               print one JSON document at the end instead of text
              --help               print this help

            example: lunar-copy disk.img iscsi://vm@san.example/iqn.2026-11.org.example:vm/0
            Exit status: 0 success, 1 failure, 2 wrong usage.
            """;


    /** Thrown for wrong usage. */
    static final class UsageException extends Exception {
        private static final long serialVersionUID = 1L;

        UsageException(String what) {
            super(what);
        }
    }

    /**
     * Credentials required of the target.
     *
     * @param user its name
     * @param secretFile the file with its secret
     */
    record Mutual(String user, Path secretFile) {}

    static CopyOptions parse(String[] arguments) throws UsageException {
        int connections = 1;
        int protocolLevel = IscsiOptions.PROTOCOL_LEVEL_MAX;
        boolean json = false;
        boolean help = false;
        Optional<String> user = Optional.empty();
        Optional<Path> secretFile = Optional.empty();
        List<String> ends = new ArrayList<>();
        Iterator<String> rest = List.of(arguments).iterator();
        while (rest.hasNext()) {
            String argument = rest.next();
            switch (argument) {
                case "--help", "-h" -> help = true;
                case "--json" -> json = true;
                case "--connections" -> connections =
                        number(argument, rest, 1, IscsiOptions.CONNECTIONS_MAX);
                case "--protocol-level" -> protocolLevel = number(argument, rest,
                        IscsiOptions.PROTOCOL_LEVEL_MIN, IscsiOptions.PROTOCOL_LEVEL_MAX);
                case "--mutual-chap-user" -> user = Optional.of(value(argument, rest));
                case "--mutual-chap-secret-file" -> secretFile =
                        Optional.of(path(value(argument, rest)));
                default -> ends.add(checkedPath(argument));
            }
        }
        if (help) {
            return new CopyOptions(
                    "", "", connections, protocolLevel, Optional.empty(), json, true);
        }
        if (ends.size() != 2 || isUrl(ends.get(0)) == isUrl(ends.get(1))) {
            throw new UsageException("give one path and one iscsi:// URL");
        }
        if (user.isPresent() != secretFile.isPresent()) {
            throw new UsageException(
                    "--mutual-chap-user and --mutual-chap-secret-file go together");
        }
        Optional<Path> file = secretFile;
        return new CopyOptions(ends.get(0), ends.get(1), connections, protocolLevel,
                user.map(name -> new Mutual(name, file.orElseThrow())), json, false);
    }

    private static String value(String option, Iterator<String> rest) throws UsageException {
        if (!rest.hasNext()) {
            throw new UsageException(option + " needs a value");
        }
        return rest.next();
    }

    private static Path path(String text) throws UsageException {
        try {
            return Path.of(text);
        } catch (InvalidPathException wrong) {
            throw new UsageException(wrong.getMessage());
        }
    }

    private static String checkedPath(String argument) throws UsageException {
        if (argument.startsWith("--")) {
            throw new UsageException("unknown option " + argument);
        }
        try {
            if (isUrl(argument) && IscsiUrl.parse(argument).unit().isEmpty()) {
                throw new UsageException("the URL contains no LUN; write iscsi://HOST/TARGET/LUN");
            }
        } catch (IscsiUrlException wrong) {
            throw new UsageException(wrong.getMessage());
        }
        return argument;
    }

    private static int number(String option, Iterator<String> rest, int least, int most)
            throws UsageException {
        String text = rest.hasNext() ? rest.next() : "";
        boolean digits = text.matches("[0-9]{1,2}");
        int number = digits ? Integer.parseInt(text) : 0;
        if (number < least || number > most) {
            throw new UsageException(option + " requires a number from " + least + " to " + most);
        }
        return number;
    }

    private static boolean isUrl(String text) {
        return IscsiUrl.isIscsiUrl(text);
    }

    boolean writesLun() {
        return isUrl(destination);
    }
}
