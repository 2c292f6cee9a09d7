//! Configurations of a switch that are refused, with line, column and remedy.

use super::{MIB, Rig, RigOptions, extent, extents, lun};
use crate::common::{Scratch, assert_exit, json, printed, run};

/// Two storages; the first line behind them is line 10.
const STORAGES: &str = "[listen]\nportals = [\"127.0.0.1:3260\"]\n\
    [[storage]]\nname = \"a\"\nurl = \"iscsi://192.0.2.1/iqn.2026-11.org.example:a/0\"\n\
    [[storage]]\nname = \"b\"\nurl = \"iscsi://192.0.2.2/iqn.2026-11.org.example:b/0\"\n\
    on_storage_loss = \"fail\"\n";
const TARGET: &str = "[[target]]\nname = \"iqn.2026-11.org.example:virtual\"\n";

/// Lines behind the storages, and the expected problem: line, column, parts of error and hint.
type Case<'a> = (String, (u64, u64, &'a str, &'a str));

/// A target with one LUN of these lines, which begin at line 14.
fn one(keys: &str) -> String {
    format!("{TARGET}{}", lun(0, keys))
}

fn storage(lines: &str) -> String {
    format!("[[storage]]\n{lines}\n{}", one("device = \"mem:1M\""))
}

/// Extents that overlap, in one LUN and in two; storages that are unknown, of another kind, named
/// twice, raw besides, or of this configuration.
fn storage_cases() -> Vec<Case<'static>> {
    let linear = |list: &[String]| one(&extents(list));
    let two = |first: &str, second: &str| format!("{}{}", one(first), lun(1, second));
    let raw = "device = \"iscsi://192.0.2.1/iqn.2026-11.org.example:a/0\"";
    let own = "url = \"iscsi://127.0.0.1/iqn.2026-11.org.example:virtual/0\"";
    vec![
        (
            linear(&[extent("a", 0, 4), extent("b", 0, 4), extent("a", 3, 2)]),
            (14, 116, "overlaps another extent of this LUN", "the bytes 0 to 4MiB"),
        ),
        (
            two(&extents(&[extent("a", 4, 4)]), &extents(&[extent("a", 0, 5)])),
            (17, 12, "overlaps an extent of LUN 0", "the bytes 4MiB to 8MiB"),
        ),
        (linear(&[extent("c", 0, 4)]), (14, 24, "there is no storage", "storages are a, b")),
        (storage("name = \"c\"\nurl = \"mem:1G\""), (12, 7, "cannot be a storage", "iscsi://")),
        (
            storage("name = \"a\"\nurl = \"iscsi://192.0.2.3/iqn.2026-11.org.example:c/0\""),
            (10, 1, "the storage a is configured twice", "its own name"),
        ),
        (
            storage("name = \"c\"\nurl = \"iscsi://192.0.2.3/iqn.2026-11.org.example:A/0\""),
            (12, 7, "LUN 0 of iqn.2026-11.org.example:A is used twice", "only once"),
        ),
        (one(raw), (14, 10, "LUN 0 of iqn.2026-11.org.example:a is used twice", "only once")),
        (
            storage(&format!("name = \"c\"\n{own}")).replace(":virtual\"", ":Virtual2\""),
            (14, 8, "invalid target name", "lower case"),
        ),
        (
            storage(&format!("name = \"c\"\n{own}")),
            (12, 7, "is a LUN of this configuration", "another server"),
        ),
        (
            storage("name = \"c d\"\nurl = \"iscsi://192.0.2.3/iqn.2026-11.org.example:c/0\""),
            (11, 8, "invalid name of a storage", "letters"),
        ),
        (
            storage("name = \"c\"\nurl = \"iscsi://u@192.0.2.3/iqn.2026-11.org.example:c/0\""),
            (12, 7, "names a user, but there is no secret", "add chap ="),
        ),
        (
            storage(
                "name = \"c\"\nurl = \"iscsi://192.0.2.3/iqn.2026-11.org.example:c/0\"\n\
                 on_storage_loss = \"wait\"",
            ),
            (13, 19, "on_storage_loss", "\"wait 60s\""),
        ),
    ]
}

