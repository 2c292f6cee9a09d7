//! Reaches each named limit of lunar.toml(5), by an initiator that misbehaves: the server reacts as
//! the manual describes.

use anyhow::{Context, Result, bail, ensure};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::system::process::run;
use lunar_lab::system::scratch::Scratch;
use lunar_testkit::raw::{RawAnswer, RawClient, RawPdu, opcode};
use std::time::{Duration, Instant};

const TARGET: &str = "iqn.2026-11.org.lunarsan.test:limits";
const SECRET: &str = "initiator-secret-1";
/// Time limit of any step on a busy machine.
const LONG: Duration = Duration::from_secs(30);
const MIB: u64 = 1 << 20;
const TASK_SET_FULL: u8 = 0x28;
const CHECK_CONDITION: u8 = 2;

/// A server with a limit as low as the attack needs it.
struct Victim {
    lunar: Lunar,
    _scratch: Scratch,
}

impl Victim {
    fn new(key: &str, limits: &str, has_chap: bool) -> Result<Self> {
        let scratch = Scratch::new(key)?;
        let secret = scratch.secret("secret", SECRET)?;
        let (disk, path) = (scratch.path("disk.img"), scratch.path("lunar.toml"));
        let state = scratch.path("state");
        let chap = match has_chap {
            true => format!("chap = {{ user = \"user\", secret_file = \"{secret}\" }}"),
            false => String::new(),
        };
        let configuration = format!(
            "state = \"{state}\"\n[listen]\nportals = [\"127.0.0.1:0\"]\n[api]\n\
             listen = \"none\"\n[limits]\n{limits}\n[[target]]\nname = \"{TARGET}\"\n{chap}\n\
             [[target.lun]]\nid = 0\ndevice = \"file:{disk}\"\nsize = \"64MiB\"\n"
        );
        std::fs::write(&path, configuration)?;
        Ok(Self { lunar: Lunar::start(&["target", "--config", &path])?, _scratch: scratch })
    }

    fn log_in(&self, number: u32) -> Result<RawClient> {
        RawClient::log_in_as(self.lunar.address(), TARGET, number)
    }

    /// Opens a session from another address.
    fn log_in_from_elsewhere(&self, number: u32) -> Result<RawClient> {
        let address: std::net::SocketAddr = self.lunar.address().parse()?;
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 2], 0)).into())?;
        socket.connect(&address.into())?;
        RawClient::log_in_from_tcp(socket.into(), TARGET, number)
    }

    /// Opens a session and clears its unit attention.
    fn ready(&self, number: u32) -> Result<RawClient> {
        let mut raw = self.log_in(number)?;
        raw.read_block(0)?;
        Ok(raw)
    }

    fn resident_bytes(&mut self) -> Result<u64> {
        self.lunar.server().resident_bytes()
    }
}

type Attack = fn() -> Result<()>;

/// Attacks that reach each limit. The last one is for two of them.
const ATTACKS: &[(&str, Attack)] = &[
    ("connections", connections),
    ("logins_per_address", logins_per_address),
    ("login_seconds", login_seconds),
    ("login_failures_free", login_failures),
    ("login_backoff_seconds_max", login_failures),
    ("text_bytes", text_bytes),
    ("window_commands", window_commands),
    ("memory_bytes_max", memory_bytes_max),
    ("memory_wait_seconds", memory_wait_seconds),
    ("data_in_bytes", data_in_bytes),
    ("data_out_bytes", data_out_bytes),
    ("data_out_seconds", data_out_seconds),
    ("transfer_bytes", transfer_bytes),
    ("ping_after_seconds", pings),
    ("ping_timeout_seconds", pings),
];

/// Limits of work that only an administrator begins: no peer reaches them.
const NOT_OF_PEERS: &[&str] = &["migration_bytes_per_second"];

/// Goal: there is an attack on each limit of peers that the manual names, and each works as
/// described.
/// (A test of the configuration checks that the manual names all limits.)
#[test]
fn each_limit_holds() -> Result<()> {
    let manual = include_str!("../../../dist/man/lunar.toml.5");
    let chapter = manual.split(".SH LIMITS\n").nth(1).context("no chapter")?;
    let chapter = chapter.split("\n.SH").next().unwrap_or_default();
    let headings = chapter.split(".TP\n").filter_map(|paragraph| paragraph.lines().next());
    let keys = headings.flat_map(|heading| heading.split("\\fB").skip(1));
    let keys: Vec<&str> = keys.filter_map(|text| text.split("\\fR").next()).collect();
    ensure!(keys.len() >= 15, "{keys:?}");
    for key in keys.into_iter().filter(|key| !NOT_OF_PEERS.contains(key)) {
        let attack = ATTACKS.iter().find(|(name, _)| *name == key);
        let (_, attack) = attack.with_context(|| format!("no attack on {key}"))?;
        attack().with_context(|| key.to_owned())?;
    }
    Ok(())
}

