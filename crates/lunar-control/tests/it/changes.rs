//! Effects of changes on disks that are in use.

use crate::rig::{NAME, Rig, SIZE, block_on, configuration, lun, write};
use lunar_block::{BlockDevice, Error, ErrorKind};
use lunar_control::FailureKind;
use lunar_control::config::parse;
use lunar_control::daemon::{ApplyOptions, ConfigSource, LimitSettings, LunSelector};
use lunar_initiator::{RemoteDisk, SessionOptions};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};

const MIB: u64 = 1 << 20;
const SHRINK: ApplyOptions = ApplyOptions { dry_run: false, shrink: true };

fn sized(id: u16, device: &str, mib: u64) -> String {
    lun(id, device, &format!("size = \"{mib}MiB\""))
}

/// Goal: blocks are released after everything that can fail, so that a failed change has released
/// none.
#[test]
fn a_failed_change_removes_no_blocks() {
    let rig = Rig::new("tail", &(sized(0, "a.img", 2) + &sized(1, "b.img", 1)));
    rig.write("a.img", 4000, 7);
    rig.opener.no_direct.store(true, Ordering::Release);
    let wanted = sized(0, "a.img", 1) + &lun(1, "b.img", &format!("{SIZE}\nio = \"direct\""));
    assert_eq!(rig.apply(&wanted, SHRINK).unwrap_err().what, "no direct I/O today");
    assert_eq!((rig.size(0), rig.read("a.img", 4000)), (2 * MIB, 7));
    assert!(rig.daemon.drift().is_empty(), "{}", rig.daemon.drift());
    rig.opener.no_direct.store(false, Ordering::Release);
    rig.apply(&wanted, SHRINK).unwrap();
    assert_eq!(rig.size(0), MIB);
}

/// Goal: initiators use new blocks as soon as they are notified; a change that fails afterwards
/// does not remove them, and its error says that the disk keeps its new size.
#[test]
fn announced_blocks_are_never_removed() {
    let rig = Rig::new("given", &(sized(0, "a.img", 1) + &sized(1, "b.img", 1)));
    *rig.opener.on_resize.lock().unwrap() = Some(Box::new(|resized| {
        if resized.name == "a.img" {
            return Ok(());
        }
        write(&resized.opener.disk("a.img"), 4000, 7);
        Err(Error::new(ErrorKind::Medium, "b.img", "no sync today"))
    }));
    let wanted = sized(0, "a.img", 2) + &sized(1, "b.img", 2);
    let failure = rig.apply(&wanted, ApplyOptions::default()).unwrap_err();
    assert!(failure.what.contains("no sync today"), "{failure}");
    assert!(failure.what.contains("a.img keeps its new size, 2097152 bytes"), "{failure}");
    assert_eq!((rig.size(0), rig.read("a.img", 4000)), (2 * MIB, 7));
    let drift = rig.daemon.drift().to_string();
    assert!(drift.contains("LUN 0 size: \"1MiB\" -> \"2MiB\""), "{drift}");
    *rig.opener.on_resize.lock().unwrap() = None;
    rig.apply(&wanted, ApplyOptions::default()).unwrap();
    assert_eq!((rig.size(0), rig.size(1), rig.read("a.img", 4000)), (2 * MIB, 2 * MIB, 7));
}

/// Goal: a disk shrinks only with permission, even if another LUN shows it from now on; the change
/// of its size is reported.
#[test]
fn a_moved_disk_shrinks_only_with_permission() {
    let rig = Rig::new("moved", &sized(0, "a.img", 1));
    let at = LunSelector { target: NAME, id: 0, device: None };
    rig.daemon.resize(&at, 2 * MIB, false, &"a test").unwrap();
    rig.write("a.img", 4000, 7);
    let renumbered = sized(1, "a.img", 1);
    let difference = rig.differences(&renumbered).join("\n");
    assert!(
        difference.contains("\"2MiB\" -> \"1MiB\" (the data beyond the new end is lost)"),
        "{difference}"
    );
    let refused = rig.apply(&renumbered, ApplyOptions::default()).unwrap_err();
    assert_eq!(refused.kind, FailureKind::Conflict, "{refused}");
    let mut renamed = rig.source(&sized(0, "a.img", 1));
    let ConfigSource::Text { text, .. } = &mut renamed else { panic!() };
    *text = text.replace(NAME, "iqn.2026-11.org.example:other");
    let refused = rig.daemon.apply(&renamed, ApplyOptions::default(), &"a test").unwrap_err();
    assert_eq!(refused.kind, FailureKind::Conflict, "{refused}");
    assert_eq!((rig.size(0), rig.read("a.img", 4000)), (2 * MIB, 7));

    let moved = sized(1, "a.img", 3);
    let difference = rig.differences(&moved).join("\n");
    assert!(difference.contains("\"2MiB\" -> \"3MiB\" (initiators are notified)"), "{difference}");
    rig.apply(&moved, ApplyOptions::default()).unwrap();
    rig.apply(&renumbered, SHRINK).unwrap();
    assert_eq!(rig.size(0), MIB);
}

