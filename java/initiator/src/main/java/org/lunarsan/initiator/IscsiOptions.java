package org.lunarsan.initiator;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.OptionalLong;
import org.lunarsan.initiator.IscsiUrl.Portal;
import org.lunarsan.iscsi.login.ChapAlgorithm;
import org.lunarsan.iscsi.text.Digest;
import org.lunarsan.iscsi.text.Offer;

/**
 * Who we are to targets, what we insist on, and how long we wait: for each wait there is a name.
 * What is said of digests and of the CHAP user in a URL comes before what is said here.
 *
 * <p>Threads: immutable; its {@link Builder} is for one thread.
 */
public final class IscsiOptions {
    /** The environment variable with the CHAP secret, where no other is named. */
    public static final String SECRET_VARIABLE = "LUNAR_CHAP_SECRET";

    /** How long a login may take, from the first SYN to full feature phase. */
    public static final Duration LOGIN_TIME = Duration.ofSeconds(15);

    /** How long a command waits for a lost session to come back. */
    public static final Duration RECOVERY_TIME = Duration.ofSeconds(60);

    /** How long a target may take to answer a command. */
    public static final Duration COMMAND_TIME = Duration.ofSeconds(180);

    /** When nothing has arrived for so long, the target is pinged. */
    public static final Duration PING_INTERVAL = Duration.ofSeconds(5);

    /** A pinged target that sends nothing for so long is taken for dead. */
    public static final Duration PING_TIME = Duration.ofSeconds(5);

    /** How long a target may take to answer a logout, and to end commands before it. */
    public static final Duration LOGOUT_TIME = Duration.ofSeconds(5);

    /** How long a target may take to say what became of a command that was aborted. */
    public static final Duration ABORT_TIME = Duration.ofSeconds(30);

    /** Most commands in flight on one connection, unless told otherwise. */
    public static final int QUEUE_DEPTH = 128;

    /** Most that can be asked for. */
    public static final int QUEUE_DEPTH_MAX = 1000;
    /** Bytes of a first burst, unless told otherwise, and at most. */
    public static final int FIRST_BURST_BYTES = 256 << 10;
    /** Bytes of a first burst, at least: RFC 7143 §13.14. */
    public static final int FIRST_BURST_BYTES_MIN = 512;

    /** iSCSIProtocolLevel of RFC 7143 alone, the least. RFC 7144 §7.1.1. */
    public static final int PROTOCOL_LEVEL_MIN = Offer.PROTOCOL_LEVEL_RFC_7143;

    /** iSCSIProtocolLevel of RFC 7144, unless told otherwise, and at most. */
    public static final int PROTOCOL_LEVEL_MAX = Offer.PROTOCOL_LEVEL_MAX;

    /** Most connections of a session that can be asked for. */
    public static final int CONNECTIONS_MAX = 16;

    final String initiatorName;
    final OptionalLong isid;
    final Optional<String> chapUser;
    final Optional<byte[]> chapSecret;
    final Optional<Path> chapSecretFile;
    final Optional<String> mutualUser;
    final Optional<byte[]> mutualSecret;
    final Optional<Path> mutualSecretFile;
    final List<ChapAlgorithm> chapAlgorithms;
    final boolean allowShortSecrets;
    final List<Digest> headerDigest;
    final List<Digest> dataDigest;
    final int connections;
    final int queueDepth;
    final int firstBurstBytes;
    final int protocolLevel;
    final List<Portal> portals;
    final Duration loginTime;
    final Duration recoveryTime;
    final Duration commandTime;
    final Duration pingInterval;
    final Duration pingTime;
    final Duration logoutTime;
    final Duration abortTime;

