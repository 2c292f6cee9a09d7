//! What a change may do to disks that are in use, and what it leaves alone.
#![allow(clippy::unwrap_used)] // a test may unwrap

mod rig;

use block::{BlockDevice, Error, ErrorKind};
use control::FailureKind;
use control::config::parse;
use control::daemon::{ApplyOptions, LimitSettings, LunAt};
use initiator::{RemoteDisk, SessionOptions};
use rig::{NAME, Rig, SIZE, block_on, lun, write};
use std::path::Path;
use std::sync::atomic::Ordering;

const MIB: u64 = 1 << 20;
const SHRINK: ApplyOptions = ApplyOptions { dry_run: false, shrink: true };

fn sized(id: u16, device: &str, mib: u64) -> String {
    lun(id, device, &format!("size = \"{mib}MiB\""))
}

/// Goal: blocks are given up after everything that can fail: a change that fails has given up none.
#[test]
fn a_change_that_fails_has_given_up_no_block() {
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

/// Goal: initiators use new blocks as soon as they are told of them; a change that fails after that
/// does not take them away, and says that the disk stays as large.
#[test]
fn room_that_was_given_is_never_taken_back() {
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

/// Goal: a disk gets smaller only with leave, also where another LUN is to show it than before; and
/// what becomes of its size is told.
#[test]
fn a_disk_that_moves_does_not_shrink_unasked() {
    let rig = Rig::new("moved", &sized(0, "a.img", 1));
    let at = LunAt { target: NAME, id: 0, device: None };
    rig.daemon.resize(&at, 2 * MIB, false, &"a test").unwrap();
    rig.write("a.img", 4000, 7);
    let renumbered = sized(1, "a.img", 1);
    let told = rig.differs(&renumbered).join("\n");
    assert!(told.contains("\"2MiB\" -> \"1MiB\" (what lies beyond is lost)"), "{told}");
    let refused = rig.apply(&renumbered, ApplyOptions::default()).unwrap_err();
    assert_eq!(refused.kind, FailureKind::Conflict, "{refused}");
    let mut renamed = rig.source(&sized(0, "a.img", 1));
    let control::daemon::Source::Text { text, .. } = &mut renamed else { panic!() };
    *text = text.replace(NAME, "iqn.2026-11.org.example:other");
    let refused = rig.daemon.apply(&renamed, ApplyOptions::default(), &"a test").unwrap_err();
    assert_eq!(refused.kind, FailureKind::Conflict, "{refused}");
    assert_eq!((rig.size(0), rig.read("a.img", 4000)), (2 * MIB, 7));

    let moved = sized(1, "a.img", 3);
    let told = rig.differs(&moved).join("\n");
    assert!(told.contains("\"2MiB\" -> \"3MiB\" (initiators are told)"), "{told}");
    rig.apply(&moved, ApplyOptions::default()).unwrap();
    rig.apply(&renumbered, SHRINK).unwrap();
    assert_eq!(rig.size(0), MIB);
}

/// Goal: two disks that change places are told as that, and neither gets the other's size unasked.
#[test]
fn disks_that_change_places_keep_their_sizes() {
    let rig = Rig::new("places", &(sized(0, "a.img", 1) + &sized(1, "b.img", 2)));
    rig.write("b.img", 4000, 7);
    let taken = sized(0, "b.img", 1) + &sized(1, "a.img", 2);
    let told = rig.differs(&taken).join("\n");
    assert!(told.contains("\"2MiB\" -> \"1MiB\" (what lies beyond is lost)"), "{told}");
    let refused = rig.apply(&taken, ApplyOptions::default()).unwrap_err();
    assert_eq!(refused.kind, FailureKind::Conflict, "{refused}");
    assert_eq!((rig.size(1), rig.read("b.img", 4000)), (2 * MIB, 7));

    let exchanged = sized(0, "b.img", 2) + &sized(1, "a.img", 1);
    let told = rig.differs(&exchanged);
    assert!(told.len() == 2 && told.iter().all(|line| line.contains("device: ")), "{told:?}");
    assert!(told.iter().all(|line| !line.contains('(')), "{told:?}");
    let uuids = rig.uuids();
    rig.apply(&exchanged, ApplyOptions::default()).unwrap();
    assert_eq!(rig.uuids(), [uuids[1], uuids[0]]);
    assert_eq!((rig.size(0), rig.size(1), rig.read("b.img", 4000)), (2 * MIB, MIB, 7));
}

/// What an initiator is told of the size.
fn told_size(rig: &Rig) -> u64 {
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

/// Goal: a disk whose new size could not be synced has that size for everybody, and no later
/// change gives it another one.
#[test]
fn a_size_that_is_not_synced_is_one_size() {
    let rig = Rig::new("unsynced", &lun(0, "a.img", SIZE));
    rig.apply(&lun(0, "a.img", ""), ApplyOptions::default()).unwrap();
    let at = LunAt { target: NAME, id: 0, device: None };
    let fails = || {
        let fail =
            |_: &rig::Resized<'_>| Err(Error::new(ErrorKind::Medium, "a.img", "no sync today"));
        *rig.opener.on_resize.lock().unwrap() = Some(Box::new(fail));
    };
    let limit = |iops| LimitSettings { iops: Some(iops), bandwidth: None };
    for (mib, iops) in [(3, 100), (2, 200)] {
        fails();
        let failed = rig.daemon.resize(&at, mib * MIB, true, &"a test").unwrap_err();
        assert!(failed.what.contains("no sync today"), "{failed}");
        assert!(failed.what.contains(&format!("new size, {} bytes", mib * MIB)), "{failed}");
        *rig.opener.on_resize.lock().unwrap() = None;
        let told = rig.daemon.toml();
        assert!(told.contains(&format!("size = \"{mib}MiB\"")), "{told}");
        rig.daemon.limit(&at, &limit(iops), &"a test").unwrap();
        assert_eq!((rig.size(0), told_size(&rig)), (mib * MIB, mib * MIB));
    }
}

/// Goal: memory that got another size is told with that size, in lines that are a configuration.
#[test]
fn resized_memory_is_told_once() {
    let rig = Rig::new("memory", &lun(0, "mem:1M", ""));
    let at = LunAt { target: NAME, id: 0, device: None };
    for mib in [3, 2] {
        rig.daemon.resize(&at, mib * MIB, true, &"a test").unwrap();
        let told = rig.daemon.toml();
        parse(&told, Path::new("/x.toml")).unwrap();
        assert!(told.contains(&format!("device = \"mem:{mib}MiB\"")), "{told}");
        assert!(!told.contains("size = "), "{told}");
    }
}
