//! `lunar copy`: copies a disk onto another.

mod engine;
mod spans;

use self::engine::{CopyCounts, Engine};
use super::session::{SessionArgs, runtime};
use crate::device_url::{self, OpenedDevice};
use crate::output::{self, Failure, Format};
use lunar_block::BlockDevice as _;
use lunar_control::device_url::{DeviceOptions, DeviceUrl};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Copy a disk onto another, and make it durable
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    lunar copy disk.img iscsi://127.0.0.1/iqn.2026-11.org.lunarsan:disk/0 --verify\n\n\
    Holes of the source remain holes, and long runs of zeroes become holes if the destination\n\
    supports this. A destination file that does not exist is created; existing data of the\n\
    destination is overwritten. After a lost connection the copy waits for the target\n\
    (--recovery-seconds) and continues.")]
pub struct CopyCommand {
    /// The disk to read: iscsi://HOST:PORT/TARGET/LUN, a path, file:PATH,
    /// or pool:NAME
    #[arg(value_name = "SOURCE")]
    source: String,
    /// The disk to write, at least as large as the source
    #[arg(value_name = "DESTINATION")]
    destination: String,
    /// Read both disks again after the copy, and compare them
    #[arg(long)]
    verify: bool,
    /// Number of concurrent transfers
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    depth: u16,
    /// Connections per session, as far as the target allows
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: u16,
    /// File with the secret for the destination, if it differs
    #[arg(long, value_name = "FILE", help_heading = "Session")]
    destination_chap_secret_file: Option<PathBuf>,
    #[command(flatten)]
    session: SessionArgs,
}

/// Runs the command.
///
/// # Errors
/// Fails if a disk cannot be opened, read or written, if both are the same disk, if the destination
/// is too small, and if `--verify` finds a difference.
pub fn run(args: &CopyCommand, format: Format) -> Result<(), Failure> {
    args.check_portals()?;
    runtime()?.block_on(async {
        // The copy is dropped, including the progress bar, which restores the terminal.
        tokio::select! {
            done = copy(args, format) => done,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted
                    .map_err(|error| Failure::new(format!("cannot wait for signals: {error}")))?;
                Err(Failure::new("interrupted").hint(
                    "the destination contains only part of the source: copy again",
                ))
            }
        }
    })
}

async fn copy(args: &CopyCommand, format: Format) -> Result<(), Failure> {
    let source = args.open_source().await?;
    let size_bytes = source.device().geometry().size_bytes();
    let (destination, is_new_file) = args.open_destination(size_bytes).await?;
    check_pair(&source, &destination).await?;
    let begun = Instant::now();
    let engine = Engine {
        source: source.device(),
        destination: destination.device(),
        is_new_file,
        depth: args.depth.into(),
    };
    let counts = engine.copy().await?;
    let copied = begun.elapsed();
    if args.verify {
        engine.verify().await?;
    }
    let verified = args.verify.then(|| begun.elapsed().saturating_sub(copied));
    source.close().await?;
    destination.close().await?;
    print_summary(format, &counts, copied, verified)
}

impl CopyCommand {
    /// Checks that `--portal` names portals of one target only.
    fn check_portals(&self) -> Result<(), Failure> {
        let target = |url: &str| -> Result<Option<String>, Failure> {
            let url = DeviceUrl::parse(url)?;
            let unit = url.portal().and_then(|url| url.unit.as_ref());
            Ok(unit.map(|unit| unit.target.clone()))
        };
        match (target(&self.source)?, target(&self.destination)?) {
            (Some(source), Some(destination))
                if source != destination && self.session.names_portals() =>
            {
                Err(Failure::usage(
                    "--portal is ambiguous: source and destination are LUNs of different targets",
                )
                .hint("copy to a file first, or remove --portal"))
            }
            _ => Ok(()),
        }
    }

    async fn open_source(&self) -> Result<OpenedDevice, Failure> {
        let url = DeviceUrl::parse(&self.source)?;
        let mut options = self.session.options(url.portal())?;
        options.connections = self.connections;
        let local = self.session.local_options(&url, false)?;
        device_url::open(&url, &local, &options).await
    }

    /// Opens the destination. Also returns whether the file was created just now, so that it holds
    /// zeroes only.
    async fn open_destination(&self, size_bytes: u64) -> Result<(OpenedDevice, bool), Failure> {
        let url = DeviceUrl::parse(&self.destination)?;
        let mut options = match &self.destination_chap_secret_file {
            Some(file) => self.session.options_with(url.portal(), Some(file))?,
            None => self.session.options(url.portal())?,
        };
        options.connections = self.connections;
        let missing = url.path().is_some_and(|path| !path.exists());
        let size_bytes = missing.then_some(size_bytes);
        let local = DeviceOptions { size_bytes, ..self.session.local_options(&url, true)? };
        Ok((device_url::open(&url, &local, &options).await?, missing))
    }
}

