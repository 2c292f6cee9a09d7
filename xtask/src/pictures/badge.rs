//! Badges: a label and a value.

use super::svg::{document, escaped};

/// Colour of a value that is a fact.
pub(super) const NEUTRAL: &str = "#1f6feb";
/// Colour of a value that is an achievement.
pub(super) const GOOD: &str = "#1a7f37";

/// Width of two letters, in pixels; `textLength` makes every font fit.
const TWO_LETTERS: usize = 13;
const PADDING: usize = 7;
const HEIGHT: usize = 20;

pub(super) fn draw(label: &str, value: &str, colour: &str) -> String {
    let text_width = |text: &str| text.chars().count() * TWO_LETTERS / 2;
    let left = text_width(label) + 2 * PADDING;
    let right = text_width(value) + 2 * PADDING;
    let text = |text: &str, x: usize| {
        format!(
            "<text x=\"{x}\" y=\"14\" textLength=\"{}\" lengthAdjust=\"spacingAndGlyphs\">{}\
             </text>\n",
            text_width(text),
            escaped(text)
        )
    };
    let body = format!(
        "<rect width=\"{left}\" height=\"{HEIGHT}\" fill=\"#484f58\"/>\n\
         <rect x=\"{left}\" width=\"{right}\" height=\"{HEIGHT}\" fill=\"{colour}\"/>\n\
         <g fill=\"#fff\" font-family=\"Verdana, DejaVu Sans, sans-serif\" font-size=\"11\">\n\
         {}{}</g>\n",
        text(label, PADDING),
        text(value, left + PADDING),
    );
    let title = format!("{label}: {value}");
    document((left + right, HEIGHT), &title, "from the documents of the repository", &body)
}
