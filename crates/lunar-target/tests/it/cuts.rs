//! Tests of connections that end at any point, peers that vanish, and slow peers: each leaves
//! nothing behind, and the next login works at once.

use crate::common::*;
use lunar_testkit::raw::{RawAnswer, RawClient, RawPdu, opcode};
use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const NO_TAG: u32 = u32::MAX;

fn text(number: u32, digest: &str) -> String {
    format!(
        "InitiatorName=iqn.2026-11.org.lunarsan.test:raw-{number}\0SessionType=Normal\0\
         TargetName={TARGET}\0InitialR2T=No\0ImmediateData=Yes\0HeaderDigest={digest}\0\
         DataDigest={digest}\0ErrorRecoveryLevel=1\0"
    )
}

/// Returns a PDU on the wire, and the ends of its parts: basic header, header segments, header
/// digest, data, padding, data digest.
fn wire(pdu: &RawPdu, digests: bool) -> (Vec<u8>, Vec<usize>) {
    let digest = |bytes: &[u8]| lunar_wire::Crc32c::digest_bytes(lunar_wire::crc32c(bytes));
    let plain = pdu.bytes();
    let header = 48 + pdu.segments.len();
    let mut bytes = plain[..header].to_vec();
    let mut ends = vec![48, header];
    if digests {
        bytes.extend(digest(&plain[..header]));
    }
    ends.push(bytes.len());
    ends.push(bytes.len() + pdu.data.len());
    bytes.extend(&plain[header..]);
    ends.push(bytes.len());
    if digests && !pdu.data.is_empty() {
        bytes.extend(digest(&plain[header..]));
    }
    ends.push(bytes.len());
    (bytes, ends)
}

/// Returns every kind of PDU that an initiator sends in the full feature phase, in the order of
/// opcodes.
fn requests(raw: &mut RawClient) -> Vec<(&'static str, Vec<RawPdu>)> {
    let numbered = |raw: &mut RawClient, operation: u8, flags: u8| {
        let tag = raw.new_tag();
        let pdu = RawPdu::new(0x40 | operation, flags).put_u32(16, tag).put_u32(20, NO_TAG);
        pdu.put_u32(24, raw.cmd_sn).put_u32(28, raw.exp_stat_sn)
    };
    let ping = numbered(raw, opcode::NOP_OUT, 0x80).with_data(b"pings");
    let mut read = raw.command(0xc1, &ten(0x28, 0, 8), 4096);
    raw.cmd_sn -= 1; // each PDU is sent by its own session
    let mut extended = read.clone();
    read.segments = Vec::new();
    extended.segments = vec![0, 5, 2, 0, 0, 0, 0x10, 0]; // Bidirectional Expected Read-Data Length
    let write = raw.command(0xa1, &ten(0x2a, 0, 2), 1024).with_data(vec![1; 1024]);
    raw.cmd_sn -= 1;
    let unsolicited = raw.command(0x21, &ten(0x2a, 0, 2), 1024);
    raw.cmd_sn -= 1;
    let data = RawPdu::new(opcode::DATA_OUT, 0x80)
        .put_u32(16, unsolicited.u32_at(16))
        .put_u32(20, NO_TAG)
        .put_u32(28, raw.exp_stat_sn)
        .with_data(vec![2; 1024]);
    let function = numbered(raw, opcode::TASK_MANAGEMENT, 0x80 | LOGICAL_UNIT_RESET);
    let asks = numbered(raw, opcode::TEXT, 0x80).with_data(b"SendTargets=All\0X");
    let part = numbered(raw, opcode::TEXT, 0x40).with_data(b"SendTargets=");
    let out = numbered(raw, opcode::LOGOUT, 0x80);
    let snack = numbered(raw, opcode::SNACK, 0x81).put_u32(40, 0).put_u32(44, 0);
    vec![
        ("NOP-Out", vec![ping]),
        ("SCSI Command that reads", vec![read]),
        ("SCSI Command with a header segment", vec![extended]),
        ("SCSI Command with immediate data", vec![write]),
        ("SCSI Data-Out", vec![unsolicited, data]),
        ("Task Management", vec![function]),
        ("Text", vec![asks]),
        ("Text with the C bit", vec![part]),
        ("Logout", vec![out]),
        ("SNACK", vec![snack]),
    ]
}

/// Goal: a connection that is cut in any kind of PDU, within or behind each of its parts, leaves
/// nothing behind, and the next login of its initiator works.
#[test]
fn cut_in_each_pdu_at_each_part() {
    let rig = Rig::new();
    let mut cuts = 0;
    for (digests, name) in [(false, "None"), (true, "CRC32C")] {
        let kinds = requests(&mut rig.log_in(1)).len();
        for kind in 0..kinds {
            let mut at = 0;
            loop {
                let mut raw = RawClient::log_in_with(&rig.address, &text(1, name)).unwrap();
                let (what, pdus) = requests(&mut raw).swap_remove(kind);
                let (last, before) = pdus.split_last().unwrap();
                for pdu in before {
                    raw.send_bytes(&wire(pdu, digests).0).unwrap();
                }
                let (bytes, ends) = wire(last, digests);
                let mut lengths: Vec<usize> =
                    ends.iter().flat_map(|end| [end - 24, end - 1, *end, end + 2]).collect();
                lengths.extend([0, 1]);
                lengths.retain(|length| *length <= bytes.len());
                lengths.sort_unstable();
                lengths.dedup();
                let Some(length) = lengths.get(at) else { break };
                raw.send_bytes(&bytes[..*length]).expect(what);
                cuts += 1;
                at += 1;
            }
        }
    }
    assert!(cuts > 150, "{cuts} cuts");
    let mut raw = rig.log_in(1);
    raw.read_block(0).unwrap();
    drop(raw);
    rig.wait_until_alone();
    rig.stop_cleanly();
}

