//! Debian's istgt as a peer: a target for our initiator. Used for plain login and I/O only;
//! SendTargets sends it into an endless loop, and a command past its end blocks the session.

use crate::system::ports::free_port;
use crate::system::process::ServerProcess;
use crate::system::scratch::Scratch;
use anyhow::Result;
use std::time::Duration;

const START_MAX: Duration = Duration::from_secs(60);
/// Text that istgt prints once its LUN is open; it listens before.
const READY: &str = "command queuing";

/// Negotiation and authentication options of a target of istgt.
#[derive(Clone, Debug)]
pub struct IstgtOptions {
    /// Global keys, one line each: `FirstBurstLength 65536`.
    pub keys: Vec<(&'static str, String)>,
    /// `UseDigest`: `Auto` or words of `Header Data`.
    pub digests: &'static str,
    /// User and secret of twelve to sixteen bytes for CHAP.
    pub chap: Option<(&'static str, &'static str)>,
    /// User and secret with which the target authenticates itself.
    pub mutual: Option<(&'static str, &'static str)>,
}

impl Default for IstgtOptions {
    fn default() -> Self {
        Self { keys: Vec::new(), digests: "Auto", chap: None, mutual: None }
    }
}

/// Keys that istgt requires, with values that work with all clients.
const KEYS: &[(&str, &str)] = &[
    ("MaxR2T", "16"),
    ("MaxOutstandingR2T", "16"),
    ("DefaultTime2Wait", "0"),
    ("DefaultTime2Retain", "20"),
    ("FirstBurstLength", "65536"),
    ("MaxBurstLength", "262144"),
    ("MaxRecvDataSegmentLength", "65536"),
    ("InitialR2T", "Yes"), // it supports no other value
    ("ImmediateData", "Yes"),
    ("DataPDUInOrder", "Yes"),
    ("DataSequenceInOrder", "Yes"),
    ("ErrorRecoveryLevel", "0"),
];

/// A separate `istgt` with one target; LUN 0 is a file. Dropping it kills it.
pub struct Istgt {
    server: ServerProcess,
    port: u16,
}

impl Istgt {
    /// Name of its target.
    pub const TARGET: &str = "iqn.2026-11.org.lunarsan.test:istgt";

    /// Starts istgt with `file`, which has its size already, as LUN 0. Its own files are in
    /// `scratch`.
    ///
    /// # Errors
    /// istgt cannot be started, or refuses the options; the message holds its output.
    pub fn start(scratch: &Scratch, file: &str, options: &IstgtOptions) -> Result<Self> {
        let (port, control) = (free_port()?, free_port()?);
        let accounts = match (options.chap, options.mutual) {
            (Some((user, secret)), None) => format!("  Auth \"{user}\" \"{secret}\"\n"),
            (Some((user, secret)), Some((name, proof))) => {
                format!("  Auth \"{user}\" \"{secret}\" \"{name}\" \"{proof}\"\n")
            }
            (None, _) => String::new(),
        };
        let accounts = format!("[AuthGroup1]\n{accounts}");
        // istgt refuses a file of accounts that other users may read.
        let accounts = scratch.secret("istgt-auth.conf", &accounts)?;
        let text = configuration(scratch, file, options, &accounts, (port, control));
        let path = scratch.secret("istgt.conf", &text)?;
        let pid = scratch.path("istgt.pid");
        let mut server = ServerProcess::start("istgt", &["-D", "-c", &path, "-p", &pid])?;
        server.wait_for_line(READY, START_MAX)?;
        let istgt = Self { server, port };
        istgt.wait_until_it_listens()?;
        Ok(istgt)
    }

    /// Returns its address, `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the URL `iscsi://127.0.0.1:PORT/TARGET/0`.
    pub fn url(&self) -> String {
        format!("iscsi://{}/{}/0", self.address(), Self::TARGET)
    }

    /// Returns its output so far.
    pub fn log(&self) -> String {
        self.server.log()
    }

    fn wait_until_it_listens(&self) -> Result<()> {
        let until = std::time::Instant::now() + START_MAX;
        while let Err(error) = std::net::TcpStream::connect(self.address()) {
            anyhow::ensure!(std::time::Instant::now() < until, "{error}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn configuration(
    scratch: &Scratch,
    file: &str,
    options: &IstgtOptions,
    accounts: &str,
    (port, control): (u16, u16),
) -> String {
    let folder = scratch.folder().display();
    let mut keys = String::new();
    for (key, value) in KEYS {
        let option = options.keys.iter().find(|(other, _)| other == key);
        let value = option.map_or(*value, |(_, value)| value.as_str());
        keys += &format!("  {key} {value}\n");
    }
    let method = match (options.chap, options.mutual) {
        (None, _) => "None",
        (Some(_), None) => "CHAP",
        (Some(_), Some(_)) => "CHAP Mutual",
    };
    let digests = options.digests;
    format!(
        "[Global]\n  NodeBase \"iqn.2026-11.org.lunarsan.test\"\n  AuthFile {accounts}\n  \
         MediaDirectory {folder}\n  Timeout 30\n  NopInInterval 20\n  DiscoveryAuthMethod None\n  \
         MaxSessions 32\n  MaxConnections 1\n{keys}\
         [UnitControl]\n  AuthMethod None\n  AuthGroup None\n  Portal UC1 127.0.0.1:{control}\n  \
         Netmask 127.0.0.1\n\
         [PortalGroup1]\n  Portal DA1 127.0.0.1:{port}\n\
         [InitiatorGroup1]\n  InitiatorName \"ALL\"\n  Netmask 127.0.0.1\n\
         [LogicalUnit1]\n  TargetName istgt\n  Mapping PortalGroup1 InitiatorGroup1\n  \
         AuthMethod {method}\n  AuthGroup AuthGroup1\n  UseDigest {digests}\n  UnitType Disk\n  \
         QueueDepth 32\n  LUN0 Storage {file} Auto\n"
    )
}
