//! Rules by which an attack counts as withstood.

use super::measurement::Measurement;
use super::server::MEMORY_BYTES_MAX;
use std::fmt;
use std::time::Duration;

/// Maximum time that a request, or a new session, of the well-behaved client may take.
pub const RESPONSE_TIME_MAX: Duration = Duration::from_secs(2);
/// Share of its requests a second that the well-behaved client must keep.
pub const IOPS_SHARE_MIN: f64 = 0.5;
/// Maximum number of consecutive seconds below that share.
pub const STARVED_SECONDS_MAX: usize = 10;

/// Longest pause of the adversary itself: after a longer one its clock proves nothing about the
/// server.
pub const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A rule that an attack broke.
#[derive(Clone, Debug, PartialEq)]
pub enum Breach {
    /// The server's process ended.
    Killed(String),
    /// The server used more memory than the limit.
    Memory,
    /// Data was lost or changed.
    Data(String),
    /// A request of the well-behaved client took longer than [`RESPONSE_TIME_MAX`].
    Stopped(Duration),
    /// A new session took longer than [`RESPONSE_TIME_MAX`].
    LockedOut(Duration, String),
    /// The client had less than [`IOPS_SHARE_MIN`] for longer than [`STARVED_SECONDS_MAX`].
    Starved(usize),
    /// The server did not end, or not with success, after SIGTERM.
    DoesNotStop(String),
    /// The attack could not be made, so that the run proves nothing.
    Inconclusive(String),
}

impl fmt::Display for Breach {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed(how) => write!(out, "killed: {how}"),
            Self::Memory => write!(out, "memory over {} MiB", MEMORY_BYTES_MAX >> 20),
            Self::Data(what) => write!(out, "data: {what}"),
            Self::Stopped(time) => write!(out, "no response for {:.1} s", time.as_secs_f64()),
            Self::LockedOut(time, why) => {
                write!(out, "no new session for {:.1} s ({why})", time.as_secs_f64())
            }
            Self::Starved(seconds) => write!(out, "less than half the IOPS for {seconds} s"),
            Self::DoesNotStop(how) => write!(out, "does not stop: {how}"),
            Self::Inconclusive(why) => write!(out, "inconclusive: {why}"),
        }
    }
}

/// Returns the rules that the attack broke; empty: the server withstood it.
pub fn breaches(measured: &Measurement) -> Vec<Breach> {
    let mut found = Vec::new();
    if let Some(error) = &measured.attack_error {
        found.push(Breach::Inconclusive(error.clone()));
    }
    if measured.attack.logs_in && measured.logins == 0 && measured.process_end.is_none() {
        found.push(Breach::Inconclusive("it never logged in".to_owned()));
    }
    if measured.pause > PAUSE_MAX {
        let seconds = measured.pause.as_secs_f64();
        found.push(Breach::Inconclusive(format!("the adversary did not run for {seconds:.1} s")));
    }
    if let Some(error) = &measured.data_error {
        found.push(Breach::Data(error.clone()));
    }
    if measured.peak_bytes > MEMORY_BYTES_MAX {
        found.push(Breach::Memory);
    }
    if let Some(process_end) = &measured.process_end {
        let after = process_end.after.as_secs_f64();
        found.push(Breach::Killed(format!("{} after {after:.1} s", process_end.how)));
        // A server that has ended serves no requests, so the other rules do not apply.
        return found;
    }
    if measured.worst > RESPONSE_TIME_MAX {
        found.push(Breach::Stopped(measured.worst));
    }
    if measured.worst_new_session > RESPONSE_TIME_MAX {
        found.push(Breach::LockedOut(
            measured.worst_new_session,
            measured.new_session_error.clone(),
        ));
    }
    let floor = measured.expected_iops() * IOPS_SHARE_MIN;
    let starved = longest_run(&measured.attack_load.seconds, floor);
    if starved > STARVED_SECONDS_MAX {
        found.push(Breach::Starved(starved));
    }
    found.extend(measured.stop_error.clone().map(Breach::DoesNotStop));
    found
}