    private IscsiOptions(Builder from) {
        initiatorName = from.initiatorName;
        isid = from.isid;
        chapUser = from.chapUser;
        chapSecret = from.chapSecret;
        chapSecretFile = from.chapSecretFile;
        mutualUser = from.mutualUser;
        mutualSecret = from.mutualSecret;
        mutualSecretFile = from.mutualSecretFile;
        chapAlgorithms = from.chapAlgorithms;
        allowShortSecrets = from.allowShortSecrets;
        headerDigest = from.headerDigest;
        dataDigest = from.dataDigest;
        connections = from.connections;
        queueDepth = from.queueDepth;
        firstBurstBytes = from.firstBurstBytes;
        protocolLevel = from.protocolLevel;
        portals = from.portals;
        loginTime = from.loginTime;
        recoveryTime = from.recoveryTime;
        commandTime = from.commandTime;
        pingInterval = from.pingInterval;
        pingTime = from.pingTime;
        logoutTime = from.logoutTime;
        abortTime = from.abortTime;
    }

    /**
     * What holds where nothing is said: no digests, one connection, CHAP only for a URL that names
     * a user.
     *
     * @return the options
     */
    public static IscsiOptions defaults() {
        return builder().build();
    }

    /**
     * A builder that holds the defaults.
     *
     * @return a fresh one
     */
    public static Builder builder() {
        return new Builder();
    }

    /** Without secrets. */
    @Override
    public String toString() {
        return "IscsiOptions(" + initiatorName + chapUser.map(user -> ", CHAP " + user).orElse("")
                + ", " + connections + " connections)";
    }

    /**
     * Makes {@link IscsiOptions}. Waits are positive, or zero where that is said to mean something.
     *
     * <p>Threads: for one thread.
     */
    public static final class Builder {
        private static final Duration WAIT_MAX = Duration.ofDays(365);

        private String initiatorName = InitiatorName.ofThisHost();
        private OptionalLong isid = OptionalLong.empty();
        private Optional<String> chapUser = Optional.empty();
        private Optional<byte[]> chapSecret = Optional.empty();
        private Optional<Path> chapSecretFile = Optional.empty();
        private Optional<String> mutualUser = Optional.empty();
        private Optional<byte[]> mutualSecret = Optional.empty();
        private Optional<Path> mutualSecretFile = Optional.empty();
        private List<ChapAlgorithm> chapAlgorithms = List.of(ChapAlgorithm.values());
        private boolean allowShortSecrets;
        private List<Digest> headerDigest = List.of(Digest.NONE);
        private List<Digest> dataDigest = List.of(Digest.NONE);
        private int connections = 1;
        private int queueDepth = QUEUE_DEPTH;
        private int firstBurstBytes = FIRST_BURST_BYTES;
        private int protocolLevel = PROTOCOL_LEVEL_MAX;
        private List<Portal> portals = List.of();
        private Duration loginTime = LOGIN_TIME;
        private Duration recoveryTime = RECOVERY_TIME;
        private Duration commandTime = COMMAND_TIME;
        private Duration pingInterval = PING_INTERVAL;
        private Duration pingTime = PING_TIME;
        private Duration logoutTime = LOGOUT_TIME;
        private Duration abortTime = ABORT_TIME;

        private Builder() {
        }

        /**
         * InitiatorName. By default {@code iqn.2026-11.org.lunarsan:} and the name of this host.
         *
         * @param name an iSCSI name
         * @return this
         */
        public Builder initiatorName(String name) {
            initiatorName = InitiatorName.checked(Objects.requireNonNull(name, "name"));
            return this;
        }

        /**
         * Our part of the session identifier; by default 40 random bits, drawn once for each
         * device, however often it is opened. RFC 7143 §11.12.5.
         *
         * @param value six bytes
         * @return this
         */
        public Builder isid(long value) {
            require(value >>> 48 == 0, "an ISID has six bytes");
            isid = OptionalLong.of(value);
            return this;
        }

        /**
         * What to log in as (CHAP_N), and its secret.
         *
         * @param user the name
         * @param secret at least 12 bytes; copied
         * @return this
         */
        public Builder chap(String user, byte[] secret) {
            Objects.requireNonNull(user, "user");
            Objects.requireNonNull(secret, "secret");
            chapUser = Optional.of(user);
            chapSecret = Optional.of(secret.clone());
            return this;
        }

