//! Files generated from the command line: manual pages and completions.

use crate::common::{Scratch, assert_exit, json, printed, run};
use std::collections::BTreeSet;

/// The subcommands of a command.
fn commands(arguments: &[&str]) -> Vec<String> {
    let help = printed(&run(&[arguments, &["--help"]].concat()));
    let Some((_, list)) = help.split_once("Commands:\n") else { return Vec::new() };
    let lines = list.lines().take_while(|line| line.starts_with("  "));
    let words = lines.filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    words.filter(|word| *word != "help").map(str::to_owned).collect()
}

/// Goal: each command has a page with its options and its examples, each example on its own line.
#[test]
fn every_command_has_a_page() {
    let scratch = Scratch::new("man");
    let folder = scratch.path().join("man1");
    let written = run(&["man", folder.to_str().unwrap(), "--date", "2026-11-21", "--json"]);
    assert_exit(&written, 0);
    let mut wanted = BTreeSet::from(["lunar.1".to_owned()]);
    for command in commands(&[]) {
        for below in commands(&[&command]) {
            wanted.insert(format!("lunar-{command}-{below}.1"));
        }
        wanted.insert(format!("lunar-{command}.1"));
    }
    let entries = std::fs::read_dir(&folder).unwrap();
    let found: BTreeSet<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(found, wanted);
    assert_eq!(json(&written)["files"].as_array().unwrap().len(), wanted.len());
    let page = std::fs::read_to_string(folder.join("lunar-serve.1")).unwrap();
    for part in [
        ".TH lunar-serve 1 2026-11-21 \"Lunar ",
        "\\fB\\-\\-portal\\-group\\fR",
        "\nlunar serve disk.img \\-\\-size 10G\n",
        ".SH \"EXIT STATUS\"",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
    let page = std::fs::read_to_string(folder.join("lunar.1")).unwrap();
    assert!(page.contains("lunar\\-serve(1)") && page.contains("Serve disks"), "{page}");
}

/// Goal: the completion scripts contain every command.
#[test]
fn completions_contain_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completions", shell]);
        assert_exit(&script, 0);
        for command in commands(&[]) {
            assert!(printed(&script).contains(&command), "{command} in {shell}");
        }
        let document = json(&run(&["completions", shell, "--json"]));
        assert_eq!(document["script"], printed(&script));
    }
    assert_exit(&run(&["completions", "csh"]), 2);
}

/// The permitted keys of a table of the configuration.
fn keys_of(table: &str, scratch: &Scratch) -> Vec<String> {
    const UNKNOWN: &str = "quite_another_word";
    let file = scratch.file("lunar.toml", format!("{table}\n{UNKNOWN} = 1\n").as_bytes());
    let document = json(&run(&["check", "--json", &file]));
    let problems = document["problems"].as_array().expect(table);
    let about = |problem: &&serde_json::Value| {
        problem["error"].as_str().is_some_and(|text| text.contains(UNKNOWN))
    };
    let hint = problems.iter().find(about).and_then(|problem| problem["hint"].as_str());
    let known = hint.and_then(|hint| hint.strip_prefix("known keys here: "));
    known.unwrap_or_else(|| panic!("{table}: {document}")).split(", ").map(str::to_owned).collect()
}

/// Goal: the manual page of the configuration names every key. Method: `lunar check` lists the
/// known keys when it finds an unknown one.
#[test]
fn the_page_of_the_configuration_names_every_key() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/man/lunar.toml.5");
    let page = std::fs::read_to_string(page).unwrap();
    let scratch = Scratch::new("keys");
    let mut keys = BTreeSet::new();
    for table in [
        "",
        "[listen]",
        "[discovery]",
        "[api]",
        "[api.tls]",
        "[data_path]",
        "[limits]",
        "[metrics]",
        "[[storage]]",
        "[[target]]",
        "[[target]]\n[target.chap]",
        "[[target]]\n[[target.lun]]",
    ] {
        keys.extend(keys_of(table, &scratch));
    }
    assert!(keys.len() > 30, "{keys:?}");
    for key in keys {
        let named = [format!("\\fB{key}\\fR"), format!("\\fB[{key}]\\fR")];
        let tables = format!("\\fB[[{key}]]\\fR");
        let below = format!("\\fB[[target.{key}]]\\fR");
        assert!(
            named.iter().chain([&tables, &below]).any(|name| page.contains(name)),
            "{key} is not in dist/man/lunar.toml.5"
        );
    }
}
