//! The hosts: each writes data to its range of a virtual LUN, flushes, and reads the range back.

use super::layout::{MIB, RANGE_BYTES, VIRTUAL_BYTES};
use crate::lio::clients::{ClientPrograms, succeeded};
use crate::peers::lio_guest::Authentication;
use crate::peers::load_programs::{build_generator, generator_data};
use crate::peers::lunar::binary;
use crate::peers::qemu_io::QemuIo;
use crate::random::{Random, pattern};
use crate::system::process::{run_checked, run_for_bytes, run_with_input};
use crate::system::scratch::Scratch;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fmt;
use std::path::Path;
use std::time::Duration;
use tokio::time::timeout;

/// Longest run of a host.
const HOST_MAX: Duration = Duration::from_secs(120);
/// Bytes of a request of libiscsi: more than a stripe unit.
const GENERATOR_BYTES: usize = 96 << 10;
const GENERATOR_BLOCKS: usize = RANGE_BYTES / GENERATOR_BYTES;
/// Longest request of qemu-io.
const QEMU_BYTES_MAX: usize = MIB;
const BLOCK_BYTES: usize = 512;

/// An initiator that uses the virtual LUN.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum HostPeer {
    /// lunar-copy of the Java examples. It writes from the beginning of a LUN, so it is the first.
    Java,
    /// The generator on libiscsi (lab/libiscsi).
    Libiscsi,
    /// qemu-io, and qemu-img to read.
    Qemu,
    /// `lunar write` and `lunar read`.
    Lunar,
    /// The kernel with open-iscsi, in a guest.
    Kernel,
}

impl fmt::Display for HostPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Java => "Lunar for Java, `lunar-copy`",
            Self::Libiscsi => "libiscsi",
            Self::Qemu => "QEMU, `qemu-io` and `qemu-img`",
            Self::Lunar => "Lunar, `lunar write` and `read`",
            Self::Kernel => "Linux with open-iscsi",
        })
    }
}

impl HostPeer {
    /// Returns the beginning of its range.
    pub fn offset(self) -> usize {
        self as usize * RANGE_BYTES
    }

    /// Returns the data that it writes for a seed.
    pub fn data(self, seed: u64) -> Vec<u8> {
        match self {
            Self::Libiscsi => {
                let block = |index| generator_data(seed, index, GENERATOR_BYTES);
                (0..GENERATOR_BLOCKS).flat_map(block).collect()
            }
            _ => pattern(seed, RANGE_BYTES),
        }
    }
}

const _: () = assert!(GENERATOR_BLOCKS * GENERATOR_BYTES == RANGE_BYTES);
const _: () = assert!((HostPeer::Kernel as usize + 1) * RANGE_BYTES <= VIRTUAL_BYTES);

/// Programs of the hosts on this machine.
pub struct HostPrograms {
    generator: Option<String>,
    java: Option<ClientPrograms>,
    scratch: Scratch,
}

impl HostPrograms {
    /// Finds or builds the programs of these hosts.
    ///
    /// # Errors
    /// A program is missing.
    pub fn find(hosts: &[HostPeer]) -> Result<Self> {
        let scratch = Scratch::new("switch-hosts")?;
        let mut programs = Self { generator: None, java: None, scratch };
        if hosts.contains(&HostPeer::Libiscsi) {
            let path = programs.scratch.path("libiscsi-load");
            build_generator(Path::new(&path), &["-O2"])?;
            programs.generator = Some(path);
        }
        if hosts.contains(&HostPeer::Java) {
            programs.java = Some(ClientPrograms::find(&programs.scratch)?);
        }
        Ok(programs)
    }

    /// Has a host write the data of `seed` to its range of the LUN, flush, and compare.
    ///
    /// # Errors
    /// The host fails, or reads other data than it has written.
    pub fn run(&self, host: HostPeer, url: &str, seed: u64) -> Result<()> {
        match host {
            HostPeer::Java => self.java(url, seed),
            HostPeer::Libiscsi => self.libiscsi(url, seed),
            HostPeer::Qemu => self.qemu(url, seed),
            HostPeer::Lunar => lunar(url, seed),
            HostPeer::Kernel => bail!("the kernel uses all LUNs in one boot"),
        }
    }

    fn java(&self, url: &str, seed: u64) -> Result<()> {
        let clients = self.java.as_ref().context("lunar-copy was not found")?;
        let (source, back) = (self.scratch.path("source"), self.scratch.path("back"));
        std::fs::write(&source, HostPeer::Java.data(seed))?;
        drop(std::fs::remove_file(&back));
        let open = clients.proof(Authentication::Open);
        succeeded("writing", &clients.lunar_copy(&[&source, url], open)?)?;
        succeeded("reading", &clients.lunar_copy(&[url, &back], open)?)?;
        compare_whole(HostPeer::Java, seed, &std::fs::read(&back)?)
    }

