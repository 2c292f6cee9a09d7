/**
 * The measured programs, as processes: {@link org.lunarsan.bench.contestant.ContestantMain} reads
 * commands by lines and answers each by a line. The protocol is specified in libiscsi-ops.c, which
 * is the contestant in C.
 *
 * <p>Addresses and data are derived from seeds
 * ({@link org.lunarsan.bench.contestant.OperationData}), so that all contestants do the same, and
 * their writes can be checked in the files behind the LUNs.
 *
 * <p>Threads: a contestant is called by one thread; it may have threads of its own.
 *
 * <p>Errors: an answer that begins with "error"; the driver then ends the process.
 */
package org.lunarsan.bench.contestant;
