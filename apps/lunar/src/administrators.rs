//! Who administers a target or a LUN: as options say it, and for people.

/// The names that `--administer` was given; `none` alone is an empty list, nobody. `None`: the
/// option was not given.
pub fn given(option: &[String]) -> Option<Vec<String>> {
    match option {
        [] => None,
        [none] if none == "none" => Some(Vec::new()),
        names => Some(names.to_vec()),
    }
}

/// A note for people; `None` where no list says who administers.
pub fn note(names: Option<&Vec<String>>) -> Option<String> {
    let names = names?;
    Some(match names.as_slice() {
        [] => "administered by nobody".to_owned(),
        names => format!("administered by {}", names.join(" ")),
    })
}