    fn libiscsi(&self, url: &str, seed: u64) -> Result<()> {
        let generator = self.generator.as_ref().context("the generator was not built")?;
        let [offset, range, size] =
            [HostPeer::Libiscsi.offset(), RANGE_BYTES, GENERATOR_BYTES].map(|n| n.to_string());
        let seed = seed.to_string();
        let load = ["--pattern", "write", "--once", "--verify", "--depth", "8", "--warm-up", "0"];
        let range_words =
            ["--offset", &offset, "--range", &range, "--io-size", &size, "--seed", &seed];
        let words = [&load[..], &range_words, &["--seconds", "60", url]].concat();
        let report: Value = serde_json::from_str(&run_checked(generator, &words, HOST_MAX)?)?;
        ensure!(report["verified"] == GENERATOR_BLOCKS, "not all data was written: {report}");
        Ok(())
    }

    fn qemu(&self, url: &str, seed: u64) -> Result<()> {
        let host = HostPeer::Qemu;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let write = async { timeout(HOST_MAX, self.qemu_write(url, seed)).await };
        runtime.block_on(write).context("qemu-io took too long")??;
        let back = self.scratch.path("back");
        drop(std::fs::remove_file(&back));
        run_checked("qemu-img", &["convert", "-f", "raw", "-O", "raw", url, &back], HOST_MAX)?;
        compare_whole(host, seed, &std::fs::read(&back)?)
    }

    /// Writes the range in requests of random lengths, and flushes.
    async fn qemu_write(&self, url: &str, seed: u64) -> Result<()> {
        let (data, file) = (HostPeer::Qemu.data(seed), self.scratch.path("piece"));
        let (mut random, mut at) = (Random::new(seed), 0);
        let mut qemu = QemuIo::open(url, "none", None).await?;
        while at < data.len() {
            let blocks = 1 + random.below((QEMU_BYTES_MAX / BLOCK_BYTES) as u64) as usize;
            let length = (blocks * BLOCK_BYTES).min(data.len() - at);
            std::fs::write(&file, &data[at..at + length])?;
            let offset = HostPeer::Qemu.offset() + at;
            let answer = qemu.ask(&format!("write -s {file} {offset} {length}")).await?;
            let is_written = answer.contains(&format!("wrote {length}/{length} bytes"));
            ensure!(is_written, "{length} bytes at {offset}: {answer}");
            at += length;
        }
        let answer = qemu.ask("flush").await?;
        ensure!(answer.is_empty(), "flush: {answer}");
        let printed = qemu.end().await?;
        ensure!(printed.is_empty(), "{printed}");
        Ok(())
    }
}

fn lunar(url: &str, seed: u64) -> Result<()> {
    let host = HostPeer::Lunar;
    let (offset, length) = (host.offset().to_string(), RANGE_BYTES.to_string());
    let lunar = binary()?;
    let words = ["write", url, "--offset", &offset];
    let written = run_with_input(&lunar, &words, host.data(seed), HOST_MAX)?;
    ensure!(written.succeeded(), "writing: {}", written.outputs());
    let words = ["read", url, "--offset", &offset, "--length", &length];
    let (end, read, printed, _) = run_for_bytes(&lunar, &words, Vec::new(), HOST_MAX)?;
    ensure!(end.code() == Some(0), "reading: {end:?} {printed}");
    compare(host, seed, &read)
}

/// Compares the range of a host in a copy of the LUN.
fn compare_whole(host: HostPeer, seed: u64, copy: &[u8]) -> Result<()> {
    ensure!(copy.len() == VIRTUAL_BYTES, "{} bytes were read", copy.len());
    compare(host, seed, &copy[host.offset()..][..RANGE_BYTES])
}

/// Compares the range of a host with the data of a seed.
///
/// # Errors
/// The message names the first byte that differs.
pub fn compare(host: HostPeer, seed: u64, range: &[u8]) -> Result<()> {
    let wanted = host.data(seed);
    ensure!(range.len() == wanted.len(), "{} bytes of {} were read", range.len(), wanted.len());
    let differs = wanted.iter().zip(range).position(|(wanted, is)| wanted != is);
    if let Some(at) = differs {
        bail!("the data differs from byte {at} of the range on (seed {seed})");
    }
    Ok(())
}
