package org.lunarsan.initiator;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;
import java.security.SecureRandom;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.initiator.IscsiUrl.Portal;
import org.lunarsan.iscsi.login.Challenge;
import org.lunarsan.iscsi.login.ChapAlgorithm;
import org.lunarsan.iscsi.login.ChapAnswer;
import org.lunarsan.iscsi.login.LoginException;
import org.lunarsan.iscsi.login.LoginOptions;
import org.lunarsan.iscsi.login.LoginRefusedException;
import org.lunarsan.iscsi.login.TargetMovedException;
import org.lunarsan.iscsi.pdu.LoginStatus;
import org.lunarsan.iscsi.session.LoginNumbers;
import org.lunarsan.iscsi.text.Digest;
import org.lunarsan.iscsi.text.Offer;
import org.lunarsan.iscsi.text.SessionType;

/**
 * Establishes the sessions of a device, always with the same parameters and ISID, so that a later
 * session replaces an earlier one.
 *
 * <p>Threads: immutable, except for the quirks. Logins wait.
 *
 * @param url the URL of the device
 * @param target name of the target; empty: a discovery session
 * @param options options of the initiator
 * @param chap credentials of the initiator, and those required of the target
 * @param isid ISID of all sessions
 * @param quirks findings about the target
 * @param older whether logins leave out the keys that RFC 3720 does not define
 */
