//! One log line for each refused login: initiator, target, address, and reason.

use anyhow::{Result, ensure};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::system::scratch::Scratch;
use lunar_testkit::raw::{RawAnswer, RawClient, RawPdu};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const PREFIX: &str = "iqn.2026-11.org.lunarsan.test:";
/// Flags of a login that goes to the full feature phase at once.
const AT_ONCE: u8 = 0x87;

const CONFIG: &str = r#"
[listen]
portals = ["127.0.0.1:0"]
[limits]
login_seconds = LOGIN_SECONDS
login_failures_free = 2
login_backoff_seconds_max = 1
[[target]]
name = "iqn.2026-11.org.lunarsan.test:open"
max_connections = 1
[[target.lun]]
id = 0
device = "mem:1M"
[[target]]
name = "iqn.2026-11.org.lunarsan.test:listed"
initiators = ["iqn.2026-11.org.lunarsan.test:other"]
[[target.lun]]
id = 0
device = "mem:1M"
[[target]]
name = "iqn.2026-11.org.lunarsan.test:mapped"
[[target.lun]]
id = 0
device = "mem:1M"
initiators = ["iqn.2026-11.org.lunarsan.test:other"]
[[target]]
name = "iqn.2026-11.org.lunarsan.test:proof"
chap = [{ initiator = "iqn.2026-11.org.lunarsan.test:other", user = "u", secret_file = "secret" }]
[[target.lun]]
id = 0
device = "mem:1M"
[[target]]
name = "iqn.2026-11.org.lunarsan.test:secret"
chap = { user = "u", secret_file = "secret" }
[[target.lun]]
id = 0
device = "mem:1M"
"#;

fn start(scratch: &Scratch, login_seconds: u32) -> Result<Lunar> {
    scratch.secret("secret", "an unknown initiator")?;
    let config = CONFIG.replace("LOGIN_SECONDS", &login_seconds.to_string());
    let config = scratch.secret("lunar.toml", &config)?;
    Lunar::start(&["target", "--config", &config, "--api", "none"])
}

/// Connects from 127.0.0.`host`, so that each connection has log lines of its own.
fn connect(lunar: &Lunar, host: u8) -> Result<RawClient> {
    let to: SocketAddr = lunar.address().parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let tcp = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, host], 0)))?;
        socket.connect(to).await?.into_std()
    })?;
    tcp.set_nonblocking(false)?;
    RawClient::from_tcp(tcp)
}

fn text(initiator: &str, target: &str) -> String {
    format!("InitiatorName={PREFIX}{initiator}\0TargetName={PREFIX}{target}\0")
}

/// Sends a login; returns the status of the response.
fn status(raw: &mut RawClient, login: &RawPdu) -> Result<u16> {
    raw.send(login)?;
    let RawAnswer::Pdu(answer) = raw.answer(TEST_TIMEOUT)? else { anyhow::bail!("no answer") };
    Ok(u16::from_be_bytes([answer.header[36], answer.header[37]]))
}

