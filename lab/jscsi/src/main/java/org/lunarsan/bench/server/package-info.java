/**
 * Targets, and the files on tmpfs behind them: Lunar and tgt, each a process on the core of servers
 * that ends when closed.
 *
 * <p>Threads: for one thread.
 *
 * <p>Errors: IOException that names the package to install, or contains the output of the program.
 */
package org.lunarsan.bench.server;
