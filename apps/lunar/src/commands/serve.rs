//! `lunar serve`: serves one target with one LUN for each device.

use super::serve_api::ServeApiArgs;
use super::serve_chap::{ChapArgs, DeviceChapArgs};
use crate::administrators;
use crate::device_url::ServedDevices;
use crate::output::{Failure, Format};
use crate::serving::{self, Serving};
use lunar_control::config::model::{Configuration, LunConfig, TargetConfig, UnitConfig};
use lunar_control::config::named_limits::NamedLimits;
use lunar_control::config::resolve_limits::{IOPS_MAX, parse_bandwidth};
use lunar_control::config::{self, rules};
use lunar_control::daemon::{ConfigOrigin, SmallerFile, StartOptions, UnavailableStorage};
use lunar_control::device_url::{DeviceOptions, DeviceUrl, IdentitySource, missing_hint};
use lunar_control::units::{parse_rate, parse_size};
use lunar_initiator::{NAME_BYTES_MAX, Url};
use lunar_target::{Access, CacheMode, IOPS_MIN, Limit, Network, OutOfSpace, Portal};
use std::path::PathBuf;

/// Serve disks over iSCSI: one target with one LUN for each device, in the foreground
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    lunar serve disk.img --size 10G\n  \
    lunar serve mem:1G --listen 127.0.0.1:0 --json\n  \
    lunar serve iscsi://10.0.0.1/iqn.2026-11.org.example:a/0 --wait\n  \
    lunar serve vm.img --listen 0.0.0.0:3260 --chap-user vm --chap-secret-file vm.secret")]
pub struct Serve {
    /// The devices: a path (a file or a block device), file:PATH, mem:SIZE, or the LUN of another
    /// target, iscsi://HOST/TARGET/LUN
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<String>,
    /// Start although the storage of a remote LUN is unreachable, and serve the LUN when it returns
    #[arg(long)]
    wait: bool,
    /// Create missing files with this size, sparse
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Enlarge files that are smaller than --size, which otherwise keep their size
    #[arg(long, requires = "size")]
    grow: bool,
    /// Address to listen on; may be repeated. Port 0 selects a free port. An address that other
    /// machines reach requires --chap-user or --network
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:3260")]
    listen: Vec<String>,
    /// Address that discovery reports instead of the one listened on (NAT, containers); once for
    /// each --listen, in the same order
    #[arg(long, value_name = "ADDRESS:PORT")]
    advertise: Vec<String>,
    /// Portal group tag, 1 to 65535, of each --listen, in the same order [default: 1 for all].
    /// Sessions of one portal group use the same target port; multipath requires paths over several
    #[arg(long, value_name = "TAG", value_parser = clap::value_parser!(u16).range(1..))]
    portal_group: Vec<u16>,
    /// The target's iSCSI name [default: iqn.2026-11.org.lunarsan:NAME OF THE FIRST DEVICE]
    #[arg(long, value_name = "IQN")]
    name: Option<String>,
    /// When writes are acknowledged: on stable storage, or once accepted
    #[arg(long, value_enum, value_name = "MODE", default_value_t = Cache::WriteThrough)]
    cache: Cache,
    /// Use the page cache, or bypass it
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Io::Buffered)]
    io: Io,
    /// Logical block size: 512, 1024, 2048 or 4096
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "512")]
    block_size: u64,
    /// Physical block size, a power of two [default: 4096]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    physical_block_size: Option<u64>,
    /// Identity that initiators see (NAA, serial number, vendor, product): one of its own for each
    /// disk, or that of the remote LUN (a device iscsi://…), which hosts must then reach through
    /// this server only
    #[arg(long, value_enum, value_name = "WHOSE", default_value_t = IdentityChoice::Own)]
    identity: IdentityChoice,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// Show the disk as a removable medium
    #[arg(long)]
    removable: bool,
    /// Do not offer deallocation (UNMAP)
    #[arg(long)]
    no_thin: bool,
    /// Notify initiators when the file system of sparse files reaches this fill level, like 90%
    #[arg(long, value_name = "PERCENT", value_parser = rules::parse_threshold)]
    thin_threshold: Option<u8>,
    /// Maximum rate of SANITIZE and FORMAT UNIT, like 1Gbit, so that other commands keep a share of
    /// the disk's speed
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    maintenance_rate: Option<u64>,
    /// Maximum number of reads and writes per second for each LUN, at least 10; further ones wait
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(IOPS_MIN..=IOPS_MAX))]
    limit_iops: Option<u64>,
    /// Maximum data rate of each LUN, like 200Mbit, at least 10Mbit; further commands wait
    #[arg(long, value_name = "RATE", value_parser = parse_bandwidth)]
    limit_bandwidth: Option<u64>,
    /// Handling of writes without free space
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = OutOfSpaceChoice::Fail)]
    out_of_space: OutOfSpaceChoice,
    /// Let only this initiator log in; may be repeated. Names are not authenticated
    #[arg(long, value_name = "IQN")]
    initiator: Vec<String>,
    /// Let only initiators in this network log in; may be repeated
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    network: Vec<String>,
    /// Let only this initiator, which must be allowed to log in, reset the target, and format,
    /// sanitize, stop or write-protect its LUNs; may be repeated. none: nobody [default: all]
    #[arg(long, value_name = "IQN|none")]
    administer: Vec<String>,
    /// Poll for 100 us after work before a thread sleeps: single small requests get faster answers,
    /// at the cost of processor time
    #[arg(long)]
    latency_mode: bool,
    /// Directory for reservations and identities of units [default: FILE.lunar beside each file;
    /// none for mem:]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Serve metrics for Prometheus at http://ADDRESS:PORT/metrics, in plain HTTP and without
    /// authentication. Port 0 selects a free port
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = rules::parse_listen)]
    metrics: Option<std::net::SocketAddr>,
    #[command(flatten)]
    chap: ChapArgs,
    #[command(flatten)]
    device_chap: DeviceChapArgs,
    #[command(flatten)]
    api: ServeApiArgs,
}

