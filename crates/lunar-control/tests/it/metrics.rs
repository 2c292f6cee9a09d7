//! Scraped metrics match the work done, according to the parser of the OpenMetrics project.

use lunar_block::{Effect, ErrorKind, Fault, FaultDevice, FaultOperation, MemoryDevice};
use lunar_control::http::HttpServer;
use lunar_target::{
    Access, DiskUnit, DiskUnitOptions, Limits, LunOptions, Portal, Server, ServerOptions,
    TargetOptions,
};
use lunar_testkit::raw::RawClient;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const TARGET: &str = "iqn.2026-11.org.lunarsan.test:metrics";

/// Parses a page with Prometheus' own strict parser, and prints its samples.
const PARSER: &str = "
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
samples = [[f.type, s.name, s.labels, s.value] for f in parse(sys.stdin.read()) for s in f.samples]
json.dump(samples, sys.stdout)
";

struct Scraped {
    server: Option<Server>,
    http: HttpServer,
    device: Arc<FaultDevice>,
}

impl Scraped {
    fn start() -> Self {
        let memory = MemoryDevice::new(64 << 20, 512, 4096).unwrap();
        let device = FaultDevice::new(Arc::new(memory), 1);
        let options =
            DiskUnitOptions::new(uuid::Uuid::from_u128(1), Arc::<FaultDevice>::clone(&device));
        let lun = LunOptions::new(3, DiskUnit::open(options).unwrap());
        let target = TargetOptions {
            name: TARGET.to_owned(),
            alias: None,
            portal_group: 1,
            access: Access::default(),
            administer: None,
            chap: Vec::new(),
            initiator_limits: Vec::new(),
            offer: lunar_iscsi::text::Offer::default(),
            redirect: None,
            luns: vec![lun],
        };
        let server = Server::start(ServerOptions {
            portals: vec![Portal::new("127.0.0.1:0".parse().unwrap())],
            targets: vec![target],
            discovery_chap: None,
            cores: 2,
            latency_mode: false,
            limits: Limits::default(),
            buffers: lunar_block::BufferPool::default(),
            relays: None,
        })
        .unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let http = lunar_control::metrics::serve(
            any,
            server.observer(),
            Arc::default(),
            Arc::default(),
            Arc::default(),
        )
        .unwrap();
        Self { server: Some(server), http, device }
    }

    fn log_in(&self) -> RawClient {
        let address = self.server.as_ref().unwrap().addresses()[0].to_string();
        RawClient::log_in(&address, TARGET).unwrap()
    }

    fn samples(&self) -> Vec<Sample> {
        let (head, text) = get(&self.http.address().to_string(), "/metrics");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.to_ascii_lowercase().contains("openmetrics-text; version=1.0.0"), "{head}");
        parse(&text)
    }
}

impl Drop for Scraped {
    fn drop(&mut self) {
        self.device.heal();
        self.server.take().unwrap().shutdown(Duration::from_secs(2), &mut |_| {});
    }
}

