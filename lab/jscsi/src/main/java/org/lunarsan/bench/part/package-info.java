/**
 * Measurements besides the table: small reads, a distance, idle sessions, garbage. Each part starts
 * its processes and returns a section with its goals.
 *
 * <p>Threads: for one; relays and probes document their own.
 *
 * <p>Errors: IOException; a part that fails ends the run.
 */
package org.lunarsan.bench.part;
