package org.lunarsan.iscsi.connection;

/**
 * A linked queue of requests. A request is in one queue at a time.
 *
 * <p>Threads: behind the lock of its connection.
 */
final class RequestQueue {
    private Request first;
    private Request last;

    void add(Request request) {
        request.next = null;
        if (last == null) {
            first = request;
        } else {
            last.next = request;
        }
        last = request;
    }

    Request peek() {
        return first;
    }

    Request poll() {
        Request request = first;
        if (request != null) {
            first = request.next;
            last = first == null ? null : last;
            request.next = null;
        }
        return request;
    }

    boolean isEmpty() {
        return first == null;
    }

    boolean contains(Request request) {
        Request at = first;
        while (at != null && at != request) {
            at = at.next;
        }
        return at != null;
    }

    /** Removes a request from any position. False if it is not in the queue. */
    boolean remove(Request request) {
        Request before = null;
        for (Request at = first; at != null; at = at.next) {
            if (at == request) {
                unlink(before, at);
                return true;
            }
            before = at;
        }
        return false;
    }

    private void unlink(Request before, Request at) {
        if (before == null) {
            first = at.next;
        } else {
            before.next = at.next;
        }
        last = at == last ? before : last;
        at.next = null;
    }
}