fn connections() -> Result<()> {
    let victim = Victim::new("connections", "connections = 16", false)?;
    let sessions: Vec<_> = (0..32).filter_map(|number| victim.log_in(number).ok()).collect();
    ensure!((1..=16).contains(&sessions.len()), "{} sessions", sessions.len());
    drop(sessions);
    let until = Instant::now() + LONG;
    while victim.log_in(99).is_err() {
        ensure!(Instant::now() < until, "no slot is released");
    }
    Ok(())
}

fn logins_per_address() -> Result<()> {
    let victim = Victim::new("logins", "logins_per_address = 4", false)?;
    let mut idle = Vec::new();
    for _ in 0..10 {
        idle.push(RawClient::connect(victim.lunar.address())?);
    }
    for raw in &mut idle[..6] {
        raw.wait_until_closed(Duration::from_secs(10))?; // before `login_seconds`
    }
    victim.ready(1).map(drop)
}

fn login_seconds() -> Result<()> {
    let victim = Victim::new("login-seconds", "login_seconds = 1", false)?;
    let mut raw = RawClient::connect(victim.lunar.address())?;
    raw.wait_until_closed(Duration::from_secs(10))
}

fn login_failures() -> Result<()> {
    let limits = "login_failures_free = 1\nlogin_backoff_seconds_max = 1";
    let victim = Victim::new("backoff", limits, true)?;
    let began = Instant::now();
    for _ in 0..5 {
        let url = format!("iscsi://user%wrong-secret-12@{}/{TARGET}/0", victim.lunar.address());
        let finished = run("iscsi-inq", &[&url], LONG)?;
        ensure!(!finished.succeeded(), "a wrong secret");
    }
    // The delay is a quarter of a second after the free failures and doubles each time, up to a
    // second.
    let waited = began.elapsed();
    ensure!(waited >= Duration::from_millis(1500), "{waited:?} for five logins");
    Ok(())
}

fn text_bytes() -> Result<()> {
    let victim = Victim::new("text", "text_bytes = \"8KiB\"", false)?;
    let mut raw = victim.log_in(1)?;
    let mut transfer_tag = u32::MAX;
    let tag = raw.new_tag();
    for _ in 0..4 {
        let request = RawPdu::new(opcode::TEXT, 0x40)
            .put_u32(16, tag)
            .put_u32(20, transfer_tag)
            .put_u32(24, raw.cmd_sn)
            .put_u32(28, raw.exp_stat_sn)
            .with_data(b"X-a=b\0".repeat(600));
        raw.cmd_sn = raw.cmd_sn.wrapping_add(1);
        raw.send(&request)?;
        match raw.answer(LONG)? {
            RawAnswer::Pdu(pdu) if pdu.opcode() == opcode::TEXT_RESPONSE => {
                transfer_tag = pdu.u32_at(20);
                raw.exp_stat_sn = pdu.u32_at(24).wrapping_add(1);
            }
            RawAnswer::Pdu(pdu) if pdu.opcode() == opcode::REJECT => return Ok(()),
            other => bail!("{other:02x?}"),
        }
    }
    bail!("14 kB of text were taken")
}

fn window_commands() -> Result<()> {
    let victim = Victim::new("window", "window_commands = 4", false)?;
    let mut raw = victim.ready(1)?;
    let ready = raw.command(0x81, &[0; 6], 0);
    raw.send(&ready)?;
    let response = raw.expect(opcode::SCSI_RESPONSE)?;
    let (expected, max) = (response.u32_at(28), response.u32_at(32));
    ensure!(max.wrapping_sub(expected).wrapping_add(1) == 4, "{expected} to {max}");
    // A CmdSN one too high is ignored: the next response is that of the ping.
    let far = raw.command(0x81, &[0; 6], 0).put_u32(24, max.wrapping_add(1));
    raw.send(&far)?;
    let ping = RawPdu::new(0x40 | opcode::NOP_OUT, 0x80)
        .put_u32(16, raw.new_tag())
        .put_u32(20, u32::MAX)
        .put_u32(24, expected);
    raw.send(&ping)?;
    match raw.answer(LONG)? {
        RawAnswer::Pdu(pdu) if pdu.opcode() == opcode::NOP_IN => Ok(()),
        other => bail!("{other:02x?}"),
    }
}

/// Sends READ (16) of this many mebibytes, and leaves its response unread.
fn send_read(raw: &mut RawClient, mebibytes: u32) -> Result<()> {
    let mut cdb = [0; 16];
    cdb[0] = 0x88;
    cdb[10..14].copy_from_slice(&(mebibytes * 2048).to_be_bytes());
    let read = raw.command(0xc1, &cdb, mebibytes << 20);
    raw.send(&read)
}

fn memory_bytes_max() -> Result<()> {
    // The limit of a single connection does not apply here.
    let limits = "memory_bytes_max = \"64MiB\"\ndata_in_bytes = \"1GiB\"";
    let mut victim = Victim::new("memory", limits, false)?;
    let before = victim.resident_bytes()?;
    let mut sessions = Vec::new();
    for number in 0..8 {
        sessions.push(victim.log_in(number)?);
    }
    for raw in &mut sessions {
        // The unit attention ends the first of them.
        (0..17).try_for_each(|_| send_read(raw, 8))?;
    }
    // The other address has used up its share.
    let mut arrived = victim.log_in_from_elsewhere(98)?;
    arrived.read_block(0)?;

    let grown = victim.resident_bytes()?.saturating_sub(before);
    ensure!(grown < 80 * MIB, "1 GiB was asked for, {} MiB are held", grown / MIB);
    drop((sessions, arrived));
    let until = Instant::now() + LONG;
    while victim.ready(99).is_err() {
        ensure!(Instant::now() < until, "no memory is given back");
    }
    Ok(())
}

