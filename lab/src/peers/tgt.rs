//! Debian's tgt as a peer: a target for our initiator, a reference for the runner, and a competitor
//! in measurements.

use crate::system::ports::free_port;
use crate::system::process::{self, ServerProcess, on_core};
use crate::system::scratch::Scratch;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

const ADMIN_MAX: Duration = Duration::from_secs(60);
const START_MAX: Duration = Duration::from_secs(60);

/// A separate `tgtd` with one target; LUN 1 is a file. Dropping it kills it (it ignores SIGTERM
/// while a target is defined).
pub struct Tgt {
    server: ServerProcess,
    /// Environment variable that names the control socket.
    control: String,
    address: String,
    /// Folder of the control socket.
    _scratch: Scratch,
}

/// Mode in which a file is served. tgtadm(8): `--bsoflags`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TgtBacking {
    /// `O_SYNC`: a write has returned when it is durable.
    pub is_sync: bool,
    /// `O_DIRECT`.
    pub is_direct: bool,
}

impl TgtBacking {
    /// Returns the options of `tgtadm`.
    pub fn options(self) -> &'static [&'static str] {
        match (self.is_sync, self.is_direct) {
            (false, false) => &[],
            (true, false) => &["--bsoflags", "sync"],
            (false, true) => &["--bsoflags", "direct"],
            (true, true) => &["--bsoflags", "sync:direct"],
        }
    }

    /// Returns the options of the backing store with asynchronous I/O, past the page cache.
    pub fn aio() -> &'static [&'static str] {
        &["--bstype", "aio"]
    }
}

impl Tgt {
    /// Name of its target.
    pub const TARGET: &str = "iqn.2026-11.org.lunarsan.test:tgt";

    /// Starts tgt with `file` as LUN 1.
    ///
    /// # Errors
    /// tgt cannot be started or refuses the target.
    pub fn start(file: &str) -> Result<Self> {
        Self::start_on(None, file, &[])
    }

    /// Starts tgt on one processor core if one is named, with `file` as LUN 1 and options of
    /// `tgtadm` for its backing store.
    ///
    /// # Errors
    /// tgt cannot be started or refuses the target.
    pub fn start_on(core: Option<u16>, file: &str, options: &[&str]) -> Result<Self> {
        let by = on_core(core);
        let by: Vec<&str> = by.iter().map(String::as_str).collect();
        Self::start_by(&by, "127.0.0.1", &[file], options)
    }

    /// Starts tgt on a free port of `ip`, with `files` as its LUNs from 1 on. `by` is a program
    /// with its arguments that becomes tgt, or empty.
    ///
    /// # Errors
    /// tgt cannot be started or refuses the target.
    pub fn start_by(by: &[&str], ip: &str, files: &[&str], options: &[&str]) -> Result<Self> {
        // A control port is a socket named by number, and another tgtd may use any number.
        let scratch = Scratch::new("tgt")?;
        let control = format!("TGT_IPC_SOCKET={}", scratch.path("control"));
        let address = format!("{ip}:{}", free_port()?);
        let portal = format!("portal={address}");
        let words = [&[control.as_str()], by, &["tgtd", "-f", "--iscsi", &portal]].concat();
        let server = ServerProcess::start("env", &words)?;
        let tgt = Self { server, control, address, _scratch: scratch };
        tgt.wait_until_ready()?;
        tgt.admin(&["new", "--mode", "target", "--tid", "1", "-T", Self::TARGET])?;
        for (number, file) in (1..).zip(files) {
            let number = number.to_string();
            let unit = ["new", "--mode", "logicalunit", "--tid", "1", "--lun", &number, "-b", file];
            tgt.admin(&[&unit[..], options].concat())?;
        }
        tgt.admin(&["bind", "--mode", "target", "--tid", "1", "-I", "ALL"])?;
        Ok(tgt)
    }

