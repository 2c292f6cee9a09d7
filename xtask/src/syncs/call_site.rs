//! Finds the call of a row in its file.

use super::table::Call;
use std::ops::Range;

/// Marks around the call in the text of a row, if the text is longer than the call.
const MARKS: [char; 2] = ['«', '»'];

/// Position of a call in its file.
pub(super) struct CallSite {
    /// Bytes of the file.
    pub(super) bytes: Range<usize>,
}

impl CallSite {
    /// Lines of the call, counted from 1.
    pub(super) fn lines(&self, source: &str) -> Range<usize> {
        let line = |at: usize| source[..at].matches('\n').count() + 1;
        line(self.bytes.start)..line(self.bytes.end) + 1
    }
}

/// Finds the call of a row; returns a message if it is missing or not unique.
pub(super) fn find(source: &str, call: &Call) -> Result<CallSite, String> {
    let wrong = |what: &str| {
        format!("{}: {what} in a row of xtask/src/syncs/table.rs: {:?}", call.file, call.text)
    };
    let text = call.text.replace(MARKS, "");
    let mut found = source.match_indices(&text);
    let (at, _) = found.next().ok_or_else(|| wrong("call not found in the source"))?;
    if found.next().is_some() {
        return Err(wrong("text that occurs twice in the source"));
    }
    let Some((before, rest)) = call.text.split_once(MARKS[0]) else {
        return Ok(CallSite { bytes: at..at + text.len() });
    };
    let (marked, _) = rest.split_once(MARKS[1]).ok_or_else(|| wrong("mark without an end"))?;
    let start = at + before.len();
    Ok(CallSite { bytes: start..start + marked.len() })
}
