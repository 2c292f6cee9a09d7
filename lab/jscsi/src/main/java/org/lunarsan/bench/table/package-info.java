/**
 * The paper's Table 1 as one interleaved run: {@link org.lunarsan.bench.table.Table}.
 *
 * <p>Threads: for one.
 *
 * <p>Errors: a contestant that errs, answers too late or moves wrong data has no figure, and the
 * table says why; a target that does not start ends the run.
 */
package org.lunarsan.bench.table;
