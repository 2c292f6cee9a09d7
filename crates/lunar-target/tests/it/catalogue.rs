//! Tests of changes to the catalogue while sessions run.

use crate::common::{Rig, TARGET, block_on, target};
use lunar_block::MemoryDevice;
use lunar_target::{DiskUnit, DiskUnitOptions, LunOptions};
use lunar_testkit::raw::{RawClient, RawOutcome};
use std::net::IpAddr;
use std::sync::Arc;

const OTHER: &str = "iqn.2026-11.org.lunarsan.test:other";
const LUNS_CHANGED: u16 = 0x3f0e;
const NO_SUCH_UNIT: u16 = 0x2500;
const REPORT_LUNS: [u8; 12] = [0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];

fn new_unit(number: u128) -> Arc<DiskUnit> {
    let device = Arc::new(MemoryDevice::new(1 << 20, 512, 4096).unwrap());
    DiskUnit::open(DiskUnitOptions::new(uuid::Uuid::from_u128(number), device)).unwrap()
}

fn lun(id: u16, unit: &Arc<DiskUnit>) -> LunOptions {
    LunOptions::new(id, Arc::<DiskUnit>::clone(unit))
}

/// Returns the result of a command: `None` for GOOD, otherwise its sense code, including unit
/// attentions.
fn check(raw: &mut RawClient, lun: u8, cdb: &[u8]) -> Option<u16> {
    raw.lun = [0, lun, 0, 0, 0, 0, 0, 0];
    let command = raw.command(0xc0, cdb, 256);
    raw.send(&command).unwrap();
    let (status, data, sense) = raw.outcome().unwrap();
    let sense = sense.get(2..).unwrap_or_default().to_vec();
    (status != 0).then(|| RawOutcome { status, data, sense }.sense_codes().1)
}

/// Goal: a new LUN is visible at once and reported once by the existing units, and REPORT LUNS ends
/// the reports; a removed LUN is gone at once.
#[test]
fn luns_are_added_and_removed_in_a_session() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    assert_eq!(check(&mut raw, 5, &[0; 6]), Some(NO_SUCH_UNIT));
    let unit = new_unit(5);
    let replaced = rig.replace(|targets| targets[0].luns.push(lun(5, &unit)));
    assert_eq!((replaced.sessions_changed, replaced.sessions_ended), (1, 0));
    assert_eq!(check(&mut raw, 0, &[0; 6]), Some(LUNS_CHANGED));
    assert_eq!(check(&mut raw, 0, &[0; 6]), None);
    assert_eq!(check(&mut raw, 5, &[0; 6]), Some(0x2900), "a new unit begins with power on");
    assert_eq!(check(&mut raw, 5, &[0; 6]), None);
    assert_eq!(rig.server().sessions()[0].luns, [0, 5]);

    rig.replace(|targets| targets[0].luns.push(lun(6, &unit)));
    assert_eq!(check(&mut raw, 5, &REPORT_LUNS), None, "REPORT LUNS is answered all the same");
    assert_eq!(check(&mut raw, 0, &[0; 6]), None, "and reports it for all units");

    let replaced = rig.replace(|targets| targets[0].luns.truncate(1));
    assert_eq!(replaced.units_gone.len(), 1);
    assert!(replaced.failed_syncs.is_empty());
    assert_eq!(check(&mut raw, 5, &[0; 6]), Some(NO_SUCH_UNIT));
    assert_eq!(check(&mut raw, 0, &[0; 6]), Some(LUNS_CHANGED));
    drop(replaced);
    assert_eq!(Arc::strong_count(&unit), 1, "no session holds it any more");
    drop(raw);
    rig.stop_cleanly();
}

/// Goal: sessions that are not concerned by a change notice nothing: a change of another target, or
/// of a credential, redirect or list of names that still admits the initiator.
#[test]
fn unaffected_sessions_are_not_informed() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    let tsih = rig.server().sessions()[0].tsih;
    let replaced = rig.replace(|targets| {
        targets.push(target(OTHER, new_unit(6)));
        targets[0].alias = Some("new".to_owned());
        targets[0].access.networks = vec![lunar_target::Network::parse("127.0.0.0/8").unwrap()];
    });
    assert_eq!((replaced.sessions_changed, replaced.sessions_ended), (0, 0));
    assert_eq!(check(&mut raw, 0, &[0; 6]), None);
    assert_eq!(rig.server().sessions()[0].tsih, tsih);
    drop(raw);
    rig.stop_cleanly();
}

/// Goal: a session ends when its target is removed, redirected, or no longer accessible to it, and
/// its initiator cannot log in again; other sessions stay.
#[test]
fn sessions_that_lost_their_right_end() {
    type Change = fn(&mut lunar_target::TargetOptions);
    let changes: [Change; 3] = [
        |target| target.name = "iqn.2026-11.org.lunarsan.test:renamed".to_owned(),
        |target| target.redirect = Some("192.0.2.9:3260".to_owned()),
        |target| target.access.initiators = vec!["iqn.2026-11.org.lunarsan:nobody".to_owned()],
    ];
    for change in changes {
        let unit = new_unit(6);
        let rig = Rig::with(|options| options.targets.push(target(OTHER, unit)));
        let concerned = rig.log_in(1);
        let mut other = RawClient::log_in_as(&rig.address, OTHER, 2).unwrap();
        assert_eq!(check(&mut other, 0, &[0; 6]), Some(0x2900));
        let replaced = rig.replace(|targets| change(&mut targets[0]));
        assert_eq!((replaced.sessions_changed, replaced.sessions_ended), (0, 1));
        assert!(RawClient::log_in_as(&rig.address, TARGET, 1).is_err());
        assert_eq!(check(&mut other, 0, &[0; 6]), None);
        assert_eq!(rig.server().sessions().len(), 1);
        drop((concerned, other));
        rig.stop_cleanly();
    }
}

/// Goal: one session is logged out on demand; the list of sessions contains it before.
#[test]
fn a_session_is_logged_out() {
    let rig = Rig::new();
    let (_raw, mut other) = (rig.log_in(1), rig.log_in(2));
    let sessions = rig.server().sessions();
    assert_eq!(sessions.len(), 2);
    let one = &sessions[0];
    assert_eq!(one.target_name.as_deref(), Some(TARGET));
    assert_eq!((one.connections.len(), one.commands, &*one.luns), (1, 0, &[0][..]));
    assert_eq!(one.connections[0].peer.ip(), IpAddr::from([127, 0, 0, 1]));
    assert!(block_on(rig.server().log_out(one.tsih)));
    assert!(!block_on(rig.server().log_out(one.tsih)), "it is gone");
    assert_eq!(check(&mut other, 0, &[0; 6]), None);
    assert_eq!(rig.server().sessions().len(), 1);
    drop(other);
    rig.stop_cleanly();
}

/// Goal: a contradictory catalogue changes nothing.
#[test]
fn a_contradictory_catalogue_changes_nothing() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    let mut catalogue = rig.server().catalogue();
    catalogue.targets.push(Arc::new(target(TARGET, new_unit(6))));
    let refused = block_on(rig.server().replace(catalogue)).unwrap_err();
    assert!(refused.to_string().contains("two targets are named"), "{refused}");
    assert_eq!(check(&mut raw, 0, &[0; 6]), None);
    assert_eq!(rig.server().catalogue().targets.len(), 1);
    drop(raw);
    rig.stop_cleanly();
}
