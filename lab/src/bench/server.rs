//! The release build of `lunar serve` on a free port; it ends with its owner.

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A server.
pub struct BenchServer {
    child: Child,
    address: String,
}

impl BenchServer {
    /// Starts `lunar serve ARGUMENTS` and waits until it listens.
    ///
    /// # Errors
    /// The server cannot be built or does not listen.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        Self::start_on(None, arguments)
    }

    /// Starts `lunar serve` on one processor core if one is named.
    ///
    /// # Errors
    /// The server cannot be built or does not listen.
    pub fn start_on(core: Option<u16>, arguments: &[&str]) -> Result<Self> {
        Self::start_program(core, &binary()?, arguments)
    }

    /// Starts `lunar serve` of another build.
    ///
    /// # Errors
    /// The server does not listen.
    pub fn start_program(core: Option<u16>, program: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = mortal(core, program);
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments);
        Self::start_command(command)
    }

    /// Starts `lunar target --config FILE` and waits until it listens.
    ///
    /// # Errors
    /// The server does not listen.
    pub fn start_daemon(program: &Path, config: &Path) -> Result<Self> {
        let mut command = mortal(None, program);
        command.args(["target", "--config"]).arg(config);
        Self::start_command(command)
    }

    fn start_command(mut command: Command) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn().context("starting lunar")?;
        let stdout = child.stdout.take().context("a piped output")?;
        let mut lines = BufReader::new(stdout).lines();
        let address = lines.find_map(|line| {
            let line = line.ok()?;
            line.strip_prefix("listening on ").map(|address| address.trim().to_owned())
        });
        // The server may print more, and the pipe must not fill.
        std::thread::spawn(move || lines.for_each(drop));
        let mut server = Self { child, address: String::new() };
        server.address = address.context("lunar does not listen")?;
        Ok(server)
    }

    /// Returns its address, `127.0.0.1:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the number of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns a command that runs `program`, on one processor core if one is named.
pub fn pinned(core: Option<u16>, program: &Path) -> Command {
    let Some(core) = core else {
        return Command::new(program);
    };
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &core.to_string()]).arg(program);
    command
}

/// Returns such a command for a server: its process ends with the thread that starts it, even by
/// SIGKILL.
pub fn mortal(core: Option<u16>, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some(core) = core {
        command.args(["taskset", "--cpu-list", &core.to_string()]);
    }
    command.arg(program);
    command
}

/// Raises the number of files that this process, and those it starts, may open by this many.
///
/// # Errors
/// The system does not grant them.
pub fn raise_open_files(more: u64) -> Result<()> {
    const OTHERS: u64 = 1024;
    let wanted = more + OTHERS;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
            .with_context(|| format!("{wanted} open files (ulimit -n)"))?;
    }
    Ok(())
}

/// Returns `LUNAR_BIN`, or rebuilds the binary beside this program, so that it matches the source.
///
/// # Errors
/// The binary cannot be built.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("LUNAR_BIN") {
        return Ok(path.into());
    }
    let mut build = Command::new(env!("CARGO"));
    // Variables that cargo sets for the programs it runs: crates whose builds read them would be
    // built anew.
    for (name, _) in std::env::vars_os() {
        let told = ["CARGO_MANIFEST", "CARGO_PKG", "CARGO_BIN", "CARGO_CRATE", "CARGO_PRIMARY"];
        if told.iter().any(|told| name.to_string_lossy().starts_with(told)) {
            build.env_remove(name);
        }
    }
    let status = build
        .args(["build", "--release", "--locked", "-p", "lunar-san"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .status()
        .context("running cargo build")?;
    ensure!(status.success(), "lunar cannot be built");
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(Path::parent).context("a folder for builds")?;
    let path = folder.join("release/lunar");
    ensure!(path.is_file(), "{} is not there", path.display());
    Ok(path)
}
