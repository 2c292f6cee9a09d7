//! Tests of LUN maps: an initiator sees no LUN that it may not use, whatever it sends.

use crate::common::*;
use lunar_block::MemoryDevice;
use lunar_target::{Access, DiskUnit, DiskUnitOptions, LunOptions, Network, TargetOptions};
use lunar_testkit::raw::RawClient;
use std::sync::Arc;

const ALICE: u32 = 1;
const BOB: u32 = 2;
/// An initiator on no list.
const EVE: u32 = 3;

fn name(number: u32) -> String {
    format!("iqn.2026-11.org.lunarsan.test:raw-{number}")
}

fn only(numbers: &[u32]) -> Access {
    // Lists are written by people, so case does not matter.
    let initiators = numbers.iter().map(|number| name(*number).to_uppercase()).collect();
    Access { initiators, ..Access::default() }
}

fn from(network: &str) -> Access {
    Access { networks: vec![Network::parse(network).unwrap()], ..Access::default() }
}

/// Returns a new unit, recognized by its UUID and its size in MiB.
fn numbered_unit(number: u8) -> Arc<DiskUnit> {
    let memory = MemoryDevice::new(u64::from(number) << 20, 512, 4096).unwrap();
    let uuid = uuid::Uuid::from_u128(u128::from(number));
    DiskUnit::open(DiskUnitOptions::new(uuid, Arc::new(memory))).unwrap()
}

fn lun(id: u16, unit: &Arc<DiskUnit>, access: Access) -> LunOptions {
    LunOptions { access, ..LunOptions::new(id, Arc::<DiskUnit>::clone(unit)) }
}

fn rig_of(luns: Vec<LunOptions>) -> Rig {
    Rig::with(|options| options.targets[0].luns = luns)
}

/// Returns the LUNs that REPORT LUNS shows to this initiator, without well-known numbers.
fn luns_of(raw: &mut RawClient) -> Vec<u8> {
    let cdb = [0xa0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0];
    let (status, data) = raw.execute(&cdb, 1024).unwrap();
    assert_eq!(status, 0);
    let list = &data[8..];
    assert_eq!(u32::from_be_bytes([data[0], data[1], data[2], data[3]]) as usize, list.len());
    list.chunks(8).map(|lun| lun[1]).collect()
}

/// Returns the standard INQUIRY data of a LUN.
fn inquiry(raw: &mut RawClient, lun: u8) -> Vec<u8> {
    raw.lun[1] = lun;
    let (status, data) = raw.execute(&[0x12, 0, 0, 0, 96, 0], 96).unwrap();
    raw.lun[1] = 0;
    assert_eq!(status, 0, "INQUIRY is always answered");
    data
}

/// Returns the READ CAPACITY (10) in MiB; `None` for LUN NOT SUPPORTED.
fn size(raw: &mut RawClient, lun: u8) -> Option<u32> {
    raw.lun[1] = lun;
    let command = raw.command(0xc0, &ten(0x25, 0, 0), 8);
    let (status, data) = loop {
        raw.send(&command.clone().put_u32(24, raw.cmd_sn - 1)).unwrap();
        let (status, data, sense) = raw.outcome().unwrap();
        match (status, sense.get(4).map(|key| key & 0xf), sense.get(14..16)) {
            (2, Some(6), _) => raw.cmd_sn += 1, // a unit attention
            (2, Some(5), Some(&[0x25, 0])) => break (2, data),
            _ => break (status, data),
        }
    };
    raw.lun[1] = 0;
    if status == 2 {
        return None;
    }
    assert_eq!(status, 0);
    let last = u32::from_be_bytes([data[0], data[1], data[2], data[3]]);
    Some((last + 1) / 2048)
}

