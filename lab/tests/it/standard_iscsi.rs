//! Tests of iSCSI that libiscsi 1.19 does not have, against the text of RFC 7143, over real
//! sessions.

use anyhow::{Context, Result, bail, ensure};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::random::pattern;
use lunar_lab::system::process::{run, run_checked};
use lunar_lab::system::scratch::Scratch;
use lunar_testkit::raw::{ANSWER_MAX, RawAnswer, RawClient, RawPdu, opcode};
use std::time::{Duration, Instant};

const TARGET: &str = "iqn.2026-11.org.lunarsan.test:standard";
const TOOL_MAX: Duration = Duration::from_secs(60);
const LOGOUT_RESPONSE: u8 = 0x26;
/// Reserved task tag. RFC 7143 §11.2.1.8.
const RESERVED_TAG: u32 = 0xffff_ffff;

/// Served disks that are removed with their test.
struct Served {
    lunar: Lunar,
    scratch: Scratch,
}

impl Served {
    fn new(name: &str, options: &[&str]) -> Result<Self> {
        let scratch = Scratch::new(name)?;
        let disk = scratch.path("disk.img");
        let arguments = [&[&disk, "--size", "64M", "--name", TARGET], options].concat();
        Ok(Self { lunar: Lunar::serve(&arguments)?, scratch })
    }

    fn log_in(&self) -> Result<RawClient> {
        RawClient::log_in(self.lunar.address(), TARGET)
    }

    fn log_in_to_discover(&self) -> Result<RawClient> {
        let text = "InitiatorName=iqn.2026-11.org.lunarsan.test:finder\0SessionType=Discovery\0\
            HeaderDigest=None\0DataDigest=None\0MaxRecvDataSegmentLength=65536\0";
        RawClient::log_in_with(self.lunar.address(), text)
    }
}

/// Builds an immediate request with the connection's numbers and a new tag.
fn numbered(raw: &mut RawClient, opcode: u8, flags: u8) -> RawPdu {
    RawPdu::new(0x40 | opcode, flags)
        .put_u32(16, raw.new_tag())
        .put_u32(20, RESERVED_TAG)
        .put_u32(24, raw.cmd_sn)
        .put_u32(28, raw.exp_stat_sn)
}

/// Sends a request and waits for its response, skipping pings; an error if there is none.
fn answer_to(raw: &mut RawClient, request: &RawPdu) -> Result<RawPdu> {
    raw.send(request)?;
    match raw.answer(ANSWER_MAX)? {
        RawAnswer::Pdu(pdu) => {
            raw.exp_stat_sn = pdu.u32_at(24).wrapping_add(1);
            Ok(pdu)
        }
        other => bail!("{other:?} to {request:02x?}"),
    }
}

fn text_request(raw: &mut RawClient, text: &[u8]) -> RawPdu {
    numbered(raw, opcode::TEXT, 0x80).with_data(text)
}

/// Returns the records of a correct SendTargets: this target and its addresses.
fn send_targets(raw: &mut RawClient, value: &str) -> Result<Vec<String>> {
    let request = text_request(raw, format!("SendTargets={value}\0").as_bytes());
    let answer = answer_to(raw, &request)?;
    ensure!(answer.opcode() == opcode::TEXT_RESPONSE, "{answer:02x?}");
    ensure!(answer.u32_at(16) == request.u32_at(16), "another tag");
    let text = String::from_utf8(answer.data)?;
    Ok(text.split_terminator('\0').map(str::to_owned).collect())
}