/// Values of `--cache`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Cache {
    /// Acknowledge writes on stable storage
    WriteThrough,
    /// Acknowledge writes once accepted; the initiator flushes
    WriteBack,
}

/// Values of `--identity`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum IdentityChoice {
    /// An identity of its own
    Own,
    /// The identity that the remote LUN reports
    Device,
}

impl From<IdentityChoice> for IdentitySource {
    fn from(choice: IdentityChoice) -> Self {
        match choice {
            IdentityChoice::Own => Self::Own,
            IdentityChoice::Device => Self::Device,
        }
    }
}

/// Values of `--out-of-space`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum OutOfSpaceChoice {
    /// The write fails
    Fail,
    /// The write waits until space is free
    Hold,
}

/// Values of `--io`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum Io {
    /// Use the page cache
    Buffered,
    /// Bypass the page cache (O_DIRECT)
    Direct,
}

/// Runs the command.
///
/// # Errors
/// Fails if options are invalid, a device or address cannot be opened, or the final sync fails.
pub fn run(args: &Serve, format: Format) -> Result<(), Failure> {
    let configuration = configuration(args)?;
    let storage = match args.wait {
        true => UnavailableStorage::Waits,
        false => UnavailableStorage::Fails,
    };
    let start = StartOptions { storage, smaller: SmallerFile::at_start(args.grow) };
    let devices = ServedDevices::default();
    let serving = Serving { origin: ConfigOrigin::Arguments, format, start, relays: None };
    serving::serve(configuration, serving, devices)
}

fn configuration(args: &Serve) -> Result<Configuration, Failure> {
    let devices = args.devices.iter().map(|text| DeviceUrl::parse(text));
    let devices = devices.collect::<Result<Vec<_>, _>>()?;
    let portals = portals(args)?;
    let access = access(args)?;
    let administer = administer(args, &access)?;
    let chap = args.chap.requirements()?;
    let open_to_others = portals.iter().find(|portal| !rules::is_loopback(&portal.listen));
    if let Some(portal) = open_to_others
        && chap.target.is_none()
        && access.networks.is_empty()
    {
        return Err(Failure::usage(format!(
            "other machines can reach {}, and no authentication or network restriction is \
             configured",
            portal.listen
        ))
        .hint("add --chap-user NAME --chap-secret-file FILE, or --network ADDRESS/PREFIX"));
    }
    let name = match &args.name {
        Some(name) => name.clone(),
        None => default_name(&args.devices[0]),
    };
    rules::check_name(&name).map_err(|why| Failure::usage(format!("--name {name}: {why}")))?;
    let limit = Limit::new(args.limit_iops, args.limit_bandwidth)?;
    let mut luns = Vec::new();
    for (id, device) in (0..=lunar_wire::Lun::UNIT_MAX).zip(devices) {
        luns.push(LunConfig {
            id,
            unit: unit(args, device)?,
            access: Access::default(),
            administer: None,
            limit,
            initiator_limits: Vec::new(),
        });
    }
    if luns.len() < args.devices.len() {
        return Err(Failure::usage(format!("a target has at most {} LUNs", luns.len())));
    }
    let target = TargetConfig {
        name,
        alias: None,
        portal_group: 1,
        access,
        administer,
        chap: chap.target.into_iter().collect(),
        offer: config::default_offer(),
        redirect: None,
        initiator_limits: Vec::new(),
        luns,
        is_persisted: false,
    };
    Ok(Configuration {
        state: args.state.clone(),
        portals,
        discovery_chap: chap.discovery,
        api: args.api.options()?.unwrap_or_default(),
        cores: 0,
        latency_mode: args.latency_mode,
        io_uring: true,
        limits: NamedLimits::default(),
        metrics: args.metrics,
        storages: Vec::new(),
        pools: Vec::new(),
        targets: vec![target],
        skipped_targets: Vec::new(),
    })
}

