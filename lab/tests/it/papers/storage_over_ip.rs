//! `lab papers storage-over-ip` with real peers: qemu-io over libiscsi and libnfs, and nfs-ganesha.

use super::{report, run, section};
use anyhow::{Result, ensure};
use lunar_lab::system::scratch::Scratch;
use serde_json::Value;

const RECORDS: &[u64] = &[256 << 10, 16 << 20];

/// Figures of a short run, with additional arguments and variables of the environment.
fn figures(scratch: &Scratch, environment: &[&str], arguments: &[&str]) -> Result<Value> {
    let directory = scratch.folder().display().to_string();
    let short = ["--size", "32M", "--record-size", "256K,16M", "--rounds", "2"];
    let first = ["storage-over-ip", "--directory", &directory];
    let (document, _) = report(scratch, environment, &[&first[..], &short, arguments].concat())?;
    nothing_is_left(&directory)?;
    Ok(document)
}

/// Checks that no file is left in the directory, and no process with the directory in its
/// arguments.
fn nothing_is_left(directory: &str) -> Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        let is_ours = name.to_string_lossy().starts_with("lunar-");
        ensure!(!is_ours, "{} is left", name.to_string_lossy());
    }
    for entry in std::fs::read_dir("/proc")? {
        let command = std::fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        ensure!(!command.contains(directory), "the process still runs: {command}");
    }
    Ok(())
}

/// Checks that the section has figures of exactly these locations, for each record size and direction.
fn has_locations(document: &Value, key: &str, locations: &[&str]) {
    let rows = section(document, key)["rows"].as_array().unwrap();
    assert_eq!(rows.len(), locations.len() * RECORDS.len() * 2, "{key}: {rows:?}");
    for location in locations {
        for record in RECORDS {
            for direction in ["read", "write"] {
                let row = rows.iter().find(|row| {
                    row["location"] == *location
                        && row["record_bytes"] == *record
                        && row["direction"] == direction
                });
                has_figures(row.unwrap_or_else(|| panic!("no {location} {record} {direction}")));
            }
        }
    }
}

fn has_figures(row: &Value) {
    let figure = |path: &str| row.pointer(path).and_then(Value::as_f64).unwrap();
    let median = figure("/bytes_per_second/median");
    assert!(median > 0.0, "{row}");
    assert!(figure("/bytes_per_second/least") <= median, "{row}");
    assert!((figure("/kb_per_second") * 1024.0 - median).abs() < 1.0, "{row}");
    assert!(figure("/p50_us") > 0.0 && figure("/p50_us") <= figure("/p99_us"), "{row}");
    match row["location"] == "local" {
        true => assert_eq!(row["percent_of_local"], Value::Null, "{row}"),
        false => assert!(figure("/percent_of_local/median") > 0.0, "{row}"),
    }
}

/// Goal: all locations are measured by the same client and by our own, each record size in both
/// directions, beside the paper's figures; the page is written; files, servers and networks are
/// removed.
#[test]
fn all_access_methods_are_measured() -> Result<()> {
    let scratch = Scratch::new("storage-over-ip")?;
    let page = scratch.path("report.html");
    let document = figures(&scratch, &[], &["--html", &page])?;
    assert_eq!(document["paper"], "storage-over-ip");
    let locations: &[&str] = match rustix::process::geteuid().is_root() {
        true => &["local", "iSCSI", "NFS"],
        false => &["local", "iSCSI"],
    };
    let warnings = section(&document, "qemu")["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 3 - locations.len(), "{warnings:?}");
    has_locations(&document, "qemu", locations);
    has_locations(&document, "lunar", &["local", "iSCSI"]);
    // The folder for temporary files may be on a file system without direct I/O.
    if section(&document, "direct")["warnings"].as_array().unwrap().is_empty() {
        has_locations(&document, "direct", &["local", "iSCSI"]);
    }
    let paper = section(&document, "paper");
    let rates = paper["rows"].as_array().unwrap();
    assert_eq!(rates.len(), 2 * 2 * 3);
    let of = |name: &str| rates.iter().find(|row| row["row"] == name).unwrap();
    assert_eq!(of("iSCSI read (paper)")["kb_256"], 14473.0);
    assert_eq!(of("NFS write (paper)")["kb_16384"], 16152.0);
    assert!(of("iSCSI write (here)")["kb_16384"].as_f64().unwrap() > 0.0);
    assert_eq!(paper["percent_of_local"].as_array().unwrap().len(), 2 * 2 * 2);
    let page = std::fs::read_to_string(page)?;
    assert!(page.contains("Storage over IP"));
    Ok(())
}

/// Goal: without qemu-io and an NFS server the report says what to install, and has the rest.
/// Method: a search path with nothing but the program that starts servers.
#[test]
fn missing_programs_are_named() -> Result<()> {
    let scratch = Scratch::new("storage-over-ip")?;
    let folder = scratch.path("programs");
    std::fs::create_dir(&folder)?;
    std::os::unix::fs::symlink("/usr/bin/setpriv", format!("{folder}/setpriv"))?;
    let document = figures(&scratch, &[&format!("PATH={folder}")], &[])?;
    let warnings = section(&document, "qemu")["warnings"].to_string();
    for part in ["no NFS figures", "no qemu-io figures for local", "apt-get install qemu"] {
        assert!(warnings.contains(part), "{warnings}");
    }
    has_locations(&document, "lunar", &["local", "iSCSI"]);
    assert_eq!(section(&document, "paper")["rows"].as_array().unwrap().len(), 12);
    Ok(())
}

/// Goal: a directory that is not on NFS is not measured as NFS.
#[test]
fn a_directory_that_is_no_nfs_is_refused() -> Result<()> {
    let scratch = Scratch::new("no-nfs")?;
    let directory = scratch.folder().display().to_string();
    for wrong in [directory.as_str(), "/nowhere"] {
        let asked = ["storage-over-ip", "--size", "16M", "--nfs-directory", wrong];
        let finished = run(&[], &asked)?;
        assert_eq!(finished.end.code(), Some(1), "{}", finished.outputs());
        let text = finished.stderr;
        assert!(text.contains(wrong) && text.contains("a mounted NFS"), "{text}");
    }
    Ok(())
}
