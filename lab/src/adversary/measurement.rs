//! What was measured while one attack ran.

use super::attack::Attack;
use std::time::Duration;

/// What the well-behaved client and the server's processors did in a phase.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Requests a second of the client, second by second.
    pub seconds: Vec<f64>,
    /// Processors that the server used on average.
    pub server_cores: f64,
    /// Processors that server and adversary used together: the whole price of the load, where
    /// both run on the same machine.
    pub cores: f64,
}

impl Load {
    /// Requests a second: the median of the seconds.
    pub fn iops(&self) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    }
}

/// The end of the server's process.
#[derive(Clone, Debug)]
pub struct ProcessEnd {
    /// From the begin of the attack.
    pub after: Duration,
    /// What ended it.
    pub how: String,
}

/// One attack and what it did.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The attack.
    pub attack: Attack,
    /// What it sent.
    pub sent: String,
    /// Logins that it was granted.
    pub logins: u64,
    /// The attack itself could not go on.
    pub attack_error: Option<String>,
    /// The longest time in which the adversary itself did not run.
    pub pause: Duration,
    /// Peak memory of the server, in bytes.
    pub peak_bytes: u64,
    /// True when a control group held the server to its limit.
    pub has_group: bool,
    /// The server's process ended.
    pub process_end: Option<ProcessEnd>,
    /// The longest latency of a request of the well-behaved client.
    pub worst: Duration,
    /// The longest that a new session had to try: log in, register, read, log out.
    pub worst_new_session: Duration,
    /// Why the last attempt failed that did.
    pub new_session_error: String,
    /// Sessions of the well-behaved client that the server ended.
    pub sessions_lost: u32,
    /// Failed commands of the well-behaved client.
    pub refusals: Vec<String>,
    /// Before the attack.
    pub quiet: Load,
    /// During the attack.
    pub attack_load: Load,
    /// Beside a benign load instead, if that was needed to judge.
    pub benign: Option<Load>,
    /// Data that was lost or changed.
    pub data_error: Option<String>,
    /// SIGTERM did not end the server well after the attack.
    pub stop_error: Option<String>,
}

impl Measurement {
    /// Nothing measured yet.
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
            quiet: Load::default(),
            attack_load: Load::default(),
            benign: None,
            data_error: None,
            stop_error: None,
        }
    }

    /// Requests a second that the client would have beside a benign load that takes as much of
    /// the processors as the attack does: between none (as before the attack) and the benign load
    /// at full speed, in proportion.
    pub fn expected_iops(&self) -> f64 {
        let alone = self.quiet.iops() / f64::from(self.attack.limit_owners);
        let Some(benign) = &self.benign else { return alone };
        // What each request of the client itself costs.
        let each = self.quiet.cores / self.quiet.iops().max(1.0);
        let foreign = |load: &Load| (load.cores - load.iops() * each).max(0.0);
        let part = foreign(&self.attack_load) / foreign(benign).max(f64::MIN_POSITIVE);
        alone - (alone - benign.iops().min(alone)) * part.min(1.0)
    }
}
