//! Text of SVG documents.

/// Escapes the characters that XML reserves.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns a document of this size; `comment` names its source.
pub(super) fn document(size: (usize, usize), title: &str, comment: &str, body: &str) -> String {
    let (width, height) = size;
    let title = escaped(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{title}\">\n\
         <!-- Written by `make pictures` {comment}. -->\n\
         <title>{title}</title>\n{body}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every picture is well-formed where XML parsers are strict: in comments and texts.
    #[test]
    fn pictures_are_well_formed() -> anyhow::Result<()> {
        let drawn = crate::pictures::draw(&crate::workspace_root())?;
        for picture in drawn {
            let (before, rest) = picture.svg.split_once("<!--").unwrap_or_default();
            let (comment, after) = rest.split_once("-->").unwrap_or_default();
            assert!(!comment.is_empty() && !comment.contains("--"), "{}", picture.path);
            for text in [before, after] {
                let tags = (text.matches('<').count(), text.matches('>').count());
                assert_eq!(tags.0, tags.1, "{}", picture.path);
            }
        }
        assert_eq!(escaped("a < \"b\" & c"), "a &lt; &quot;b&quot; &amp; c");
        Ok(())
    }
}