    /// Runs `tgtadm --lld iscsi --op ARGUMENTS`.
    ///
    /// # Errors
    /// The command fails.
    pub fn admin(&self, arguments: &[&str]) -> Result<()> {
        let mut all = vec![self.control.as_str(), "tgtadm", "--lld", "iscsi", "--op"];
        all.extend_from_slice(arguments);
        process::run_checked("env", &all, ADMIN_MAX).map(drop)
    }

    /// Makes LUN 1 thin.
    ///
    /// # Errors
    /// tgt refuses.
    pub fn make_thin(&self) -> Result<()> {
        let unit = ["update", "--mode", "logicalunit", "--tid", "1", "--lun", "1"];
        self.admin(&[&unit[..], &["--params", "thin_provisioning=1"]].concat())
    }

    /// Lets initiators negotiate digests.
    ///
    /// # Errors
    /// tgt refuses.
    pub fn allow_digests(&self) -> Result<()> {
        self.negotiate("HeaderDigest", "CRC32C")?;
        self.negotiate("DataDigest", "CRC32C")
    }

    /// Sets the value of a key for the next logins.
    ///
    /// # Errors
    /// tgt refuses.
    pub fn negotiate(&self, key: &str, value: &str) -> Result<()> {
        let target = ["update", "--mode", "target", "--tid", "1"];
        self.admin(&[&target[..], &["-n", key, "-v", value]].concat())
    }

    /// Requires CHAP with this account.
    ///
    /// # Errors
    /// tgt refuses.
    pub fn require_chap(&self, user: &str, secret: &str) -> Result<()> {
        let account = ["--mode", "account", "--user", user, "--password", secret];
        self.admin(&[&["new"][..], &account].concat())?;
        self.admin(&["bind", "--mode", "account", "--tid", "1", "--user", user])
    }

    /// Sets the account with which tgt authenticates itself, if the initiator requests it.
    ///
    /// # Errors
    /// tgt refuses.
    pub fn prove_itself(&self, user: &str, secret: &str) -> Result<()> {
        let account = ["--mode", "account", "--user", user, "--password", secret];
        self.admin(&[&["new"][..], &account].concat())?;
        let account = ["--mode", "account", "--tid", "1", "--user", user, "--outgoing"];
        self.admin(&[&["bind"][..], &account].concat())
    }

    /// Requires CHAP with this account in discovery sessions.
    ///
    /// # Errors
    /// tgt refuses.
    pub fn require_chap_for_discovery(&self, user: &str, secret: &str) -> Result<()> {
        let account = ["--mode", "account", "--user", user, "--password", secret];
        self.admin(&[&["new"][..], &account].concat())?;
        self.admin(&["bind", "--mode", "account", "--user", user])
    }

    /// Sets the account with which tgt authenticates itself in discovery sessions, if the initiator
    /// requests it.
    ///
    /// # Errors
    /// tgt refuses.
    pub fn prove_itself_in_discovery(&self, user: &str, secret: &str) -> Result<()> {
        let account = ["--mode", "account", "--user", user, "--password", secret];
        self.admin(&[&["new"][..], &account].concat())?;
        self.admin(&["bind", "--mode", "account", "--user", user, "--outgoing"])
    }

    /// Returns its address, `127.0.0.1:PORT` or that of another portal.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the URL `iscsi://127.0.0.1:PORT/TARGET/1`.
    pub fn url(&self) -> String {
        format!("iscsi://{}/{}/1", self.address(), Self::TARGET)
    }

    /// Returns the number of its process.
    pub fn pid(&self) -> u32 {
        self.server.id()
    }

    /// Returns its output so far.
    pub fn log(&self) -> String {
        self.server.log()
    }

    fn wait_until_ready(&self) -> Result<()> {
        let until = Instant::now() + START_MAX;
        loop {
            match self.admin(&["show", "--mode", "target"]) {
                Err(error) if Instant::now() > until => return Err(error).context("starting tgtd"),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
                Ok(()) => return Ok(()),
            }
        }
    }
}
