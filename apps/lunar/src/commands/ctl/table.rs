//! Tables for people.

/// Formats rows under a heading, each column as wide as its widest field; empty without rows.
pub fn table<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
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
    let mut text = String::new();
    for row in all() {
        let mut line = String::new();
        for (width, field) in widths.iter().zip(row) {
            line.push_str(&format!("{field:<width$}  "));
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
        assert_eq!(table(["LUN", "x"], &rows), "LUN    x\n0      ä\n16383  b c\n");
        assert_eq!(table(["LUN", "x"], &[]), "");
        assert_eq!(plain("a\u{1b}[31m\nb"), "a\u{fffd}[31m\u{fffd}b");
    }
}