/// Goal: two disks that swap their LUNs are reported as moved, and neither gets the other's size
/// without permission.
#[test]
fn disks_that_swap_luns_keep_their_sizes() {
    let rig = Rig::new("places", &(sized(0, "a.img", 1) + &sized(1, "b.img", 2)));
    rig.write("b.img", 4000, 7);
    let taken = sized(0, "b.img", 1) + &sized(1, "a.img", 2);
    let difference = rig.differences(&taken).join("\n");
    assert!(
        difference.contains("\"2MiB\" -> \"1MiB\" (the data beyond the new end is lost)"),
        "{difference}"
    );
    let refused = rig.apply(&taken, ApplyOptions::default()).unwrap_err();
    assert_eq!(refused.kind, FailureKind::Conflict, "{refused}");
    assert_eq!((rig.size(1), rig.read("b.img", 4000)), (2 * MIB, 7));

    let exchanged = sized(0, "b.img", 2) + &sized(1, "a.img", 1);
    let difference = rig.differences(&exchanged);
    assert!(
        difference.len() == 2 && difference.iter().all(|line| line.contains("device: ")),
        "{difference:?}"
    );
    assert!(
        difference.iter().all(|line| line.contains("(the LUN becomes a different disk: ")),
        "{difference:?}"
    );
    assert!(difference.iter().all(|line| !line.contains("lost")), "{difference:?}");
    let uuids = rig.uuids();
    rig.apply(&exchanged, ApplyOptions::default()).unwrap();
    assert_eq!(rig.uuids(), [uuids[1], uuids[0]]);
    assert_eq!((rig.size(0), rig.size(1), rig.read("b.img", 4000)), (2 * MIB, MIB, 7));
}

/// Returns the size that an initiator reads.
fn size_seen_by_initiator(rig: &Rig) -> u64 {
    let url = format!("iscsi://{}/{NAME}/0", rig.daemon.server().addresses()[0]);
    let options = SessionOptions::new("iqn.2026-11.org.example:initiator");
    let url = url.parse().unwrap();
    block_on(async {
        let disk = RemoteDisk::connect(&url, &options).await.unwrap();
        let size = disk.geometry().size_bytes();
        disk.unit().initiator().log_out().await.unwrap();
        size
    })
}

/// Goal: a disk whose new size could not be synced has that size for everybody, and no later change
/// gives it another size.
#[test]
fn an_unsynced_size_is_the_same_for_all_users() {
    let rig = Rig::new("unsynced", &lun(0, "a.img", SIZE));
    rig.apply(&lun(0, "a.img", ""), ApplyOptions::default()).unwrap();
    let at = LunSelector { target: NAME, id: 0, device: None };
    let fails = || {
        let fail = |_: &crate::rig::Resized<'_>| {
            Err(Error::new(ErrorKind::Medium, "a.img", "no sync today"))
        };
        *rig.opener.on_resize.lock().unwrap() = Some(Box::new(fail));
    };
    let limit = |iops| LimitSettings { iops: Some(iops), bandwidth: None };
    for (mib, iops) in [(3, 100), (2, 200)] {
        fails();
        let failed = rig.daemon.resize(&at, mib * MIB, true, &"a test").unwrap_err();
        assert!(failed.what.contains("no sync today"), "{failed}");
        assert!(failed.what.contains(&format!("new size, {} bytes", mib * MIB)), "{failed}");
        *rig.opener.on_resize.lock().unwrap() = None;
        let toml = rig.daemon.toml();
        assert!(toml.contains(&format!("size = \"{mib}MiB\"")), "{toml}");
        rig.daemon.limit(&at, &limit(iops), &"a test").unwrap();
        assert_eq!((rig.size(0), size_seen_by_initiator(&rig)), (mib * MIB, mib * MIB));
    }
}