/// Goal: one number stands for different disks for different initiators, and each sees only its
/// own.
#[test]
fn initiators_have_maps_of_their_own() {
    let [shared, alices, bobs] = [1, 2, 3].map(numbered_unit);
    let rig = rig_of(vec![
        lun(0, &shared, only(&[ALICE, BOB])),
        lun(1, &alices, only(&[ALICE])),
        lun(1, &bobs, only(&[BOB])),
        lun(2, &bobs, only(&[ALICE])),
        lun(9, &alices, only(&[EVE, BOB])),
    ]);
    let (mut alice, mut bob) = (rig.log_in(ALICE), rig.log_in(BOB));
    assert_eq!((luns_of(&mut alice), luns_of(&mut bob)), (vec![0, 1, 2], vec![0, 1, 9]));
    let sizes = |raw: &mut RawClient| [0, 1, 2, 9].map(|lun| size(raw, lun));
    assert_eq!(sizes(&mut alice), [Some(1), Some(2), Some(3), None]);
    assert_eq!(sizes(&mut bob), [Some(1), Some(3), None, Some(2)]);
    // SPC-4 §6.6.2: qualifier 011b, type 1Fh, for a LUN that is not supported.
    assert_eq!(inquiry(&mut alice, 9)[0], 0x7f);
    assert_eq!(inquiry(&mut bob, 2)[0], 0x7f);
    assert_eq!(inquiry(&mut bob, 1)[0], 0);
    drop((alice, bob));
    rig.stop_cleanly();
}

/// Goal: task management affects no unit that the initiator does not see. Method: LUN 5 is visible
/// to bob only; alice resets LUN 5, and bob's command on it continues.
#[test]
fn task_management_stays_within_the_map() {
    let rig = Rig::with(|options| {
        let theirs = DiskUnit::of(&options.targets[0].luns[0].unit).unwrap();
        options.targets[0].luns =
            vec![lun(0, &numbered_unit(1), Access::default()), lun(5, &theirs, only(&[BOB]))];
    });
    let (mut alice, mut bob) = (rig.log_in(ALICE), rig.log_in(BOB));
    bob.lun[1] = 5;
    bob.execute(&[0; 6], 0).unwrap();
    rig.device.inject(
        lunar_block::Fault::new(lunar_block::Effect::Hang)
            .on(lunar_block::FaultOperation::Read)
            .times(1),
    );
    let read = send_read(&mut bob, 0, 1);
    rig.wait_for("it hangs", |rig| rig.device.hanging() == 1);
    let tag = alice.new_tag();
    let reset = lunar_testkit::raw::RawPdu::new(0x42, 0x80 | LOGICAL_UNIT_RESET)
        .put(9, &[5])
        .put_u32(16, tag)
        .put_u32(20, u32::MAX)
        .put_u32(24, alice.cmd_sn)
        .put_u32(28, alice.exp_stat_sn);
    alice.send(&reset).unwrap();
    assert_eq!(answer_to(&mut alice, tag).header[2], 2, "LUN does not exist");
    rig.device.heal();
    rig.device.release();
    assert_eq!(answer_to(&mut bob, read).header[3], 0, "not aborted");
    drop((alice, bob));
    rig.stop_cleanly();
}

/// Goal: a reset of the target is limited to the map: it ends no session that uses a unit that the
/// requesting initiator does not see, but affects units that both see.
#[test]
fn a_target_reset_stays_within_the_map() {
    let [bobs, alices] = [2, 3].map(numbered_unit);
    let rig = Rig::with(|options| {
        let shared = DiskUnit::of(&options.targets[0].luns[0].unit).unwrap();
        options.targets[0].luns = vec![
            lun(0, &shared, Access::default()),
            lun(1, &bobs, only(&[BOB])),
            lun(2, &alices, only(&[ALICE])),
        ];
    });
    let [mut alice, mut bob, mut eve] = [ALICE, BOB, EVE].map(|number| rig.log_in(number));
    bob.lun[1] = 1;
    assert_eq!(bob.execute(&[0; 6], 0).unwrap().0, 0);
    bob.lun[1] = 0;
    rig.device.inject(
        lunar_block::Fault::new(lunar_block::Effect::Hang)
            .on(lunar_block::FaultOperation::Read)
            .times(1),
    );
    send_read(&mut bob, 0, 1);
    rig.wait_for("it hangs", |rig| rig.device.hanging() == 1);
    let tag = send_function(&mut alice, TARGET_COLD_RESET, u32::MAX);
    assert_eq!(answer_to(&mut alice, tag).header[2], 0, "function complete");
    for raw in [&mut alice, &mut eve] {
        raw.wait_until_closed(TEST_TIMEOUT).unwrap();
    }
    // SAM-5 §5.14: bob is informed about the shared unit only.
    for (lun, sense) in [(1, None), (0, Some((6, 0x29)))] {
        let command = bob.command(0x80, &[0; 6], 0).put(9, &[lun]);
        bob.send(&command).unwrap();
        let answer = answer_to(&mut bob, command.u32_at(16));
        let codes = answer.data.get(4).zip(answer.data.get(14));
        assert_eq!(codes.map(|(key, code)| (key & 0xf, *code)), sense, "LUN {lun}");
    }
    drop((alice, bob, eve));
    rig.stop_cleanly();
}

