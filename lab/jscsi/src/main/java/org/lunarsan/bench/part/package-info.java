/**
 * What is measured beside the table: small reads, a distance, idle sessions, garbage. Each part
 * starts what it needs and gives a section with its goals.
 *
 * <p>Threads: for one; relays and probes say their own.
 *
 * <p>Errors: IOException; a part that fails ends the run.
 */
package org.lunarsan.bench.part;
