//! Commands that read the state of a server: status, sessions, targets, LUNs.

use super::table::{TableWidth, plain, table};
use crate::administrators;
use crate::commands::switch::migrate::human;
use crate::output::{self, Failure, Format};
use lunar_control::api::configuration::ConfigurationText;
use lunar_control::api::health::Health;
use lunar_control::api::migrations::MigrationReport;
use lunar_control::api::sessions::{self as api, Session};
use lunar_control::api::status::{MemoryStatus, Status as ApiStatus, WaitingLunStatus};
use lunar_control::api::targets::{self, Lun, Target};
use lunar_control::client::{ApiClient, ApiPath};
use std::fmt::Write;

/// Heading of the drift; a line says so if its change lasts for another time.
const DRIFT: &str = "these changes last until a configuration is applied or the server restarts; \
                     --print-toml prints the lines to keep them:";

/// Show the status of the server: health of its units, and differences from its configuration
///
/// Health is degraded by a failed sync, a disk that does not respond, writes that wait or fail for
/// lack of free space, a reached threshold of free space, and a backing file that was deleted,
/// renamed, replaced or truncated by another program. Each fault is listed with a remedy; for a
/// deleted file, that is the command that saves its data.
///
/// Differences (the drift) last until a configuration is applied or the server is restarted. An
/// enlarged disk keeps its size: only `lunar apply --shrink` reduces it. Settings that require a
/// restart differ until then.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar ctl status")]
pub struct StatusCommand {
    /// Print only the lines to paste into the configuration so that it matches the running server
    #[arg(long)]
    print_toml: bool,
}

/// List sessions: initiators, addresses, and negotiated keys
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar ctl sessions")]
pub struct SessionsCommand {
    /// Print whole lines, even if they are longer than those of the terminal
    #[arg(long)]
    wide: bool,
}

/// List targets, and the initiators that may log in
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar ctl targets --print-toml > lunar.toml")]
pub struct TargetsCommand {
    /// Print only the running configuration, as TOML
    #[arg(long)]
    print_toml: bool,
    /// Print whole lines, even if they are longer than those of the terminal
    #[arg(long)]
    wide: bool,
}

/// List the LUNs of all targets
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar ctl luns")]
pub struct LunsCommand {
    /// Print whole lines, even if they are longer than those of the terminal
    #[arg(long)]
    wide: bool,
}

/// Runs `lunar ctl status`.
pub async fn status(
    client: &ApiClient,
    args: &StatusCommand,
    format: Format,
) -> Result<(), Failure> {
    if args.print_toml {
        let toml = configuration(client).await?.drift;
        return print_toml(toml, format);
    }
    let status: ApiStatus = client.get(&ApiPath::new(&["status"])).await?;
    match format {
        Format::Json => output::print_json(&status),
        Format::Human => output::print_text(&human_status(&status, client)),
    }
}

/// Runs `lunar ctl sessions`.
pub async fn sessions(
    client: &ApiClient,
    args: &SessionsCommand,
    format: Format,
) -> Result<(), Failure> {
    let width = TableWidth::of_stdout(args.wide);
    let found: api::Sessions = client.get(&ApiPath::new(&["sessions"])).await?;
    match format {
        Format::Json => output::print_json(&found),
        Format::Human => output::print_text(&human_sessions(&found.sessions, width)),
    }
}

/// Runs `lunar ctl targets`.
pub async fn targets(
    client: &ApiClient,
    args: &TargetsCommand,
    format: Format,
) -> Result<(), Failure> {
    if args.print_toml {
        let toml = configuration(client).await?.running;
        return print_toml(toml, format);
    }
    let found: targets::Targets = client.get(&ApiPath::new(&["targets"])).await?;
    match format {
        Format::Json => output::print_json(&found),
        Format::Human => {
            output::print_text(&human_targets(&found.targets, TableWidth::of_stdout(args.wide)))
        }
    }
}

/// Runs `lunar ctl luns`.
pub async fn luns(client: &ApiClient, args: &LunsCommand, format: Format) -> Result<(), Failure> {
    let found: targets::Luns = client.get(&ApiPath::new(&["luns"])).await?;
    let status: ApiStatus = client.get(&ApiPath::new(&["status"])).await?;
    match format {
        Format::Json => {
            let ApiStatus { waiting, migrations, .. } = status;
            output::print_json(&ListedLuns { luns: found.luns, waiting, migrations })
        }
        Format::Human => {
            let served = found.luns.iter().map(|found_lun| {
                let is_of_lun = |one: &&MigrationReport| {
                    one.target == found_lun.target && one.lun == found_lun.lun.id
                };
                let moves = status.migrations.iter().filter(|one| !one.has_ended());
                lun_row(&found_lun.target, &found_lun.lun, moves.rev().find(is_of_lun))
            });
            let rows: Vec<_> = served.chain(status.waiting.iter().map(waiting_row)).collect();
            let width = TableWidth::of_stdout(args.wide);
            output::print_text(&or_none(table(LUN_HEADING, &rows, width), "no LUNs\n"))
        }
    }
}