/// Goal: a LUN without a visible LUN 0 is found: REPORT LUNS to LUN 0 works all the same.
#[test]
fn lun_0_answers_though_it_is_not_seen() {
    let [first, second] = [1, 2].map(numbered_unit);
    let rig = rig_of(vec![lun(0, &first, only(&[BOB])), lun(7, &second, only(&[ALICE]))]);
    let mut alice = RawClient::log_in_as(&rig.address, TARGET, ALICE).unwrap();
    assert_eq!(luns_of(&mut alice), [7]);
    assert_eq!(inquiry(&mut alice, 0)[0], 0x7f);
    assert_eq!((size(&mut alice, 0), size(&mut alice, 7)), (None, Some(2)));
    drop(alice);
    rig.stop_cleanly();
}

/// Goal: a target without LUNs for an initiator does not exist for it (decision 050): neither in
/// discovery nor by its name, and the reply is the same as for an unknown name.
#[test]
fn a_target_without_luns_for_us_is_not_there() {
    let rig = rig_of(vec![lun(0, &numbered_unit(1), only(&[ALICE]))]);
    for (number, seen) in [(ALICE, true), (EVE, false)] {
        assert_eq!(send_targets(&rig.address, number, None).contains(TARGET), seen);
        let mut raw = RawClient::connect(&rig.address).unwrap();
        let wanted = if seen { 0 } else { 0x0203 };
        assert_eq!(join(&mut raw, number, 0, 0).0, wanted);
    }
    rig.stop_cleanly();
}

/// Goal: networks count for targets and LUNs; if both names and networks are given, both must
/// match. Method: two addresses of this host, two names.
#[test]
fn names_and_networks_must_both_match() {
    let [home, away, named] = [1, 2, 3].map(numbered_unit);
    let both = Access { networks: from("127.0.0.1").networks, ..only(&[ALICE]) };
    let rig = rig_of(vec![
        lun(0, &home, from("127.0.0.1")),
        lun(0, &away, from("::ffff:127.0.0.2")),
        lun(1, &named, both),
    ]);
    for (source, number, sizes) in [
        ("127.0.0.1", ALICE, [Some(1), Some(3)]),
        ("127.0.0.1", BOB, [Some(1), None]),
        ("127.0.0.2", ALICE, [Some(2), None]),
    ] {
        let mut raw = connect_from(source, &rig.address);
        assert_eq!(join(&mut raw, number, 0, 0).0, 0);
        assert_eq!([0, 1].map(|lun| size(&mut raw, lun)), sizes, "{number} from {source}");
    }
    let mut raw = connect_from("127.0.0.3", &rig.address);
    assert_eq!(join(&mut raw, ALICE, 0, 0).0, 0x0203, "not found");
    drop(raw);
    rig.stop_cleanly();
}

/// Goal: IPv4 counts as IPv4 even on a socket for both families: lists match, discovery shows the
/// address that was used, and failures are counted for it.
#[test]
fn ipv4_on_a_socket_of_both_families() {
    let [home, away] = [1, 2].map(numbered_unit);
    let rig = Rig::with(|options| {
        options.portals = vec![lunar_target::Portal::new("[::]:0".parse().unwrap())];
        options.targets[0].luns =
            vec![lun(0, &home, from("127.0.0.1/32")), lun(0, &away, from("::ffff:127.0.0.2"))];
        options.limits.login_failures_free = 0;
    });
    let port = rig.address.rsplit(':').next().unwrap();
    let address = format!("127.0.0.1:{port}");
    for (source, size_wanted) in [("127.0.0.1", 1), ("127.0.0.2", 2)] {
        let mut raw = connect_from(source, &address);
        assert_eq!(join(&mut raw, ALICE, 0, 0).0, 0);
        assert_eq!(size(&mut raw, 0), Some(size_wanted), "from {source}");
    }
    let found = send_targets(&address, ALICE, None);
    assert!(found.contains(&format!("TargetAddress={address},1\0")), "{found:?}");
    let failed = || RawClient::log_in_as(&address, "iqn.2026-11.org.example:none", ALICE).is_err();
    assert!(failed());
    let began = std::time::Instant::now();
    assert!(failed() && began.elapsed() >= std::time::Duration::from_millis(250));
    rig.stop_cleanly();
}

