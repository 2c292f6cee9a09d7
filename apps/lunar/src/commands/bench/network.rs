//! Options of the simulated network to the targets.

use lunar_control::units::{parse_rate, parse_size, rate_text};
use lunar_load::relay::{DELAY_MAX, Model, WINDOW_MIN};
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

/// Formats a model for people.
pub(super) fn model_text(model: &Model) -> String {
    model.text(rate_text)
}

/// Parses `2ms`, `500us`, `0.5s`.
fn parse_delay(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("`{text}` is not a time: write 2ms, 500us or 0.1s, at most {DELAY_MAX:?}");
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
        _ => Err(format!("the window must be at least {WINDOW_MIN} bytes")),
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
        assert_eq!(model_text(&model), "2 ms each way, 1Gbit, window 256Ki");
        let rate = NetworkArgs { rate: Some(1000), ..NetworkArgs::default() };
        let model = Model { rate_bytes_per_second: Some(1000), ..Model::default() };
        assert_eq!(rate.model(), Some(model));
    }
}
