/**
 * Those who are measured, as processes: {@link org.lunarsan.bench.contestant.Answering} reads
 * commands by lines and answers each by a line. The language is written down in libiscsi-ops.c,
 * which is the contestant in C.
 *
 * <p>Places and data follow from seeds ({@link org.lunarsan.bench.contestant.Places}), so that all
 * do the same, and what they wrote can be looked for in the files behind the LUNs.
 *
 * <p>Threads: a contestant is called by one thread; what it has inside is its own.
 *
 * <p>Errors: an answer that begins with "error"; the driver then ends the process.
 */
package org.lunarsan.bench.contestant;
