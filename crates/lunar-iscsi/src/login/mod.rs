//! The login phase, both roles. RFC 7143 §6, §11.12, §11.13, §12.
//!
//! This module defines the types of the interface. The roles are `target` and `initiator`, their
//! states (`Expect…`) `target_states` and `initiator_states`; CHAP is in `chap`.

pub mod chap;
pub mod initiator;
mod initiator_states;
pub mod target;
mod target_states;

use crate::pdu::LoginStatus;
use crate::text::{ConnectionParameters, Offer, SessionParameters};
use alloc::string::String;
use alloc::vec::Vec;
use lunar_wire::SerialNumber;

/// The requested kind of session. RFC 7143 §13.21.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Hash)]
pub enum SessionType {
    /// Full access to one target.
    #[default]
    Normal,
    /// SendTargets only.
    Discovery,
}

/// The claimed identity and the requests of an initiator before authentication. Made from the first
/// Login Request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Claim {
    /// InitiatorName, normalised to lower case as in RFC 3722.
    pub initiator_name: String,
    /// InitiatorAlias, if declared.
    pub initiator_alias: Option<String>,
    /// TargetName; always present in normal sessions.
    pub target_name: Option<String>,
    /// Discovery or normal.
    pub session_type: SessionType,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// TSIH; 0 requests a new session.
    pub tsih: u16,
    /// Connection ID.
    pub cid: u16,
}

/// The hash of a CHAP exchange. RFC 7143 §12.1.3; numbers assigned by IANA.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum ChapAlgorithm {
    /// Number 5.
    Md5,
    /// Number 6.
    Sha1,
    /// Number 7.
    Sha256,
    /// Number 8.
    Sha3_256,
}

/// A CHAP secret. Its `Debug` output shows nothing; the memory is cleared on drop if the
/// implementation can guarantee it.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Creates a secret from its bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes of the secret.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A name and its secret.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Credential {
    /// CHAP_N.
    pub user: String,
    /// The secret for CHAP_R.
    pub secret: Secret,
}

/// Authentication required of an initiator.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChapRequirement {
    /// Allowed algorithms. The order of the initiator's list decides, this list only filters.
    pub algorithms: Vec<ChapAlgorithm>,
    /// Name and secret that the initiator must prove.
    pub initiator: Credential,
    /// Name and secret that the target proves on request (mutual CHAP).
    pub target: Option<Credential>,
}

/// The decision of the target's policy about a [`Claim`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AdmissionDecision {
    /// Continue under these conditions.
    Admit(Admission),
    /// Redirect the login: TargetAddress, `host:port[,tpgt]`. RFC 7143 §11.13.5 class 1.
    Redirect {
        /// New address.
        address: String,
        /// True if permanent, false if temporary.
        permanent: bool,
    },
    /// Refuse the login. The status contains the reason as far as the peer may know it.
    Refuse(LoginStatus),
}

/// The conditions of one login.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Admission {
    /// TargetPortalGroupTag of the portal in use.
    pub portal_group_tag: u16,
    /// TargetAlias, sent if set.
    pub target_alias: Option<String>,
    /// `None`: no authentication is required (AuthMethod None).
    pub chap: Option<ChapRequirement>,
    /// Values that this target is willing to negotiate.
    pub offer: Offer,
    /// Fresh random bytes from the operating system, for CHAP_C and CHAP_I.
    pub entropy: [u8; 33],
}

/// The result of the negotiation; the driver must create or find the session. RFC 7143 §6.3.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Join {
    /// Identity of the initiator, authenticated as required by the policy.
    pub claim: Claim,
    /// The authenticated CHAP name, if any.
    pub user: Option<String>,
    /// Portal group of the login.
    pub portal_group_tag: u16,
    /// Parameters negotiated for the session (valid on its leading connection).
    pub session: SessionParameters,
    /// Parameters negotiated for this connection.
    pub connection: ConnectionParameters,
    /// CmdSN of the login: the initial CmdSN of a new session.
    pub cmd_sn: SerialNumber,
}

/// The session exists, and the connection belongs to it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Joined {
    /// Never 0.
    pub tsih: u16,
    /// Parameters of the session, negotiated by its leading connection. A further connection does
    /// not negotiate these again, so its [`Join::session`] has no meaning.
    pub session: SessionParameters,
    /// ExpCmdSN of the session's command window, for the final Login Response.
    pub exp_cmd_sn: SerialNumber,
    /// MaxCmdSN of the session's command window.
    pub max_cmd_sn: SerialNumber,
    /// Serial number of the connection in its session: the upper bits of the ids of its tasks.
    pub connection_serial: u16,
}

#[cfg(test)]
mod tests;
