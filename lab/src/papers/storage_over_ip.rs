//! Haluza, Staněk, Doležal, "Storage over IP" (CESNET technical report 5/2002): random records over
//! iSCSI, on a local file and over NFS.

mod access;
mod files;
mod paper;
mod qemu;
mod tables;

use self::access::{Client, DiskAccess, FileLocation};
use self::files::{Disk, Room, make_folder};
use self::qemu::Qemu;
use self::tables::{Group, GroupResults};
use super::{PaperArgs, PaperRun, probe};
use crate::bench::INITIATOR;
use crate::peers::lunar::{Lunar, release_binary};
use crate::peers::nfs::NfsServer;
use anyhow::{Context, Result, ensure};
use lunar_block::{BlockDevice, FileDevice, FileOptions, FileSystems};
use lunar_control::process_memory_bytes;
use lunar_control::units::parse_size;
use lunar_initiator::{RemoteDisk, SessionOptions, Url};
use lunar_load::probe::{ProbeResults, ProbeShape};
use lunar_load::report::{Column, Report, Section, Table, TableCell};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// File size in the paper.
const FILE_BYTES: u64 = 1 << 30;
/// Request size of netperf in the paper.
const TCP_REQUEST_BYTES: u32 = 16 << 10;
const TCP_ROUND: Duration = Duration::from_secs(2);
/// Name of the target.
const TARGET: &str = "iqn.2026-11.org.lunarsan.bench:storage-over-ip";

/// Storage over IP: repeats the measurements of CESNET technical report 5/2002
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    cargo run --release -p lunar-lab -- papers storage-over-ip --directory /var/tmp\n\n\
    An NFS server requires root; without it there are no NFS figures. --size is the size of each\n\
    of the three files (1G).")]
pub struct StorageOverIp {
    /// Directory for its files, three of --size (1G); their file system is measured [default: the
    /// directory for temporary files]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Directory on a mounted NFS, to use instead of an NFS server of its own
    #[arg(long, value_name = "DIR")]
    nfs_directory: Option<PathBuf>,
    /// Record sizes, a subset of those in the paper
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_record)]
    #[arg(default_value = "256K,512K,1M,2M,4M,8M,16M")]
    record_size: Vec<u64>,
    #[command(flatten)]
    pub(super) common: PaperArgs,
}

impl StorageOverIp {
    /// Measures all groups.
    pub(super) async fn measure(&self) -> Result<Report> {
        if let Some(directory) = &self.nfs_directory {
            check_nfs(directory)?;
        }
        let size_bytes = self.common.size.unwrap_or(FILE_BYTES);
        let longest = self.record_size.iter().copied().max().unwrap_or_default();
        ensure!(size_bytes >= longest, "--size must be at least the size of the largest record");
        let directory = self.directory.clone().unwrap_or_else(std::env::temp_dir);
        let room = Room::new(&directory, size_bytes)?;
        let rounds = format!("{}; each uses every record once", self.common.rounds);
        let mut run = PaperRun::new(&self.common, "Storage over IP", rounds);
        run.report.facts.push(("files".to_owned(), room.text()?));
        let mut all = Vec::new();
        let tcp = measure_tcp(&mut run)?;
        let (local, served) = (room.disk("local.img")?, room.disk("served.img")?);
        let server = serve(&served, "buffered")?;
        let group = self.tools(&room, &local, &served, &server).await?;
        all.push(self.add(&mut run, group, tcp).await?);
        let group = self.own_client(&room, &local, &served, &server).await?;
        all.push(self.add(&mut run, group, tcp).await?);
        drop(server);
        match direct(&local, &served).await? {
            Ok((server, group)) => {
                all.push(self.add(&mut run, group, tcp).await?);
                drop(server);
            }
            Err(section) => run.add(section),
        }
        run.add(tables::comparison_with_paper(&all));
        Ok(run.report)
    }

