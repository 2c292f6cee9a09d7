//! Serves a configuration, and reports it on stdout.

use crate::administrators;
use crate::client_lines::{ClientCredentials, ClientUrl, source_address};
use crate::commands::runtime;
use crate::device_url::ServedDevices;
use crate::notify;
use crate::open_files;
use crate::output::{self, Failure, Format};
use crate::shutdown::{self, HangupAction, Signals};
use lunar_control::api::bound::BoundApi;
use lunar_control::api::status::WaitingLunStatus;
use lunar_control::api::targets::{Lun, Target};
use lunar_control::client::client_address;
use lunar_control::config::model::Configuration;
use lunar_control::daemon::{ConfigOrigin, Daemon, OpenedConfig, StartOptions};
use lunar_control::identity;
use lunar_target::{Catalogue, Portal, RelayFactory};
use serde::Serialize;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;

/// Text in place of the API's address.
const NO_API: &str = "none: lunar ctl cannot reach this server. To enable the API, use --api \
                      unix:PATH or --state DIR (in a configuration: api.listen, state)";

/// The served configuration, as reported on stdout.
#[derive(Debug, Serialize)]
struct Report {
    targets: Vec<Target>,
    /// LUNs that are served when their storages return.
    waiting: Vec<WaitingLunStatus>,
    portals: Vec<PortalReport>,
    /// Whether discovery sessions must authenticate.
    discovery_chap: bool,
    /// Address of the API; none: no API.
    api: Option<String>,
    /// Address of the metrics.
    metrics: Option<String>,
    /// Commands for clients, to paste.
    clients: Vec<String>,
}

#[derive(Debug, Serialize)]
struct PortalReport {
    listen: SocketAddr,
    advertise: Option<String>,
    /// Tag for every target at this portal; `None`: each target has its own tag.
    portal_group: Option<u16>,
    /// URL of the portal for clients on this machine, or the advertised one.
    url: String,
}

/// The way in which a configuration is served.
pub struct Serving {
    /// Origin of the configuration.
    pub origin: ConfigOrigin,
    /// Format of the report.
    pub format: Format,
    /// Treatment of disks that differ from their configuration.
    pub start: StartOptions,
    /// Creates the relays of connections; `None`: devices move all data.
    pub relays: Option<Arc<dyn RelayFactory>>,
}

/// Opens the devices, serves, reports, and waits for the shutdown.
///
/// # Errors
/// Fails if a device or address cannot be opened, or the final sync fails.
pub fn serve(
    configuration: Configuration,
    serving: Serving,
    devices: ServedDevices,
) -> Result<(), Failure> {
    let Serving { origin, format, start, relays } = serving;
    open_files::raise_limit();
    let runtime = runtime()?;
    let metrics = configuration.metrics;
    let hangup = match origin {
        ConfigOrigin::File { .. } => HangupAction::Applies,
        ConfigOrigin::Arguments => HangupAction::Ends,
    };
    let mut opened = OpenedConfig::open(configuration.clone(), origin, Arc::new(devices), start)?;
    if let Some(relays) = relays {
        opened = opened.with_relays(relays);
    }
    let signals = runtime.block_on(async { Signals::catch(hangup) })?;
    let api = bind_api(&configuration, hangup == HangupAction::Applies)?;
    let daemon = Arc::new(opened.serve()?);
    let server = daemon.server();
    let mut report = describe(&server.catalogue(), &daemon.running().portals);
    for (portal, address) in report.portals.iter_mut().zip(server.addresses()) {
        portal.listen = *address;
        let reached =
            portal.advertise.clone().unwrap_or_else(|| client_address(*address).to_string());
        portal.url = format!("iscsi://{reached}");
    }
    report.waiting = daemon.waiting().all().iter().map(Into::into).collect();
    report.api = api.as_ref().map(|api| api.address().to_string());
    let api = api.map(|api| api.serve(Arc::clone(&daemon))).transpose()?;
    report.clients = client_lines(&configuration, &report);
    let metrics = metrics.map(|address| {
        let waiting = Arc::clone(daemon.waiting());
        let pools = Arc::clone(daemon.pools());
        let migrations = Arc::clone(daemon.migrations());
        lunar_control::metrics::serve(address, server.observer(), waiting, pools, migrations)
    });
    let metrics = metrics.transpose()?;
    report.metrics = metrics.as_ref().map(|http| format!("http://{}/metrics", http.address()));
    let result = match format {
        Format::Json => output::print_json(&report),
        Format::Human => output::print_text(&human(&report)),
    };
    if let Err(failure) = result {
        // Serving does not depend on a reader of stdout.
        tracing::warn!("{failure}");
    }
    notify::ready(&summary(&report));
    runtime.spawn(Daemon::serve_waiting(Arc::downgrade(&daemon)));
    runtime.spawn(Daemon::return_members(Arc::downgrade(&daemon)));
    Daemon::resume_migrations(&daemon);
    runtime.block_on(shutdown::serve_until_signal(daemon, api, signals))
}

/// Commands for clients of the first target, at a portal that clients on this machine may use if
/// there is one.
fn client_lines(configuration: &Configuration, report: &Report) -> Vec<String> {
    let Some(target) = report.targets.first() else { return Vec::new() };
    let urls = report.portals.iter().map(|portal| {
        let advertised = portal.advertise.as_deref();
        ClientUrl::of(configuration, portal.listen, advertised, source_address)
    });
    let urls: Vec<_> = urls.collect();
    let best = urls.iter().find(|url| url.note.is_none()).or(urls.first());
    let Some(ClientUrl { url, note }) = best else { return Vec::new() };
    let lun = target.luns.first().map(|lun| lun.id);
    let lines = ClientCredentials::of(configuration).lines(url, &target.name, lun);
    note.iter().cloned().chain(lines).collect()
}

