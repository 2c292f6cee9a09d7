//! Measurements of the server and the well-behaved client during one attack.

use super::attack::Attack;
use std::time::Duration;

/// Performance of the well-behaved client and use of the server's processors in a phase.
#[derive(Clone, Debug, Default)]
pub struct MeasuredLoad {
    /// Requests of the client in each second.
    pub seconds: Vec<f64>,
    /// Processors that the server used on average.
    pub server_cores: f64,
    /// Processors that server and adversary used together: the whole cost of the load, where both
    /// run on the same machine.
    pub cores: f64,
}

impl MeasuredLoad {
    /// Returns the requests a second: the median of the seconds.
    pub fn iops(&self) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    }
}

/// The end of the server's process.
#[derive(Clone, Debug)]
pub struct ProcessEnd {
    /// Time from the begin of the attack.
    pub after: Duration,
    /// Exit status or signal that ended the process.
    pub how: String,
}

/// One attack and its effects.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The attack.
    pub attack: Attack,
    /// Counters of the attack as text.
    pub sent: String,
    /// Number of logins that succeeded.
    pub logins: u64,
    /// Error that stopped the attack itself.
    pub attack_error: Option<String>,
    /// The longest time in which the adversary itself did not run.
    pub pause: Duration,
    /// Peak memory of the server, in bytes.
    pub peak_bytes: u64,
    /// True when a control group enforced the server's memory limit.
    pub has_group: bool,
    /// End of the server's process, if it ended.
    pub process_end: Option<ProcessEnd>,
    /// The longest latency of a request of the well-behaved client.
    pub worst: Duration,
    /// The longest time that a new session took over all attempts: log in, register, read, log out.
    pub worst_new_session: Duration,
    /// Error of the last attempt that failed.
    pub new_session_error: String,
    /// Sessions of the well-behaved client that the server ended.
    pub sessions_lost: u32,
    /// Failed commands of the well-behaved client.
    pub refusals: Vec<String>,
    /// Load before the attack.
    pub quiet: MeasuredLoad,
    /// Load during the attack.
    pub attack_load: MeasuredLoad,
    /// Load alongside a benign load instead, if that was needed to judge.
    pub benign: Option<MeasuredLoad>,
    /// Description of data that was lost or changed.
    pub data_error: Option<String>,
    /// Error of the stop by SIGTERM after the attack.
    pub stop_error: Option<String>,
}

impl Measurement {
    /// Creates an empty measurement.
    pub fn new(attack: &Attack) -> Self {
        Self {
            attack: *attack,
            sent: String::new(),
            logins: 0,
            attack_error: None,
            pause: Duration::ZERO,
            peak_bytes: 0,
            has_group: false,
            process_end: None,
            worst: Duration::ZERO,
            worst_new_session: Duration::ZERO,
            new_session_error: String::new(),
            sessions_lost: 0,
            refusals: Vec::new(),
            quiet: MeasuredLoad::default(),
            attack_load: MeasuredLoad::default(),
            benign: None,
            data_error: None,
            stop_error: None,
        }
    }

    /// Requests a second that the client would have alongside a benign load that takes as much of
    /// the processors as the attack does: between none (as before the attack) and the benign load
    /// at full speed, in proportion.
    pub fn expected_iops(&self) -> f64 {
        let alone = self.quiet.iops() / f64::from(self.attack.limit_owners);
        let Some(benign) = &self.benign else { return alone };
        // Processor time that each request of the client itself costs.
        let each = self.quiet.cores / self.quiet.iops().max(1.0);
        let foreign = |load: &MeasuredLoad| (load.cores - load.iops() * each).max(0.0);
        let part = foreign(&self.attack_load) / foreign(benign).max(f64::MIN_POSITIVE);
        alone - (alone - benign.iops().min(alone)) * part.min(1.0)
    }
}