/// Goal: resized memory is reported with its new size, in lines that are a valid configuration.
#[test]
fn a_resized_memory_disk_is_printed_as_valid_toml() {
    let rig = Rig::new("memory", &lun(0, "mem:1M", ""));
    let at = LunSelector { target: NAME, id: 0, device: None };
    for mib in [3, 2] {
        rig.daemon.resize(&at, mib * MIB, true, &"a test").unwrap();
        let toml = rig.daemon.toml();
        parse(&toml, Path::new("/x.toml")).unwrap();
        assert!(toml.contains(&format!("device = \"mem:{mib}MiB\"")), "{toml}");
        assert!(!toml.contains("size = "), "{toml}");
    }
}

/// A target over memory, with these lines, behind a portal that everybody can reach.
fn open_to_all(lines: &str, portal: &str) -> String {
    format!("[listen]\nportals = [\"{portal}:0\"]\n[[target]]\nname = \"{NAME}\"\n{lines}")
}

/// Goal: a target that others can reach keeps its access restrictions. The check uses the open
/// portals, not those of the file: neither a file nor a change of the running server opens the
/// target.
#[test]
fn a_target_stays_locked_while_its_portal_is_open() {
    let networks = "networks = [\"192.0.2.0/24\"]\n";
    let by_lun = lun(0, "mem:1M", networks);
    let rig = Rig::with_text("locked", &open_to_all(&by_lun, "0.0.0.0"));
    let source = |text: String| ConfigSource::Text { text, path: rig.directory.join("other.toml") };
    let unlocked = source(open_to_all(&lun(0, "mem:1M", ""), "127.0.0.1"));
    for dry_run in [true, false] {
        let options = ApplyOptions { dry_run, ..ApplyOptions::default() };
        let refused = rig.daemon.apply(&unlocked, options, &"a test").unwrap_err();
        assert_eq!(refused.kind, FailureKind::Conflict);
        assert!(refused.what.contains("for every host that can reach 0.0.0.0"), "{refused}");
    }
    let at = LunSelector { target: NAME, id: 0, device: None };
    let emptied = rig.daemon.remove_lun(&at, &"a test").unwrap_err();
    assert_eq!(emptied.kind, FailureKind::Conflict, "{emptied}");
    let sent = rig.daemon.redirect(NAME, Some("192.0.2.8:3260"), &"a test").unwrap_err();
    assert_eq!(sent.kind, FailureKind::Conflict, "{sent}");
    let locked = source(open_to_all(&format!("{networks}{by_lun}"), "127.0.0.1"));
    rig.daemon.apply(&locked, ApplyOptions::default(), &"a test").unwrap();
    rig.daemon.remove_lun(&at, &"a test").unwrap();
}

/// Goal: of two waiting changes, the later one applies the newer file.
#[test]
fn a_file_is_read_when_its_change_starts() {
    let rig = Rig::new("turn", &sized(0, "a.img", 1));
    let (reached, go) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (has_reached, may_go) = (Arc::clone(&reached), Arc::clone(&go));
    *rig.opener.on_resize.lock().unwrap() = Some(Box::new(move |_| {
        has_reached.wait();
        may_go.wait();
        Ok(())
    }));
    let at = LunSelector { target: NAME, id: 0, device: None };
    let file = rig.directory.join("lunar.toml");
    let alias = |name: &str| {
        let text = configuration(&sized(0, "a.img", 2));
        let alias = format!("alias = \"{name}\"\n[[target.lun]]");
        std::fs::write(&file, text.replace("[[target.lun]]", &alias)).unwrap();
    };
    alias("old");
    std::thread::scope(|scope| {
        scope.spawn(|| rig.daemon.resize(&at, 2 * MIB, false, &"a test").unwrap());
        reached.wait();
        let options = ApplyOptions::default();
        let daemon = &rig.daemon;
        let waits = scope.spawn(move || {
            daemon.apply(&ConfigSource::OwnFile, options, &"a test").unwrap().difference.to_string()
        });
        // The change waits for the other one; otherwise it has read the old file by now.
        std::thread::sleep(std::time::Duration::from_millis(300));
        alias("new");
        go.wait();
        let difference = waits.join().unwrap();
        assert!(difference.contains("\"new\""), "{difference}");
    });
}

