//! The command line: help, usage errors, and refusals before any action.

use crate::common::{Scratch, Server, assert_exit, json, lunar, printed, run};
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::process::Output;

const COMMANDS: [&str; 10] = [
    "serve",
    "target",
    "check",
    "apply",
    "discover",
    "info",
    "read",
    "write",
    "completions",
    "man",
];

/// Goal: the help of every command has an example. Method: `--help` of each.
#[test]
fn help_has_an_example() {
    let top = run(&["--help"]);
    assert_exit(&top, 0);
    for command in COMMANDS {
        assert!(printed(&top).contains(&format!("  {command} ")), "{command} is listed");
        let help = run(&[command, "--help"]);
        assert_exit(&help, 0);
        let text = printed(&help);
        let example = text.split_once("Example").expect(command).1;
        assert!(example.contains(&format!("lunar {command} ")), "{command}");
        assert!(text.contains("--json"), "{command}");
    }
}

/// Goal: the headings of the help contain the options of their subject only. Method: the headings
/// that stood above unrelated options of later declaration.
#[test]
fn headings_of_the_help_fit_their_options() {
    for (command, heading, expected) in [
        ("target", "API:", "--api"),
        ("serve", "API:", "--api"),
        ("switch", "API:", "--api"),
        ("bench", "Network:", "--delay --rate --window"),
    ] {
        let text = printed(&run(&[command, "--help"]));
        let section = text.split_once(&format!("\n{heading}\n")).expect(command).1;
        let options = section.lines().take_while(|line| line.is_empty() || line.starts_with(' '));
        let options = options.filter_map(|line| line.split_whitespace().next());
        let options: Vec<_> = options.filter(|word| word.starts_with("--")).collect();
        assert!(!options.is_empty(), "{command}");
        for option in options {
            let fits = expected.split(' ').any(|begin| option.starts_with(begin));
            assert!(fits, "{command}: {option} below {heading}");
        }
    }
}

/// Goal: options of later versions are not offered.
#[test]
fn later_options_do_not_exist() {
    for option in ["--metrics", "--tls"] {
        let output = run(&["serve", "mem:1M", option, "none"]);
        assert_exit(&output, 2);
    }
    for command in ["bench", "attach", "copy", "pool", "osd"] {
        assert_exit(&run(&[command]), 2);
    }
}

/// The document about a failure: `read` prints it to stderr, and nothing to stdout.
fn failure_document(arguments: &[&str], output: &Output) -> Value {
    if arguments[0] != "read" {
        return json(output);
    }
    assert!(output.stdout.is_empty(), "{}", printed(output));
    serde_json::from_slice(&output.stderr).unwrap_or_else(|_| panic!("{}", printed(output)))
}

/// Goal: a `read` that fails midway prints only data to stdout, and the document to stderr. Method:
/// a file that is truncated after it was opened.
#[test]
fn a_failed_read_prints_only_data_to_stdout() {
    let scratch = Scratch::new("midway");
    let size = 64 << 20;
    let file = scratch.file("disk.img", &crate::common::pattern(1, size));
    let mut command = lunar(&["read", "--json", &file]);
    let mut child = command.spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut data = vec![0; 4096];
    stdout.read_exact(&mut data).unwrap();
    // The pieces that wait in pipes are a few MiB.
    File::options().write(true).open(&file).unwrap().set_len(32 << 20).unwrap();
    stdout.read_to_end(&mut data).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(
        data == crate::common::pattern(1, size)[..data.len()],
        "stdout contains more than the data"
    );
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let last: Value = serde_json::from_str(stderr.lines().last().unwrap()).unwrap();
    assert!(last["error"].is_string(), "{stderr}");
}

/// Goal: if stdout cannot be written, programs get the document, including this error, on stderr.
#[test]
fn a_failed_stdout_is_reported_on_stderr() {
    let server = Server::start(&["mem:1M"]);
    let (portal, url) = (server.portal(), server.lun(0));
    let quick = ["--seconds", "0.05", "--warm-up", "0", "--rounds", "1", "--depth", "1"];
    for arguments in [
        &["discover", &portal][..],
        &["info", &url],
        &["read", &url],
        &[&["bench", "mem:1M"], &quick[..]].concat(),
    ] {
        let mut command = lunar(&[arguments, &["--json"]].concat());
        command.stdout(File::options().write(true).open("/dev/full").unwrap());
        let output = crate::common::finish(command, b"");
        assert_exit(&output, 1);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let document: Value =
            serde_json::from_str(stderr.lines().last().unwrap_or_default()).unwrap();
        assert!(
            document["error"].as_str().unwrap().contains("stdout"),
            "{arguments:?}: {document}"
        );
    }
    assert_exit(&server.stop().0, 0);
}