/// All LUNs of the configuration as JSON.
#[derive(Debug, serde::Serialize)]
struct ListedLuns {
    luns: Vec<targets::LunOfTarget>,
    /// LUNs that are not served yet, because their storage is unreachable.
    waiting: Vec<WaitingLunStatus>,
    /// Moves of extents of virtual LUNs.
    migrations: Vec<MigrationReport>,
}

/// Prints lines to paste, in JSON format as one document.
fn print_toml(toml: String, format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => output::print_json(&Toml { toml }),
        Format::Human => output::print_text(&toml),
    }
}

/// Lines to paste as JSON, in the same form as in the answer to a change.
#[derive(Debug, serde::Serialize)]
struct Toml {
    toml: String,
}

async fn configuration(client: &ApiClient) -> Result<ConfigurationText, Failure> {
    client.get(&ApiPath::new(&["configuration"])).await
}

const POISONED: &str = "REFUSES WRITES (see lunar ctl status)";

const LUN_HEADING: [&str; 9] =
    ["TARGET", "LUN", "SIZE", "ALLOCATED", "FREE", "CACHE", "I/O", "DEVICE", ""];

/// A size in bytes that may be unknown.
fn known_size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), output::rounded_size)
}

fn lun_row(target: &str, lun: &Lun, moved: Option<&MigrationReport>) -> [String; 9] {
    let marks = [(lun.thin, "thin"), (lun.read_only, "read-only"), (lun.removable, "removable")];
    let mut notes: Vec<_> =
        marks.iter().filter(|(is_set, _)| *is_set).map(|(_, word)| (*word).to_owned()).collect();
    if lun.poisoned {
        notes.insert(0, POISONED.to_owned());
    }
    if !lun.initiators.is_empty() || !lun.networks.is_empty() {
        let who = [lun.initiators.as_slice(), &lun.networks].concat();
        notes.push(format!("for {}", who.join(" ")));
    }
    notes.extend(administrators::note(lun.administer.as_ref()));
    if !lun.limit.is_none() {
        notes.push(format!("limit {}", lun.limit));
    }
    notes.extend(lun.initiator_limits.iter().map(|limit| format!("limit of {limit}")));
    notes.extend(moved.map(|one| plain(&human(one))));
    [
        target.to_owned(),
        lun.id.to_string(),
        output::size(lun.size_bytes),
        known_size(lun.allocated_bytes),
        known_size(lun.free_bytes),
        lun.cache.clone(),
        lun.io_tier.clone(),
        plain(&lun.device),
        notes.join(", "),
    ]
}

fn waiting_row(lun: &WaitingLunStatus) -> [String; 9] {
    let [size, allocated, free, cache, tier] = ["-"; 5].map(str::to_owned);
    [
        lun.target.clone(),
        lun.lun.to_string(),
        size,
        allocated,
        free,
        cache,
        tier,
        plain(&lun.device),
        plain(&format!("waits for its storage: {}", lun.error)),
    ]
}

fn human_targets(targets: &[Target], width: TableWidth) -> String {
    let rows: Vec<_> = targets.iter().map(target_row).collect();
    let heading = ["TARGET", "LUNS", "CHAP", "ACCESS", ""];
    or_none(table(heading, &rows, width), "no targets\n")
}

fn target_row(target: &Target) -> [String; 5] {
    let who = [target.initiators.as_slice(), &target.networks].concat();
    let redirect = target.redirect.as_ref().map(|to| format!("redirected to {to}"));
    let poisoned = target.luns.iter().filter(|lun| lun.poisoned);
    let poisoned = poisoned.map(|lun| format!("LUN {} {POISONED}", lun.id));
    let limits = target.initiator_limits.iter().map(|limit| format!("limit of {limit}"));
    let administer = administrators::note(target.administer.as_ref());
    let notes: Vec<_> = poisoned.chain(redirect).chain(administer).chain(limits).collect();
    [
        target.name.clone(),
        target.luns.len().to_string(),
        if target.chap { "yes" } else { "no" }.to_owned(),
        if who.is_empty() { "all".to_owned() } else { who.join(" ") },
        notes.join(", "),
    ]
}

fn human_sessions(sessions: &[Session], width: TableWidth) -> String {
    let rows: Vec<_> = sessions.iter().map(session_row).collect();
    let heading = ["TSIH", "INITIATOR", "TARGET", "FROM", "SINCE", "IN FLIGHT", "NEGOTIATED"];
    or_none(table(heading, &rows, width), "no sessions\n")
}