    /// Measures a group, and adds the results to the report.
    async fn add(&self, run: &mut PaperRun<'_>, group: Group, tcp: f64) -> Result<GroupResults> {
        let PaperArgs { rounds, seed, .. } = self.common;
        if !group.accesses.is_empty() {
            let passes = group.accesses.len() * self.record_size.len() * 2 * usize::from(rounds);
            println!("\n{}: {passes} passes ...", group.title);
        }
        let figures = group.measure(&self.record_size, rounds, seed).await?;
        run.add(group.section(&figures, tcp));
        for access in group.accesses {
            access.close().await?;
        }
        if let Some(nfs) = group.nfs {
            nfs.stop().await;
        }
        Ok((group.title, figures))
    }

    /// The group that uses the same client everywhere: `qemu-io`.
    async fn tools(
        &self,
        room: &Room,
        local: &Disk,
        served: &Disk,
        server: &Lunar,
    ) -> Result<Group> {
        let mut group =
            Group::new("qemu", "One client for all three: qemu-io, through page caches");
        group.prose.push(
            "qemu-io of Debian's qemu-utils reads and writes the local file, iscsi:// (libiscsi; \
             the target is lunar serve --cache write-back) and nfs:// (libnfs, NFS version 3; the \
             server is nfs-ganesha with its VFS back end). It reads a list of records in random \
             order, requests one after the other as IOzone did, and reports the time of each. \
             (qemu-img bench uses only regular steps, and reports no single times.)"
                .to_owned(),
        );
        let mut accesses =
            vec![(FileLocation::Local, Qemu::here(local.path_text()?), local.path.clone())];
        accesses.push((
            FileLocation::Iscsi,
            Qemu::here(server.url(TARGET, 0)),
            served.path.clone(),
        ));
        if self.nfs_directory.is_none() {
            match serve_nfs(room).await {
                Ok((server, disk)) => {
                    let name = disk.path.file_name().unwrap_or_default().to_string_lossy();
                    let qemu = Qemu::in_network_of(server.pid(), server.url(&name));
                    accesses.push((FileLocation::Nfs, qemu, disk.path.clone()));
                    (group.nfs, group.nfs_file) = (Some(server), Some(disk));
                }
                Err(why) => group.warnings.push(format!("no NFS figures: {why:#}")),
            }
        }
        for (location, qemu, file) in accesses {
            match qemu.try_it().await {
                Ok(()) => {
                    group.accesses.push(DiskAccess { location, client: Client::Qemu(qemu), file });
                }
                Err(why) => {
                    let what = format!("no qemu-io figures for {}: {why:#}", location.name());
                    group.warnings.push(what);
                }
            }
        }
        Ok(group)
    }

    /// The group that uses this program's client: on the local file, over iSCSI, and in a directory
    /// of a mounted NFS.
    async fn own_client(
        &self,
        room: &Room,
        local: &Disk,
        served: &Disk,
        server: &Lunar,
    ) -> Result<Group> {
        let mut group = Group::new("lunar", "Lunar's own client, through page caches");
        group.prose.push(
            "The same records in the same order, by this program: the local file, and iSCSI by its \
             own initiator, one session of one connection."
                .to_owned(),
        );
        group.accesses.push(file_access(FileLocation::Local, local.path.clone(), false)?);
        group.accesses.push(remote(server, served).await?);
        if let Some(directory) = &self.nfs_directory {
            let disk = room.disk_in(directory, "nfs.img")?;
            group.prose.push(format!(
                "NFS is a file in {}, through the client of the kernel and its cache: reads of \
                 recently written data may not reach the server.",
                directory.display()
            ));
            group.accesses.push(file_access(FileLocation::Nfs, disk.path.clone(), false)?);
            group.nfs_file = Some(disk);
        }
        Ok(group)
    }
}

/// Refuses a directory that is not on NFS, as its figures would be reported as those of NFS.
fn check_nfs(directory: &Path) -> Result<()> {
    const HINT: &str = "--nfs-directory must be in a mounted NFS; without the option this program \
                        starts its own server";
    let name = directory.display();
    let kind = rustix::fs::statfs(directory);
    let kind = kind.with_context(|| format!("cannot access {name} ({HINT})"))?;
    let is_nfs = kind.f_type == rustix::fs::NFS_SUPER_MAGIC;
    ensure!(is_nfs, "{name} is not in an NFS ({HINT})");
    Ok(())
}