/// Goal: names are compared in their normal form (RFC 3722: lower case, compatible characters
/// folded), on lists, for targets, and in session reinstatement.
#[test]
fn names_are_compared_in_normal_form() {
    let rig = rig_of(vec![lun(0, &numbered_unit(1), only(&[ALICE]))]);
    let log_in = |initiator: &str, target: &str| {
        let mut raw = RawClient::connect(&rig.address).unwrap();
        let text = format!("InitiatorName={initiator}\0TargetName={target}\0");
        raw.send(&raw.login(text.as_bytes())).unwrap();
        let answer = raw.expect(lunar_testkit::raw::opcode::LOGIN_RESPONSE).unwrap();
        raw.exp_stat_sn = answer.u32_at(24).wrapping_add(1);
        (u16::from_be_bytes([answer.header[36], answer.header[37]]), raw)
    };
    let (status, mut first) = log_in(&name(ALICE), TARGET);
    assert_eq!(status, 0);
    let (status, mut second) = log_in(&name(ALICE).to_uppercase(), &TARGET.to_uppercase());
    assert_eq!(status, 0);
    first.wait_until_closed(TEST_TIMEOUT).unwrap();
    assert_eq!(size(&mut second, 0), Some(1));
    for strange in [
        format!("{}\u{301}", name(ALICE)),
        format!(" {}", name(ALICE)),
        name(ALICE).replace('i', "\u{131}"),
        name(ALICE).replace('.', "\u{3002}"),
        name(ALICE) + "1",
    ] {
        assert_eq!(log_in(&strange, TARGET).0, 0x0203, "{strange:?}");
    }
    assert_eq!(log_in("", TARGET).0 >> 8, 2);
    drop((first, second));
    rig.stop_cleanly();
}

/// Goal: a connection from an address that sees fewer LUNs does not join a session that sees more.
#[test]
fn a_session_is_joined_only_from_addresses_with_the_same_luns() {
    let [all, home] = [1, 2].map(numbered_unit);
    let rig = rig_of(vec![lun(0, &all, Access::default()), lun(1, &home, from("127.0.0.1"))]);
    let mut leader = RawClient::connect(&rig.address).unwrap();
    let (status, tsih) = join(&mut leader, ALICE, 0, 0);
    assert_eq!(status, 0);
    for (source, wanted) in [("127.0.0.2", 0x0208), ("127.0.0.1", 0)] {
        let mut raw = connect_from(source, &rig.address);
        raw.cmd_sn = leader.cmd_sn;
        assert_eq!(join(&mut raw, ALICE, tsih, 1).0, wanted, "from {source}");
    }
    drop(leader);
    rig.stop_cleanly();
}

/// Goal: options that would show two LUNs of the same number to an initiator are refused.
#[test]
fn one_number_is_one_lun_for_everybody() {
    let refused = |access: Access, one: Access, other: Access| {
        let [first, second] = [1, 2].map(numbered_unit);
        let mut options = options_of(Arc::clone(&first));
        let luns = vec![lun(4, &first, one), lun(4, &second, other)];
        options.targets[0] = TargetOptions { access, luns, ..target(TARGET, first) };
        let started = lunar_target::Server::start(options);
        started.err().map(|error| error.to_string())
    };
    let all = Access::default;
    for (access, one, other) in [
        (all(), all(), all()),
        (all(), only(&[ALICE]), all()),
        (all(), only(&[ALICE, BOB]), only(&[EVE, BOB])),
        (all(), from("10.0.0.0/8"), from("10.1.0.0/16")),
        (all(), from("10.0.0.0/8"), only(&[ALICE])),
        (only(&[ALICE, BOB]), only(&[ALICE]), all()),
    ] {
        let error = refused(access, one, other).unwrap();
        assert!(error.contains("two LUNs 4"), "{error}");
    }
    for (access, one, other) in [
        (all(), only(&[ALICE]), only(&[BOB])),
        (all(), from("10.0.0.0/8"), from("2001:db8::/32")),
        (only(&[ALICE]), all(), only(&[BOB])),
        (from("10.0.0.0/8"), all(), from("127.0.0.1")),
    ] {
        assert_eq!(refused(access, one, other), None);
    }
}
