/**
 * The login phase, initiator role. RFC 7143 §6, §11.12, §11.13, §12.
 *
 * <h2>Entry points</h2>
 * {@link org.lunarsan.iscsi.login.InitiatorLogin} takes
 * {@link org.lunarsan.iscsi.login.LoginOptions} and returns
 * {@link org.lunarsan.iscsi.login.LoginStep}s: a request to send, the result, or a failure. Its
 * states are values named {@code Expect…}, each consumed by the text for which it waits.
 *
 * <h2>Authentication</h2>
 * CHAP with MD5, SHA-1, SHA-256 and SHA3-256, mutual if configured. A target that must prove itself
 * cannot skip this, cannot send our challenge or our response back, and never shares one secret for
 * both directions. No secret, response or challenge of ours is in any {@code toString}.
 *
 * <h2>Threads</h2>
 * A login is for one thread, before the reader and the writer of the connection start. RFC 7143
 * defines no timer of a login, so the caller has to close the connection when it takes too long.
 *
 * <h2>Errors</h2>
 * {@link org.lunarsan.iscsi.login.LoginException} is sealed: moved, refused, target error, or
 * violation. It is a value in {@link org.lunarsan.iscsi.login.LoginStep.Failed}; no input of a peer
 * causes an exception here.
 */
package org.lunarsan.iscsi.login;
