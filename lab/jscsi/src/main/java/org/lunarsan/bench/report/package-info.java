/**
 * Sections, goals, and their formats: text, Markdown, JSON.
 *
 * <p>Threads: values.
 *
 * <p>Errors: none.
 */
package org.lunarsan.bench.report;