fn session_row(session: &Session) -> [String; 7] {
    let from: Vec<_> = session.connections.iter().map(|c| c.initiator_address.as_str()).collect();
    let keys = &session.negotiated;
    let yes_or_no = |flag| if flag { "Yes" } else { "No" };
    let negotiated = format!(
        "{} MaxBurstLength={} FirstBurstLength={} ImmediateData={} InitialR2T={} \
         ErrorRecoveryLevel={}",
        digests(session),
        keys.max_burst_bytes,
        keys.first_burst_bytes,
        yes_or_no(keys.immediate_data),
        yes_or_no(keys.initial_r2t),
        keys.error_recovery_level
    );
    [
        session.tsih.to_string(),
        plain(&session.initiator),
        session.target.clone().unwrap_or_else(|| "(discovery)".to_owned()),
        from.join(" "),
        session.since.clone(),
        session.commands_in_flight.to_string(),
        negotiated,
    ]
}

/// The digests of the connections, listed once if they are equal.
fn digests(session: &Session) -> String {
    let name = |is_enabled| if is_enabled { "CRC32C" } else { "None" };
    let mut all: Vec<String> = Vec::new();
    for connection in &session.connections {
        let (header, data) = (name(connection.header_digest), name(connection.data_digest));
        let keys = format!("HeaderDigest={header} DataDigest={data}");
        if !all.contains(&keys) {
            all.push(keys);
        }
    }
    all.join(" / ")
}

fn human_status(status: &ApiStatus, client: &ApiClient) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<12}{value}");
    };
    line("version", status.version.clone());
    line("api", client.address.to_string());
    line("process", status.pid.to_string());
    line("running", format!("{} since {}", duration(status.uptime_seconds), status.started));
    line("portals", status.portals.join(" "));
    line("targets", format!("{} with {} LUNs", status.targets, status.luns));
    line("sessions", format!("{} on {} connections", status.sessions, status.connections));
    line("memory", human_memory(&status.memory));
    if status.connections_max < status.connections_configured {
        let (max, wanted) = (status.connections_max, status.connections_configured);
        line(
            "",
            format!(
                "at most {max} of the configured {wanted} connections are served: the limit of \
                 open files is too low"
            ),
        );
    }
    if status.stopping {
        line("stopping", "the server is stopping and refuses changes".to_owned());
    }
    match status.health {
        Health::Good => line("health", "good".to_owned()),
        Health::Degraded => line("health", "degraded:".to_owned()),
    }
    for trouble in &status.troubles {
        line("", format!("{} LUN {}: {}", trouble.target, trouble.lun, plain(&trouble.error)));
        line("", format!("  {}", plain(&trouble.hint)));
    }
    for pool in &status.pools {
        line("pool", format!("{}, {}", pool.name, pool.health));
    }
    for one in &status.migrations {
        line("move", format!("{} LUN {}: {}", one.target, one.lun, plain(&human(one))));
    }
    for unit in &status.units {
        let space = unit.allocated_bytes.zip(unit.free_bytes).map(|(allocated, free)| {
            let [allocated, free] = [allocated, free].map(output::rounded_size);
            format!(", {allocated} allocated, {free} free")
        });
        let (device, space) = (plain(&unit.device), space.unwrap_or_default());
        line("unit", format!("{device}{space}, I/O {}, {}", unit.io_tier, unit.uuid));
    }
    match status.drift.is_empty() {
        true => line("drift", "none: the server matches its configuration".to_owned()),
        false => line("drift", DRIFT.to_owned()),
    }
    for change in &status.drift {
        line("", plain(change));
    }
    text
}

/// Memory in use, with its limit and purposes.
fn human_memory(memory: &MemoryStatus) -> String {
    let in_use = memory.used_bytes.saturating_sub(memory.idle_bytes);
    let whole = |bytes: u64| output::size(bytes.next_multiple_of(1 << 20)); // MiB
    let mut text = format!("{} in use of {}", whole(in_use), whole(memory.limit_bytes));
    let kinds = memory.bytes_by_kind.iter().filter(|(_, bytes)| **bytes > 0);
    let kinds: Vec<_> = kinds.map(|(kind, bytes)| format!("{kind} {}", whole(*bytes))).collect();
    if !kinds.is_empty() {
        text += &format!(" ({})", kinds.join(", "));
    }
    if memory.waiting > 0 {
        text += &format!(", {} requests are waiting for memory", memory.waiting);
    }
    text
}

/// `2 d 3 h`, `4 min 5 s`: the two largest units.
fn duration(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest} s"),
        (0, 0, _) => format!("{minutes} min {rest} s"),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

fn or_none(text: String, none: &str) -> String {
    if text.is_empty() { none.to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_for_people() {
        for (seconds, text) in
            [(0, "0 s"), (61, "1 min 1 s"), (3_660, "1 h 1 min"), (200_000, "2 d 7 h")]
        {
            assert_eq!(duration(seconds), text);
        }
    }
}
