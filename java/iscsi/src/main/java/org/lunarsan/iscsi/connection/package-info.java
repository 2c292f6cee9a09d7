/**
 * One connection in the initiator role, in full feature phase. RFC 7143 §4.2, §7, §11.
 *
 * <h2>Entry points</h2>
 * {@link org.lunarsan.iscsi.connection.InitiatorConnection} takes
 * {@link org.lunarsan.iscsi.connection.Request}s: {@link org.lunarsan.iscsi.connection.Command},
 * {@link org.lunarsan.iscsi.connection.Management}, {@link org.lunarsan.iscsi.connection.Ping},
 * {@link org.lunarsan.iscsi.connection.TextExchange}, {@link org.lunarsan.iscsi.connection.Logout}.
 * It encodes outgoing PDUs, checks incoming ones, and determines the destination of their data. It
 * keeps the connection alive, answers pings, and handles Asynchronous Messages.
 *
 * <h2>Reading and writing</h2>
 * Data is never held or copied here: the writer sends bytes of a caller's buffer after a header,
 * and the reader receives a data segment into such a buffer. A buffer belongs to the connection
 * until its request completes, and the request does not complete while the reader or the writer
 * holds the buffer.
 *
 * <h2>Threads</h2>
 * One reader, one writer, and any number of callers for each connection, all behind its one lock.
 * The order of locks is: connection, then session. {@code wake} is the only callback.
 *
 * <h2>Garbage</h2>
 * A reused command, its PDUs, its data and a good status need no allocation. Sense data, and
 * everything that is not part of reading and writing, may.
 *
 * <h2>Errors</h2>
 * A request without an answer holds a {@link org.lunarsan.iscsi.connection.Failure}; an error of
 * the target is a {@link org.lunarsan.iscsi.connection.Violation}, which ends the connection. No
 * input of a peer causes an exception here.
 */
package org.lunarsan.iscsi.connection;
