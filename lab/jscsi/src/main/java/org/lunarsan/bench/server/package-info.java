/**
 * Targets, and the files on tmpfs behind them: Lunar and tgt, each a process on the core of
 * servers, gone when closed.
 *
 * <p>Threads: for one.
 *
 * <p>Errors: IOException with what to install, or what the program said.
 */
package org.lunarsan.bench.server;
