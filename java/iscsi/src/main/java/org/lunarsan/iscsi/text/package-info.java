/**
 * Text keys: format, table, negotiation. RFC 7143 §6.1, §6.2, §13.
 *
 * <h2>Entry points</h2>
 * {@link org.lunarsan.iscsi.text.Key} is the table of all keys.
 * {@link org.lunarsan.iscsi.text.Pairs} takes text apart,
 * {@link org.lunarsan.iscsi.text.TextBuilder} writes it,
 * {@link org.lunarsan.iscsi.text.Values} reads numbers and binary strings.
 * {@link org.lunarsan.iscsi.text.Negotiation} runs the operational negotiation of one login in
 * either role, from an {@link org.lunarsan.iscsi.text.Offer} to
 * {@link org.lunarsan.iscsi.text.SessionParameters} and
 * {@link org.lunarsan.iscsi.text.ConnectionParameters}.
 *
 * <h2>Reading and writing</h2>
 * A text may span several PDUs: {@link org.lunarsan.iscsi.text.Reassembler} and
 * {@link org.lunarsan.iscsi.text.Emitter} know the C bit. Every length and count has a named limit.
 *
 * <h2>Threads</h2>
 * Values are immutable. What gathers or negotiates is for one thread.
 *
 * <h2>Errors</h2>
 * What a peer's text does wrong is a {@link org.lunarsan.iscsi.text.TextViolation}, a checked
 * exception; no bytes of a peer give another one.
 */
package org.lunarsan.iscsi.text;
