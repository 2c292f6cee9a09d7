//! Configuration changes of a daemon, and undoing changes that fail half way.

use crate::rig::{NAME, Rig, SIZE, configuration, lun};
use lunar_control::FailureKind;
use lunar_control::config::lun::LunSettings;
use lunar_control::config::parse;
use lunar_control::daemon::{ApplyOptions, ConfigSource, LimitSettings, LunSelector};
use std::path::Path;
use std::sync::atomic::Ordering;

/// Goal: a unit that cannot be opened with its new settings is opened with the old ones; everything
/// that was opened, created and resized for the same change is undone.
#[test]
fn a_change_that_fails_half_way_is_undone() {
    let both = lun(0, "a.img", SIZE) + &lun(1, "b.img", SIZE);
    let rig = Rig::new("back", &both);
    let before = rig.uuids();
    rig.opener.no_direct.store(true, Ordering::Release);
    let wanted = lun(0, "a.img", "size = \"2MiB\"\nio = \"direct\"")
        + &lun(1, "b.img", "size = \"4MiB\"")
        + &lun(2, "c.img", SIZE);
    let failure = rig.apply(&wanted, ApplyOptions::default()).unwrap_err();
    assert_eq!(failure.what, "no direct I/O today");
    assert_eq!(rig.uuids(), before);
    assert_eq!((rig.size(0), rig.size(1)), (1 << 20, 1 << 20));
    assert!(!rig.directory.join("c.img").exists() && !rig.directory.join("c.img.lunar").exists());
    assert!(rig.daemon.drift().is_empty(), "{}", rig.daemon.drift());

    rig.opener.no_direct.store(false, Ordering::Release);
    let applied = rig.apply(&wanted, ApplyOptions::default()).unwrap();
    assert!(applied.made);
    assert_eq!(rig.uuids()[..2], before);
    assert_eq!((rig.size(0), rig.size(1), rig.size(2)), (2 << 20, 4 << 20, 1 << 20));
}

/// Goal: a disk shrinks only with permission, even if its configuration had no size so far.
#[test]
fn a_disk_shrinks_only_with_permission() {
    let rig = Rig::new("shrink", &lun(0, "a.img", "size = \"2MiB\""));
    rig.apply(&lun(0, "a.img", ""), ApplyOptions::default()).unwrap();
    assert_eq!(rig.size(0), 2 << 20, "without a size it keeps the one it has");
    let smaller = lun(0, "a.img", SIZE);
    let refused = rig.apply(&smaller, ApplyOptions::default()).unwrap_err();
    assert_eq!(refused.kind, FailureKind::Conflict);
    assert_eq!(rig.size(0), 2 << 20);
    rig.apply(&smaller, ApplyOptions { shrink: true, ..ApplyOptions::default() }).unwrap();
    assert_eq!(rig.size(0), 1 << 20);
    let memory = Rig::new("shrink-memory", &lun(0, "mem:2M", ""));
    let at = LunSelector { target: NAME, id: 0, device: None };
    assert!(memory.daemon.resize(&at, 1 << 20, false, &"a test").is_err());
    memory.daemon.resize(&at, 3 << 20, false, &"a test").unwrap();
    assert_eq!(memory.size(0), 3 << 20);
    assert!(
        memory.daemon.resize(&at, 1000, true, &"a test").is_err(),
        "not a multiple of the block size"
    );
}

/// Goal: the lines to paste, added to the configuration file, give the running configuration; the
/// running configuration as a whole is a valid file without any difference.
#[test]
fn lines_to_paste_are_a_configuration() {
    let rig = Rig::new("paste", &lun(0, "a.img", SIZE));
    let settings = LunSettings {
        device: rig.directory.join("b.img").display().to_string(),
        size: Some("1MiB".to_owned()),
        thin: Some(false),
        administer: Some(Vec::new()),
        ..LunSettings::default()
    };
    rig.daemon.add_lun(NAME, &settings, &"a test").unwrap();
    assert_eq!(rig.daemon.running().targets[0].luns[1].administer, Some(Vec::new()));
    let pasted = lun(0, "a.img", SIZE) + &rig.daemon.toml_of_drift();
    let path = rig.directory.join("lunar.toml");
    let source = ConfigSource::Text { text: configuration(&pasted), path: path.clone() };
    let dry = ApplyOptions { dry_run: true, ..ApplyOptions::default() };
    let differs = rig.daemon.apply(&source, dry, &"a test").unwrap().difference;
    assert!(differs.is_empty(), "{differs}");
    let source =
        ConfigSource::Text { text: rig.daemon.toml(), path: Path::new("/").join("x.toml") };
    let differs = rig.daemon.apply(&source, dry, &"a test").unwrap().difference;
    assert!(differs.is_empty(), "{differs}\n{}", rig.daemon.toml());
}

