//! The suite `storage-over-ip`: repeats the measurements of CESNET technical report 5/2002. Random
//! records over iSCSI, on a local file and over NFS.

mod files;
mod lane;
mod nfs;
mod paper;
mod qemu;
mod served;
mod tables;

use self::files::{Disk, Room};
use self::lane::{Client, Lane, Way};
use self::nfs::NfsServer;
use self::qemu::Qemu;
use self::served::Served;
use self::tables::{Group, Told};
use super::Suite;
use crate::device_url::{self, OpenedDevice};
use crate::output::{self, Failure, Format};
use lunar_control::device_url::{DeviceUrl, LocalOptions};
use lunar_control::units::parse_size;
use lunar_load::probe::{Probe, ProbeShape, Probed};
use lunar_load::report::{Column, Section, Table, TableCell};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// File size in the paper.
const FILE_BYTES: u64 = 1 << 30;
/// Request size of netperf in the paper.
const TCP_REQUEST_BYTES: u32 = 16 << 10;
const TCP_ROUND: Duration = Duration::from_secs(2);

/// Options of the suite `storage-over-ip`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Suite storage-over-ip")]
pub(in super::super) struct StorageArgs {
    /// Directory for its files, three of --size (1G); their file system is measured [default: the
    /// folder for temporary files]
    #[arg(long, value_name = "DIR", requires = "suite")]
    directory: Option<PathBuf>,
    /// Directory on a mounted NFS, to use instead of an NFS server of the suite
    #[arg(long, value_name = "DIR", requires = "suite")]
    nfs_directory: Option<PathBuf>,
    /// Record sizes, a subset of those in the paper
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_record)]
    #[arg(default_value = "256K,512K,1M,2M,4M,8M,16M", requires = "suite")]
    record_size: Vec<u64>,
}

/// Runs the suite.
pub(super) async fn run(suite: &mut Suite<'_>) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| Failure::new(format!("cannot wait for signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let stopped = || Failure::new("stopped by a signal; its files and servers are gone");
    tokio::select! {
        done = measure(suite) => done,
        _ = interrupt.recv() => Err(stopped()),
        _ = terminate.recv() => Err(stopped()),
    }
}

async fn measure(suite: &mut Suite<'_>) -> Result<(), Failure> {
    refuse_what_is_not_for_it(suite)?;
    let size_bytes = suite.args.size.unwrap_or(FILE_BYTES);
    let records = &suite.args.storage.record_size;
    let longest = records.iter().copied().max().unwrap_or_default();
    if size_bytes < longest {
        return Err(Failure::usage("--size has room for one of the largest records at least"));
    }
    let directory = suite.args.storage.directory.clone().unwrap_or_else(std::env::temp_dir);
    let room = Room::new(&directory, size_bytes)?;
    suite.report.title = "Storage over IP".to_owned();
    // These rounds have no fixed duration, unlike those of other benches.
    suite.report.facts.retain(|(name, _)| name != "rounds");
    let rounds = format!("{}; in each every record once", suite.args.rounds);
    suite.report.facts.push(("rounds".to_owned(), rounds));
    suite.report.facts.push(("files".to_owned(), room.text()));
    let mut all = Vec::new();
    let tcp = tell_tcp(suite)?;
    let (local, served) = (room.disk("local.img")?, room.disk("served.img")?);
    let server = Served::start(&served, "buffered").await?;
    let group = tools(&room, &local, &served, &server, suite).await?;
    all.push(add(suite, group, tcp).await?);
    let group = own(&room, &local, &served, &server, suite).await?;
    all.push(add(suite, group, tcp).await?);
    server.stop().await;
    match direct(&local, &served, suite).await? {
        Ok((server, group)) => {
            all.push(add(suite, group, tcp).await?);
            server.stop().await;
        }
        Err(section) => suite.add(section)?,
    }
    suite.add(tables::beside_the_paper(&all))
}

