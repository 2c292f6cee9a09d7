//! The simulated network to the targets: a relay, and probes of TCP through it.

use crate::output::Failure;
use lunar_control::units::{parse_rate, parse_size, rate_text};
use lunar_initiator::Url;
use lunar_load::ListeningProcess;
use lunar_load::relay::{DELAY_MAX, Model, Relay, WINDOW_MIN};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Options of the simulated network.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = "Network")]
pub(super) struct NetworkArgs {
    /// Delay each byte by this time in each direction, like 2ms
    #[arg(long, value_name = "TIME", value_parser = parse_delay)]
    delay: Option<Duration>,
    /// Limit the rate in each direction, like 1Gbit, shared by all connections
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    rate: Option<u64>,
    /// Limit the unacknowledged data of a connection in each direction, like 256K; this much passes
    /// per round trip then
    #[arg(long, value_name = "SIZE", value_parser = parse_window)]
    window: Option<u64>,
}

impl NetworkArgs {
    /// The model of the relay; `None`: no relay.
    pub(super) fn model(&self) -> Option<Model> {
        (self.delay.or(self.rate.map(|_| Duration::ZERO)).or(self.window.map(|_| Duration::ZERO)))
            .map(|delay| Model {
                delay,
                rate_bytes_per_second: self.rate,
                window_bytes: self.window,
            })
    }
}

/// Formats a model for people: `2 ms each way, 1Gbit, windows of 256Ki`.
pub(super) fn model_text(model: &Model) -> String {
    let mut parts = vec![format!("{} ms each way", model.delay.as_secs_f64() * 1e3)];
    parts.extend(model.rate_bytes_per_second.map(rate_text));
    let window = |bytes: u64| format!("windows of {}", lunar_load::report::size_text(bytes));
    parts.extend(model.window_bytes.map(window));
    parts.join(", ")
}

/// The running relays, one for each portal.
#[derive(Debug, Default)]
pub(super) struct Network {
    relays: HashMap<SocketAddr, Arc<Relay>>,
}

/// The path to a target.
#[derive(Clone, Debug)]
pub(super) struct Path {
    /// URL to connect to.
    pub(super) url: Url,
    /// Relay between client and target.
    pub(super) relay: Option<Arc<Relay>>,
    /// The process that listens there, if it is on this machine.
    pub(super) target: Option<ListeningProcess>,
}

impl Network {
    /// The path to the target of `url`, through a network of this model if there is one.
    pub(super) async fn path(&mut self, url: &Url, model: Option<Model>) -> Result<Path, Failure> {
        let found = tokio::net::lookup_host((url.host.as_str(), url.port)).await;
        let address = found.ok().and_then(|mut addresses| addresses.next());
        let address = address.ok_or_else(|| {
            Failure::new(format!("cannot find the address of {}", url.host))
                .hint("check the name, or write the address")
        })?;
        let target = ListeningProcess::of_listener(address);
        let Some(model) = model else {
            return Ok(Path { url: url.clone(), relay: None, target });
        };
        let relay = match self.relays.get(&address) {
            Some(relay) => Arc::clone(relay),
            None => {
                let relay = Relay::start(model, address)
                    .map_err(|error| Failure::new(format!("cannot start a relay: {error}")))?;
                let relay = Arc::new(relay);
                self.relays.insert(address, Arc::clone(&relay));
                relay
            }
        };
        let (host, port) = (relay.address().ip().to_string(), relay.address().port());
        Ok(Path { url: Url { host, port, ..url.clone() }, relay: Some(relay), target })
    }
}

/// Parses `2ms`, `500us`, `0.5s`.
fn parse_delay(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time: write 2ms, 500us or 0.1s, at most {DELAY_MAX:?}");
    let unit = text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let scale = match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        _ => return Err(wrong()),
    };
    let seconds = number.trim().parse::<f64>().map_err(|_| wrong())? * scale;
    match (0.0..=DELAY_MAX.as_secs_f64()).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(wrong()),
    }
}

fn parse_window(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if bytes >= WINDOW_MIN => Ok(bytes),
        _ => Err(format!("a window has {WINDOW_MIN} bytes at least")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays() {
        assert_eq!(parse_delay("2ms"), Ok(Duration::from_millis(2)));
        assert_eq!(parse_delay("0.5 ms"), Ok(Duration::from_micros(500)));
        assert_eq!(parse_delay("500us"), Ok(Duration::from_micros(500)));
        assert_eq!(parse_delay("0s"), Ok(Duration::ZERO));
        for text in ["", "2", "ms", "-1ms", "2m", "3s", "1e9s", "NaNs", "infs"] {
            assert!(parse_delay(text).is_err(), "{text}");
        }
    }

    #[test]
    fn models() {
        assert_eq!(NetworkArgs::default().model(), None);
        let delay = Some(Duration::from_millis(2));
        let all = NetworkArgs { delay, rate: Some(125_000_000), window: Some(256 << 10) };
        let model = all.model().unwrap_or_default();
        assert_eq!(model_text(&model), "2 ms each way, 1Gbit, windows of 256Ki");
        let rate = NetworkArgs { rate: Some(1000), ..NetworkArgs::default() };
        let model = Model { rate_bytes_per_second: Some(1000), ..Model::default() };
        assert_eq!(rate.model(), Some(model));
    }
}
