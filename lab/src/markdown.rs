//! Tables of reports in Markdown, for the documents that runs write.

use lunar_load::report::Table;

/// Renders a table: numbers are aligned to the right.
pub fn table(of: &Table) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let columns = of.columns();
    let mut text = row(columns.iter().map(|column| column.label.clone()).collect());
    let rules = columns.iter().map(|column| if column.is_number { "--:" } else { "---" });
    text += &row(rules.map(str::to_owned).collect());
    for cells in of.rows() {
        text += &row(cells.iter().map(|cell| cell_text(&cell.to_string())).collect());
    }
    text
}

/// Escapes text that would end a cell of a table.
fn cell_text(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