fn memory_wait_seconds() -> Result<()> {
    let limits = "memory_wait_seconds = 1\ndata_in_bytes = \"1MiB\"";
    let victim = Victim::new("memory-wait", limits, false)?;
    let mut raw = victim.ready(1)?;
    (0..32).try_for_each(|_| send_read(&mut raw, 8))?;
    // The attack: nothing is read meanwhile.
    std::thread::sleep(Duration::from_secs(3));
    let mut full = 0;
    for _ in 0..32 {
        full += usize::from(ending(&mut raw)? == TASK_SET_FULL);
    }
    ensure!(full > 0, "all waited longer than a second");
    Ok(())
}

/// Returns the status of the next command that ends, and skips its data.
fn ending(raw: &mut RawClient) -> Result<u8> {
    loop {
        match raw.answer(LONG)? {
            RawAnswer::Pdu(pdu) if pdu.opcode() == opcode::SCSI_RESPONSE => {
                return Ok(pdu.header[3]);
            }
            RawAnswer::Pdu(pdu) if pdu.opcode() == opcode::DATA_IN => {
                if pdu.header[1] & 1 != 0 {
                    return Ok(pdu.header[3]);
                }
            }
            RawAnswer::Pdu(pdu) if pdu.opcode() == opcode::NOP_IN => {}
            other => bail!("{other:02x?}"),
        }
    }
}

fn data_in_bytes() -> Result<()> {
    let mut victim = Victim::new("data-in", "data_in_bytes = \"1MiB\"", false)?;
    let mut raw = victim.ready(1)?;
    let before = victim.resident_bytes()?;
    (0..64).try_for_each(|_| send_read(&mut raw, 1))?;
    victim.ready(2)?; // earlier requests have arrived
    let grown = victim.resident_bytes()?.saturating_sub(before);
    ensure!(grown < 16 * MIB, "64 MiB were asked for, {} MiB are held", grown / MIB);
    for _ in 0..64 {
        ensure!(ending(&mut raw)? == 0);
    }
    Ok(())
}

/// Sends WRITE (10) of 1 MiB whose data has to be requested by R2T.
fn send_write(raw: &mut RawClient) -> Result<()> {
    let write = raw.command(0xa1, &[0x2a, 0, 0, 0, 0, 0, 0, 0x08, 0, 0], 1 << 20);
    raw.send(&write)
}

fn data_out_bytes() -> Result<()> {
    let victim = Victim::new("data-out", "data_out_bytes = \"1MiB\"", false)?;
    let mut raw = victim.ready(1)?;
    (0..16).try_for_each(|_| send_write(&mut raw))?;
    let ping = RawPdu::new(0x40 | opcode::NOP_OUT, 0x80)
        .put_u32(16, raw.new_tag())
        .put_u32(20, u32::MAX)
        .put_u32(24, raw.cmd_sn);
    raw.send(&ping)?;
    let mut asked = Vec::new();
    loop {
        match raw.answer(LONG)? {
            RawAnswer::Pdu(pdu) if pdu.opcode() == opcode::R2T => asked.push(pdu.u32_at(16)),
            RawAnswer::Pdu(pdu) if pdu.opcode() == opcode::NOP_IN => break,
            other => bail!("{other:02x?}"),
        }
    }
    asked.dedup();
    ensure!(asked.len() == 1, "data of {} commands is asked for", asked.len());
    Ok(())
}

fn data_out_seconds() -> Result<()> {
    let victim = Victim::new("data-out-seconds", "data_out_seconds = 1", false)?;
    let mut raw = victim.ready(1)?;
    send_write(&mut raw)?;
    raw.wait_until_closed(Duration::from_secs(15))
}

fn transfer_bytes() -> Result<()> {
    let victim = Victim::new("transfer", "transfer_bytes = \"64KiB\"", false)?;
    let mut raw = victim.ready(1)?;
    let longest_read = raw.read_blocks(0, 128)?;
    ensure!(longest_read.len() == 64 << 10);
    let outcome = raw.run(&[0x28, 0, 0, 0, 0, 0, 0, 0, 129, 0], 129 * 512)?;
    ensure!(outcome.status == CHECK_CONDITION, "{:02x}", outcome.status);
    Ok(())
}

fn pings() -> Result<()> {
    let limits = "ping_after_seconds = 1\nping_timeout_seconds = 1";
    let victim = Victim::new("pings", limits, false)?;
    let mut raw = victim.ready(1)?;
    match raw.answer(LONG)? {
        RawAnswer::Pdu(pdu) if pdu.opcode() == opcode::NOP_IN => {}
        other => bail!("{other:02x?}"),
    }
    raw.wait_until_closed(LONG)
}
