//! Tables in Markdown, for the documents that runs write.

use lunar_load::report::{Column, Table};

/// Renders a table: numbers are aligned to the right.
pub fn table(of: &Table) -> String {
    let rows = of.rows().iter().map(|cells| row(cells.iter().map(ToString::to_string)));
    head(of.columns()) + &rows.collect::<String>()
}

/// Renders the head of a table, with the line below it.
pub fn head(columns: &[Column]) -> String {
    let rules = columns.iter().map(|column| if column.is_number { "--:|" } else { "---|" });
    let labels = row(columns.iter().map(|column| column.label.clone()));
    format!("{labels}|{}\n", rules.collect::<String>())
}

/// Renders one row; text that would end a cell or the row is escaped.
pub fn row(cells: impl IntoIterator<Item = String>) -> String {
    let cells = cells.into_iter().map(|cell| cell.replace('|', "\\|").replace('\n', " "));
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_load::report::TableCell;

    /// Goal: a table has its labels, its alignment and all cells, whatever they contain.
    #[test]
    fn a_table() {
        let mut of = Table::new([Column::text("a", "name"), Column::number("b", "figure")]);
        of.row([TableCell::text("x|y\nz"), TableCell::count(7)]);
        of.row([TableCell::text("")]);
        let wanted = "| name | figure |\n|---|--:|\n| x\\|y z | 7 |\n|  | - |\n";
        assert_eq!(table(&of), wanted);
    }
}
