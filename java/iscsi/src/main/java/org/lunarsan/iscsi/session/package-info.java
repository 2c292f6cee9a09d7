/**
 * The session of an initiator: state shared by its connections. RFC 7143 §4.2.2.1, §4.2.5.1,
 * §4.4.3.
 *
 * <h2>Entry points</h2>
 * {@link org.lunarsan.iscsi.session.InitiatorSession} numbers the commands of a session.
 * {@link org.lunarsan.iscsi.session.IsidPool} gives each session its identifier.
 *
 * <h2>Threads</h2>
 * A session is called from the readers, the writers and the callers of all its connections, behind
 * one short lock. It is the innermost lock: nothing else is locked, and nothing is waited for,
 * while it is held. A connection fetches the messages of its session when it is polled, and the
 * session calls its {@code wake} for that; in the Rust crate the driver passes them on.
 *
 * <h2>Errors</h2>
 * A session has no errors of its own. It receives the reason for the end of each connection, and
 * decides whether the others can continue.
 */
package org.lunarsan.iscsi.session;
