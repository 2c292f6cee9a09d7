//! Metrics for Prometheus as OpenMetrics text.

mod families;
mod migration_families;
mod page;
mod points;
mod pool_families;

use crate::api::migrations::MigrationReport;
use crate::daemon::{Migrations, WaitingLun, WaitingLuns};
use crate::http::{Address, HttpLimits, HttpOptions, HttpServer};
use crate::{Failure, ServedPools};
use axum::Router;
use axum::routing::get;
use families::{FAMILIES, Family};
use lunar_block::MemoryKind;
use lunar_pool::PoolStatus;
use lunar_target::{Observer, Statistics};
use migration_families::MIGRATION_FAMILIES;
use page::Pages;
use points::Points;
use pool_families::POOL_FAMILIES;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt::{self, Write};
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

/// Maximum number of connections, as there are few scrapers; further ones wait.
const CONNECTIONS_MAX: usize = 16;
/// Maximum number of connections of one address.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 4;

/// Serves the metrics of `observer`, of the LUNs that wait for their storages, of pools, and of
/// moves of extents, at `http://ADDRESS/metrics`, in plain HTTP and without authentication, as is
/// usual for Prometheus.
///
/// # Errors
/// Fails if the address is taken or not available.
pub fn serve(
    address: SocketAddr,
    observer: Observer,
    waiting: Arc<WaitingLuns>,
    pools: Arc<ServedPools>,
    migrations: Arc<Migrations>,
) -> Result<HttpServer, Failure> {
    let limits = HttpLimits {
        connections: CONNECTIONS_MAX,
        connections_per_address: CONNECTIONS_PER_ADDRESS_MAX,
        ..HttpLimits::default()
    };
    let options = HttpOptions { address: Address::Tcp(address), tls: None, limits };
    HttpServer::start(options, router(observer, waiting, pools, migrations))
}

/// Router with `GET /metrics`.
pub fn router(
    observer: Observer,
    waiting: Arc<WaitingLuns>,
    pools: Arc<ServedPools>,
    migrations: Arc<Migrations>,
) -> Router {
    let account = observer.buffers().map(|buffers| buffers.sibling(MemoryKind::Api));
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Server { observer, waiting, pools, migrations }));
    let pages = Pages::new(registry, account);
    Router::new().route("/metrics", get(move || std::future::ready(pages.response())))
}

/// All metrics, in the order of a scrape.
fn all_families() -> impl Iterator<Item = &'static Family> {
    FAMILIES.iter().chain(POOL_FAMILIES).chain(MIGRATION_FAMILIES)
}

/// Reads the statistics when it is scraped; does nothing between scrapes.
#[derive(Debug)]
struct Server {
    observer: Observer,
    waiting: Arc<WaitingLuns>,
    pools: Arc<ServedPools>,
    migrations: Arc<Migrations>,
}

/// The values of one scrape.
struct Scrape {
    statistics: Statistics,
    waiting: Vec<WaitingLun>,
    /// The pools, with their names.
    pools: Vec<(String, PoolStatus)>,
    /// The moves of extents that have not ended.
    migrations: Vec<MigrationReport>,
}

impl Deref for Scrape {
    type Target = Statistics;

    fn deref(&self) -> &Statistics {
        &self.statistics
    }
}

impl Collector for Server {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        // `None`: the server has ended, and the process is about to.
        let statistics: Statistics = self.observer.statistics().unwrap_or_default();
        let pools = self.pools.all().into_iter();
        let pools = pools.map(|pool| (pool.name().to_owned(), pool.pool().status())).collect();
        let jobs = self.migrations.all();
        let migrations = jobs.iter().map(|job| MigrationReport::of(job));
        let migrations = migrations.filter(|one| !one.has_ended()).collect();
        let scrape = Scrape { statistics, waiting: self.waiting.all(), pools, migrations };
        for family in all_families() {
            let unit = family.unit.as_ref();
            let descriptor =
                encoder.encode_descriptor(family.name, family.help, unit, family.kind)?;
            (family.write)(&scrape, &mut Points::new(descriptor, family.labels))?;
        }
        Ok(())
    }
}

/// The table of all metrics in `docs/metrics.md`.
pub fn table() -> String {
    let mut text = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for family in all_families() {
        let (kind, suffix) = match family.kind {
            MetricType::Counter => ("counter", "_total"),
            MetricType::Gauge => ("gauge", ""),
            MetricType::Histogram => ("histogram", ""),
            MetricType::Info => ("gauge, always 1", "_info"),
            MetricType::Unknown => ("unknown", ""),
        };
        let unit = family.unit.as_ref().map_or_else(String::new, |u| format!("_{}", u.as_str()));
        let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| `{}{unit}{suffix}` | {kind} | {} | {} |",
            family.name,
            labels.join(" "),
            family.help
        );
    }
    text
}