#[derive(Debug)]
struct Sample {
    kind: String,
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

fn get(address: &str, path: &str) -> (String, String) {
    let mut tcp = std::net::TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(tcp, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

fn parse(text: &str) -> Vec<Sample> {
    // The interpreter that Debian's package is installed for.
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", PARSER]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the parser refuses it (scripts/setup installs it):\n{text}");
    let samples: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let sample = |sample: &Value| Sample {
        kind: text(&sample[0]),
        name: text(&sample[1]),
        labels: sample[2].as_object().unwrap().iter().map(|(k, v)| (k.clone(), text(v))).collect(),
        value: sample[3].as_f64().unwrap(),
    };
    samples.iter().map(sample).collect()
}

/// The value of the only sample with this name and at least these labels.
#[track_caller]
fn value(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> f64 {
    let fits = |sample: &&Sample| {
        let has = |(key, value): &(&str, &str)| {
            sample.labels.get(*key).is_some_and(|found| found == value)
        };
        sample.name == name && labels.iter().all(has)
    };
    let found: Vec<_> = samples.iter().filter(fits).collect();
    assert_eq!(found.len(), 1, "{name} {labels:?}: {found:#?}");
    found[0].value
}

/// Goal: a hundred writes of 4 KiB count as exactly a hundred commands and 400 KiB, and all other
/// work of the server is counted exactly.
#[test]
fn figures_are_those_of_the_io() {
    let scraped = Scraped::start();
    let mut raw = scraped.log_in();
    let lun = |cdb: [u8; 10], flags: u8, expected: u32, raw: &mut RawClient| {
        raw.command(flags, &cdb, expected).put(8, &[0, 3])
    };
    let mut run = |cdb: [u8; 10], data: Vec<u8>, reads: u32| {
        let (flags, expected) = match (data.len(), reads) {
            (0, 0) => (0x81, 0),
            (0, bytes) => (0xc1, bytes),
            (bytes, _) => (0xa1, bytes as u32),
        };
        let pdu = lun(cdb, flags, expected, &mut raw).with_data(data);
        raw.send(&pdu).unwrap();
        raw.outcome().unwrap().0
    };
    assert_eq!(run([0; 10], Vec::new(), 0), 2, "the unit attention of a new nexus");
    for lba in 0..100 {
        let cdb = [0x2a, 0, 0, 0, 0, lba, 0, 0, 8, 0];
        assert_eq!(run(cdb, vec![lba; 4096], 0), 0);
    }
    for lba in 0..7 {
        assert_eq!(run([0x28, 0, 0, 0, 0, lba, 0, 0, 2, 0], Vec::new(), 1024), 0);
    }
    let samples = scraped.samples();
    let labels = |op| [("target", TARGET), ("lun", "3"), ("op", op)];
    assert_eq!(value(&samples, "lunar_commands_total", &labels("write")), 100.0);
    assert_eq!(value(&samples, "lunar_received_bytes_total", &labels("write")), 409_600.0);
    assert_eq!(value(&samples, "lunar_sent_bytes_total", &labels("write")), 0.0);
    assert_eq!(value(&samples, "lunar_command_duration_seconds_count", &labels("write")), 100.0);
    assert_eq!(value(&samples, "lunar_commands_total", &labels("read")), 7.0);
    assert_eq!(value(&samples, "lunar_sent_bytes_total", &labels("read")), 7.0 * 1024.0);
    assert_eq!(value(&samples, "lunar_commands_in_flight", &labels("read")), 0.0);
    assert_eq!(value(&samples, "lunar_commands_total", &labels("flush")), 0.0);
    let attention = [
        ("lun", "3"),
        ("op", "other"),
        ("status", "check_condition"),
        ("sense_key", "unit_attention"),
        ("additional_sense", "2900"),
    ];
    assert_eq!(value(&samples, "lunar_command_errors_total", &attention), 1.0);
    let target = [("target", TARGET)];
    assert_eq!(value(&samples, "lunar_sessions", &target), 1.0);
    assert_eq!(value(&samples, "lunar_session_connections", &target), 1.0);
    assert_eq!(value(&samples, "lunar_logins_total", &target), 1.0);
    assert_eq!(value(&samples, "lunar_open_connections", &[]), 1.0);
    assert_eq!(value(&samples, "lunar_lun_size_bytes", &target), f64::from(64 << 20));
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    assert_eq!(value(&samples, "lunar_build_info", &version), 1.0);
    let tier = [("io_tier", "memory, with faults"), ("cache", "write-through")];
    assert_eq!(value(&samples, "lunar_lun_info", &tier), 1.0);
    let refused = [("reason", "authentication")];
    assert_eq!(value(&samples, "lunar_login_failures_total", &refused), 0.0);
    let buckets: Vec<_> = samples
        .iter()
        .filter(|one| one.name == "lunar_command_duration_seconds_bucket")
        .filter(|one| one.labels["op"] == "write")
        .map(|one| one.value)
        .collect();
    assert!(buckets.is_sorted() && buckets.last() == Some(&100.0), "{buckets:?}");
}

/// Goal: a disk whose sync failed is reported, and the failed flush is counted under its sense.
#[test]
fn a_failed_sync_shows_as_poison() {
    let scraped = Scraped::start();
    let mut raw = scraped.log_in();
    let lun = [("target", TARGET), ("lun", "3")];
    assert_eq!(value(&scraped.samples(), "lunar_lun_poisoned", &lun), 0.0);
    let fault = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Flush).times(1);
    scraped.device.inject(fault);
    let mut status = 2;
    for cdb in [[0; 10], [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]] {
        let pdu = raw.command(0x81, &cdb, 0).put(8, &[0, 3]);
        raw.send(&pdu).unwrap();
        status = raw.outcome().unwrap().0;
    }
    assert_eq!(status, 2);
    let samples = scraped.samples();
    assert_eq!(value(&samples, "lunar_lun_poisoned", &lun), 1.0);
    let error = [("op", "flush"), ("sense_key", "medium_error"), ("additional_sense", "0c00")];
    assert_eq!(value(&samples, "lunar_command_errors_total", &error), 1.0);
}

/// Goal: the endpoint serves metrics only, and after the server's end only the build information.
#[test]
fn the_endpoint_is_small() {
    let mut scraped = Scraped::start();
    let address = scraped.http.address().to_string();
    assert!(get(&address, "/").0.starts_with("HTTP/1.1 404"));
    let observer = scraped.server.as_ref().unwrap().observer();
    scraped.server.take().unwrap().shutdown(Duration::from_secs(2), &mut |_| {});
    assert!(observer.statistics().is_none());
    let samples = scraped.samples();
    assert_eq!(value(&samples, "lunar_build_info", &[]), 1.0);
    assert!(!samples.iter().any(|sample| sample.labels.contains_key("target")), "{samples:#?}");
    scraped.server = Some(
        Server::start(ServerOptions {
            portals: Vec::new(),
            targets: Vec::new(),
            discovery_chap: None,
            cores: 1,
            latency_mode: false,
            limits: Limits::default(),
            buffers: lunar_block::BufferPool::default(),
            relays: None,
        })
        .unwrap(),
    );
}

/// Goal: docs/metrics.md lists the metrics exactly. With LUNAR_WRITE_DOCS set, this test writes the
/// file.
#[test]
fn the_documentation_lists_every_metric() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (begin, end) = ("<!-- table -->\n", "<!-- end of the table -->\n");
    let (before, rest) = text.split_once(begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    let should = format!("{before}{begin}{}{end}{after}", lunar_control::metrics::table());
    if std::env::var_os("LUNAR_WRITE_DOCS").is_some() {
        std::fs::write(path, &should).unwrap();
        return;
    }
    assert_eq!(
        text, should,
        "write it anew: LUNAR_WRITE_DOCS=1 cargo test -p lunar-control --test it metrics::"
    );
}

/// Goal: every metric and label in the dashboard is in a scrape.
#[test]
fn the_dashboard_uses_existing_metrics() {
    let scraped = Scraped::start();
    let mut raw = scraped.log_in();
    assert_ne!(raw.execute(&[0; 6], 0).unwrap().0, 0, "an error, so that there is one");
    let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for sample in scraped.samples() {
        assert_ne!(sample.kind, "unknown", "{sample:?}");
        labels.entry(sample.name).or_default().extend(sample.labels.into_keys());
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/grafana/lunar.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut asked = Vec::new();
    queries(&dashboard, &mut asked);
    assert!(asked.len() >= 15, "{asked:?}");
    for query in asked {
        let words = words(&query);
        let metrics: Vec<_> = words.iter().filter(|word| word.starts_with("lunar_")).collect();
        assert!(!metrics.is_empty(), "{query}");
        let mut known = BTreeSet::new();
        for metric in metrics {
            let found = labels.get(metric);
            known.extend(found.unwrap_or_else(|| panic!("no {metric}: {query}")));
        }
        for label in labels_in(&query) {
            assert!(known.iter().any(|known| **known == label), "no label {label}: {query}");
        }
    }
}

/// Collects every `expr`, and the queries of variables.
fn queries(value: &Value, to: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) if key == "expr" => to.push(text.clone()),
                    Value::String(text) if key == "query" && text.starts_with("label_values") => {
                        to.push(text.clone());
                    }
                    other => queries(other, to),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| queries(item, to)),
        _ => {}
    }
}

fn words(text: &str) -> Vec<String> {
    let is_in_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_in_word(c)).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Labels of a query: words before `=` in braces, in `by (…)`, or after the comma of
/// `label_values(…)`.
fn labels_in(query: &str) -> Vec<String> {
    let mut found = Vec::new();
    for part in query.split('{').skip(1) {
        let inside = part.split('}').next().unwrap_or_default();
        for matcher in inside.split(',').filter(|matcher| !matcher.is_empty()) {
            found.extend(words(matcher).into_iter().next());
        }
    }
    for part in query.split("by (").skip(1) {
        found.extend(words(part.split(')').next().unwrap_or_default()));
    }
    if query.starts_with("label_values") {
        found.extend(words(query).pop());
    }
    found
}