/// Measures a group, and adds the results to the report.
async fn add(suite: &mut Suite<'_>, group: Group, tcp: f64) -> Result<Told, Failure> {
    let args = suite.args;
    if suite.format == Format::Human && !group.lanes.is_empty() {
        let passes =
            group.lanes.len() * args.storage.record_size.len() * 2 * usize::from(args.rounds);
        output::print_text(&format!("\n{}: {passes} passes ...\n", group.title))?;
    }
    let figures = group.measure(&args.storage.record_size, args.rounds, args.seed).await?;
    suite.add(group.section(&figures, tcp))?;
    for lane in group.lanes {
        lane.close().await?;
    }
    if let Some(nfs) = group.nfs {
        nfs.stop().await;
    }
    Ok((group.title, figures))
}

fn refuse_what_is_not_for_it(suite: &Suite<'_>) -> Result<(), Failure> {
    if !suite.args.urls.is_empty() {
        return Err(Failure::usage("this suite makes its disks itself: leave the URLs out")
            .hint("--directory says where its files are"));
    }
    if suite.args.network.model().is_some() {
        return Err(Failure::usage("this suite puts no network between")
            .hint("leave --delay, --rate and --window out"));
    }
    match &suite.args.storage.nfs_directory {
        Some(directory) => check_nfs(directory),
        None => Ok(()),
    }
}

/// Refuses a directory that is not on NFS, as its figures would be reported as those of NFS.
fn check_nfs(directory: &Path) -> Result<(), Failure> {
    let hint = "--nfs-directory names a directory of an NFS that is mounted here; without it the \
                suite has a server of its own";
    let name = directory.display();
    let kind = rustix::fs::statfs(directory)
        .map_err(|error| Failure::usage(format!("cannot look at {name}: {error}")).hint(hint))?;
    match kind.f_type == rustix::fs::NFS_SUPER_MAGIC {
        true => Ok(()),
        false => Err(Failure::usage(format!("{name} is no directory of an NFS")).hint(hint)),
    }
}

/// Measures raw TCP like the paper's netperf; returns bytes per second.
fn tell_tcp(suite: &mut Suite<'_>) -> Result<f64, Failure> {
    let failed = |error| Failure::new(format!("a probe of raw TCP failed: {error}"));
    let probe = Probe::start(None).map_err(failed)?;
    let shape = ProbeShape { writes: false, io_bytes: TCP_REQUEST_BYTES, depth: 1, connections: 1 };
    let mut probed = Probed::default();
    for _ in 0..suite.args.rounds {
        probe.round(shape, TCP_ROUND, &mut probed).map_err(failed)?;
    }
    let mut section = Section::new("raw_tcp", "TCP alone, over loopback");
    section.prose.push(
        "The paper's dashed line was netperf with requests of 16 kB between two machines; here \
         both ends are on this machine, for this and for all that follows."
            .to_owned(),
    );
    let mut table = Table::new([
        Column::number("stream_bytes_per_second", "stream, MB/s"),
        Column::number("ping_us", "ping-pong, us"),
    ]);
    table.row([
        TableCell::spread(probed.stream_bytes_per_second(), 1e6, 0),
        TableCell::spread(probed.ping_micros(), 1.0, 1),
    ]);
    section.tables.push(table);
    section.warnings.extend(probed.unrest());
    suite.add(section)?;
    Ok(probed.stream_bytes_per_second().median)
}

/// The group that uses the same client everywhere: `qemu-io`.
async fn tools(
    room: &Room,
    local: &Disk,
    served: &Disk,
    server: &Served,
    suite: &Suite<'_>,
) -> Result<Group, Failure> {
    let mut group = Group::new("qemu", "One client for all three: qemu-io, through page caches");
    group.prose.push(
        "qemu-io of Debian's qemu-utils reads and writes the local file, iscsi:// (libiscsi; the \
         target is lunar serve --cache write-back) and nfs:// (libnfs, NFS version 3; the server \
         is nfs-ganesha with its VFS back end). It gets a list of records in random order, asks \
         one after the other as IOzone did, and tells how long each took. (qemu-img bench asks \
         only in even steps, and tells no single times.)"
            .to_owned(),
    );
    let mut lanes = vec![(Way::Local, Qemu::here(local.path_text()?), local.path.clone())];
    lanes.push((Way::Iscsi, Qemu::here(server.url.clone()), served.path.clone()));
    if suite.args.storage.nfs_directory.is_none() {
        match NfsServer::start(room).await {
            Ok(server) => {
                let (qemu, path) = (server.client(), server.disk.path.clone());
                group.nfs = Some(server);
                lanes.push((Way::Nfs, qemu, path));
            }
            Err(why) => group.warnings.push(format!("no figures of NFS: {}", told(&why))),
        }
    }
    for (way, qemu, file) in lanes {
        match qemu.try_it().await {
            Ok(()) => group.lanes.push(Lane { way, client: Client::Qemu(qemu), file }),
            Err(why) => {
                let what = format!("no figures of {} by qemu-io: {}", way.name(), told(&why));
                group.warnings.push(what);
            }
        }
    }
    Ok(group)
}