        /**
         * What to log in as. The secret comes from {@link #chapSecretFile} or the environment
         * variable {@link #SECRET_VARIABLE}.
         *
         * @param user the name
         * @return this
         */
        public Builder chapUser(String user) {
            chapUser = Optional.of(Objects.requireNonNull(user, "user"));
            return this;
        }

        /**
         * The file with our secret; one newline at its end is not part of it.
         *
         * @param file read at each first login
         * @return this
         */
        public Builder chapSecretFile(Path file) {
            chapSecretFile = Optional.of(Objects.requireNonNull(file, "file"));
            return this;
        }

        /**
         * What the target must prove to be (mutual CHAP).
         *
         * @param user the target's name
         * @param secret the target's secret; copied
         * @return this
         */
        public Builder mutualChap(String user, byte[] secret) {
            Objects.requireNonNull(user, "user");
            Objects.requireNonNull(secret, "secret");
            mutualUser = Optional.of(user);
            mutualSecret = Optional.of(secret.clone());
            return this;
        }

        /**
         * What the target must prove to be, with its secret in a file.
         *
         * @param user the target's name
         * @param file the file with the target's secret
         * @return this
         */
        public Builder mutualChapSecretFile(String user, Path file) {
            Objects.requireNonNull(user, "user");
            Objects.requireNonNull(file, "file");
            mutualUser = Optional.of(user);
            mutualSecretFile = Optional.of(file);
            return this;
        }

        /**
         * CHAP algorithms in order of preference; by default all, strongest first.
         *
         * @param algorithms at least one
         * @return this
         */
        public Builder chapAlgorithms(List<ChapAlgorithm> algorithms) {
            List<ChapAlgorithm> given = listed(algorithms, "algorithms");
            require(!given.isEmpty(), "CHAP needs an algorithm");
            chapAlgorithms = given;
            return this;
        }

        /**
         * Whether secrets shorter than 12 bytes (96 bits) are taken. They can be found by trying.
         *
         * @param allow false unless told otherwise
         * @return this
         */
        public Builder allowShortSecrets(boolean allow) {
            allowShortSecrets = allow;
            return this;
        }

        /**
         * HeaderDigest values in order of preference. One value alone is insisted on.
         *
         * @param digests at least one
         * @return this
         */
        public Builder headerDigest(Digest... digests) {
            headerDigest = wanted(digests, "HeaderDigest needs a value");
            return this;
        }

        /**
         * DataDigest values likewise.
         *
         * @param digests at least one
         * @return this
         */
        public Builder dataDigest(Digest... digests) {
            dataDigest = wanted(digests, "DataDigest needs a value");
            return this;
        }

        /**
         * Connections of a session (MC/S), as far as the target allows and bears them: where it
         * refuses or drops them again and again, sessions go on with fewer, which is logged once.
         *
         * @param count 1 to {@link #CONNECTIONS_MAX}
         * @return this
         */
        public Builder connections(int count) {
            require(count >= 1 && count <= CONNECTIONS_MAX,
                    "a session has 1 to " + CONNECTIONS_MAX + " connections");
            connections = count;
            return this;
        }

        /**
         * Most commands in flight on one connection; who asks for more waits.
         *
         * @param commands 1 to {@link #QUEUE_DEPTH_MAX}
         * @return this
         */
        public Builder queueDepth(int commands) {
            require(commands >= 1 && commands <= QUEUE_DEPTH_MAX,
                    "a connection has 1 to " + QUEUE_DEPTH_MAX + " commands in flight");
            queueDepth = commands;
            return this;
        }

        /**
         * FirstBurstLength to propose: what a write sends unasked, at most (RFC 7143 §13.14); the
         * target may take less. More has to be asked for by the target, which costs a round trip,
         * and spares its memory.
         *
         * @param bytes {@link #FIRST_BURST_BYTES_MIN} to {@link #FIRST_BURST_BYTES}
         * @return this
         */
        public Builder firstBurst(int bytes) {
            require(bytes >= FIRST_BURST_BYTES_MIN && bytes <= FIRST_BURST_BYTES,
                    "a first burst has " + FIRST_BURST_BYTES_MIN + " to " + FIRST_BURST_BYTES
                            + " bytes");
            firstBurstBytes = bytes;
            return this;
        }

