/**
 * One connection in the initiator role, in full feature phase. RFC 7143 §4.2, §7, §11.
 *
 * <h2>Entry points</h2>
 * {@link org.lunarsan.iscsi.connection.InitiatorConnection} takes
 * {@link org.lunarsan.iscsi.connection.Request}s:
 * {@link org.lunarsan.iscsi.connection.Command}, {@link org.lunarsan.iscsi.connection.Management},
 * {@link org.lunarsan.iscsi.connection.Ping}, {@link org.lunarsan.iscsi.connection.TextQuestion},
 * {@link org.lunarsan.iscsi.connection.Logout}. It encodes what is to be sent, judges what arrives,
 * and says where data goes. It keeps the connection alive, answers pings, and follows what the
 * target asks for in Asynchronous Messages.
 *
 * <h2>Reading and writing</h2>
 * Data is never held or copied here: the writer is told which bytes of a caller's buffer follow a
 * header, the reader into which bytes of it a data segment goes. A buffer belongs to the connection
 * until its request comes back, and it does not come back while the reader or the writer still
 * holds it.
 *
 * <h2>Threads</h2>
 * One reader, one writer, and any number of callers for each connection, all behind its one lock.
 * The order of locks is: connection, then session. {@code wake} is all that is ever called back.
 *
 * <h2>Garbage</h2>
 * A command that is used again, its PDUs, its data and its good status cost no allocation. Sense
 * data, and everything that is not part of reading and writing, may.
 *
 * <h2>Errors</h2>
 * Why a request has no answer is a {@link org.lunarsan.iscsi.connection.Failure} in it; what the
 * target did wrong is a {@link org.lunarsan.iscsi.connection.Violation}, which ends the connection.
 * Nothing here throws because of what a peer sent.
 */
package org.lunarsan.iscsi.connection;