/// The group that uses this program's client: on the local file, over iSCSI, and in a directory of
/// a mounted NFS.
async fn own(
    room: &Room,
    local: &Disk,
    served: &Disk,
    server: &Served,
    suite: &Suite<'_>,
) -> Result<Group, Failure> {
    let mut group = Group::new("lunar", "Lunar's own client, through page caches");
    group.prose.push(
        "The same records in the same order, by this program: the local file, and iSCSI by its \
         own initiator, one session of one connection."
            .to_owned(),
    );
    let options = LocalOptions::default();
    group.lanes.push(lane(Way::Local, local.path.clone(), &options)?);
    group.lanes.push(remote(server, served, suite).await?);
    if let Some(directory) = &suite.args.storage.nfs_directory {
        let disk = room.disk_in(directory, "nfs.img")?;
        group.prose.push(format!(
            "NFS is a file in {}, by way of the kernel's client, whose cache is in between: reads \
             of what was written before need not reach the server.",
            directory.display()
        ));
        group.lanes.push(lane(Way::Nfs, disk.path.clone(), &options)?);
        group.nfs_file = Some(disk);
    }
    Ok(group)
}

/// Local file and iSCSI without the page cache; a section with the reason if the file system does
/// not support it.
async fn direct(
    local: &Disk,
    served: &Disk,
    suite: &Suite<'_>,
) -> Result<Result<(Served, Group), Section>, Failure> {
    let mut group = Group::new("direct", "Lunar's own client, past the page cache");
    group.prose.push(
        "The local file is opened with O_DIRECT, the target serves with --io direct: what the \
         disk itself takes is in these figures."
            .to_owned(),
    );
    let options = LocalOptions { direct: true, ..LocalOptions::default() };
    let lane = match lane(Way::Local, local.path.clone(), &options) {
        Ok(lane) => lane,
        Err(why) => {
            let mut section = Section::new(group.key, group.title);
            section.warnings.push(told(&why));
            return Ok(Err(section));
        }
    };
    let server = Served::start(served, "direct").await?;
    group.lanes.push(lane);
    group.lanes.push(remote(&server, served, suite).await?);
    Ok(Ok((server, group)))
}

fn lane(way: Way, file: PathBuf, options: &LocalOptions) -> Result<Lane, Failure> {
    use lunar_control::device_url::Opener;
    let device =
        device_url::LocalOpener::default().open(&DeviceUrl::File(file.clone()), options)?;
    Ok(Lane { way, client: Client::Own(OpenedDevice::Local(device)), file })
}

async fn remote(server: &Served, served: &Disk, suite: &Suite<'_>) -> Result<Lane, Failure> {
    let url = DeviceUrl::parse(&server.url)?;
    let options = suite.args.session.options(url.portal())?;
    let opened = device_url::open(&url, &LocalOptions::default(), &options).await?;
    Ok(Lane { way: Way::Iscsi, client: Client::Own(opened), file: served.path.clone() })
}

/// A failure with its hint.
fn told(why: &Failure) -> String {
    match &why.hint {
        Some(hint) => format!("{} ({hint})", why.what),
        None => why.what.clone(),
    }
}

fn parse_record(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    match paper::RECORDS.iter().any(|record| record.bytes() == bytes) {
        true => Ok(bytes),
        false => Err("the paper has 256K, 512K, 1M, 2M, 4M, 8M and 16M".to_owned()),
    }
}