/// Serves `disk` write-back on a free port of loopback, with the I/O mode `io` (`--io`).
fn serve(disk: &Disk, io: &str) -> Result<Lunar> {
    let path = disk.path_text()?;
    let options = ["--name", TARGET, "--cache", "write-back", "--io", io];
    Lunar::serve_measured(None, &release_binary()?, &[&[path.as_str()], &options[..]].concat())
}

/// Starts an NFS server with a new file.
async fn serve_nfs(room: &Room) -> Result<(NfsServer, Disk)> {
    NfsServer::check()?;
    let folder = room.folder.join("nfs");
    make_folder(&folder).with_context(|| format!("cannot write to {}", folder.display()))?;
    let disk = room.disk_in(&folder, "nfs.img")?;
    Ok((NfsServer::start(&folder).await?, disk))
}

/// Measures raw TCP like the paper's netperf; returns bytes per second.
fn measure_tcp(run: &mut PaperRun<'_>) -> Result<f64> {
    let probe = probe(None)?;
    let shape = ProbeShape { writes: false, io_bytes: TCP_REQUEST_BYTES, depth: 1, connections: 1 };
    let mut probed = ProbeResults::default();
    for _ in 0..run.args.rounds {
        probe.round(shape, TCP_ROUND, &mut probed).context("the raw TCP probe")?;
    }
    let mut section = Section::new("raw_tcp", "Raw TCP over loopback");
    section.prose.push(
        "The dashed line of the paper was netperf with requests of 16 kB between two machines; \
         here both ends are on this machine, in this and all following measurements."
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
    section.warnings.extend(probed.variation_warning());
    run.add(section);
    Ok(probed.stream_bytes_per_second().median)
}

/// Local file and iSCSI without the page cache; a section with the reason if the file system does
/// not support it.
async fn direct(local: &Disk, served: &Disk) -> Result<Result<(Lunar, Group), Section>> {
    let mut group = Group::new("direct", "Lunar's own client, past the page cache");
    group.prose.push(
        "The local file is opened with O_DIRECT, and the target uses --io direct: these figures \
         include the time of the disk itself."
            .to_owned(),
    );
    let access = match file_access(FileLocation::Local, local.path.clone(), true) {
        Ok(access) => access,
        Err(why) => {
            let mut section = Section::new(group.key, group.title);
            section.warnings.push(format!("{why:#}"));
            return Ok(Err(section));
        }
    };
    let server = serve(served, "direct")?;
    group.accesses.push(access);
    group.accesses.push(remote(&server, served).await?);
    Ok(Ok((server, group)))
}

fn file_access(location: FileLocation, path: PathBuf, direct: bool) -> Result<DiskAccess> {
    let file = path.clone();
    let options = FileOptions {
        path,
        create_size_bytes: None,
        block_bytes: 512,
        physical_block_bytes: 4096,
        direct,
        io_uring: false,
        read_only: false,
        thin: true,
    };
    let file_systems = FileSystems::new(process_memory_bytes());
    let device: Arc<dyn BlockDevice> = FileDevice::open_in(options, &file_systems)?;
    Ok(DiskAccess { location, client: Client::Local(device), file })
}

async fn remote(server: &Lunar, served: &Disk) -> Result<DiskAccess> {
    let url: Url = server.url(TARGET, 0).parse()?;
    let disk = RemoteDisk::connect(&url, &SessionOptions::new(INITIATOR)).await?;
    Ok(DiskAccess {
        location: FileLocation::Iscsi,
        client: Client::Remote(Arc::new(disk)),
        file: served.path.clone(),
    })
}

fn parse_record(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    match paper::RECORDS.iter().any(|record| record.bytes() == bytes) {
        true => Ok(bytes),
        false => Err("use a record size of the paper: 256K, 512K, 1M, 2M, 4M, 8M, 16M".to_owned()),
    }
}
