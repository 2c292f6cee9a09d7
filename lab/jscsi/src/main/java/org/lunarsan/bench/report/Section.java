package org.lunarsan.bench.report;

import java.util.List;
import java.util.Map;

/**
 * The results of a part of the bench, for people and for programs.
 *
 * <p>Threads: immutable.
 *
 * @param key its name for programs
 * @param title its heading
 * @param columns heads of its table; those but the first are numbers
 * @param rows as many texts each as there are columns
 * @param notes sentences below the table
 * @param figures for programs
 * @param goals its goals with their results
 */
public record Section(String key, String title, List<String> columns, List<List<String>> rows,
        List<String> notes, List<Map<String, Object>> figures, List<Verdict> goals) {
}