/// Binds the API to the configured address, else in a runtime directory, else in the state
/// directory.
fn bind_api(configuration: &Configuration, is_daemon: bool) -> Result<Option<BoundApi>, Failure> {
    let units = configuration.targets.iter().flat_map(|target| &target.luns);
    let device_directories = units.filter_map(|lun| {
        let directory = identity::directory(lun.unit.device.path()?, None, lun.unit.uuid);
        directory.ok().filter(|directory| directory.is_dir())
    });
    let state = configuration.state.clone().or_else(|| device_directories.into_iter().next());
    BoundApi::bind(&configuration.api, is_daemon, state.as_deref())
}

fn describe(catalogue: &Catalogue, portals: &[Portal]) -> Report {
    let targets = catalogue.targets.iter().map(|target| Target::new(target, portals));
    let portals = portals.iter().map(|portal| PortalReport {
        listen: portal.listen,
        advertise: portal.advertise.clone(),
        portal_group: portal.portal_group,
        url: String::new(),
    });
    Report {
        targets: targets.collect(),
        waiting: Vec::new(),
        portals: portals.collect(),
        discovery_chap: catalogue.discovery_chap.is_some(),
        api: None,
        metrics: None,
        clients: Vec::new(),
    }
}

/// The initiators and networks of an access list as text; empty if all are admitted.
fn human_access(initiators: &[String], networks: &[String]) -> String {
    [("initiators", initiators), ("networks", networks)]
        .into_iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(kind, list)| format!(", {kind} {}", list.join(" ")))
        .collect()
}

/// The administrators as text; empty if no list restricts them.
fn human_administer(names: Option<&Vec<String>>) -> String {
    administrators::note(names).map_or_else(String::new, |note| format!(", {note}"))
}

/// A summary in one line for the service manager.
fn summary(report: &Report) -> String {
    let (targets, luns) = (&report.targets, report.targets.iter().map(|target| target.luns.len()));
    let portals: Vec<_> = report.portals.iter().map(|portal| portal.listen.to_string()).collect();
    let (targets, luns) = (targets.len(), luns.sum::<usize>());
    format!("targets: {targets}, LUNs: {luns}, listening on {}", portals.join(" "))
}

fn human(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| text.push_str(&heading(name, value));
    for target in &report.targets {
        line("target", &target.name);
        let chap = if target.chap { ", CHAP" } else { "" };
        let access = human_access(&target.initiators, &target.networks);
        let access = format!("{chap}{access}{}", human_administer(target.administer.as_ref()));
        if !access.is_empty() {
            line("access", access.trim_start_matches(", "));
        }
        if let Some(redirect) = &target.redirect {
            line("", &format!("redirected to {redirect}"));
        }
        for lun in &target.luns {
            line(&format!("LUN {}", lun.id), &human_lun(lun));
        }
        for lun in report.waiting.iter().filter(|lun| lun.target == target.name) {
            let waits = format!("{} waits for its storage: {}", lun.device, lun.error);
            line(&format!("LUN {}", lun.lun), &waits);
        }
    }
    for portal in &report.portals {
        let advertised = portal.advertise.as_ref();
        let advertised = advertised.map_or_else(String::new, |a| format!(", advertised as {a}"));
        let group = portal.portal_group;
        let group = group.map_or_else(String::new, |tag| format!(", portal group {tag}"));
        line("portal", &format!("{}{advertised}{group}", portal.listen));
    }
    line("api", report.api.as_deref().unwrap_or(NO_API));
    if let Some(url) = &report.metrics {
        line("metrics", url);
    }
    for (index, client) in report.clients.iter().enumerate() {
        line(if index == 0 { "clients" } else { "" }, client);
    }
    for portal in &report.portals {
        let _ = writeln!(text, "listening on {}", portal.listen);
    }
    text
}

/// A line with a name in front.
fn heading(name: &str, value: &str) -> String {
    format!("{name:<7} {value}\n")
}

fn human_lun(lun: &Lun) -> String {
    let mut text = format!(
        "{}, {}, blocks of {} (physical {}), {}, I/O {}",
        lun.device,
        output::size(lun.size_bytes),
        lun.block_bytes,
        lun.physical_block_bytes,
        lun.cache,
        lun.io_tier
    );
    for (is_set, word) in
        [(lun.thin, "thin"), (lun.read_only, "read-only"), (lun.removable, "removable")]
    {
        if is_set {
            text.push_str(", ");
            text.push_str(word);
        }
    }
    if !lun.limit.is_none() {
        text.push_str(&format!(", limit {}", lun.limit));
    }
    let limits = lun.initiator_limits.iter().map(|limit| format!(", limit of {limit}"));
    text.extend(limits);
    text.push_str(&human_access(&lun.initiators, &lun.networks));
    text + &human_administer(lun.administer.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a server without an API reports that, and names the options that enable one.
    #[test]
    fn a_server_without_an_api_reports_the_reason() {
        let catalogue = Catalogue { targets: Vec::new(), discovery_chap: None };
        let mut report = describe(&catalogue, &[]);
        let message = human(&report);
        assert!(
            message.starts_with("api     none: ") && message.contains("--api unix:PATH"),
            "{message}"
        );
        assert!(serde_json::to_value(&report).unwrap()["api"].is_null());
        report.api = Some("unix:/a".to_owned());
        assert_eq!(human(&report), "api     unix:/a\n");
        // Fault: `LUN 16383mem:1M`.
        assert_eq!(heading("LUN 16383", "mem:1M"), "LUN 16383 mem:1M\n");
    }
}
