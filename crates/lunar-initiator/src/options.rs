//! Options of sessions: the identity of the initiator, and limits.

use lunar_iscsi::login::{ChapAlgorithm, Credential};
use lunar_iscsi::text::{Digest, PROTOCOL_LEVEL_MAX};
use std::time::Duration;

/// Default time that commands wait for a lost session to be re-established.
pub const RECOVERY_SECONDS: u32 = 60;

/// Default time that a target has to answer a command.
pub const COMMAND_SECONDS: u32 = 180;

/// Policy that selects one of several paths to a disk in the best access state (ALUA).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PathPolicy {
    /// The path with the fewest bytes in flight.
    #[default]
    LeastOutstanding,
    /// One path after the other.
    RoundRobin,
}

/// Options of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// InitiatorName.
    pub initiator_name: String,
    /// ISID; `None`: random, as RFC 7143 §11.12.5 allows (type 10b).
    pub isid: Option<[u8; 6]>,
    /// Credentials that the initiator proves, and those that the target must prove.
    pub chap: Option<Chap>,
    /// HeaderDigest values in order of preference. A single value is required.
    pub header_digest: Vec<Digest>,
    /// DataDigest values in order of preference. A single value is required.
    pub data_digest: Vec<Digest>,
    /// Time limit from the first SYN to full feature phase.
    pub login_time: Duration,
    /// Time that a command waits for another session after an established one is lost; 0: it fails
    /// at once. The first login is not retried.
    pub recovery_seconds: u32,
    /// Time after which an unanswered command fails and is aborted; 0: no limit.
    pub command_seconds: u32,
    /// Connections of a session (MC/S), as far as the target allows them. A
    /// [`RemoteDisk`](crate::RemoteDisk) replaces those that the target does not allow by further
    /// sessions, each of them a path.
    pub connections: u16,
    /// Other portals of the same target, as host and port. A [`RemoteDisk`](crate::RemoteDisk) uses
    /// all of them, each as a path; an [`Initiator`](crate::Initiator) uses those in the portal
    /// group of its session, when its first portal fails.
    pub portals: Vec<(String, u16)>,
    /// Policy that selects the path of a command.
    pub path_policy: PathPolicy,
    /// Highest iSCSIProtocolLevel to propose. 1 sends neither that key nor TaskReporting, for old
    /// targets that close the connection over them. With a higher level, the keys are left out
    /// after a target has closed the connection twice in a row.
    pub protocol_level: u8,
}

/// CHAP credentials.
#[derive(Clone, Debug)]
pub struct Chap {
    /// Algorithms in order of preference.
    pub algorithms: Vec<ChapAlgorithm>,
    /// Credential that the initiator proves.
    pub initiator: Credential,
    /// Credential that the target must prove (mutual CHAP), if any.
    pub target: Option<Credential>,
}

impl SessionOptions {
    /// Returns options without credentials and digests.
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
    /// Offers every algorithm, strongest first.
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

/// Returns a random ISID: type 10b, a random naming authority and qualifier. RFC 7143 §11.12.5.
///
/// # Errors
/// When the system cannot provide random bytes.
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

    /// Goal: sessions get different ISIDs: the 40 random bits are random, the type is 10b.
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