/// Goal: a usage error exits with 2, with the reason on stderr, and as a document if requested.
#[test]
fn wrong_usage_exits_2() {
    for arguments in [
        &["serve"][..],
        &["serve", "mem:1X"],
        &["serve", "mem:1M", "--listen", "nowhere"],
        &["serve", "mem:1M", "--listen", "0.0.0.0:0"],
        &["serve", "mem:1M", "--listen", "[::]:0", "--initiator", "iqn.2026-11.org.example:a"],
        &["serve", "mem:1M", "--name", "disk"],
        &["serve", "mem:1M", "--name", "iqn.2026-11.org.example:DISK"],
        &["serve", "mem:1M", "--network", "10.0.0.0/33"],
        &["serve", "mem:1M", "--block-size", "520"],
        &["serve", "mem:1M", "--physical-block-size", "3K"],
        &["serve", "mem:1M", "--size", "ten"],
        &["serve", "mem:1M", "--advertise", "a:1", "--advertise", "b:1"],
        &["serve", "mem:1M", "--portal-group", "0"],
        &["serve", "mem:1M", "--portal-group", "65536"],
        &["serve", "mem:1M", "--portal-group", "1", "--portal-group", "2"],
        &["serve", "mem:1M", "--chap-user", "u"],
        &["serve", "mem:1M", "--chap-secret-file", "f"],
        &["serve", "mem:1M", "--discovery-chap-user", "u"],
        &["serve", "mem:1M", "--discovery-chap-secret-file", "f"],
        &["serve", "mem:1M", "--no-discovery-chap"],
        &["serve", "mem:1M", "--chap-user", "u", "--mutual-chap-user", "t"],
        &["serve", "iscsi://127.0.0.1"],
        &["serve", "pool:a"],
        &["discover", "127.0.0.1"],
        &["info", "iscsi://127.0.0.1"],
        &["info", "iscsi://127.0.0.1/t/0", "--isid", "12"],
        &["info", "iscsi://127.0.0.1/t/0", "--header-digest", "md5"],
        &["info", "iscsi://a@127.0.0.1/t/0", "--chap-user", "b"],
        &["read", "mem:1M", "--length", "-1"],
    ] {
        let human = run(arguments);
        assert_exit(&human, 2);
        assert!(human.stdout.is_empty() && !human.stderr.is_empty(), "{arguments:?}");
        let machine = run(&[arguments, &["--json"]].concat());
        assert_exit(&machine, 2);
        let document = failure_document(arguments, &machine);
        assert!(document["error"].as_str().is_some_and(|text| !text.is_empty()), "{arguments:?}");
        assert!(document.get("hint").is_some(), "{arguments:?}");
    }
}

/// Goal: missing arguments are named, also in JSON.
#[test]
fn missing_arguments_are_named() {
    let document = json(&run(&["serve", "--json"]));
    assert!(document["error"].as_str().unwrap().contains("<DEVICE>"), "{document}");
}

/// Goal: errors of the disk are reported with a remedy. Method: a write to a read-only disk, an
/// address in use, a file in a missing directory.
#[test]
fn failures_have_a_remedy() {
    let scratch = Scratch::new("advice");
    let disk = scratch.file("disk.img", &[0; 4096]);
    let server = Server::start(&[&disk, "--read-only"]);
    let written = crate::common::run_with_input(&["write", &server.lun(0)], b"no");
    assert_exit(&written, 1);
    assert!(printed(&written).contains("served read-only"), "{}", printed(&written));
    let portal = server.portal();
    let address = portal.trim_start_matches("iscsi://");
    for arguments in [
        &["serve", "mem:1M", "--listen", address][..],
        &["serve", &format!("{disk}.d/disk.img"), "--size", "1M", "--listen", "127.0.0.1:0"],
        &["check", "/nowhere/lunar.toml"],
    ] {
        let failed = run(&[arguments, &["--json"]].concat());
        assert_exit(&failed, 1);
        assert!(json(&failed)["hint"].is_string(), "{arguments:?}: {}", printed(&failed));
    }
    assert_exit(&server.stop().0, 0);
}