/// Checks that the source can be copied onto the destination.
async fn check_pair(source: &OpenedDevice, destination: &OpenedDevice) -> Result<(), Failure> {
    if same_unit(source, destination).await? {
        return Err(Failure::usage("source and destination are the same disk").hint(
            "both report the same identifier (`lunar info`): if they are different disks, change \
             the identifier of one of them",
        ));
    }
    let (from, to) = (source.device().geometry(), destination.device().geometry());
    if to.size_bytes() < from.size_bytes() {
        let (from, to) = (output::size(from.size_bytes()), output::size(to.size_bytes()));
        let name = destination.device().name();
        return Err(Failure::new(format!(
            "the destination {name} is too small: it has {to}, the source has {from}"
        ))
        .hint("enlarge a LUN of Lunar with `lunar ctl resize`, a file with truncate(1)"));
    }
    if !from.size_bytes().is_multiple_of(u64::from(to.block_bytes)) {
        let what = format!(
            "the size of the source is not a multiple of the block size of {}, {} bytes",
            destination.device().name(),
            to.block_bytes
        );
        return Err(Failure::new(what).hint("choose a destination with a smaller block size"));
    }
    Ok(())
}

/// Compares units by their identification. Local files are locked, so that the same file cannot be
/// opened twice.
///
/// tgt derives its identifiers from the numbers of target and LUN alone, so that the first disks of
/// any two servers have the same one; for tgt, the names of the targets are compared too.
async fn same_unit(source: &OpenedDevice, destination: &OpenedDevice) -> Result<bool, Failure> {
    const TGT: &str = "IET";
    let (OpenedDevice::Remote(source), OpenedDevice::Remote(destination)) = (source, destination)
    else {
        return Ok(false);
    };
    if source.geometry() != destination.geometry() {
        return Ok(false);
    }
    if source.unit().identity().await?.vendor == TGT {
        let names = [source, destination].map(|disk| disk.unit().initiator().target_name());
        if names[0] != names[1] {
            return Ok(false);
        }
    }
    let unit_designators = |all: Vec<lunar_initiator::Designator>| -> Vec<_> {
        all.into_iter().filter(|one| one.association == 0).collect()
    };
    let ours = unit_designators(source.unit().designators().await?);
    let theirs = unit_designators(destination.unit().designators().await?);
    Ok(!ours.is_empty() && ours == theirs)
}

/// Duration of a copy below which no rate is printed.
const RATED_SECONDS_MIN: f64 = 0.1;

/// The rate of a copy; empty for a short one, which says nothing: the data may have been cached.
fn rate_text(bytes: u64, seconds: f64) -> String {
    match seconds < RATED_SECONDS_MIN {
        true => String::new(),
        false => format!(" ({:.0} MB/s)", bytes as f64 / seconds / 1e6),
    }
}

/// Prints the results. `copied` is the duration of the copy, `verified` that of the comparison, if
/// there was one.
fn print_summary(
    format: Format,
    counts: &CopyCounts,
    copied: Duration,
    verified: Option<Duration>,
) -> Result<(), Failure> {
    let seconds = copied.as_secs_f64();
    let CopyCounts { data_bytes, zero_bytes } = *counts;
    if format == Format::Json {
        return output::print_json(&serde_json::json!({
            "copied_bytes": data_bytes + zero_bytes,
            "data_bytes": data_bytes,
            "zero_bytes": zero_bytes,
            "seconds": seconds,
            "verified": verified.is_some(),
            "verify_seconds": verified.map(|time| time.as_secs_f64()),
        }));
    }
    let same =
        verified.map_or(String::new(), |time| format!(", verified in {:.1} s", time.as_secs_f64()));
    let rate = rate_text(data_bytes + zero_bytes, seconds);
    output::print_text(&format!(
        "copied {}: {} data, {} zeroes, in {seconds:.1} s{rate}{same}\n",
        output::size(data_bytes + zero_bytes),
        output::size(data_bytes),
        output::size(zero_bytes),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault: `88935 MB/s` was printed for a very short copy.
    #[test]
    fn a_short_copy_has_no_rate() {
        assert_eq!(rate_text(1 << 30, 0.01), "");
        assert_eq!(rate_text(100_000_000, 2.0), " (50 MB/s)");
    }
}
