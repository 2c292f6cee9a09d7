/**
 * The targets Lunar and tgt, and the files on tmpfs that they serve. Each target is a process on
 * the core for servers and ends when it is closed.
 *
 * <p>Threads: for one thread.
 *
 * <p>Errors: IOException that names the package to install, or contains the output of the program.
 */
package org.lunarsan.bench.server;