/// Goal: RFC 7143 Appendix C: a SendTargets with a wrong value, or an unknown key, gets no targets,
/// and ends no session, of either type. A correct one gets the target, and in a normal session
/// "MUST NOT return targets other than the one to which the session is logged in".
#[test]
fn send_targets_with_bad_keys_and_values() -> Result<()> {
    let served = Served::new("send-targets", &[])?;
    let long_key = format!("{}=All\0", "S".repeat(64));
    let long_value = format!("SendTargets=iqn.{}\0", "x".repeat(300));
    let bad: Vec<&[u8]> = vec![
        b"SendTargetz=All\0",
        b"sendtargets=All\0",
        b"SendTargets=all\0",
        b"SendTargets=Reject\0",
        b"SendTargets=not a name\0",
        b"SendTargets=iqn.2026-11.org.lunarsan.test:another\0",
        b"SendTargets=All\0SendTargets=All\0",
        b"SendTargets=All\0InitiatorAlias=x\0",
        b"SendTargets=All",
        b"SendTargets\0",
        b"=All\0",
        b"\0\0\0",
        b"\xff\xfe=\x01\0",
        long_key.as_bytes(),
        long_value.as_bytes(),
    ];
    for normal in [true, false] {
        let mut raw = if normal { served.log_in()? } else { served.log_in_to_discover()? };
        for text in &bad {
            let name = String::from_utf8_lossy(text);
            let request = text_request(&mut raw, text);
            let answer = answer_to(&mut raw, &request).with_context(|| name.to_string())?;
            match answer.opcode() {
                opcode::TEXT_RESPONSE => {
                    let text = String::from_utf8_lossy(&answer.data).into_owned();
                    ensure!(!text.contains("TargetName"), "{name:?}: {text:?}");
                }
                // Reject carries the header it rejects, §11.17.
                opcode::REJECT => ensure!(answer.data == request.bytes()[..48], "{name:?}"),
                other => bail!("{name:?}: {other:#04x}"),
            }
            let right = if normal { "" } else { "All" };
            let records = send_targets(&mut raw, right).with_context(|| name.to_string())?;
            let address = format!("TargetAddress={},1", served.lunar.address());
            ensure!(records == [format!("TargetName={TARGET}"), address], "{records:?}");
        }
        if normal {
            raw.read_block(0)?;
        }
        ensure!(send_targets(&mut raw, TARGET)?.len() == 2, "by its name");
    }
    Ok(())
}

/// Builds a ping with this data; immediate or not.
fn ping(raw: &mut RawClient, immediate: bool, data: &[u8]) -> RawPdu {
    let mut ping = numbered(raw, opcode::NOP_OUT, 0x80).with_data(data);
    if !immediate {
        ping.header[0] &= !0x40;
        raw.cmd_sn = raw.cmd_sn.wrapping_add(1);
    }
    ping
}

/// Goal: RFC 7143 §11.18: a ping comes back as a NOP-In "with the same Initiator Task Tag … and a
/// duplicate of the NOP-Out ping data", for any length, in command order when it has a CmdSN; a
/// ping with the reserved tag gets no response.
#[test]
fn nop_out_with_and_without_data() -> Result<()> {
    let served = Served::new("nop", &[])?;
    let mut raw = served.log_in()?;
    for immediate in [true, false] {
        for bytes in [0, 1, 2, 3, 4, 5, 511, 512, 513, 8191, 8192] {
            let data = pattern(bytes as u64, bytes);
            let request = ping(&mut raw, immediate, &data);
            let stat_sn = raw.exp_stat_sn;
            let answer = answer_to(&mut raw, &request)?;
            ensure!(answer.opcode() == opcode::NOP_IN && answer.data == data, "{bytes} bytes");
            let tags = (answer.u32_at(16), answer.u32_at(20));
            ensure!(tags == (request.u32_at(16), RESERVED_TAG), "{answer:02x?}");
            ensure!(answer.u32_at(24) == stat_sn && answer.u32_at(28) == raw.cmd_sn);
        }
    }
    let silent = ping(&mut raw, true, b"no reply is requested").put_u32(16, RESERVED_TAG);
    raw.send(&silent)?;
    ensure!(raw.answer(Duration::from_millis(300))? == RawAnswer::TimedOut, "an answer to no tag");
    let request = ping(&mut raw, true, b"and now");
    ensure!(answer_to(&mut raw, &request)?.data == b"and now");
    raw.read_block(0)?;
    Ok(())
}

/// Goal: data that is longer than the initiator accepts comes back truncated to its limit:
/// MaxRecvDataSegmentLength bounds every PDU, RFC 7143 §13.12.
/// Method: data as long as the target accepts, while the initiator accepts 512 bytes.
#[test]
fn a_long_nop_out_is_echoed_truncated() -> Result<()> {
    let served = Served::new("long-nop", &[])?;
    let text = format!(
        "InitiatorName=iqn.2026-11.org.lunarsan.test:pinger\0TargetName={TARGET}\0\
         SessionType=Normal\0HeaderDigest=None\0DataDigest=None\0MaxRecvDataSegmentLength=512\0"
    );
    let mut raw = RawClient::log_in_with(served.lunar.address(), &text)?;
    let keys = raw.text.split('\0').filter_map(|pair| pair.split_once('='));
    let (_, most) =
        keys.clone().find(|(key, _)| *key == "MaxRecvDataSegmentLength").context("it")?;
    let data = pattern(1, most.parse()?);
    ensure!(data.len() > 512, "the target takes {most} bytes");
    let request = ping(&mut raw, true, &data);
    let answer = answer_to(&mut raw, &request)?;
    ensure!(answer.opcode() == opcode::NOP_IN, "{answer:02x?}");
    ensure!(answer.data == data[..512], "{} bytes", answer.data.len());
    raw.read_block(0)?;
    Ok(())
}

