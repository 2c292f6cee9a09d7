/**
 * Sections, goals, and how they are written: as text, as Markdown, as JSON.
 *
 * <p>Threads: values.
 *
 * <p>Errors: none.
 */
package org.lunarsan.bench.report;
