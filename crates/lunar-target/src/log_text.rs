//! Texts from peers, as far as they are logged.

/// Longest logged part of a name chosen by a peer, in characters. Names have 223 bytes at most (RFC
/// 7143 §4.2.7.2); a peer may send a longer one.
const LOGGED_NAME_MAX: usize = 223;

/// Longest logged reason, in characters.
const LOGGED_WHY_MAX: usize = 512;

/// Escapes a text that may contain strings from a peer for one log line: nothing in it moves the
/// cursor or begins another line.
pub(crate) fn printable(text: &str) -> String {
    let escaped = |letter: char| match letter {
        '"' | '\'' | '\\' => letter.to_string(),
        _ => letter.escape_debug().to_string(),
    };
    text.chars().take(LOGGED_WHY_MAX).map(escaped).collect()
}

/// The part of a name chosen by a peer that is logged.
pub(crate) fn shortened(name: &str) -> &str {
    name.char_indices().nth(LOGGED_NAME_MAX).map_or(name, |(end, _)| &name[..end])
}
