package org.lunarsan.initiator;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import org.lunarsan.initiator.IscsiUrl.Portal;

/**
 * Looks host names up in bounded time. A lookup by the system cannot be cancelled, so each runs in
 * a thread of its own; concurrent lookups of the same name share one.
 *
 * <p>Threads: any.
 */
final class Names {
    /** Uses the resolver of the system. */
    static final Names SYSTEM = new Names(InetAddress::getAllByName);

    private final Resolver resolver;
    private final ConcurrentHashMap<String, CompletableFuture<List<InetAddress>>> underWay =
            new ConcurrentHashMap<>();

    /** A resolver; calls wait. */
    interface Resolver {
        InetAddress[] addresses(String host) throws UnknownHostException;
    }

    Names(Resolver resolver) {
        this.resolver = resolver;
    }

    /**
     * Returns the addresses of a portal's host. Waits until {@code until}, or until an interrupt.
     */
    List<InetAddress> addresses(Portal portal, long until) throws Failure {
        String host = portal.host();
        CompletableFuture<List<InetAddress>> asked = new CompletableFuture<>();
        CompletableFuture<List<InetAddress>> before = underWay.putIfAbsent(host, asked);
        if (before == null) {
            Thread.ofPlatform().daemon().name("iscsi name of " + host).start(() ->
                    ask(host, asked));
        }
        CompletableFuture<List<InetAddress>> answer = before == null ? asked : before;
        List<InetAddress> found =
                UninterruptedWaits.getInterruptibly(answer, until - System.nanoTime());
        if (found != null) {
            return found;
        }
        throw Login.unreachable(portal.toString(), why(answer));
    }

    private void ask(String host, CompletableFuture<List<InetAddress>> asked) {
        try {
            asked.complete(List.of(resolver.addresses(host)));
        } catch (UnknownHostException | RuntimeException | Error unknown) {
            asked.completeExceptionally(unknown);
        } finally {
            underWay.remove(host, asked);
        }
    }

    private static Exception why(CompletableFuture<List<InetAddress>> answer) {
        if (!answer.isCompletedExceptionally()) {
            return new UnknownHostException("no name server answered in time");
        }
        return answer.exceptionNow() instanceof Exception known ? known
                : new ExecutionException(answer.exceptionNow());
    }
}
