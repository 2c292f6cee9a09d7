//! Requests that no honest initiator sends, over real sockets. The server must continue to serve,
//! in bounded memory, and free the resources of bad connections.

use anyhow::{Result, ensure};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::random::Random;
use lunar_lab::system::scratch::Scratch;
use lunar_testkit::raw::{RawAnswer, RawClient, RawPdu, opcode};
use std::time::{Duration, Instant};

const TARGET: &str = "iqn.2026-11.org.lunarsan.test:hostile";
/// Limit of a login: `login_seconds` is 15; the rest is for a busy machine.
const LOGIN_MAX: Duration = Duration::from_secs(20);
/// Maximum growth of the server's memory under any of these attacks.
const GROWTH_BYTES_MAX: u64 = 64 << 20;
const QUIET: Duration = Duration::from_secs(10);

/// A server to be attacked.
struct Victim {
    lunar: Lunar,
    open_files: usize,
    resident_bytes: u64,
    _scratch: Scratch,
}

impl Victim {
    fn new(name: &str) -> Result<Self> {
        let scratch = Scratch::new(name)?;
        let disk = scratch.path("disk.img");
        let lunar = Lunar::serve(&[&disk, "--size", "64M", "--name", TARGET])?;
        let mut victim = Self { lunar, open_files: 0, resident_bytes: 0, _scratch: scratch };
        victim.read_as(999)?;
        victim.wait_for_files(|_| true)?;
        victim.open_files = victim.lunar.server().open_files()?;
        victim.resident_bytes = victim.lunar.server().resident_bytes()?;
        Ok(victim)
    }

    fn connect(&self) -> Result<RawClient> {
        RawClient::connect(self.lunar.address())
    }

    fn log_in(&self) -> Result<RawClient> {
        RawClient::log_in(self.lunar.address(), TARGET)
    }

    /// Opens a session, reads a block and logs out.
    fn read_as(&self, number: u32) -> Result<()> {
        let mut raw = RawClient::log_in_as(self.lunar.address(), TARGET, number)?;
        raw.read_block(0)?;
        let logout = RawPdu::new(0x40 | opcode::LOGOUT, 0x80)
            .put_u32(16, raw.new_tag())
            .put_u32(24, raw.cmd_sn)
            .put_u32(28, raw.exp_stat_sn);
        raw.send(&logout)?;
        raw.wait_until_closed(QUIET)
    }

