//! Who we are to targets, and what we insist on.

use lunar_iscsi::login::{ChapAlgorithm, Credential};
use lunar_iscsi::text::{Digest, PROTOCOL_LEVEL_MAX};
use std::time::Duration;

/// How long commands wait for a lost session to come back, unless told otherwise.
pub const RECOVERY_SECONDS: u32 = 60;

/// How long a target may take to answer a command, unless told otherwise.
pub const COMMAND_SECONDS: u32 = 180;

/// Which of several paths to a disk a command takes, of those in the best access state (ALUA).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PathPolicy {
    /// The one with the fewest bytes under way.
    #[default]
    LeastOutstanding,
    /// One after the other.
    RoundRobin,
}

/// How sessions are made.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// InitiatorName.
    pub initiator_name: String,
    /// ISID; `None`: random, as RFC 7143 §11.12.5 allows (type 10b).
    pub isid: Option<[u8; 6]>,
    /// What we prove, and what the target must.
    pub chap: Option<Chap>,
    /// HeaderDigest values in order of preference. One value alone is insisted on.
    pub header_digest: Vec<Digest>,
    /// DataDigest values likewise.
    pub data_digest: Vec<Digest>,
    /// From the first SYN to full feature phase.
    pub login_time: Duration,
    /// When a session that was established is lost, how long a command waits for another one;
    /// 0: not at all. The first login is never tried again.
    pub recovery_seconds: u32,
    /// When the target has not answered a command for so long, the command fails and is aborted;
    /// 0: it may take as long as it likes.
    pub command_seconds: u32,
    /// Connections of a session (MC/S), as far as the target allows them. A
    /// [`RemoteDisk`](crate::RemoteDisk) makes up for those that it does not allow by further
    /// sessions, each a path of its own.
    pub connections: u16,
    /// Other portals of the same target, as host and port. A [`RemoteDisk`](crate::RemoteDisk) uses
    /// them all, each as a path of its own; an [`Initiator`](crate::Initiator) those that lie in
    /// the portal group of its session, when the portal it came through is gone.
    pub portals: Vec<(String, u16)>,
    /// Which path a command takes.
    pub path_policy: PathPolicy,
    /// The highest iSCSIProtocolLevel to propose; 1: neither that key nor TaskReporting is named,
    /// for old targets that close the connection over them. Where the keys are named, a target that
    /// closes the connection twice in a row is asked without them.
    pub protocol_level: u8,
}

/// CHAP credentials.
#[derive(Clone, Debug)]
pub struct Chap {
    /// In order of preference.
    pub algorithms: Vec<ChapAlgorithm>,
    /// What we prove.
    pub initiator: Credential,
    /// What the target must prove (mutual CHAP), if anything.
    pub target: Option<Credential>,
}

impl SessionOptions {
    /// No credentials, no digests.
    pub fn new(initiator_name: impl Into<String>) -> Self {
        Self {
            initiator_name: initiator_name.into(),
            isid: None,
            chap: None,
            header_digest: vec![Digest::None],
            data_digest: vec![Digest::None],
            login_time: Duration::from_secs(15),
            recovery_seconds: RECOVERY_SECONDS,
            command_seconds: COMMAND_SECONDS,
            connections: 1,
            portals: Vec::new(),
            path_policy: PathPolicy::default(),
            protocol_level: PROTOCOL_LEVEL_MAX,
        }
    }
}

impl Chap {
    /// With every algorithm, strongest first.
    pub fn new(initiator: Credential, target: Option<Credential>) -> Self {
        let algorithms = vec![
            ChapAlgorithm::Sha3_256,
            ChapAlgorithm::Sha256,
            ChapAlgorithm::Sha1,
            ChapAlgorithm::Md5,
        ];
        Self { algorithms, initiator, target }
    }
}

/// A random ISID: type 10b, a random naming authority and qualifier. RFC 7143 §11.12.5.
///
/// # Errors
/// When the system has no randomness.
pub fn random_isid() -> Result<[u8; 6], getrandom::Error> {
    let mut isid = [0; 6];
    getrandom::fill(&mut isid)?;
    isid[0] = 0x80;
    Ok(isid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may unwrap

    use super::random_isid;
    use std::collections::BTreeSet;

    /// Goal: sessions do not meet in one ISID: its 40 random bits are random, its type is 10b.
    #[test]
    fn isids_differ() {
        let all: BTreeSet<[u8; 6]> = (0..64).map(|_| random_isid().unwrap()).collect();
        assert_eq!(all.len(), 64);
        assert!(all.iter().all(|isid| isid[0] == 0x80));
        for at in 1..6 {
            let values: BTreeSet<u8> = all.iter().map(|isid| isid[at]).collect();
            assert!(values.len() > 32, "byte {at} is random");
        }
    }
}
