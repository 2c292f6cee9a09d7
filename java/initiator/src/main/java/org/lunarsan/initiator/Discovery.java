package org.lunarsan.initiator;

import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.lunarsan.device.DeviceException;
import org.lunarsan.device.Operation;
import org.lunarsan.initiator.IscsiException.Kind;
import org.lunarsan.iscsi.connection.Request;
import org.lunarsan.iscsi.connection.TextExchange;
import org.lunarsan.iscsi.text.TargetRecord;
import org.lunarsan.iscsi.text.TextViolation;

/**
 * Queries a portal for the targets that this initiator may see. RFC 7143 Appendix C.
 *
 * <p>Threads: no state; calls wait.
 */
public final class Discovery {
    private Discovery() {
    }

    /**
     * A target.
     *
     * @param name its iSCSI name
     * @param portals its portals, in the target's order; if empty, the portal that was queried
     */
    public record Target(String name, List<TargetPortal> portals) {
    }

    /**
     * A portal of a target.
     *
     * @param address {@code host[:port]}, as the target named it
     * @param group portal group tag
     */
    public record TargetPortal(String address, int group) {
    }

    /**
     * Logs in to the portal, sends SendTargets, and logs out. An interrupt ends the call soon with
     * {@link IscsiException.Kind#INTERRUPTED}; the interrupt status stays set.
     *
     * @param url {@code iscsi://[user@]host[:port]}; a target in it is ignored
     * @return the targets in the portal's order
     * @throws IscsiUrlException when the URL is not valid
     * @throws DeviceException when the query fails
     */
    public static List<Target> sendTargets(String url) throws DeviceException {
        return sendTargets(url, IscsiOptions.defaults());
    }

    /**
     * Same as {@link #sendTargets(String)}, with options.
     *
     * @param url {@code iscsi://[user@]host[:port]}; a target in it is ignored
     * @param options options of the initiator
     * @return the targets in the portal's order
     * @throws IscsiUrlException when the URL is not valid
     * @throws DeviceException when the query fails
     */
    public static List<Target> sendTargets(String url, IscsiOptions options)
            throws DeviceException {
        Objects.requireNonNull(url, "url");
        Objects.requireNonNull(options, "options");
        IscsiUrl portal = IscsiUrl.parse(url);
        try {
            return ask(portal, options);
        } catch (Failure failure) {
            throw Failures.toDeviceException(
                    portal.toString(), Operation.OPEN, DeviceException.NO_ADDRESS, 0, failure);
        }
    }

    private static List<Target> ask(IscsiUrl url, IscsiOptions options) throws Failure {
        long isid = TargetConnector.randomIsid();
        TargetConnector route = TargetConnector.to(url, Optional.empty(), options, isid);
        UnitAttentions attentions = new UnitAttentions();
        Session session = new SessionSupervisor(route, attentions, new UncertainWrites()).connect();
        try {
            TextExchange question = TextExchange.sendTargets("All");
            CompletableFuture<Request> asked = session.ask(question);
            if (UninterruptedWaits.getInterruptibly(asked, options.loginTime.toNanos()) == null) {
                throw Failure.of(Kind.TIMED_OUT, session.portal()
                        + " did not answer SendTargets in time");
            }
            if (question.failure() != null) {
                throw session.isOver() ? session.why()
                        : Failure.of(Kind.REFUSED, question.failure().what());
            }
            return TargetRecord.parse(question.answer()).stream().map(Discovery::target).toList();
        } catch (TextViolation exception) {
            throw Failure.of(Kind.PROTOCOL, session.portal()
                    + " sent an invalid answer to SendTargets: " + exception.getMessage(),
                    exception);
        } finally {
            session.leave();
        }
    }

    private static Target target(TargetRecord record) {
        return new Target(record.name(), record.addresses().stream()
                .map(address -> new TargetPortal(address.hostAndPort(), address.groupTag()))
                .toList());
    }
}