/// Goal: a secret in a URL is refused with a hint and never repeated, wherever the URL is given.
#[test]
fn secrets_in_urls_are_refused_and_not_shown() {
    const URL: &str = "iscsi://user%hunter2hunter2@127.0.0.1:1/iqn.2026-11.org.example:a/0";
    for command in ["serve", "discover", "info", "read", "write"] {
        for json in [&[][..], &["--json"]] {
            let mut run = lunar(&[&[command, URL], json].concat());
            run.env("RUST_LOG", "trace");
            let output = crate::common::finish(run, b"");
            assert_exit(&output, 2);
            assert!(!printed(&output).contains("hunter2"), "{command}");
            assert!(printed(&output).contains("--chap-secret-file"), "{command}");
        }
    }
}

/// Goal: a failure is reported in one line on stderr, or as a document, with exit status 1.
#[test]
fn failures_exit_1_with_one_line() {
    let scratch = Scratch::new("failures");
    let short = scratch.file("short", b"eleven byte\n");
    let good = scratch.file("good", b"twelve bytes and more\n");
    let missing = scratch.path().join("missing.img");
    let missing = missing.to_str().unwrap();
    for arguments in [
        &["serve", missing][..],
        &["serve", "mem:1M", "--chap-user", "u", "--chap-secret-file", &short],
        &["serve", "mem:1M", "--chap-user", "u", "--chap-secret-file", missing],
        &[
            "serve",
            "mem:1M",
            "--chap-user",
            "u",
            "--chap-secret-file",
            &good,
            "--mutual-chap-user",
            "t",
            "--mutual-chap-secret-file",
            &good,
        ],
        &["target", "--config", missing],
        &["check", missing],
        &["info", missing],
        &["discover", "iscsi://127.0.0.1:1"],
        &["read", "mem:1M", "--offset", "2M"],
    ] {
        let human = run(arguments);
        assert_exit(&human, 1);
        let stderr = String::from_utf8(human.stderr).unwrap();
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
        assert!(!stderr.contains("eleven") && !stderr.contains("twelve bytes and"), "{stderr}");
        let machine = run(&[arguments, &["--json"]].concat());
        assert_exit(&machine, 1);
        assert!(failure_document(arguments, &machine)["error"].is_string(), "{arguments:?}");
    }
    assert!(!std::path::Path::new(missing).exists(), "nothing was created");
}

/// Goal: errors use the terms of the command: commands that use a disk do not mention serving or
/// creating one, and options have their own names.
#[test]
fn failures_use_the_terms_of_the_command() {
    let scratch = Scratch::new("words");
    let served = scratch.file("disk.img", &[0; 4096]);
    let other = scratch.file("other.img", &[0; 4096]);
    let short = scratch.file("short", b"eleven byte\n");
    let missing = scratch.path().join("missing.img").to_str().unwrap().to_owned();
    let server = Server::start(&[&served]);
    for arguments in [["bench", &missing].as_slice(), &["info", &missing], &["read", &missing]]
        .into_iter()
        .chain([["write", &missing].as_slice(), &["copy", &missing, &other]])
    {
        let text = printed(&run(arguments));
        assert!(text.contains("it does not exist"), "{arguments:?}: {text}");
        assert!(text.contains("or a LUN: iscsi://HOST/TARGET/LUN"), "{arguments:?}: {text}");
        assert!(!text.contains("with a size"), "{arguments:?}: {text}");
    }
    for arguments in [["bench", &served].as_slice(), &["read", &served]] {
        let text = printed(&run(arguments));
        assert!(text.contains("which excludes other users"), "{arguments:?}: {text}");
        assert!(!text.contains("served"), "{arguments:?}: {}", text.replace(&served, ""));
    }
    let secret = ["--chap-user", "u", "--chap-secret-file", &short];
    for arguments in [&["serve", "mem:1M"], &["info", "iscsi://127.0.0.1:1/t/0"]] {
        let text = printed(&run(&[&arguments[..], &secret].concat()));
        assert!(text.contains("with --allow-short-secrets"), "{arguments:?}: {text}");
    }
    assert_exit(&server.stop().0, 0);
}

