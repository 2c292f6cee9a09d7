//! Text of SVG documents.

/// Escapes the characters that XML reserves.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns a document of this size; `comment` says where it comes from.
pub(super) fn document(size: (usize, usize), title: &str, comment: &str, body: &str) -> String {
    let (width, height) = size;
    let title = escaped(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{title}\">\n\
         <!-- Written by `cargo run -p xtask -- pictures` {comment}. -->\n\
         <title>{title}</title>\n{body}</svg>\n"
    )
}
