//! Checks that the table is complete and names existing tests and sections only.

use super::*;
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Returns the folder of a crate's sources.
fn folder(name: &str) -> PathBuf {
    let folders = [format!("crates/lunar-{name}"), format!("apps/{name}"), name.to_owned()];
    let folders = folders.map(|folder| Path::new(ROOT).join(folder));
    folders.into_iter().find(|folder| folder.join("Cargo.toml").exists()).unwrap_or_default()
}

/// Returns the file and the name of a test: a module of its own, a folder's `mod.rs`, a module
/// `tests` inside its parent, or a file of integration tests.
fn locate(test: &str) -> Result<(PathBuf, String)> {
    let (path, name) = test.rsplit_once("::").context("no module")?;
    let (package, modules) = path.split_once("::").context("no module")?;
    let folder = folder(package);
    let module = modules.replace("::", "/");
    let mut files = vec![
        folder.join(format!("src/{module}.rs")),
        folder.join(format!("src/{module}/mod.rs")),
        folder.join(format!("{module}.rs")),
    ];
    if let Some(parent) = module.strip_suffix("/tests") {
        files.push(folder.join(format!("src/{parent}.rs")));
        files.push(folder.join(format!("src/{parent}/mod.rs")));
    }
    let file = files.into_iter().find(|file| file.exists());
    Ok((file.with_context(|| format!("no file for {test}"))?, name.to_owned()))
}

/// Returns the functions under `#[test]`, also of another runtime, also inside `proptest!`.
fn tests_of(source: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim_start) {
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        } else if let Some(rest) = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ") {
            if is_test {
                found.insert(rest.split(['(', '<']).next().unwrap_or_default().to_owned());
            }
            is_test = false;
        } else if !line.starts_with("//") && !line.is_empty() {
            is_test = false;
        }
    }
    found
}

pub(crate) fn check_exists(test: &str) -> Result<()> {
    let (file, name) = locate(test)?;
    let source = std::fs::read_to_string(&file)?;
    ensure!(tests_of(&source).contains(&name), "{test}: no such test in {}", file.display());
    Ok(())
}

/// Goal: every rule exists, and every test that is named.
#[test]
fn every_rule_names_existing_tests() {
    let rules: BTreeSet<u8> = all().iter().map(|must| must.number).collect();
    assert!(rules.iter().copied().eq(1..=RULES), "{rules:?}");
    let mut wrong = Vec::new();
    for must in all() {
        assert!(!must.tests.is_empty(), "{}: {}", must.number, must.rule);
        assert!(!must.rule.contains('|'), "{}: {}", must.number, must.rule);
        wrong.extend(must.tests.iter().filter_map(|test| check_exists(test).err()));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Goal: a missing test is detected, in each way it may be missing.
#[test]
fn an_absent_test_is_an_error() {
    assert!(check_exists("wire::serial::tests::order_holds_across_the_wrap").is_ok());
    for absent in [
        "wire::serial::tests::order_survives_everything",
        "wire::nothing::tests::order_holds_across_the_wrap",
        "nothing::serial::tests::order_holds_across_the_wrap",
        "wire::serial::tests::before",
        "order_holds_across_the_wrap",
    ] {
        assert!(check_exists(absent).is_err(), "{absent}");
    }
    let source = "#[test]\n/// Goal\nfn one() {}\nfn two() {}\n#[tokio::test(x)]\n#[cfg(unix)]\n\
        async fn three() {}\n    #[test]\n    fn four(a: u8) {}\nfn five() {}\n\
        #[test]\nconst X: u8 = 1;\nfn six() {}\n";
    let expected = ["four", "one", "three"].map(str::to_owned);
    assert_eq!(tests_of(source), BTreeSet::from(expected));
}

/// Goal: the sections that are named exist.
#[test]
fn every_section_exists() -> Result<()> {
    let mut lists: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for must in all() {
        for section in must.sections.split(", ") {
            let (rfc, section) = match section.split_once(' ') {
                Some((rfc, section)) => (format!("rfc{rfc}"), section),
                None => ("rfc7143".to_owned(), section),
            };
            if !lists.contains_key(&rfc) {
                let path = Path::new(ROOT).join(format!("xtask/rfc-sections/{rfc}.txt"));
                let list = std::fs::read_to_string(&path).context(rfc.clone())?;
                lists.insert(rfc.clone(), list.lines().map(str::to_owned).collect());
            }
            if !lists[&rfc].contains(section) {
                bail!("{}: {rfc} has no section {section}", must.number);
            }
        }
    }
    Ok(())
}
