/**
 * The login phase, initiator role. RFC 7143 §6, §11.12, §11.13, §12.
 *
 * <h2>Entry points</h2>
 * {@link org.lunarsan.iscsi.login.InitiatorLogin} is told
 * {@link org.lunarsan.iscsi.login.LoginOptions} and gives
 * {@link org.lunarsan.iscsi.login.LoginStep}s: what to send, what came of it, or why it failed. Its
 * states are values named {@code Expect…}, each consumed by the text that it waits for.
 *
 * <h2>Authentication</h2>
 * CHAP with MD5, SHA-1, SHA-256 and SHA3-256, mutual if asked for. A target that must prove itself
 * cannot be let off, cannot hand our challenge or our proof back, and is never given one secret for
 * both directions. No secret, proof or challenge of ours is in any {@code toString}.
 *
 * <h2>Threads</h2>
 * A login is for one thread, before the reader and the writer of the connection start. Time is the
 * caller's: RFC 7143 knows no timer of a login, so close the connection when it takes too long.
 *
 * <h2>Errors</h2>
 * {@link org.lunarsan.iscsi.login.LoginException} is sealed: moved, refused, not now, or against
 * the rules. It is a value in {@link org.lunarsan.iscsi.login.LoginStep.Failed}; nothing here
 * throws because of what a peer sent.
 */
package org.lunarsan.iscsi.login;