/// Returns the log lines about refused logins, once there are this many.
fn lines(lunar: &mut Lunar, count: usize) -> Result<Vec<String>> {
    let until = Instant::now() + TEST_TIMEOUT;
    loop {
        let log = lunar.server().log();
        let found: Vec<_> = log.lines().filter(|line| line.contains("login refused")).collect();
        if found.len() >= count {
            return Ok(found.into_iter().map(str::to_owned).collect());
        }
        ensure!(Instant::now() < until, "{} of {count} lines:\n{log}", found.len());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Goal: each reason that a peer can cause is logged in one line, with all known names.
#[test]
fn each_reason_is_reported() -> Result<()> {
    let scratch = Scratch::new("login-lines")?;
    let mut lunar = start(&scratch, 60)?;
    let mut open = connect(&lunar, 99)?;
    let login = open.login(text("guest", "open").as_bytes());
    ensure!(status(&mut open, &login)? == 0);
    let cases = [
        ("none", AT_ONCE, 0, "the target does not exist"),
        ("listed", AT_ONCE, 0, "the target does not allow this initiator name or address"),
        ("mapped", AT_ONCE, 0, "no LUN of the target is accessible to this initiator"),
        ("proof", AT_ONCE, 0, "the target has no CHAP credential for this initiator"),
        ("secret", AT_ONCE, 0, "AUTHENTICATION_FAILURE"),
        ("open", AT_ONCE, 0xfffe, "SESSION_DOES_NOT_EXIST"),
        ("open", 0x8f, 0, "INITIATOR_ERROR"),
    ];
    for (number, (target, flags, tsih, words)) in (1..).zip(cases) {
        let host = 10 + number as u8;
        let mut raw = connect(&lunar, host)?;
        let login = raw.login(text("eve", target).as_bytes()).put(1, &[flags]);
        let got = status(&mut raw, &login.put(14, &u16::to_be_bytes(tsih)))?;
        ensure!(got >> 8 == 2, "{target}: {got:#06x} is no error of the initiator's");
        let printed = lines(&mut lunar, number)?;
        ensure!(printed.len() == number, "{printed:?}");
        let line = &printed[number - 1];
        let mut parts = vec![format!("peer=127.0.0.{host}:"), words.to_owned()];
        if flags == AT_ONCE {
            parts.push(format!("initiator=\"{PREFIX}eve\""));
            parts.push(format!("target=\"{PREFIX}{target}\""));
        }
        ensure!(parts.iter().all(|part| line.contains(part)), "{parts:?} in {line}");
    }
    drop(open);
    lunar.stop(TEST_TIMEOUT)?;
    Ok(())
}

/// Goal: a login that takes too long is logged as refused, with the known names, in one line only.
#[test]
fn a_slow_login_is_reported() -> Result<()> {
    let scratch = Scratch::new("slow-login")?;
    let mut lunar = start(&scratch, 2)?;
    let silent = connect(&lunar, 20)?;
    let mut slow = connect(&lunar, 21)?;
    // The client never sends the CHAP response that it owes.
    let ask = text("eve", "secret") + "AuthMethod=CHAP\0CHAP_A=5\0";
    let login = slow.login(ask.as_bytes()).put(1, &[0]);
    ensure!(status(&mut slow, &login)? == 0);
    let printed = lines(&mut lunar, 2)?;
    ensure!(
        printed.iter().all(|line| line.contains("the login took longer than 2 s")),
        "{printed:?}"
    );
    let of =
        |host: &str| printed.iter().find(|line| line.contains(host)).cloned().unwrap_or_default();
    ensure!(!of("peer=127.0.0.20:").is_empty(), "{printed:?}");
    let line = of("peer=127.0.0.21:");
    let names = [format!("initiator=\"{PREFIX}eve\""), format!("target=\"{PREFIX}secret\"")];
    ensure!(names.iter().all(|name| line.contains(name)), "{printed:?}");
    drop((silent, slow));
    let log = lunar.server().log();
    ensure!(!log.contains("connection closed"), "{log}");
    lunar.stop(TEST_TIMEOUT)?;
    Ok(())
}

/// Goal: a login that is refused because too many of its network wait is logged with that reason;
/// text from peers cannot begin a line of the log, move the cursor, or fill the log.
#[test]
fn floods_and_forged_lines() -> Result<()> {
    let scratch = Scratch::new("forged-lines")?;
    let mut lunar = start(&scratch, 60)?;
    let forged = "eve\n2026-11-22T00:00:00Z  WARN forged\r\u{1b}[2J\u{202e}";
    let long = "x".repeat(4000);
    for (host, initiator, target) in
        [(30, forged, "open"), (31, "eve", forged), (32, &long, "none"), (33, "eve", &long)]
    {
        let mut raw = connect(&lunar, host)?;
        let login = raw.login(text(initiator, target).as_bytes());
        ensure!(status(&mut raw, &login)? != 0, "{host} is let in");
    }
    for line in lines(&mut lunar, 4)? {
        ensure!(line.len() < 1000, "{} bytes", line.len());
    }
    let log = lunar.server().log();
    let printable = |letter: char| letter == '\n' || !letter.is_control() && letter != '\u{202e}';
    ensure!(!log.lines().any(|line| line.starts_with("2026-11-22T00:00:00Z")), "{log}");
    ensure!(log.replace("\u{1b}[0m", "").chars().all(printable), "{log:?}");
    // After the free failures each further one delays the next login; this many are allowed.
    for _ in 0..3 {
        let mut raw = connect(&lunar, 34)?;
        let login = raw.login(text("eve", "none").as_bytes());
        status(&mut raw, &login)?;
    }
    let mut waiting: Vec<RawClient> =
        (0..12).map(|_| connect(&lunar, 34)).collect::<Result<_>>()?;
    for raw in &mut waiting {
        raw.send(&raw.login(text("eve", "none").as_bytes()))?;
    }
    let words = "too many logins from this network are delayed after failures";
    let line = lunar.server().wait_for_line(words, TEST_TIMEOUT)?;
    ensure!(line.contains("login refused"), "{line}");
    drop(waiting);
    lunar.stop(TEST_TIMEOUT)?;
    Ok(())
}
