/**
 * The session of an initiator: what its connections share. RFC 7143 §4.2.2.1, §4.2.5.1, §4.4.3.
 *
 * <h2>Entry points</h2>
 * {@link org.lunarsan.iscsi.session.InitiatorSession} numbers the commands of a session.
 * {@link org.lunarsan.iscsi.session.IsidPool} gives each session its identifier.
 *
 * <h2>Threads</h2>
 * A session is called from the readers, the writers and the callers of all its connections,
 * behind one short lock. It is the innermost lock: nothing else is locked, and nothing is waited
 * for, while it is held. Where the machine of the Rust crate hands messages from a session to its
 * connections through their driver, here a connection fetches them when it is polled, and the
 * session runs its {@code wake} so that it is.
 *
 * <h2>Errors</h2>
 * A session has none of its own. Whatever ends a connection tells it how, and it decides whether
 * the others can go on.
 */
package org.lunarsan.iscsi.session;
