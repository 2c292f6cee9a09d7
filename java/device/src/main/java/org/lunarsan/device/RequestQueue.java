package org.lunarsan.device;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Determines the order of requests, and which are done as one. Confined to the lock of its device;
 * no I/O.
 *
 * <p>A request waits for every earlier unfinished one that changes its blocks, or whose blocks it
 * changes, so reads find earlier writes, and of two writes to the same blocks the later one wins. A
 * flush waits for all earlier changes, and later changes wait for it.
 */
final class RequestQueue {
    /** In the order of arrival, waiting or running. */
    private final LinkedHashSet<QueuedRequest> unfinished = new LinkedHashSet<>();
    /** Requests that wait only for a worker; started ones among them are skipped. */
    private final ArrayDeque<QueuedRequest> ready = new ArrayDeque<>();
    /** Ready reads and writes by their first block, to find neighbours. */
    private final Map<Operation, TreeMap<Long, QueuedRequest>> neighbours = new HashMap<>();

    RequestQueue() {
        neighbours.put(Operation.READ, new TreeMap<>());
        neighbours.put(Operation.WRITE, new TreeMap<>());
    }

    boolean isEmpty() {
        return unfinished.isEmpty();
    }

    void add(QueuedRequest request) {
        for (QueuedRequest earlier : unfinished) {
            if (earlier.goesBefore(request)) {
                earlier.addDependent(request);
            }
        }
        unfinished.add(request);
        if (request.blockers == 0) {
            makeReady(request);
        }
    }

    private void makeReady(QueuedRequest request) {
        ready.add(request);
        TreeMap<Long, QueuedRequest> map = neighbours.get(request.operation);
        if (map != null && request.blocks > 0) {
            map.putIfAbsent(request.address, request);
        }
    }

    boolean hasReady() {
        while (!ready.isEmpty() && ready.peek().started) {
            ready.poll();
        }
        return !ready.isEmpty();
    }

    /**
     * Returns the next request with its ready neighbours, up to {@code blocksMax} blocks; empty if
     * none is ready.
     */
    List<QueuedRequest> next(long blocksMax) {
        if (!hasReady()) {
            return List.of();
        }
        QueuedRequest first = ready.poll();
        start(first);
        ArrayDeque<QueuedRequest> run = new ArrayDeque<>();
        run.add(first);
        TreeMap<Long, QueuedRequest> map = neighbours.get(first.operation);
        if (map != null && first.blocks > 0 && !first.isPrefetch) {
            join(run, map, blocksMax);
        }
        return new ArrayList<>(run);
    }

    private void join(
            ArrayDeque<QueuedRequest> run, TreeMap<Long, QueuedRequest> map, long blocksMax) {
        long blocks = run.peek().blocks;
        while (true) {
            QueuedRequest after = map.get(run.peekLast().end());
            if (joins(after, blocks, blocksMax)) {
                run.addLast(after);
                blocks += after.blocks;
                start(after);
                continue;
            }
            Map.Entry<Long, QueuedRequest> entry = map.lowerEntry(run.peekFirst().address);
            QueuedRequest before = entry == null ? null : entry.getValue();
            if (before == null || before.end() != run.peekFirst().address
                    || !joins(before, blocks, blocksMax)) {
                return;
            }
            run.addFirst(before);
            blocks += before.blocks;
            start(before);
        }
    }

    private static boolean joins(QueuedRequest request, long blocks, long blocksMax) {
        return request != null && !request.isPrefetch && blocks + request.blocks <= blocksMax;
    }

    private void start(QueuedRequest request) {
        request.started = true;
        TreeMap<Long, QueuedRequest> map = neighbours.get(request.operation);
        if (map != null) {
            map.remove(request.address, request);
        }
    }

    /** Removes an ended request; requests that waited for it alone become ready. */
    void finished(QueuedRequest request) {
        unfinished.remove(request);
        for (QueuedRequest dependent : request.dependents) {
            if (--dependent.blockers == 0) {
                makeReady(dependent);
            }
        }
    }

    /** Removes and returns all requests that have not begun. */
    List<QueuedRequest> takeWaiting() {
        List<QueuedRequest> waiting = new ArrayList<>();
        for (QueuedRequest request : unfinished) {
            if (!request.started) {
                waiting.add(request);
            }
        }
        ready.clear();
        neighbours.values().forEach(TreeMap::clear);
        waiting.forEach(unfinished::remove);
        // None of them may become ready when another ends.
        unfinished.forEach(request -> request.dependents = List.of());
        return waiting;
    }
}
