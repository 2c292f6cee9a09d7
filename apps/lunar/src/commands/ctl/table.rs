//! Tables for people.

use std::io::IsTerminal;

/// Minimum width to which a column is cut.
const COLUMN_MIN: usize = 8;
/// Blanks between two columns.
const GAP: usize = 2;

/// Width of lines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TableWidth {
    /// Fields are printed whole.
    Whole,
    /// The longest fields are cut so that lines have at most this number of columns.
    AtMost(usize),
}

impl TableWidth {
    /// Returns the width of the terminal, unless whole lines are wanted or stdout is no terminal.
    pub fn of_stdout(is_wide: bool) -> Self {
        let stdout = std::io::stdout();
        if is_wide || !stdout.is_terminal() {
            return Self::Whole;
        }
        match rustix::termios::tcgetwinsize(&stdout) {
            Ok(size) if size.ws_col > 0 => Self::AtMost(size.ws_col.into()),
            _ => Self::Whole,
        }
    }

    /// Makes the widest columns narrower until a line fits, or all have the minimum width.
    fn fit(self, widths: &mut [usize]) {
        let Self::AtMost(columns) = self else { return };
        let gaps = GAP * widths.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > columns {
            match widths.iter_mut().max() {
                Some(widest) if *widest > COLUMN_MIN => *widest -= 1,
                _ => return,
            }
        }
    }
}

/// Returns `field`, cut to a number of columns.
fn cut(field: &str, columns: usize) -> String {
    if field.chars().count() <= columns {
        return field.to_owned();
    }
    field.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

/// Formats rows under a heading, each column as wide as its widest field, or as `width` allows;
/// empty without rows.
pub fn table<const N: usize>(
    heading: [&str; N],
    rows: &[[String; N]],
    width: TableWidth,
) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let heading = heading.map(str::to_owned);
    let all = || std::iter::once(&heading).chain(rows);
    let mut widths = [0; N];
    for row in all() {
        for (width, field) in widths.iter_mut().zip(row) {
            *width = (*width).max(field.chars().count());
        }
    }
    width.fit(&mut widths);
    let mut text = String::new();
    for row in all() {
        let mut line = String::new();
        for (width, field) in widths.iter().zip(row) {
            line.push_str(&format!("{:<width$}  ", cut(field, *width)));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Replaces control characters in a foreign text, so that it stays on one line and does not control
/// the terminal.
pub fn plain(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["0".to_owned(), "ä".to_owned()], ["16383".to_owned(), "b c".to_owned()]];
        let whole = TableWidth::Whole;
        assert_eq!(table(["LUN", "x"], &rows, whole), "LUN    x\n0      ä\n16383  b c\n");
        assert_eq!(table(["LUN", "x"], &[], whole), "");
        assert_eq!(plain("a\u{1b}[31m\nb"), "a\u{fffd}[31m\u{fffd}b");
    }

    /// Fault: the table of sessions had lines of 230 columns on each terminal.
    #[test]
    fn lines_fit_the_terminal() {
        let rows = [["1".to_owned(), "a".repeat(100), "b".repeat(60)]];
        let lines = table(["TSIH", "INITIATOR", "FROM"], &rows, TableWidth::AtMost(80));
        assert!(lines.lines().all(|line| line.chars().count() <= 80), "{lines}");
        assert!(lines.ends_with(&format!("1     {}…  {}…\n", "a".repeat(35), "b".repeat(35))));
        let narrow = table(["TSIH", "INITIATOR", "FROM"], &rows, TableWidth::AtMost(5));
        assert!(narrow.ends_with("1     aaaaaaa…  bbbbbbb…\n"), "{narrow}");
    }
}
