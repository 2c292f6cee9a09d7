/**
 * Text keys: format, table, negotiation. RFC 7143 §6.1, §6.2, §13.
 *
 * <h2>Entry points</h2>
 * {@link org.lunarsan.iscsi.text.Key} is the table of all keys.
 * {@link org.lunarsan.iscsi.text.Pairs} parses text, {@link org.lunarsan.iscsi.text.TextBuilder}
 * builds it, {@link org.lunarsan.iscsi.text.Values} parses numbers and binary strings.
 * {@link org.lunarsan.iscsi.text.Negotiation} runs the operational negotiation of one login in
 * either role, from an {@link org.lunarsan.iscsi.text.Offer} to
 * {@link org.lunarsan.iscsi.text.SessionParameters} and
 * {@link org.lunarsan.iscsi.text.ConnectionParameters}.
 *
 * <h2>Reading and writing</h2>
 * A text may span several PDUs: {@link org.lunarsan.iscsi.text.Reassembler} and
 * {@link org.lunarsan.iscsi.text.Segmenter} handle the C bit. Every length and count has a named
 * limit.
 *
 * <h2>Threads</h2>
 * Values are immutable. Builders, reassemblers and negotiations are for one thread.
 *
 * <h2>Errors</h2>
 * An error in a peer's text is a {@link org.lunarsan.iscsi.text.TextViolation}, a checked
 * exception; no bytes of a peer cause another one.
 */
package org.lunarsan.iscsi.text;