/// Goal: CHAP_N is a text, also if it looks like a number: by RFC 7143 §6.1 0x and 0b begin encoded
/// numbers and binary values, which a name is not.
/// Method: libiscsi and our own initiator as users of such names, both ways; different names that
/// encode the same number stay different.
#[test]
fn chap_names_that_begin_like_numbers() -> Result<()> {
    let scratch = Scratch::new("chap-names")?;
    let (secret, other) = ("initiator-secret-1", "target-secret-22");
    let secret_file = scratch.secret("secret", secret)?;
    let other_file = scratch.secret("other", other)?;
    for (user, mutual, same_number) in [
        ("0xdeadbeef", "0bQUJDRA==", "0xDEADBEEF"),
        ("0bQUJDRA==", "0x41424344", "0x41424344"),
        ("0x", "0b", "0X"),
    ] {
        let chap = ["--chap-user", user, "--chap-secret-file", &secret_file];
        let proof = ["--mutual-chap-user", mutual, "--mutual-chap-secret-file", &other_file];
        let served = Served::new("chap-name", &[chap, proof].concat())?;
        let address = served.lunar.address();
        let url = |user: &str, mutual: &str| {
            format!(
                "iscsi://{user}%{secret}@{address}/{TARGET}/0?target_user={mutual}\
                 &target_password={other}"
            )
        };
        run_checked("iscsi-inq", &[&url(user, mutual)], TOOL_MAX)?;
        for (wrong, wrong_mutual) in [(same_number, mutual), ("", mutual), (user, "other")] {
            let finished = run("iscsi-inq", &[&url(wrong, wrong_mutual)], TOOL_MAX)?;
            ensure!(!finished.succeeded(), "{wrong:?} {wrong_mutual:?} got in as {user:?}");
        }
        let plain = format!("iscsi://{address}/{TARGET}/0");
        let client = [&["info", &plain][..], &chap, &proof].concat();
        run_checked(&lunar_lab::peers::lunar::binary()?, &client, TOOL_MAX)?;
    }
    Ok(())
}

/// Goal: a CHAP_R in base64 with a length other than that of a digest, up to one far past the 1024
/// bytes that RFC 7143 §12.1.3 allows for a binary value, ends its login and nothing else.
/// Method: sent in pieces if it is longer than a Login Request may be; and invalid base64.
#[test]
fn an_oversized_base64_chap_response() -> Result<()> {
    let scratch = Scratch::new("chap-base64")?;
    let secret_file = scratch.secret("secret", "initiator-secret-1")?;
    let served = Served::new(
        "chap-oversized",
        &["--chap-user", "user", "--chap-secret-file", &secret_file],
    )?;
    let address = served.lunar.address();
    let zeroes = |bytes: usize| "AAAA".repeat(bytes / 3);
    let mut responses: Vec<String> =
        [15, 18, 1023, 1026, 6000, 30_000, 120_000].map(zeroes).to_vec();
    responses.extend(["", "A", "====", "!!!!", "AAAA=AAA"].map(str::to_owned));
    for response in responses {
        let digits = response.len();
        let mut raw = RawClient::connect(address)?;
        let names = format!(
            "InitiatorName=iqn.2026-11.org.lunarsan.test:c\0TargetName={TARGET}\0\
             SessionType=Normal\0AuthMethod=CHAP\0"
        );
        for text in [names.as_str(), "CHAP_A=5\0"] {
            let answer = security_step(&mut raw, 0x00, text.as_bytes())?;
            ensure!(answer.header[36..38] == [0, 0], "{answer:02x?}");
        }
        let proof = format!("CHAP_N=user\0CHAP_R=0b{response}\0");
        let refused = refused_in_pieces(&mut raw, proof.as_bytes())?;
        ensure!(refused, "a response of {digits} digits was accepted");
        raw.wait_until_closed(ANSWER_MAX)?;
    }
    let right = format!("iscsi://user%initiator-secret-1@{address}/{TARGET}/0");
    run_checked("iscsi-inq", &[&right], TOOL_MAX)?;
    Ok(())
}

