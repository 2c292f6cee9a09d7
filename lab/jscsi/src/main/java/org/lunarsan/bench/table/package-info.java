/**
 * The paper's Table 1 as one interleaved run: {@link org.lunarsan.bench.table.Table}.
 *
 * <p>Threads: for one thread.
 *
 * <p>Errors: a contestant that fails, answers too late or transfers wrong data has no figure, and
 * the table gives the reason; a target that does not start ends the run.
 */
package org.lunarsan.bench.table;
