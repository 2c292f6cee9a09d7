//! Metrics for Prometheus: what the server counts, as OpenMetrics text.

mod families;
mod page;
mod points;

use crate::Failure;
use crate::http::{Address, HttpLimits, HttpOptions, HttpServer};
use axum::Router;
use axum::routing::get;
use block::MemoryKind;
use families::FAMILIES;
use page::Pages;
use points::Points;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt::{self, Write};
use std::net::SocketAddr;
use target::{Observer, Statistics};

/// Who scrapes are few; whoever connects beyond waits.
const CONNECTIONS_MAX: usize = 16;
/// Of these, of one address.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 4;

/// Serves the metrics of `observer` at `http://ADDRESS/metrics`, to whoever can reach it: in plain
/// HTTP, as Prometheus is used to.
///
/// # Errors
/// An address that is taken or cannot be had.
pub fn serve(address: SocketAddr, observer: Observer) -> Result<HttpServer, Failure> {
    let limits = HttpLimits {
        connections: CONNECTIONS_MAX,
        connections_per_address: CONNECTIONS_PER_ADDRESS_MAX,
        ..HttpLimits::default()
    };
    let options = HttpOptions { address: Address::Tcp(address), tls: None, limits };
    HttpServer::start(options, router(observer))
}

/// `GET /metrics`.
pub fn router(observer: Observer) -> Router {
    let account = observer.buffers().map(|buffers| buffers.sibling(MemoryKind::Api));
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Server { observer }));
    let pages = Pages::new(registry, account);
    Router::new().route("/metrics", get(move || std::future::ready(pages.response())))
}

/// Reads the statistics when it is scraped: between scrapes nothing is done.
#[derive(Debug)]
struct Server {
    observer: Observer,
}

impl Collector for Server {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        // None: the server has ended, its process will.
        let statistics: Statistics = self.observer.statistics().unwrap_or_default();
        for family in FAMILIES {
            let unit = family.unit.as_ref();
            let descriptor =
                encoder.encode_descriptor(family.name, family.help, unit, family.kind)?;
            (family.write)(&statistics, &mut Points::new(descriptor, family.labels))?;
        }
        Ok(())
    }
}

/// The table of all metrics, as `docs/metrics.md` has it.
pub fn table() -> String {
    let mut text = String::from("| metric | type | labels | what it is |\n|---|---|---|---|\n");
    for family in FAMILIES {
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