/// Sends a Login Request of the security stage with these flags; returns the response.
fn security_step(raw: &mut RawClient, flags: u8, text: &[u8]) -> Result<RawPdu> {
    let request = raw.login(text).put(1, &[flags]);
    raw.send(&request)?;
    let answer = raw.expect(opcode::LOGIN_RESPONSE)?;
    raw.exp_stat_sn = answer.u32_at(24).wrapping_add(1);
    Ok(answer)
}

/// Sends a text of any length in pieces of 8192 bytes; returns whether the target refused it, by a
/// response of status class 2 or by closing the connection.
fn refused_in_pieces(raw: &mut RawClient, text: &[u8]) -> Result<bool> {
    const CONTINUE: u8 = 0x40;
    const TO_OPERATIONAL: u8 = 0x81;
    let count = text.chunks(8192).count();
    for (at, piece) in text.chunks(8192).enumerate() {
        let flags = if at + 1 < count { CONTINUE } else { TO_OPERATIONAL };
        let request = raw.login(piece).put(1, &[flags]);
        raw.send(&request)?;
        match raw.answer(ANSWER_MAX)? {
            RawAnswer::Closed => return Ok(true),
            RawAnswer::Pdu(answer) if answer.header[36] == 2 => return Ok(true),
            RawAnswer::Pdu(answer) => raw.exp_stat_sn = answer.u32_at(24).wrapping_add(1),
            RawAnswer::TimedOut => bail!("silence"),
        }
    }
    Ok(false)
}

/// Goal: RFC 7143 §11.14: a logout that closes the session while commands run is answered, each
/// command has ended whole or not at all, and only the end of the connection follows the response.
/// Method: reads that fill every buffer on the way, and writes whose data never comes.
#[test]
fn logout_during_input_and_output() -> Result<()> {
    const READS: u32 = 24;
    const BLOCKS: u16 = 512;
    let served = Served::new("busy-logout", &[])?;
    for reads in [0, 1, READS] {
        let mut raw = served.log_in()?;
        raw.read_block(0)?;
        let [high, low] = BLOCKS.to_be_bytes();
        let bytes = u32::from(BLOCKS) * 512;
        for _ in 0..reads {
            let read = raw.command(0xc0, &[0x28, 0, 0, 0, 0, 0, 0, high, low, 0], bytes);
            raw.send(&read)?;
        }
        for _ in 0..2 {
            let write = raw.command(0xa0, &[0x2a, 0, 0, 0, 0, 0, 0, high, low, 0], bytes);
            raw.send(&write)?;
        }
        let logout = numbered(&mut raw, opcode::LOGOUT, 0x80).put_u32(20, 0);
        raw.send(&logout)?;
        let started = Instant::now();
        let ended = until_logout_response(&mut raw, logout.u32_at(16), bytes)?;
        ensure!(ended <= reads, "{ended} of {reads} reads ended, and no write may");
        ensure!(started.elapsed() < ANSWER_MAX, "it took {:?}", started.elapsed());
        ensure!(raw.answer(ANSWER_MAX)? == RawAnswer::Closed, "another PDU followed the answer");
        served.log_in()?.read_block(0)?;
    }
    let disk = std::fs::read(served.scratch.path("disk.img"))?;
    ensure!(disk.iter().all(|byte| *byte == 0), "a write without data wrote");
    Ok(())
}

/// Reads until the Logout Response of this tag, which must be 0; returns the number of reads that
/// ended before.
fn until_logout_response(raw: &mut RawClient, tag: u32, bytes: u32) -> Result<u32> {
    let mut received = std::collections::BTreeMap::new();
    let mut ended = 0;
    loop {
        let RawAnswer::Pdu(pdu) = raw.answer(ANSWER_MAX)? else { bail!("no answer to the logout") };
        match pdu.opcode() {
            opcode::DATA_IN => {
                let sum = received.entry(pdu.u32_at(16)).or_insert(0);
                ensure!(*sum == pdu.u32_at(40), "Data-In out of order");
                *sum += u32::try_from(pdu.data.len())?;
                if pdu.header[1] & 1 != 0 {
                    ensure!(pdu.header[3] == 0 && *sum == bytes, "a read ended early");
                    ended += 1;
                }
            }
            opcode::SCSI_RESPONSE => bail!("a command was refused: {pdu:02x?}"),
            opcode::R2T => {}
            LOGOUT_RESPONSE => {
                ensure!(pdu.u32_at(16) == tag && pdu.header[2] == 0, "{pdu:02x?}");
                return Ok(ended);
            }
            other => bail!("{other:#04x}"),
        }
    }
}