fn portals(args: &Serve) -> Result<Vec<Portal>, Failure> {
    if args.advertise.len() > args.listen.len() {
        return Err(Failure::usage("there are more --advertise than --listen options"));
    }
    if !args.portal_group.is_empty() && args.portal_group.len() != args.listen.len() {
        return Err(Failure::usage("the number of --portal-group and --listen options differs")
            .hint("give --portal-group once for each --listen, in the same order, or omit it"));
    }
    for advertise in &args.advertise {
        rules::check_advertised(advertise)
            .map_err(|why| Failure::usage(format!("--advertise {advertise}")).hint(why))?;
    }
    let mut portals: Vec<Portal> = Vec::new();
    for (index, text) in args.listen.iter().enumerate() {
        let listen = rules::parse_listen(text)
            .map_err(|why| Failure::usage(format!("--listen {text}")).hint(why))?;
        if listen.port() != 0 && portals.iter().any(|portal| portal.listen == listen) {
            return Err(Failure::usage(format!("--listen {listen} is given twice")));
        }
        let portal = Portal {
            listen,
            advertise: args.advertise.get(index).cloned(),
            portal_group: args.portal_group.get(index).copied(),
        };
        if let Some(what) = rules::check_one_portal_group(portals.iter(), &portal) {
            return Err(Failure::usage(what).hint(rules::PORTAL_GROUP_HINT));
        }
        portals.push(portal);
    }
    Ok(portals)
}

fn access(args: &Serve) -> Result<Access, Failure> {
    let initiators = names("--initiator", &args.initiator)?;
    let networks = args.network.iter().map(|text| Network::parse(text));
    let networks = networks
        .collect::<Result<_, _>>()
        .map_err(|why| Failure::usage(format!("--network {why}")))?;
    Ok(Access { initiators, networks })
}

fn administer(args: &Serve, access: &Access) -> Result<Option<Vec<String>>, Failure> {
    let Some(given) = administrators::given(&args.administer) else { return Ok(None) };
    let names = names("--administer", &given)?;
    let lets_in = |name| access.initiators.is_empty() || access.initiators.contains(name);
    match names.iter().find(|name| !lets_in(name)) {
        Some(name) => Err(Failure::usage(format!(
            "--administer {name}: this initiator is not allowed to log in"
        ))
        .hint("add --initiator with the same name")),
        None => Ok(Some(names)),
    }
}

/// Checks the names of initiators in an option, and converts them to their normal form.
fn names(option: &str, given: &[String]) -> Result<Vec<String>, Failure> {
    let name = |name: &String| {
        let lower = name.to_ascii_lowercase();
        match rules::check_name(&lower) {
            Ok(()) => Ok(lower),
            Err(why) => Err(Failure::usage(format!("{option} {name}: {why}"))),
        }
    };
    given.iter().map(name).collect()
}