/// Goal: `read` and `write` of a local file take any bytes, also across blocks.
#[test]
fn local_files_are_read_and_written() {
    let scratch = Scratch::new("local");
    let before = crate::common::pattern(1, 3 << 20);
    let file = scratch.file("disk.img", &before);
    let data = crate::common::pattern(2, (1 << 20) + 4321);
    let written =
        crate::common::run_with_input(&["write", &file, "--offset", "1000", "--json"], &data);
    assert_exit(&written, 0);
    assert_eq!(json(&written)["written_bytes"], data.len());
    let mut after = before;
    after[1000..1000 + data.len()].copy_from_slice(&data);
    assert!(std::fs::read(&file).unwrap() == after, "data around the written range is unchanged");
    let read = run(&["read", &file, "--offset", "999", "--length", "70001"]);
    assert_exit(&read, 0);
    assert!(read.stdout == after[999..71_000]);
    let all = run(&["read", &format!("file:{file}")]);
    assert!(all.stdout == after);
    let short = crate::common::run_with_input(&["write", &file, "--length", "10"], b"123");
    assert_exit(&short, 1);
    let long = crate::common::run_with_input(&["write", &file, "--offset", "3145727"], b"12");
    assert_exit(&long, 1);
    assert!(printed(&long).contains("is longer than"), "{}", printed(&long));
}

/// Fault: a missing device under /dev, given with a size, became a regular file in /dev; without a
/// size, the hint suggested creating one.
#[test]
fn a_device_that_does_not_exist_is_an_error() {
    use std::path::Path;
    use std::time::{Duration, Instant};
    let scratch = Scratch::new("backing device");
    let device = format!("/dev/lunar-test-{}", std::process::id());
    let state = scratch.path().join("state").display().to_string();
    let (size, state) = (["--size", "1M"], ["--state", &state]);
    for options in [&[][..], &size, &[size, state].concat()] {
        let mut command = lunar(&["serve", "--listen", "127.0.0.1:0", &device]);
        command.args(options);
        // A server that starts by mistake runs until it is stopped.
        let mut child = command.spawn().unwrap();
        let begun = Instant::now();
        while child.try_wait().unwrap().is_none() && !Path::new(&device).exists() {
            assert!(begun.elapsed() < crate::common::TEST_TIMEOUT);
            std::thread::sleep(Duration::from_millis(10));
        }
        let was_made = std::fs::remove_file(&device).is_ok();
        let _ = child.kill();
        let output = child.wait_with_output().unwrap();
        let output_text = printed(&output);
        assert!(!was_made, "{options:?}: the file was created: {output_text}");
        assert_exit(&output, 1);
        let words = ["does not exist", "files are not created in /dev", "lsblk"];
        assert!(words.iter().all(|word| output_text.contains(word)), "{options:?}: {output_text}");
    }
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        let file = memory.join(format!("lunar-test-{}.img", std::process::id()));
        let server = Server::start(&[file.to_str().unwrap(), "--size", "1M"]);
        assert_exit(&server.stop().0, 0);
        std::fs::remove_file(&file).unwrap();
        std::fs::remove_dir_all(file.with_extension("img.lunar")).unwrap();
    }
}

/// Goal: texts help: one complaint for one mistake, and hints that can be followed.
/// Fault: seven complaints for one unclosed bracket; `--size 0 is no multiple`; the hint for an
/// IPv6 address put brackets around the port.
#[test]
fn texts_lead_to_the_mistake() {
    let scratch = Scratch::new("texts");
    let text = "[listen]\nportals = [\"127.0.0.1:0\"\n[[target]]\n\
                name = \"iqn.2026-11.org.example:a\"\n[[target.lun]]\n\
                id = 0\ndevice = \"mem:1M\"\n";
    let file = scratch.file("lunar.toml", text.as_bytes());
    let checked = run(&["check", &file]);
    assert_exit(&checked, 1);
    assert_eq!(printed(&checked).lines().count(), 1, "{}", printed(&checked));
    let disk = scratch.path().join("disk.img").display().to_string();
    let empty = printed(&run(&["serve", &disk, "--size", "0"]));
    assert!(empty.contains("--size 0: a disk has at least one block"), "{empty}");
    let bare = printed(&run(&["info", "iscsi://fe80::1:3260/iqn.2026-11.org.example:a/0"]));
    assert!(bare.contains("[ADDRESS]:PORT") && !bare.contains("[fe80::1:3260]"), "{bare}");
}
