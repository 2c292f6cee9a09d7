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
 * Options of the initiator: identity, credentials, requirements and timeouts. Digests and the CHAP
 * user in a URL take precedence over the options.
 *
 * <p>Threads: immutable; its {@link Builder} is for one thread.
 */
public final class IscsiOptions {
    /** Environment variable with the CHAP secret, used if no other source is given. */
    public static final String SECRET_VARIABLE = "LUNAR_CHAP_SECRET";

    /** Default time limit of a login, from the first SYN to full feature phase. */
    public static final Duration LOGIN_TIME = Duration.ofSeconds(15);

    /** Default time for which a command waits for a lost session to be re-established. */
    public static final Duration RECOVERY_TIME = Duration.ofSeconds(60);

    /** Default time limit for the target to answer a command. */
    public static final Duration COMMAND_TIME = Duration.ofSeconds(180);

    /** Default idle time after which the target is pinged. */
    public static final Duration PING_INTERVAL = Duration.ofSeconds(5);

    /** Default time after a ping without any answer after which the target counts as dead. */
    public static final Duration PING_TIME = Duration.ofSeconds(5);

    /** Default time limit for the answer to a logout, and for commands to end before it. */
    public static final Duration LOGOUT_TIME = Duration.ofSeconds(5);

    /** Default time limit for the target to answer an ABORT TASK. */
    public static final Duration ABORT_TIME = Duration.ofSeconds(30);

    /** Default limit of commands in flight on one connection. */
    public static final int QUEUE_DEPTH = 128;

    /** Largest limit of commands in flight on one connection. */
    public static final int QUEUE_DEPTH_MAX = 1000;
    /** Default and largest first burst in bytes. */
    public static final int FIRST_BURST_BYTES = 256 << 10;
    /** Smallest first burst in bytes: RFC 7143 §13.14. */
    public static final int FIRST_BURST_BYTES_MIN = 512;

    /** Smallest iSCSIProtocolLevel: RFC 7143 alone. RFC 7144 §7.1.1. */
    public static final int PROTOCOL_LEVEL_MIN = Offer.PROTOCOL_LEVEL_RFC_7143;

    /** Default and largest iSCSIProtocolLevel: RFC 7144. */
    public static final int PROTOCOL_LEVEL_MAX = Offer.PROTOCOL_LEVEL_MAX;

    /** Largest number of connections of a session. */
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
     * Returns the default options: no digests, one connection, CHAP only for a URL that names a
     * user.
     *
     * @return the options
     */
    public static IscsiOptions defaults() {
        return builder().build();
    }

    /**
     * Returns a builder that holds the defaults.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** Describes the options without secrets. */
    @Override
    public String toString() {
        return "IscsiOptions(" + initiatorName + chapUser.map(user -> ", CHAP " + user).orElse("")
                + ", " + connections + " connections)";
    }

    /**
     * Builds {@link IscsiOptions}. Times are positive, or zero if the method documents a meaning
     * for it.
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
         * ISID, the initiator's part of the session identifier. By default 40 random bits, drawn
         * once for each device and kept when it is opened again. RFC 7143 §11.12.5.
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
         * CHAP name (CHAP_N) and secret of this initiator.
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
         * CHAP name of this initiator. The secret comes from {@link #chapSecretFile} or the
         * environment variable {@link #SECRET_VARIABLE}.
         *
         * @param user the name
         * @return this
         */
        public Builder chapUser(String user) {
            chapUser = Optional.of(Objects.requireNonNull(user, "user"));
            return this;
        }

        /**
         * File with the CHAP secret of this initiator, without one newline at its end.
         *
         * @param file read at each first login
         * @return this
         */
        public Builder chapSecretFile(Path file) {
            chapSecretFile = Optional.of(Objects.requireNonNull(file, "file"));
            return this;
        }

        /**
         * CHAP name and secret that the target must prove (mutual CHAP).
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
         * CHAP name that the target must prove, with its secret in a file.
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
         * Allows secrets shorter than 12 bytes (96 bits), which can be found by brute force.
         *
         * @param allow the default is false
         * @return this
         */
        public Builder allowShortSecrets(boolean allow) {
            allowShortSecrets = allow;
            return this;
        }

        /**
         * HeaderDigest values in order of preference. A single value is required of the target.
         *
         * @param digests at least one
         * @return this
         */
        public Builder headerDigest(Digest... digests) {
            headerDigest = wanted(digests, "HeaderDigest needs a value");
            return this;
        }

        /**
         * DataDigest values in order of preference. A single value is required of the target.
         *
         * @param digests at least one
         * @return this
         */
        public Builder dataDigest(Digest... digests) {
            dataDigest = wanted(digests, "DataDigest needs a value");
            return this;
        }

        /**
         * Number of connections of a session (MC/S), as far as the target supports them. If the
         * target refuses or drops them repeatedly, sessions continue with fewer, which is logged
         * once.
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
         * Limit of commands in flight on one connection; further callers wait.
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
         * FirstBurstLength to propose: the limit of unsolicited data of a write (RFC 7143 §13.14);
         * the target may choose less. The target has to solicit more data, which costs a round trip
         * and saves memory of the target.
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
         * iSCSIProtocolLevel to propose (RFC 7144 §7.1.1); the target may choose less. With
         * {@link #PROTOCOL_LEVEL_MIN} neither that key nor TaskReporting is sent: some older
         * targets close the connection on unknown keys. The first login detects such a target and
         * is repeated without them.
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
         * Other portals of the same target, in the same portal group. A lost session is
         * re-established through one of them when a login at the URL's portal fails.
         *
         * @param others in order of preference
         * @return this
         */
        public Builder portals(List<Portal> others) {
            portals = listed(others, "others");
            return this;
        }

        /**
         * Time limit of a login, from the first SYN to full feature phase.
         *
         * @param time more than zero
         * @return this
         */
        public Builder loginTime(Duration time) {
            loginTime = positive(time);
            return this;
        }

        /**
         * Time for which a command waits for another session when an established one is lost. The
         * first login is never retried.
         *
         * @param time zero: do not wait
         * @return this
         */
        public Builder recoveryTime(Duration time) {
            recoveryTime = checked(time);
            return this;
        }

        /**
         * Time after which an unanswered command fails and is aborted.
         *
         * @param time zero: no limit
         * @return this
         */
        public Builder commandTime(Duration time) {
            commandTime = checked(time);
            return this;
        }

        /**
         * Idle time after which the target is pinged.
         *
         * @param time zero: never
         * @return this
         */
        public Builder pingInterval(Duration time) {
            pingInterval = checked(time);
            return this;
        }

        /**
         * Time after a ping without any answer after which the target counts as dead.
         *
         * @param time more than zero
         * @return this
         */
        public Builder pingTime(Duration time) {
            pingTime = positive(time);
            return this;
        }

        /**
         * Time for which closing waits for pending commands, and then for the answer to the logout.
         *
         * @param time more than zero
         * @return this
         */
        public Builder logoutTime(Duration time) {
            logoutTime = positive(time);
            return this;
        }

        /**
         * Time limit for the answer to an ABORT TASK. The session ends when it has passed.
         *
         * @param time more than zero
         * @return this
         */
        public Builder abortTime(Duration time) {
            abortTime = positive(time);
            return this;
        }

        /**
         * Builds the options.
         *
         * @return options with the values set so far
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
            require(!time.isZero(), "this time limit must not be zero");
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
