//! Tests of several portals in portal groups: each group is one SCSI target port. RFC 7143 §4.4.1.

use crate::common::*;
use lunar_target::Portal;
use lunar_testkit::raw::RawClient;

/// Tags of the rig's portals: two of group 1 (the target's own), one of group 300.
const TAGS: [Option<u16>; 3] = [None, Some(300), Some(1)];

fn rig() -> Rig {
    Rig::with(|options| {
        options.portals = TAGS
            .map(|portal_group| Portal {
                portal_group,
                ..Portal::new("127.0.0.1:0".parse().unwrap())
            })
            .to_vec();
    })
}

/// Starts a new session at this portal; returns it with its TSIH.
fn session_at(rig: &Rig, portal: usize, number: u32) -> (RawClient, u16) {
    let mut raw = RawClient::connect(&rig.addresses[portal]).unwrap();
    let (status, tsih) = join(&mut raw, number, 0, 0);
    assert_eq!(status, 0);
    (raw, tsih)
}

/// Returns the device identification page (VPD 83h) without its header of four bytes.
fn designators(raw: &mut RawClient) -> Vec<u8> {
    let (status, data) = raw.execute(&[0x12, 1, 0x83, 1, 0, 0], 256).unwrap();
    assert_eq!(status, 0);
    data[4..].to_vec()
}

/// Returns the designators of this type that are associated with the target port (01b). SPC-4
/// §7.8.5.
fn of_port(page: &[u8], kind: u8) -> Vec<Vec<u8>> {
    let (mut rest, mut found) = (page, Vec::new());
    while let [_, second, _, length, after @ ..] = rest {
        let (designator, next) = after.split_at(usize::from(*length));
        if second & 0x3f == 0x10 | kind {
            found.push(designator.to_vec());
        }
        rest = next;
    }
    found
}

/// Goal: login, discovery and the unit all report the group of the portal that was used; the
/// relative target port identifier is the tag and depends on neither order nor number of portals.
#[test]
fn all_sources_report_the_reached_portal_group() {
    let rig = rig();
    for (portal, tag) in [1, 300, 1].into_iter().enumerate() {
        let mut raw = RawClient::log_in_as(&rig.addresses[portal], TARGET, portal as u32).unwrap();
        let expected = format!("TargetPortalGroupTag={tag}");
        assert!(raw.text.split('\0').any(|pair| pair == expected), "{expected}: {:?}", raw.text);
        raw.execute(&[0; 6], 0).unwrap(); // its first unit attention
        let page = designators(&mut raw);
        let relative = of_port(&page, 4);
        assert_eq!(relative, [[0, 0, (tag >> 8) as u8, tag as u8].to_vec()], "at {portal}");
        let name = String::from_utf8(of_port(&page, 8).remove(0)).unwrap();
        let name = name.trim_end_matches('\0');
        assert_eq!(name, format!("{TARGET},t,0x{tag:04x}"), "RFC 7143 §4.4.1");
        drop(raw);
        for session_target in [Some(TARGET), None] {
            let text = send_targets(&rig.addresses[portal], 9, session_target);
            let records = ["1", "300", "1"].iter().zip(&rig.addresses);
            for (tag, address) in records {
                let record = format!("TargetAddress={address},{tag}");
                assert!(text.split('\0').any(|pair| pair == record), "{record} in {text:?}");
            }
            assert_eq!(text.matches("TargetAddress=").count(), 3, "{text:?}");
        }
    }
    rig.stop_cleanly();
}

/// Goal: a connection can join a session through any portal of its group, and through no other.
#[test]
fn a_session_stays_within_its_group() {
    let rig = rig();
    let (leader, tsih) = session_at(&rig, 0, 1);
    let through = |portal: usize, cid: u16| {
        let mut raw = RawClient::connect(&rig.addresses[portal]).unwrap();
        raw.cmd_sn = leader.cmd_sn;
        let status = join(&mut raw, 1, tsih, cid).0;
        (status, raw)
    };
    let (status, mut other_group) = through(1, 1);
    assert_eq!(status, 0x020a, "session does not exist");
    let (status, mut same_group) = through(2, 1);
    assert_eq!(status, 0);
    assert_eq!(same_group.execute(&[0; 6], 0).unwrap().0, 0);
    other_group.wait_until_closed(TEST_TIMEOUT).unwrap();
    drop((leader, same_group, other_group));
    rig.stop_cleanly();
}

/// Goal: session reinstatement replaces the session of the same group only: initiator port and
/// target port form the nexus, and the other group is another target port. RFC 7143 §6.3.5.
#[test]
fn reinstatement_is_per_group() {
    let rig = rig();
    let (mut one, _) = session_at(&rig, 0, 1);
    let (mut two, _) = session_at(&rig, 1, 1);
    for raw in [&mut one, &mut two] {
        assert_eq!(raw.execute(&[0; 6], 0).unwrap().0, 0, "both are there");
    }
    let (mut again, _) = session_at(&rig, 2, 1);
    one.wait_until_closed(TEST_TIMEOUT).unwrap();
    for raw in [&mut again, &mut two] {
        assert_eq!(raw.execute(&[0; 6], 0).unwrap().0, 0);
    }
    drop((again, two, one));
    rig.stop_cleanly();
}

/// Goal: a tag of 0, which no portal group has, is refused in all options.
#[test]
fn tag_zero_is_no_group() {
    for change in [
        |options: &mut lunar_target::ServerOptions| options.portals[0].portal_group = Some(0),
        |options: &mut lunar_target::ServerOptions| options.targets[0].portal_group = 0,
    ] {
        let memory = lunar_block::MemoryDevice::new(1 << 20, 512, 4096).unwrap();
        let mut options = options_of(unit(std::sync::Arc::new(memory)));
        change(&mut options);
        let error = lunar_target::Server::start(options).unwrap_err().to_string();
        assert!(error.contains("1 to 65535"), "{error}");
    }
}