/// Goal: a served file that loses its name does not affect changes to other LUNs; no file is
/// created in its place, and a whole configuration reports the problem.
#[test]
fn a_file_that_is_served_may_lose_its_name() {
    let two = sized(0, "a.img", 1) + &lun(1, "mem:1M", "");
    let rig = Rig::new("names", &two);
    rig.write("a.img", 0, 7);
    let path = |name: &str| rig.directory.join(name);
    for name in ["a.img", "a.img.lunar"] {
        std::fs::rename(path(name), path(&format!("{name}.moved"))).unwrap();
    }
    let uuids = rig.uuids();
    let memory = LunSelector { target: NAME, id: 1, device: None };
    let limit = LimitSettings { iops: Some(100), bandwidth: None };
    rig.daemon.limit(&memory, &limit, &"a test").unwrap();
    rig.daemon.resize(&memory, 2 * MIB, false, &"a test").unwrap();
    assert!(!path("a.img").exists(), "nothing is made in its place");
    assert_eq!((rig.uuids(), rig.read("a.img", 0)), (uuids.clone(), 7));
    let refused = rig.apply(&two, ApplyOptions::default()).unwrap_err();
    assert!(refused.what.contains("a.img was renamed or deleted while it is served"), "{refused}");
    assert!(!path("a.img").exists());
    assert_eq!(rig.uuids(), uuids);
}

/// Goal: a file that replaces a served one under its name is reported and served by the next apply
/// only; a change of one LUN leaves the other as it is.
#[test]
fn a_file_that_was_replaced_is_opened_by_an_apply() {
    let one = sized(0, "a.img", 1);
    let rig = Rig::new("replaced", &one);
    rig.write("a.img", 0, 7);
    let path = |name: &str| rig.directory.join(name);
    std::fs::write(path("new.img"), [9; 1 << 20]).unwrap();
    std::fs::rename(path("new.img"), path("a.img")).unwrap();
    rig.daemon.redirect(NAME, None, &"a test").unwrap();
    assert_eq!(rig.read("a.img", 0), 7);
    let difference = rig.differences(&one);
    assert!(
        difference.len() == 1 && difference[0].contains("is now a different file"),
        "{difference:?}"
    );
    let uuids = rig.uuids();
    rig.apply(&one, ApplyOptions::default()).unwrap();
    assert_eq!((rig.read("a.img", 0), rig.uuids()), (9, uuids));
    assert!(rig.differences(&one).is_empty());
}

/// Goal: a missing disk is not created again under its old identity and reservations, wherever
/// these are stored: its file system may not be mounted.
#[test]
fn a_missing_disk_is_not_created_under_an_old_identity() {
    let uuid = "uuid = \"6f0c2b0e-2f0f-4d3c-9d43-0c9a5a1b2c3d\"\nsize = \"1MiB\"";
    for (name, state, more) in [
        ("beside", "", SIZE),
        ("common", "state = \"state\"\n", SIZE),
        ("uuid", "state = \"state\"\n", uuid),
    ] {
        let text = format!("{state}{}", configuration(&lun(0, "a.img", more)));
        let rig = Rig::with_text(&format!("missing-{name}"), &text);
        let file = rig.directory.join("a.img");
        let apply = |text: &str| {
            let source =
                ConfigSource::Text { text: text.to_owned(), path: rig.directory.join("x.toml") };
            rig.daemon.apply(&source, ApplyOptions::default(), &"a test")
        };
        let uuids = rig.uuids();
        let nothing = format!("{state}{}", configuration(&lun(0, "mem:1M", "")));
        apply(&nothing).unwrap();
        std::fs::rename(&file, rig.directory.join("aside")).unwrap();
        for empty in [false, true] {
            if empty {
                std::fs::write(&file, "").unwrap();
            }
            let refused = apply(&text).unwrap_err();
            assert!(
                refused.what.contains("contains the identity of an earlier disk"),
                "{name}: {refused}"
            );
            assert!(refused.hint.unwrap().contains("mount or restore"), "{name}");
            assert_eq!(file.metadata().map(|file| file.len()).ok(), empty.then_some(0), "{name}");
        }
        std::fs::rename(rig.directory.join("aside"), &file).unwrap();
        apply(&text).unwrap();
        assert_eq!(rig.uuids(), uuids, "{name}");
    }
}

/// Goal: a change that panics does not interrupt service; later changes, which could not rely on
/// the list of open units, are refused.
#[test]
fn a_panic_in_a_change_does_not_affect_served_disks() {
    let rig = Rig::new("panic", &sized(0, "a.img", 1));
    *rig.opener.on_resize.lock().unwrap() = Some(Box::new(|_| panic!("as a test wants it")));
    let at = LunSelector { target: NAME, id: 0, device: None };
    let lost = std::thread::scope(|scope| {
        scope.spawn(|| rig.daemon.resize(&at, 2 * MIB, false, &"a test")).join()
    });
    assert!(lost.is_err());
    let refused = rig.daemon.redirect(NAME, None, &"a test").unwrap_err();
    assert!(refused.hint.unwrap().contains("restart"));
    assert_eq!(rig.uuids().len(), 1);
    assert!(size_seen_by_initiator(&rig) >= MIB);
}
