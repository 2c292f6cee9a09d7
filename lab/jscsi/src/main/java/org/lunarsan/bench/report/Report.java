package org.lunarsan.bench.report;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * All sections and goals, formatted as text, Markdown, and JSON.
 *
 * <p>Threads: immutable.
 *
 * @param command the command line
 * @param facts the machine and the programs
 * @param sections the results
 */
public record Report(String command, Map<String, String> facts, List<Section> sections) {
    private static final List<String> GOAL_COLUMNS =
            List.of("goal", "what", "median of the rounds (least to most)", "wanted");

    /**
     * Formats the report for a terminal.
     *
     * @return lines
     */
    public String text() {
        StringBuilder text = new StringBuilder();
        facts.forEach((name, value) -> text.append(name).append(": ").append(value).append('\n'));
        for (Section section : sections) {
            text.append('\n').append(section.title()).append('\n');
            plain(text, section.columns(), section.rows());
            section.notes().forEach(note -> text.append(note).append('\n'));
        }
        text.append('\n');
        plain(text, GOAL_COLUMNS, goalRows());
        return text.append(counts()).append('\n').toString();
    }

    private static void plain(StringBuilder text, List<String> columns, List<List<String>> rows) {
        int[] widths = new int[columns.size()];
        for (int column = 0; column < widths.length; column++) {
            int at = column;
            widths[column] = Math.max(columns.get(column).length(),
                    rows.stream().mapToInt(row -> row.get(at).length()).max().orElse(0));
        }
        List<List<String>> all = new ArrayList<>();
        all.add(columns);
        all.addAll(rows);
        for (List<String> row : all) {
            StringBuilder line = new StringBuilder();
            for (int column = 0; column < widths.length; column++) {
                String format = "%" + (column < 2 ? "-" : "") + widths[column] + "s  ";
                line.append(String.format(Locale.ROOT, format, row.get(column)));
            }
            text.append(line.toString().stripTrailing()).append('\n');
        }
    }

    /**
     * Formats a chapter for docs/papers.md.
     *
     * @return Markdown
     */
    public String markdown() {
        StringBuilder text = new StringBuilder("## jSCSI (2007): a Java iSCSI initiator\n\n```\n")
                .append(command).append("\n```\n\n");
        facts.forEach((name, value) ->
                text.append("* ").append(name).append(": ").append(value).append('\n'));
        for (Section section : sections) {
            text.append("\n### ").append(section.title()).append("\n\n");
            table(text, section.columns(), section.rows());
            if (!section.notes().isEmpty()) {
                text.append('\n').append(String.join("\n\n", section.notes())).append('\n');
            }
        }
        text.append("\n### Goals\n\n");
        table(text, GOAL_COLUMNS, goalRows());
        return text.append('\n').append(counts()).append('\n').toString();
    }

    private static void table(StringBuilder text, List<String> columns, List<List<String>> rows) {
        text.append("| ").append(String.join(" | ", columns)).append(" |\n|---|---|");
        text.append("--:|".repeat(Math.max(0, columns.size() - 2))).append('\n');
        rows.forEach(row ->
                text.append("| ").append(String.join(" | ", row)).append(" |\n"));
    }

    private List<Verdict> goals() {
        return sections.stream().flatMap(section -> section.goals().stream()).toList();
    }

    private List<List<String>> goalRows() {
        return goals().stream().map(goal -> List.of(goal.outcome().replace('_', ' '),
                goal.what() + (goal.note() == null ? "" : " (" + goal.note() + ")"),
                goal.gotText(), goal.wantedText())).toList();
    }

    private String counts() {
        List<String> counts = new ArrayList<>();
        for (String outcome : List.of("pass", "miss", "not_measured")) {
            long count = goals().stream().filter(goal -> goal.outcome().equals(outcome)).count();
            counts.add(count + " " + outcome.replace('_', ' '));
        }
        return String.join(", ", counts);
    }

    /**
     * True if no goal was missed.
     *
     * @return true when all measured goals passed
     */
    public boolean isMet() {
        return goals().stream().noneMatch(goal -> goal.outcome().equals("miss"));
    }

    /**
     * Formats one document.
     *
     * @return JSON
     */
    public String json() {
        Map<String, Object> document = new LinkedHashMap<>();
        document.put("command", command);
        document.put("facts", facts);
        Map<String, Object> parts = new LinkedHashMap<>();
        sections.forEach(section -> parts.put(section.key(), section.figures()));
        document.put("parts", parts);
        document.put("goals", goals().stream().map(Verdict::members).toList());
        return Json.text(document) + "\n";
    }
}