fn unit(args: &Serve, device: DeviceUrl) -> Result<UnitConfig, Failure> {
    let physical = args.physical_block_size.unwrap_or(4096);
    rules::check_block_sizes(args.block_size, physical).map_err(|why| {
        let sizes = format!("{}, physical {physical}", args.block_size);
        Failure::usage(format!("invalid block sizes: {sizes}")).hint(why)
    })?;
    let size_bytes = match &device {
        DeviceUrl::File(path) => {
            if args.size.is_none() && !path.exists() {
                return Err(Failure::new(format!("{} does not exist", path.display())).hint(
                    missing_hint(path, "use an existing file, or add --size 10G to create it"),
                ));
            }
            args.size
        }
        DeviceUrl::Memory { .. } => None,
        DeviceUrl::Iscsi(_) | DeviceUrl::Virtual(_) | DeviceUrl::Extent(_) => None,
        DeviceUrl::Pool(name) => {
            return Err(Failure::usage(format!("the pool {name} is not known here")).hint(
                "serve it with a configuration that has its [[pool]]: lunar target --config FILE",
            ));
        }
    };
    if size_bytes == Some(0) {
        let hint = "write the size of the disk, for example --size 10G";
        return Err(Failure::usage("--size 0: a disk has at least one block").hint(hint));
    }
    let odd = size_bytes.filter(|size| !size.is_multiple_of(args.block_size));
    if let Some(odd) = odd {
        return Err(Failure::usage(format!("--size {odd} is not a multiple of the block size"))
            .hint(format!("the block size is {}", args.block_size)));
    }
    let identity = IdentitySource::from(args.identity);
    if identity == IdentitySource::Device && device.portal().is_none() {
        return Err(Failure::usage(format!("--identity device: {device} has no identity"))
            .hint("omit --identity: only a remote LUN (a device iscsi://…) has one"));
    }
    let options = DeviceOptions {
        size_bytes,
        direct: args.io == Io::Direct,
        io_uring: false, // set for the whole server in its configuration
        block_bytes: args.block_size as u32,
        physical_block_bytes: physical as u32,
        read_only: args.read_only,
        thin: !args.no_thin,
        chap: args.device_chap.credentials(&device)?,
        ..DeviceOptions::default()
    };
    let cache = match args.cache {
        Cache::WriteThrough => CacheMode::WriteThrough,
        Cache::WriteBack => CacheMode::WriteBack,
    };
    let out_of_space = match args.out_of_space {
        OutOfSpaceChoice::Fail => OutOfSpace::Fail,
        OutOfSpaceChoice::Hold => OutOfSpace::Hold,
    };
    Ok(UnitConfig {
        uuid: None,
        identity,
        device,
        options,
        cache,
        thin_threshold_percent: args.thin_threshold,
        out_of_space,
        maintenance_bytes_per_second: args.maintenance_rate,
        removable: args.removable,
    })
}

/// Returns `iqn.2026-11.org.lunarsan:` and the stem of the device's name, reduced to characters of
/// iSCSI names.
fn default_name(device: &str) -> String {
    let path = device.strip_prefix("file:").unwrap_or(device);
    let lun = device.parse::<Url>().ok().and_then(|url| url.unit);
    let lun = lun.map(|unit| {
        let (_, name) = unit.target.rsplit_once(':').unwrap_or(("", &unit.target));
        format!("{name}-{}", unit.lun)
    });
    let stem = match &lun {
        Some(name) => name.into(),
        None => std::path::Path::new(path).file_stem().unwrap_or_default().to_string_lossy(),
    };
    let letters = stem
        .to_lowercase()
        .chars()
        .map(|letter| match letter {
            'a'..='z' | '0'..='9' | '.' | '-' => letter,
            _ => '-',
        })
        .collect::<String>();
    let mut name = format!("iqn.2026-11.org.lunarsan:{letters}");
    name.truncate(NAME_BYTES_MAX);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_names_derive_from_devices() {
        for (device, end) in [
            ("disk.img", "disk"),
            ("/srv/My Disk.qcow", "my-disk"),
            ("file:/srv/vm-1.2.img", "vm-1.2"),
            ("mem:1G", "mem-1g"),
            ("iscsi://10.0.0.1/iqn.2026-11.org.example:vm.a/7", "vm.a-7"),
            ("iscsi://host:1/iqn.2026-11.org.example/0", "iqn.2026-11.org.example-0"),
            ("Ä.img", "-"),
        ] {
            let name = default_name(device);
            assert_eq!(name, format!("iqn.2026-11.org.lunarsan:{end}"), "{device}");
            assert_eq!(rules::check_name(&name), Ok(()));
        }
        assert_eq!(rules::check_name(&default_name(&"x".repeat(500))), Ok(()));
    }
}