record TargetConnector(IscsiUrl url, Optional<String> target, IscsiOptions options,
        Optional<ChapAnswer> chap, long isid, Quirks quirks, boolean older) {
    /** Limit of redirections of one login. */
    static final int REDIRECTS_MAX = 4;
    /** MaxConnections that every login proposes, unless more are configured. */
    static final int CONNECTIONS_OFFERED = 8;
    /**
     * Number of logins in a row that the target closes over newer keys before one leaves them out.
     */
    static final int OFFERS_MAX = 2;

    private static final SecureRandom RANDOM = new SecureRandom();
    /** Type 10b, a random naming authority and qualifier. RFC 7143 §11.12.5. */
    private static final long ISID_RANDOM = 0x80L << 40;
    private static final int TAG_UNKNOWN = -1;

    /** Creates the route to the target that {@code url} names. */
    static TargetConnector to(
            IscsiUrl url, Optional<String> target, IscsiOptions options, long isid)
            throws Failure {
        return new TargetConnector(url, target, options, Secrets.answer(url, options),
                options.isid.orElse(isid), new Quirks(options),
                options.protocolLevel <= IscsiOptions.PROTOCOL_LEVEL_MIN);
    }

    /** Returns a random ISID, for all sessions of one device. */
    static long randomIsid() {
        return ISID_RANDOM | RANDOM.nextLong() & 0xff_ffff_ffffL;
    }

    /** Predecessor of a session: whether there is one, and its portal group. */
    record Follows(boolean isNext, OptionalInt group) {
        static final Follows NOTHING = new Follows(false, OptionalInt.empty());

        /**
         * True when a session may follow. A login replaces the lost session only in the same portal
         * group; in another one it makes another nexus (RFC 7143 §6.3.5), and the lost session
         * would live on.
         */
        boolean allows(Session session) {
            return !isNext || group.equals(session.group());
        }
    }

    /**
     * Logs in and follows redirections. Adds the configured connections, except to the first
     * session of a device: see {@link Disk#open}. If there was a session and its portal refuses the
     * login, the other portals are tried too.
     */
    Session logIn(long number, Follows follows, UnitAttentions attentions) throws Failure {
        try {
            return logInAnywhere(number, follows, attentions);
        } catch (Failure failed) {
            // The target that comes back may be another one, or a newer version.
            quirks.forgetUnknownNewerKeys();
            throw failed;
        }
    }

    private Session logInAnywhere(long number, Follows follows, UnitAttentions attentions)
            throws Failure {
        Failure first;
        try {
            return logInFollowingRedirects(url.portal(), number, follows, attentions);
        } catch (Failure refused) {
            first = refused;
        }
        if (follows.isNext() && first.kind() != Kind.AUTHENTICATION) {
            for (Portal other : options.portals) {
                try {
                    return logInFollowingRedirects(other, number, follows, attentions);
                } catch (Failure refused) {
                    Log.debug(() -> other + ": " + refused.getMessage());
                }
            }
        }
        throw first;
    }

    private Session logInFollowingRedirects(Portal portal, long number, Follows follows,
            UnitAttentions attentions) throws Failure {
        long until = System.nanoTime() + options.loginTime.toNanos();
        Portal next = portal;
        for (int redirects = 0; redirects <= REDIRECTS_MAX; redirects++) {
            try {
                Session session = logInAtHost(next, number, follows, attentions, until);
                if (follows.isNext()) {
                    session.addConnections(until);
                }
                return session;
            } catch (TargetMovedException exception) {
                next = redirectedPortal(exception);
            } catch (LoginException refused) {
                throw failed(next, refused);
            }
        }
        throw Failure.of(Kind.LOGIN, url.portal() + " was redirected too many times");
    }

    private static Portal redirectedPortal(TargetMovedException moved) throws Failure {
        // The portal group after a comma is ignored: the login reports it as well.
        String address = moved.address().split(",", 2)[0];
        try {
            return Portal.parse(address);
        } catch (IscsiUrlException wrong) {
            throw Failure.of(Kind.LOGIN, "redirected to no portal: " + wrong.getMessage(), moved);
        }
    }

    /**
     * Logs in at the first address of the host that accepts the login and is in the right portal
     * group.
     */
    private Session logInAtHost(Portal portal, long number, Follows follows,
            UnitAttentions attentions, long until) throws Failure, LoginException {
        Failure last = null;
        for (InetAddress address : Names.SYSTEM.addresses(portal, until)) {
            InetSocketAddress socket = new InetSocketAddress(address, portal.port());
            Session session;
            try {
                session = open(number, portal.toString(), socket, attentions, until);
            } catch (Failure unreachable) {
                last = unreachable;
                if (unreachable.kind() != Kind.CONNECT) {
                    throw unreachable;
                }
                continue;
            }
            if (follows.allows(session)) {
                return session;
            }
            last = wrongPortalGroup(session, follows, socket);
            session.logOut(options.logoutTime.toNanos());
        }
        throw last != null ? last
                : Login.unreachable(portal.toString(), new UnknownHostException("no address"));
    }

    /**
     * Performs one leading login. If the target closes the connection instead of answering keys
     * that are newer than some targets, the login is repeated, since a connection that failed by
     * chance does not fail there again. If the repeated login ends in the same way, the next one
     * leaves the keys out. If that one succeeds, later logins leave them out as well, until one
     * fails.
     */
    private Session open(long number, String portal, InetSocketAddress address,
            UnitAttentions attentions, long until) throws Failure, LoginException {
        for (int offers = 0; offers < OFFERS_MAX; offers++) {
            Login login = new Login(portal, until);
            try {
                return Session.open(this, number, login, portal, address, attentions);
            } catch (Failure exception) {
                if (!login.wasClosedOverNewerKeys()) {
                    throw exception;
                }
            }
        }
        Session session = Session.open(withoutNewerKeys(), number, new Login(portal, until),
                portal, address, attentions);
        quirks.noteUnknownNewerKeys();
        Log.warn(() -> portal + ": the target closed the connection " + OFFERS_MAX + " times over"
                + " TaskReporting and iSCSIProtocolLevel, and accepts logins without them;"
                + " protocolLevel(1) of IscsiOptions leaves them out from the start");
        return session;
    }

    /** Returns the same route, for a target that does not support the newer keys. */
    private TargetConnector withoutNewerKeys() {
        return new TargetConnector(url, target, options, chap, isid, quirks, true);
    }

    private static Failure wrongPortalGroup(
            Session session, Follows follows, InetSocketAddress address) {
        return Failure.of(Kind.LOGIN, address + " is in portal group " + named(session.group())
                + ", the lost session was in " + named(follows.group())
                + ": the old session may still be alive there, and its delayed writes could"
                + " overwrite new data")
                .hint("make a portal of the same portal group reachable; or reopen the device"
                        + " after the old session has ended at the target");
    }

    private static String named(OptionalInt group) {
        int tag = group.orElse(TAG_UNKNOWN);
        return tag == TAG_UNKNOWN ? "without a tag" : Integer.toString(tag);
    }

    /** Returns the login parameters of a connection with this CID and these numbers. */
    LoginOptions loginOptions(int cid, LoginNumbers numbers) {
        byte[] entropy = new byte[Challenge.ENTROPY_BYTES];
        RANDOM.nextBytes(entropy);
        // The longer of both waits applies (RFC 7143 §13.15): propose 0 and leave the choice to the
        // target.
        Offer offer = Offer.initiator().toBuilder()
                .maxConnections(Math.max(options.connections, CONNECTIONS_OFFERED))
                .timeToWaitSeconds(0)
                .firstBurstBytes(options.firstBurstBytes)
                .headerDigest(wanted(url.headerDigest(), options.headerDigest))
                .dataDigest(wanted(url.dataDigest(), options.dataDigest))
                .maxRecvDataSegmentBytes(Chunks.SEGMENT_BYTES_MAX)
                .build();
        SessionType type = target.isPresent() ? SessionType.NORMAL : SessionType.DISCOVERY;
        return new LoginOptions(options.initiatorName, Optional.empty(), target, type,
                numbers.isid(), numbers.tsih(), cid, 0, numbers.cmdSn(),
                older || quirks.lacksNewerKeys() ? offer.withoutNewerKeys() : offer, chap, entropy);
    }

    private static List<Digest> wanted(Optional<Digest> named, List<Digest> preferred) {
        return named.map(List::of).orElse(preferred);
    }

    private Failure failed(Portal portal, LoginException refused) {
        String what = "login to " + portal + " failed: " + refused.what();
        int status = refused.status();
        boolean proofRefused = status == LoginStatus.AUTHENTICATION_FAILURE
                || status == LoginStatus.INITIATOR_ERROR;
        if (proofRefused && refused instanceof LoginRefusedException by
                && by.chapAlgorithm().equals(Optional.of(ChapAlgorithm.SHA256))) {
            // tgt 1.0.85 computes SHA-1 under the number that IANA assigned to SHA-256.
            return Failure.of(Kind.AUTHENTICATION, what, refused)
                    .hint("check the CHAP user and the secret; for a target with a faulty SHA-256"
                            + " (such as tgt), offer MD5 only");
        }
        return switch (status) {
            case LoginStatus.AUTHENTICATION_FAILURE -> unproven(what, refused);
            case LoginStatus.AUTHORIZATION_FAILURE ->
                Failure.of(Kind.AUTHENTICATION, what, refused)
                        .hint("the target does not allow this initiator name or address:"
                                + " check its access list");
            case LoginStatus.NOT_FOUND -> Failure.of(Kind.LOGIN, what, refused)
                    .hint("see Discovery.sendTargets for the targets that are offered");
            default -> Failure.of(Kind.LOGIN, what, refused)
                    .hint(refused.advice().orElse(null));
        };
    }

    private Failure unproven(String what, LoginException refused) {
        if (chap.isPresent()) {
            return Failure.of(Kind.AUTHENTICATION, what, refused)
                    .hint("check the CHAP user and the secret, and those of the target"
                            + " (mutual CHAP)");
        }
        return Failure.of(Kind.AUTHENTICATION,
                what + ": the target requires CHAP, but no CHAP user is configured", refused)
                .hint("name user and secret in the options, or write iscsi://USER@HOST with the"
                        + " secret in " + IscsiOptions.SECRET_VARIABLE);
    }
}
