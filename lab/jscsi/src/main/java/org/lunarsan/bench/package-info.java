/**
 * The Java initiator, measured as the jSCSI paper measured. Entry point:
 * {@link org.lunarsan.bench.Main}. What is measured, and how, stands in docs/benchmarks.md.
 *
 * <p>{@code table} is the paper's table, {@code part} are the other parts; both start targets
 * ({@code server}) and contestants ({@code contestant}), each a process of its own, and give
 * sections of one {@code report}.
 *
 * <p>Threads: one drives all; others only read what processes say, and relay bytes.
 *
 * <p>Errors: what fails ends the run with a sentence; a contestant that fails loses its cell.
 */
package org.lunarsan.bench;