/// Goal: an invalid request is refused with the right kind of error, and changes nothing.
#[test]
fn invalid_requests_are_refused() {
    let rig = Rig::new("refused", &lun(0, "a.img", SIZE));
    let add = |device: &str, change: &dyn Fn(&mut LunSettings)| {
        let mut settings = LunSettings { device: device.to_owned(), ..LunSettings::default() };
        change(&mut settings);
        let refused = rig.daemon.add_lun(NAME, &settings, &"a test").unwrap_err();
        assert!(refused.hint.is_some(), "{refused}");
        refused.kind
    };
    let whole = rig.directory.join("a.img").display().to_string();
    assert_eq!(add("mem:1M", &|s| s.id = Some(0)), FailureKind::Usage);
    assert_eq!(add("mem:1M", &|s| s.cache = Some("fast".to_owned())), FailureKind::Usage);
    assert_eq!(add("b.img", &|_| {}), FailureKind::Usage);
    assert_eq!(add(&whole, &|s| s.read_only = Some(true)), FailureKind::Conflict);
    let nowhere = LunSelector { target: NAME, id: 9, device: None };
    let gone = rig.daemon.remove_lun(&nowhere, &"a test").unwrap_err();
    assert_eq!(gone.kind, FailureKind::NotFound);
    let target = rig.daemon.redirect("iqn.x", None, &"a test").unwrap_err();
    assert_eq!(target.kind, FailureKind::NotFound);
    assert_eq!(rig.daemon.log_out(77, &"a test").unwrap_err().kind, FailureKind::NotFound);
    assert!(rig.daemon.drift().is_empty());
}

/// Goal: a limit set at one LUN applies to the disk: all LUNs that show it have it, by whatever
/// name of the file, and the running configuration stays valid; setting it again does not move it.
#[test]
fn limits_apply_to_the_disk() {
    let own = "initiators = [\"iqn.2026-11.org.example:one\"]\n";
    let other = "initiators = [\"iqn.2026-11.org.example:two\"]\n";
    let size = format!("{own}{SIZE}");
    let rig = Rig::new("limits", &lun(0, "a.img", &size));
    std::fs::hard_link(rig.directory.join("a.img"), rig.directory.join("b.img")).unwrap();
    let both = lun(0, "a.img", &size) + &lun(0, "b.img", &format!("{other}{SIZE}"));
    rig.apply(&both, ApplyOptions::default()).unwrap();
    let device = rig.directory.join("b.img").display().to_string();
    let at = LunSelector { target: NAME, id: 0, device: Some(&device) };
    let iops = |iops| LimitSettings { iops, bandwidth: None };
    rig.daemon.limit(&at, &iops(Some(100)), &"a test").unwrap();
    let names = [Some("iqn.2026-11.org.example:one"), None];
    for name in names {
        rig.daemon.limit_initiator_at(&at, name, &iops(Some(50)), &"a test").unwrap();
    }
    let running = rig.daemon.running();
    let [one, two] = &running.targets[0].luns[..] else { panic!("two LUNs") };
    assert_eq!((one.limit.iops(), two.limit.iops()), (Some(100), Some(100)));
    assert_eq!(one.initiator_limits, two.initiator_limits);
    parse(&rig.daemon.toml(), Path::new("/x.toml")).unwrap();
    let before = rig.daemon.running().targets[0].luns[0].initiator_limits.clone();
    rig.daemon.limit_initiator_at(&at, names[0], &iops(Some(70)), &"a test").unwrap();
    let after = rig.daemon.running().targets[0].luns[0].initiator_limits.clone();
    assert_eq!(after[1], before[1]);
    assert_eq!((after[0].limit.iops(), after.len()), (Some(70), 2));
    for name in names {
        rig.daemon.limit_initiator_at(&at, name, &iops(None), &"a test").unwrap();
    }
    rig.daemon.limit(&at, &iops(None), &"a test").unwrap();
    assert!(rig.daemon.drift().is_empty(), "{}", rig.daemon.drift());
}