    /// Waits until `suits` accepts its number of open files.
    fn wait_for_files(&mut self, suits: impl Fn(usize) -> bool) -> Result<()> {
        let until = Instant::now() + QUIET;
        loop {
            let files = self.lunar.server().open_files()?;
            if suits(files) {
                return Ok(());
            }
            ensure!(Instant::now() < until, "{files} files are open, {} before", self.open_files);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Checks that the server serves another session, did not grow, and has closed every bad
    /// connection.
    fn check_unharmed(mut self) -> Result<()> {
        ensure!(self.lunar.server().is_running()?, "it died:\n{}", self.lunar.server().log());
        self.read_as(998)?;
        let before = self.open_files;
        self.wait_for_files(|files| files <= before)?;
        self.has_not_grown()?;
        let log = self.lunar.server().log();
        ensure!(!log.contains("panicked"), "a panic:\n{log}");
        self.lunar.stop(Duration::from_secs(60))?;
        Ok(())
    }

    fn has_not_grown(&mut self) -> Result<()> {
        let now = self.lunar.server().resident_bytes()?;
        let grown = now.saturating_sub(self.resident_bytes);
        ensure!(grown <= GROWTH_BYTES_MAX, "grown by {} MiB to {} MiB", grown >> 20, now >> 20);
        Ok(())
    }
}

/// Goal: 1,000 connections that never log in do not block other logins, cost little memory, and are
/// closed after the login time.
#[test]
fn a_thousand_connections_that_never_log_in() -> Result<()> {
    let mut victim = Victim::new("thousand")?;
    let mut idle = Vec::new();
    for _ in 0..1000 {
        idle.push(victim.connect()?);
    }
    victim.read_as(1)?;
    victim.has_not_grown()?;
    let until = Instant::now() + LOGIN_MAX;
    for raw in &mut idle {
        raw.wait_until_closed(until.saturating_duration_since(Instant::now()))?;
    }
    victim.check_unharmed()
}

/// Goal: an endless login is ended after the login time, or before.
/// Method: requests that stay in their stage, each answered, one every 50 ms.
#[test]
fn a_login_that_never_ends() -> Result<()> {
    let victim = Victim::new("endless-login")?;
    let mut raw = victim.connect()?;
    let started = Instant::now();
    let mut text = format!("InitiatorName=iqn.2026-11.org.lunarsan.test:x\0TargetName={TARGET}\0");
    loop {
        let request = raw.login(text.as_bytes()).put(1, &[0x04]);
        if raw.send(&request).is_err() {
            break;
        }
        text.clear();
        match raw.answer(Duration::from_secs(5))? {
            RawAnswer::Pdu(pdu) if pdu.header[36..38] == [0, 0] => {
                raw.exp_stat_sn = pdu.u32_at(24).wrapping_add(1);
            }
            _ => break,
        }
        ensure!(started.elapsed() < LOGIN_MAX, "the login is still accepted");
        std::thread::sleep(Duration::from_millis(50));
    }
    victim.check_unharmed()
}

/// Goal: continued text (the C bit) does not grow without limit.
#[test]
fn a_login_text_that_never_ends() -> Result<()> {
    let victim = Victim::new("endless-text")?;
    let mut raw = victim.connect()?;
    let started = Instant::now();
    let request = raw.login(&[b'A'; 8192]).put(1, &[0x44]);
    while raw.send(&request).is_ok() {
        match raw.answer(Duration::from_secs(5))? {
            RawAnswer::Pdu(pdu) if pdu.header[36..38] == [0, 0] => {}
            _ => break,
        }
        ensure!(started.elapsed() < LOGIN_MAX, "the text is still accepted");
    }
    victim.check_unharmed()
}

/// Goal: a login that arrives byte by byte is cut off after the login time.
#[test]
fn a_login_byte_by_byte() -> Result<()> {
    let victim = Victim::new("slow-login")?;
    let mut raw = victim.connect()?;
    let request = raw.login(&[b'x'; 1000]).bytes();
    let started = Instant::now();
    for byte in request {
        if raw.send_bytes(&[byte]).is_err() {
            break;
        }
        if raw.answer(Duration::from_millis(100))? == RawAnswer::Closed {
            break;
        }
        ensure!(started.elapsed() < LOGIN_MAX, "still listening after {:?}", started.elapsed());
    }
    victim.check_unharmed()
}

/// Goal: an honest login may come in pieces.
#[test]
fn a_login_in_pieces_works() -> Result<()> {
    let victim = Victim::new("pieces")?;
    let mut raw = victim.connect()?;
    let text = format!("InitiatorName=iqn.2026-11.org.lunarsan.test:p\0TargetName={TARGET}\0");
    for byte in raw.login(text.as_bytes()).bytes() {
        raw.send_bytes(&[byte])?;
    }
    let answer = raw.expect(opcode::LOGIN_RESPONSE)?;
    ensure!(answer.header[36..38] == [0, 0], "{answer:02x?}");
    drop(raw);
    victim.check_unharmed()
}

/// Goal: bytes that are not iSCSI end their connection.
/// Method: random bytes; HTTP; zeroes; by seed.
#[test]
fn garbage() -> Result<()> {
    let victim = Victim::new("garbage")?;
    for seed in 0..40_u64 {
        let mut random = Random::new(seed);
        let bytes: Vec<u8> = match seed {
            0 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(8),
            1 => vec![0; 4096],
            2 => vec![0xff; 4096],
            _ => {
                let count = 48 + random.below(4096);
                (0..count).map(|_| random.next_u64().to_be_bytes()[0]).collect()
            }
        };
        let mut raw = victim.connect()?;
        if raw.send_bytes(&bytes).is_ok() {
            // The server waits for the rest of an announced PDU; the login time ends the wait.
            drop(raw.answer(Duration::from_millis(50))?);
        }
    }
    victim.check_unharmed()
}

/// Goal: random headers in a session that is logged in harm that session at most.
/// Method: valid opcodes, all other bytes random, lengths short; by seed.
#[test]
fn random_requests_in_full_feature_phase() -> Result<()> {
    let victim = Victim::new("random-requests")?;
    for seed in 0..60_u64 {
        let mut random = Random::new(seed);
        let mut raw = RawClient::log_in_as(victim.lunar.address(), TARGET, 2)?;
        for _ in 0..20 {
            let opcodes = [0x00, 0x01, 0x02, 0x04, 0x05, 0x10, 0x41, 0x42, 0x40, 0x44];
            let at = usize::try_from(random.below(opcodes.len() as u64))?;
            let mut pdu = RawPdu::new(opcodes[at], random.next_u64().to_be_bytes()[0]);
            for at in (8..48).step_by(8) {
                pdu = pdu.put(at, &random.next_u64().to_be_bytes());
            }
            if random.below(2) == 0 {
                pdu = pdu.put_u32(24, raw.cmd_sn).put_u32(28, raw.exp_stat_sn);
            }
            pdu.data = vec![0xa5; usize::try_from(random.below(600))?];
            if raw.send(&pdu).is_err() {
                break;
            }
        }
        while let RawAnswer::Pdu(_) = raw.answer(Duration::from_millis(20))? {}
    }
    victim.check_unharmed()
}

/// Goal: additional header segments with wrong lengths cost at most the session.
/// Method: length 0, one too long, one that overlaps the end, unknown types. RFC 7143 §11.2.2.
#[test]
fn header_segments_that_lie() -> Result<()> {
    let victim = Victim::new("segments")?;
    let lies: [&[u8]; 8] = [
        &[0, 0, 1, 0],
        &[0xff, 0xff, 1, 0],
        &[0, 9, 1, 0, 1, 2, 3, 4],
        &[0, 5, 2, 0, 0, 0, 2, 0, 0, 0, 0, 0],
        &[0, 1, 2, 0],
        &[0, 5, 0x3f, 0, 0, 0, 2, 0],
        &[0, 0, 0, 0],
        &[0, 4, 2, 0, 0, 0, 2, 0],
    ];
    for segments in lies {
        let mut raw = victim.log_in()?;
        let mut command = raw.command(0xc0, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 512);
        command.segments = segments.to_vec();
        raw.send(&command)?;
        drop(raw.answer(Duration::from_millis(200))?);
    }
    // TotalAHSLength announces 1020 bytes that do not come: the peer waits, the server does not.
    let mut raw = victim.log_in()?;
    let mut bytes = raw.command(0xc0, &[0; 16], 0).bytes();
    bytes[4] = 0xff;
    raw.send_bytes(&bytes)?;
    drop(raw);
    victim.check_unharmed()
}

/// Goal: a data segment over the declared maximum is refused unread. RFC 7143 §13.12.
#[test]
fn payload_over_the_declared_maximum() -> Result<()> {
    let victim = Victim::new("payload")?;
    for claimed in [0x00ff_ffff_u32, 0x0080_0000] {
        let mut raw = victim.log_in()?;
        let mut bytes = raw.command(0xa0, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], 512).bytes();
        bytes[5..8].copy_from_slice(&claimed.to_be_bytes()[1..]);
        raw.send_bytes(&bytes)?;
        raw.wait_until_closed(QUIET)?;
        let mut raw = victim.connect()?;
        let mut bytes = raw.login(b"").bytes();
        bytes[5..8].copy_from_slice(&claimed.to_be_bytes()[1..]);
        raw.send_bytes(&bytes)?;
        raw.wait_until_closed(QUIET)?;
    }
    victim.check_unharmed()
}

/// Goal: login text of 0, 1, 8191, 8192 and 8193 bytes is accepted or refused correctly, with and
/// without its end. More than 8192 bytes exceed one PDU before a length is declared.
#[test]
fn login_text_of_odd_sizes() -> Result<()> {
    let victim = Victim::new("login-text")?;
    let names = format!("InitiatorName=iqn.2026-11.org.lunarsan.test:t\0TargetName={TARGET}\0");
    for (bytes, ended) in [8191, 8192, 8193].map(|bytes| [(bytes, true), (bytes, false)]).concat() {
        let mut text = names.clone().into_bytes();
        while text.len() < bytes {
            let value = (bytes - text.len()).min(200);
            let pair = format!("X-{}=", text.len());
            text.extend_from_slice(pair.as_bytes());
            text.resize((text.len() + value).min(bytes), b'v');
            if text.len() < bytes || ended {
                let last = text.len() - 1;
                text[last] = 0;
            }
        }
        let mut raw = victim.connect()?;
        raw.send(&raw.login(&text))?;
        let answer = raw.answer(QUIET)?;
        let accepted = matches!(&answer, RawAnswer::Pdu(pdu) if pdu.header[36..38] == [0, 0]);
        ensure!(answer != RawAnswer::TimedOut, "{bytes} bytes: no answer");
        ensure!(bytes <= 8192 || !accepted, "{bytes} bytes were accepted");
        ensure!(bytes > 8192 || !ended || accepted, "{bytes} good bytes: {answer:02x?}");
    }
    for text in [&b""[..], b"\0", b"x", b"=\0", b"A=\0A=\0", b"InitiatorName\0"] {
        let mut raw = victim.connect()?;
        raw.send(&raw.login(text))?;
        ensure!(raw.answer(QUIET)? != RawAnswer::TimedOut, "{text:?}: no answer");
    }
    let twice = format!("{names}MaxBurstLength=65536\0MaxBurstLength=65536\0");
    let mut raw = victim.connect()?;
    raw.send(&raw.login(twice.as_bytes()))?;
    let answer = raw.expect(opcode::LOGIN_RESPONSE)?;
    ensure!(answer.header[36] == 2, "a key given twice was accepted: RFC 7143 §6.3");
    victim.check_unharmed()
}

/// Goal: text requests of 0, 8191, 8192 and 8193 bytes in full feature phase are accepted or
/// refused correctly.
#[test]
fn text_of_odd_sizes_in_full_feature_phase() -> Result<()> {
    let victim = Victim::new("text")?;
    for bytes in [0, 1, 8191, 8192, 8193] {
        for flags in [0x80_u8, 0x40] {
            let mut raw = victim.log_in()?;
            let mut text = vec![b'v'; bytes];
            if let [first, second, .., last] = &mut text[..] {
                [*first, *second, *last] = [b'X', b'=', 0];
            }
            let request = RawPdu::new(opcode::TEXT, flags)
                .put_u32(16, raw.new_tag())
                .put_u32(20, u32::MAX)
                .put_u32(24, raw.cmd_sn)
                .put_u32(28, raw.exp_stat_sn)
                .with_data(text);
            raw.send(&request)?;
            ensure!(raw.answer(QUIET)? != RawAnswer::TimedOut, "{bytes} bytes: no answer");
        }
    }
    victim.check_unharmed()
}

/// Goal: unrequested data is refused and written nowhere.
/// Method: Data-Out for unknown tags, past the end of its R2T, twice at one offset.
#[test]
fn unrequested_data() -> Result<()> {
    let victim = Victim::new("data-out")?;
    let data_out = |raw: &RawClient, tag: u32, transfer: u32, offset: u32, bytes: usize| {
        RawPdu::new(opcode::DATA_OUT, 0x80)
            .put_u32(16, tag)
            .put_u32(20, transfer)
            .put_u32(28, raw.exp_stat_sn)
            .put_u32(40, offset)
            .with_data(vec![0xee; bytes])
    };
    let mut raw = victim.log_in()?;
    for (tag, transfer) in [(0x77, 0x99), (0x77, u32::MAX), (u32::MAX, u32::MAX)] {
        raw.send(&data_out(&raw, tag, transfer, 0, 512))?;
    }
    drop(raw);
    // A write of eight blocks from block 100 without data: an R2T requests all of it.
    for (offset, bytes) in [(0, 4608), (4096, 512), (u32::MAX - 511, 512), (512, 4096), (0, 0)] {
        let mut raw = victim.log_in()?;
        raw.read_block(0)?;
        let write = raw.command(0xa0, &[0x2a, 0, 0, 0, 0, 100, 0, 0, 8, 0], 4096);
        let tag = write.u32_at(16);
        raw.send(&write)?;
        let asked = raw.expect(opcode::R2T)?;
        raw.send(&data_out(&raw, tag, asked.u32_at(20), offset, bytes))?;
        drop(raw.answer(Duration::from_millis(300))?);
        drop(raw);
        let mut raw = victim.log_in()?;
        let past_the_end = raw.read_block(108)?;
        ensure!(past_the_end.iter().all(|byte| *byte == 0), "data went where none was asked for");
    }
    victim.check_unharmed()
}

/// Goal: any other request before a login ends the connection.
#[test]
fn requests_before_login() -> Result<()> {
    let victim = Victim::new("before-login")?;
    for opcode in [0x00_u8, 0x01, 0x02, 0x04, 0x05, 0x06, 0x10, 0x1c, 0x21, 0x3f] {
        let mut raw = victim.connect()?;
        raw.send(&RawPdu::new(opcode, 0x80))?;
        raw.wait_until_closed(QUIET)?;
    }
    victim.check_unharmed()
}

/// Goal: an initiator that stops reading does not make the server grow without limit.
/// Method: 4,000 reads of 1 MiB sent, no response read.
#[test]
fn a_peer_that_never_reads() -> Result<()> {
    let mut victim = Victim::new("never-reads")?;
    let mut raw = victim.log_in()?;
    for _ in 0..4000 {
        let mut cdb = [0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        cdb[7..9].copy_from_slice(&2048_u16.to_be_bytes());
        let command = raw.command(0xc0, &cdb, 1 << 20);
        if raw.send(&command).is_err() {
            break;
        }
    }
    std::thread::sleep(Duration::from_millis(500));
    let now = victim.lunar.server().resident_bytes()?;
    // The limit is 64 MiB of read data in flight for one connection.
    let grown = now.saturating_sub(victim.resident_bytes);
    ensure!(grown <= 2 * GROWTH_BYTES_MAX, "grown by {} MiB", grown >> 20);
    victim.read_as(3)?;
    drop(raw);
    let before = victim.open_files;
    victim.wait_for_files(|files| files <= before)?;
    ensure!(victim.lunar.server().is_running()?, "it died");
    victim.lunar.stop(Duration::from_secs(60))?;
    Ok(())
}