/// Goal: a connection that is cut in a login, in each of its parts and between its two requests,
/// leaves nothing behind.
#[test]
fn cut_in_the_login() {
    let rig = Rig::new();
    let text = text(1, "None");
    for length in [0, 1, 24, 47, 48, 49, 100, 48 + text.len(), 4096] {
        let mut raw = RawClient::connect(&rig.address).unwrap();
        let mut login = raw.login(text.as_bytes());
        login.header[1] = 0x04; // more will come
        let bytes = login.bytes();
        raw.send_bytes(&bytes[..length.min(bytes.len())]).unwrap();
    }
    rig.log_in(1);
    rig.wait_until_alone();
    rig.stop_cleanly();
}

/// Goal: a connection that is cut while any kind of reply is on its way leaves nothing behind.
/// Method: the peer takes some bytes of the reply and closes, which resets the connection.
#[test]
fn cut_in_each_answer() {
    let rig = Rig::new();
    for kind in 0..10 {
        for taken in [0, 1, 47, 48, 50, 300] {
            let mut raw = RawClient::log_in_with(&rig.address, &text(1, "None")).unwrap();
            let (_, pdus) = requests(&mut raw).swap_remove(kind);
            for pdu in &pdus {
                raw.send(pdu).unwrap();
            }
            let solicited = raw.command(0xa1, &ten(0x2a, 0, 8), 4096); // answered by an R2T
            raw.send(&solicited).unwrap();
            let mut tcp: TcpStream = raw.into_tcp();
            tcp.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            let mut some = vec![0; taken];
            let _ = tcp.read_exact(&mut some); // there may be less
        }
    }
    rig.log_in(1);
    rig.wait_until_alone();
    rig.stop_cleanly();
}

/// Starts a server with short timeouts, which are still long enough for peers that are slow only
/// because the machine is busy.
fn impatient() -> Rig {
    Rig::with(|options| {
        options.limits.login_seconds = 5;
        options.limits.ping_after_seconds = 3;
        options.limits.ping_timeout_seconds = 3;
    })
}

/// Goal: a peer that vanishes is dropped after its time to answer a ping (`ping_after_seconds`,
/// `ping_timeout_seconds`), with its commands in progress; other peers continue.
#[test]
fn a_peer_that_vanishes() {
    let rig = impatient();
    let mut gone = rig.log_in(1);
    let begun = gone.command(0xa1, &ten(0x2a, 0, 64), 64 * 512);
    gone.send(&begun).unwrap();
    let mut other = rig.log_in(2);
    let until = Instant::now() + MINUTE;
    while gone.answer(Duration::from_millis(1)).unwrap() != RawAnswer::Closed {
        other.read_block(0).unwrap();
        assert!(Instant::now() < until, "it is kept");
    }
    log_out(other);
    rig.wait_until_alone();
    rig.stop_cleanly();
}

/// Goal: a peer that requests much data and takes none is dropped, too; meanwhile it holds no more
/// than the limit and delays no other peer.
#[test]
fn a_peer_that_reads_nothing() {
    let rig = impatient();
    let mut idle = rig.log_in(1);
    for _ in 0..16 {
        send_read(&mut idle, 0, 16384);
    }
    let mut other = rig.log_in(2);
    let until = Instant::now() + MINUTE;
    while rig.sessions() > 1 {
        other.read_block(0).unwrap();
        let held = rig.server().buffers().in_use_bytes();
        assert!(held < 160 << 20, "{held} bytes are held");
        assert!(Instant::now() < until, "it is kept");
    }
    drop(idle);
    log_out(other);
    rig.wait_until_alone();
    rig.stop_cleanly();
}

/// Goal: a peer that sends a byte now and then is dropped: in the login when its time is over
/// (`login_seconds`), later because it answers no ping.
#[test]
fn a_peer_that_sends_slowly() {
    let rig = impatient();
    // The login would take 25 seconds, the write minutes.
    for logged_in in [false, true] {
        let mut raw = match logged_in {
            false => RawClient::connect(&rig.address).unwrap(),
            true => rig.log_in(1),
        };
        let pdu = match logged_in {
            false => raw.login(text(1, "None").as_bytes()),
            true => raw.command(0xa1, &ten(0x2a, 0, 8), 4096).with_data(vec![1; 4096]),
        };
        let until = Instant::now() + MINUTE;
        let is_closed = pdu.bytes().into_iter().any(|byte| {
            std::thread::sleep(Duration::from_millis(100));
            raw.send_bytes(&[byte]).is_err() || Instant::now() > until
        });
        assert!(is_closed && Instant::now() < until, "it is kept, logged in: {logged_in}");
        rig.wait_until_alone();
    }
    rig.log_in(1);
    rig.stop_cleanly();
}