/// Returns the length of the longest run of figures below `floor`.
pub fn longest_run(figures: &[f64], floor: f64) -> usize {
    let runs = figures.split(|figure| *figure >= floor).map(<[f64]>::len);
    runs.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::attack::Attack;
    use super::super::measurement::{MeasuredLoad, ProcessEnd};
    use super::*;

    /// Returns a measurement with a quiet client of 1,000 requests a second, and 20 seconds of
    /// attack at this rate.
    fn measured(iops: f64) -> Measurement {
        let attack = Attack::new("test", 1, |_| Ok(()));
        let load = |count, iops, cores| MeasuredLoad {
            seconds: vec![iops; count],
            server_cores: cores / 2.0,
            cores,
        };
        Measurement {
            logins: 1,
            quiet: load(3, 1000.0, 0.5),
            attack_load: load(20, iops, 1.0),
            ..Measurement::new(&attack)
        }
    }

    /// Goal: each rule finds its breach, at its limit and not before.
    #[test]
    fn each_rule_has_its_limit() {
        let good = measured(600.0);
        assert_eq!(breaches(&good), []);
        let over = Duration::from_millis(2001);
        let cases = [
            (Measurement { peak_bytes: MEMORY_BYTES_MAX, ..good.clone() }, vec![]),
            (
                Measurement { peak_bytes: MEMORY_BYTES_MAX + 1, ..good.clone() },
                vec![Breach::Memory],
            ),
            (
                Measurement {
                    worst: RESPONSE_TIME_MAX,
                    worst_new_session: RESPONSE_TIME_MAX,
                    ..good.clone()
                },
                vec![],
            ),
            (Measurement { worst: over, ..good.clone() }, vec![Breach::Stopped(over)]),
            (
                Measurement {
                    worst_new_session: over,
                    new_session_error: "x".into(),
                    ..good.clone()
                },
                vec![Breach::LockedOut(over, "x".into())],
            ),
            (Measurement { pause: PAUSE_MAX, ..good.clone() }, vec![]),
            (
                Measurement { pause: over, ..good.clone() },
                vec![Breach::Inconclusive("the adversary did not run for 2.0 s".into())],
            ),
            (
                Measurement { data_error: Some("x".into()), ..good.clone() },
                vec![Breach::Data("x".into())],
            ),
            (
                Measurement { stop_error: Some("x".into()), ..good.clone() },
                vec![Breach::DoesNotStop("x".into())],
            ),
            (
                Measurement { logins: 0, ..good.clone() },
                vec![Breach::Inconclusive("it never logged in".into())],
            ),
            (
                Measurement { attack_error: Some("x".into()), ..good.clone() },
                vec![Breach::Inconclusive("x".into())],
            ),
        ];
        for (measured, expected) in cases {
            assert_eq!(breaches(&measured), expected);
        }
        let process_end =
            Some(ProcessEnd { after: Duration::from_secs(1), how: "out of memory".into() });
        let dead = Measurement { process_end, worst: over, ..good };
        assert_eq!(breaches(&dead), [Breach::Killed("out of memory after 1.0 s".into())]);
    }

    /// Goal: less than half of the IOPS for more than ten seconds counts; a shorter time does not,
    /// nor a loss that a benign load of equal CPU causes too.
    #[test]
    fn starving_is_compared_with_a_benign_load() {
        let starved = measured(400.0);
        assert_eq!(breaches(&starved), [Breach::Starved(20)]);
        let mut brief = starved.clone();
        brief.attack_load.seconds[10] = 600.0;
        assert_eq!(breaches(&brief), []);
        // The benign load takes 0.8 processors and leaves 200; the attack takes as much.
        let benign = MeasuredLoad { seconds: vec![200.0; 5], server_cores: 0.5, cores: 0.9 };
        let mut compared = Measurement { benign: Some(benign), ..starved };
        compared.attack_load.cores = 1.0;
        assert!((compared.expected_iops() - 200.0).abs() < 1.0);
        assert_eq!(breaches(&compared), []);
        // An attack that needs a tenth of that for the same effect counts as a breach.
        compared.attack_load.cores = 0.2 + 0.08;
        assert!((compared.expected_iops() - 920.0).abs() < 1.0);
        assert_eq!(breaches(&compared), [Breach::Starved(20)]);
    }

    /// Goal: only consecutive figures form a run.
    #[test]
    fn only_consecutive_figures_form_a_run() {
        assert_eq!(longest_run(&[1.0, 1.0, 9.0, 1.0], 5.0), 2);
        assert_eq!(longest_run(&[5.0, 9.0], 5.0), 0);
        assert_eq!(longest_run(&[], 5.0), 0);
    }
}