/// Extents that are no whole blocks, or too long; other keys; stripes and mirrors.
fn extent_cases() -> Vec<Case<'static>> {
    let linear = |list: &[String]| one(&extents(list));
    let stripe = |keys: &str| one(&format!("stripe = {{ {keys} }}"));
    let copies = [extent("a", 0, 8), extent("b", 0, 8)].join(", ");
    let mirror = |keys: &str| one(&format!("mirror = {{ over = [{copies}], {keys} }}"));
    vec![
        (
            one("extents = [{ storage = \"a\", start = 100, length = \"1MiB\" }]"),
            (14, 37, "`start` is 100 bytes", "multiple of 512"),
        ),
        (one("extents = [{ storage = \"a\" }]"), (14, 12, "no `length`", "add length")),
        (one("extents = []"), (14, 11, "`extents` is empty", "at least one")),
        (one("extents = [7]"), (14, 12, "`extents` is a whole number", "storage =")),
        (
            linear(&[extent("a", 0, 1 << 42), extent("b", 0, 1 << 42)]),
            (14, 11, "the extents together are too long", "fewer"),
        ),
        (
            one(&format!("{}\nsize = \"1MiB\"", extents(&[extent("a", 0, 1)]))),
            (15, 8, "`size` is not allowed for a virtual LUN", "the extents determine it"),
        ),
        (
            one(&format!("device = \"mem:1M\"\n{}", extents(&[extent("a", 0, 1)]))),
            (15, 11, "several of `device`, `extents`", "keep one"),
        ),
        (
            stripe(&format!("over = [{}, {}]", extent("a", 0, 1), extent("b", 0, 2))),
            (14, 19, "different lengths", "one length"),
        ),
        (
            stripe(&format!(
                "unit = \"3KiB\", over = [{}, {}]",
                extent("a", 0, 1),
                extent("b", 0, 1)
            )),
            (14, 34, "no whole number of stripe units", "3KiB"),
        ),
        (stripe("unit = \"64KiB\""), (14, 10, "no `over`", "add over")),
        (
            one(&format!("mirror = [{}]", extent("a", 0, 8))),
            (14, 10, "at least two extents", "another storage"),
        ),
        (
            one(&format!("mirror = [{}, {}]", extent("a", 0, 8), extent("a", 8, 8))),
            (14, 10, "two copies are on the storage a", "a storage of its own"),
        ),
        (
            one(&format!("mirror = {{ over = [{}] }}", extent("a", 0, 8))),
            (14, 10, "at least two extents", "another storage"),
        ),
        (one("mirror = { degraded = true }"), (14, 10, "the mirror has no `over`", "add over")),
        (
            mirror(&format!("spares = [{}]", extent("b", 16, 8))),
            (14, 10, "two copies are on the storage b", "a storage of its own"),
        ),
        (mirror("member_wait_seconds = 0"), (14, 147, "member_wait_seconds", "1 to 300")),
        (mirror("unit = \"4KiB\""), (14, 125, "unknown key `unit`", "over, resync_rate, spares")),
    ]
}

/// Goal: each configuration has exactly one problem, at its line and column, with a remedy.
#[test]
fn problems_have_their_lines() {
    let scratch = Scratch::new("switch-check");
    let mut wrong = String::new();
    for (lines, (line, column, error, hint)) in storage_cases().into_iter().chain(extent_cases()) {
        let text = format!("{STORAGES}{lines}");
        let file = scratch.file("switch.toml", text.as_bytes());
        let output = run(&["check", &file, "--json"]);
        assert_exit(&output, 1);
        let problems = json(&output)["problems"].clone();
        let is_expected = |problem: &serde_json::Value| {
            let text = |key: &str| problem[key].as_str().unwrap_or_default().to_owned();
            (&problem["line"], &problem["column"]) == (&line.into(), &column.into())
                && text("error").contains(error)
                && text("hint").contains(hint)
        };
        let problems = problems.as_array().unwrap();
        if problems.len() != 1 || !is_expected(&problems[0]) {
            wrong.push_str(&format!("{lines}: {problems:?}\n\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Goal: `check --connect` finds extents past the end of a storage, at their lines; the switch
/// refuses them at its start and when they are applied.
#[test]
fn extents_past_the_end() {
    let luns = lun(0, &extents(&[extent("a", 1, 2)]));
    let rig = Rig::new("switch-past", RigOptions { luns: &luns, ..RigOptions::default() });
    let good = rig.configuration(RigOptions { luns: &luns, ..RigOptions::default() });
    let checked = run(&["check", &good, "--connect", "--json"]);
    assert_exit(&checked, 0);
    assert_eq!(json(&checked)["storages"][1]["size_bytes"], 32 * MIB);

    let past = lun(0, &extents(&[extent("a", 1, 2), extent("b", 30, 3)]));
    let past = rig.configuration(RigOptions { luns: &past, ..RigOptions::default() });
    assert_exit(&run(&["check", &past]), 0);
    let checked = run(&["check", &past, "--connect", "--json"]);
    assert_exit(&checked, 1);
    let problem = json(&checked)["problems"][0].clone();
    assert!(problem["error"].as_str().unwrap().contains("ends at byte 34603008"), "{problem}");
    let text = std::fs::read_to_string(&past).unwrap();
    let line = text.lines().position(|line| line.starts_with("extents")).unwrap() + 1;
    assert_eq!((&problem["line"], &problem["column"]), (&line.into(), &64.into()));

    let applied = run(&["apply", &past, "--api", &rig.api()]);
    assert_exit(&applied, 1);
    let says = "b:30MiB+3MiB: the extent ends at byte 34603008";
    assert!(printed(&applied).contains(says), "{}", printed(&applied));
    let started = run(&["switch", "--config", &past, "--api", "none"]);
    assert_exit(&started, 1);
    assert!(printed(&started).contains(says), "{}", printed(&started));
}
