//! Administrators of a target or a LUN: parsing the option, and a note for people.

/// Names given with `--administer`; `none` alone is an empty list, which means nobody. `None`: the
/// option was not given.
pub fn given(option: &[String]) -> Option<Vec<String>> {
    match option {
        [] => None,
        [none] if none == "none" => Some(Vec::new()),
        names => Some(names.to_vec()),
    }
}

/// A note for people; `None` if no list restricts administration.
pub fn note(names: Option<&Vec<String>>) -> Option<String> {
    let names = names?;
    Some(match names.as_slice() {
        [] => "no administrators".to_owned(),
        names => format!("administered by {}", names.join(" ")),
    })
}