        /**
         * iSCSIProtocolLevel to propose (RFC 7144 §7.1.1); the target may take less. With
         * {@link #PROTOCOL_LEVEL_MIN} neither that key nor TaskReporting is sent: some older
         * targets close the connection on keys that they do not know. Such a target is found out by
         * the first login, which is then tried once more without them.
         *
         * @param level {@link #PROTOCOL_LEVEL_MIN} or {@link #PROTOCOL_LEVEL_MAX}
         * @return this
         */
        public Builder protocolLevel(int level) {
            require(level >= PROTOCOL_LEVEL_MIN && level <= PROTOCOL_LEVEL_MAX,
                    "iSCSIProtocolLevel is " + PROTOCOL_LEVEL_MIN + " or " + PROTOCOL_LEVEL_MAX);
            protocolLevel = level;
            return this;
        }

        /**
         * Other portals of the same target, in the same portal group. A lost session is made again
         * through one of them when the portal of the URL does not let us in.
         *
         * @param others in order of preference
         * @return this
         */
        public Builder portals(List<Portal> others) {
            portals = listed(others, "others");
            return this;
        }

        /**
         * How long a login may take, from the first SYN to full feature phase.
         *
         * @param time more than zero
         * @return this
         */
        public Builder loginTime(Duration time) {
            loginTime = positive(time);
            return this;
        }

        /**
         * When a session that was established is lost, how long a command waits for another one.
         * The first login is never tried again.
         *
         * @param time zero: not at all
         * @return this
         */
        public Builder recoveryTime(Duration time) {
            recoveryTime = checked(time);
            return this;
        }

        /**
         * When the target has not answered a command for so long, the command fails and is aborted.
         *
         * @param time zero: it may take as long as it likes
         * @return this
         */
        public Builder commandTime(Duration time) {
            commandTime = checked(time);
            return this;
        }

        /**
         * When nothing has arrived for so long, the target is pinged.
         *
         * @param time zero: never
         * @return this
         */
        public Builder pingInterval(Duration time) {
            pingInterval = checked(time);
            return this;
        }

        /**
         * A pinged target that sends nothing for so long is taken for dead.
         *
         * @param time more than zero
         * @return this
         */
        public Builder pingTime(Duration time) {
            pingTime = positive(time);
            return this;
        }

        /**
         * How long closing waits for commands under way, and then for the answer to the logout.
         *
         * @param time more than zero
         * @return this
         */
        public Builder logoutTime(Duration time) {
            logoutTime = positive(time);
            return this;
        }

        /**
         * A target that does not say within this what became of an ABORT TASK loses the session.
         *
         * @param time more than zero
         * @return this
         */
        public Builder abortTime(Duration time) {
            abortTime = positive(time);
            return this;
        }

        /**
         * The options.
         *
         * @return with the values set so far
         */
        public IscsiOptions build() {
            return new IscsiOptions(this);
        }

        private static Duration checked(Duration time) {
            Objects.requireNonNull(time, "time");
            require(!time.isNegative() && time.compareTo(WAIT_MAX) <= 0,
                    "a wait is at most a year, not " + time);
            return time;
        }

        private static Duration positive(Duration time) {
            Objects.requireNonNull(time, "time");
            require(!time.isZero(), "without that wait nothing would ever be answered");
            return checked(time);
        }

        private static <T> List<T> listed(List<T> values, String name) {
            Objects.requireNonNull(values, name);
            values.forEach(value -> Objects.requireNonNull(value, name));
            return List.copyOf(values);
        }

        private static List<Digest> wanted(Digest[] digests, String none) {
            Objects.requireNonNull(digests, "digests");
            require(digests.length > 0, none);
            return listed(Arrays.asList(digests), "digests");
        }

        private static void require(boolean fits, String what) {
            if (!fits) {
                throw new IllegalArgumentException(what);
            }
        }
    }
}
