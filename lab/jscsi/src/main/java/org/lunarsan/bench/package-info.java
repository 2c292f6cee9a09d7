/**
 * The Java initiator, measured as the jSCSI paper measured. Entry point:
 * {@link org.lunarsan.bench.Main}. docs/benchmarks.md describes the measurements.
 *
 * <p>{@code table} is the paper's table, {@code part} are the other parts; both start targets
 * ({@code server}) and contestants ({@code contestant}), each a separate process, and return
 * sections of one {@code report}.
 *
 * <p>Threads: one runs everything; others only read the output of processes, and relay bytes.
 *
 * <p>Errors: a failure ends the run with a message; the failure of a contestant only removes its
 * cell.
 */
package org.lunarsan.bench;
