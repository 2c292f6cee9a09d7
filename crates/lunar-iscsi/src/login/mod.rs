//! The login phase, both roles. RFC 7143 §6, §11.12, §11.13, §12.
//!
//! The values that cross its border stand here; the states (`Expect…`) stand in `target` and
//! `initiator`, CHAP in `chap`.

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

/// What kind of session is asked for. RFC 7143 §13.21.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Hash)]
pub enum SessionType {
    /// Full access to one target.
    #[default]
    Normal,
    /// SendTargets only.
    Discovery,
}

/// Who an initiator says it is and what it asks for, before anything is proven. Made from the
/// first Login Request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Claim {
    /// InitiatorName, normalised by RFC 3722 rules as far as lower case.
    pub initiator_name: String,
    /// InitiatorAlias, if told.
    pub initiator_alias: Option<String>,
    /// TargetName; always present in normal sessions.
    pub target_name: Option<String>,
    /// Discovery or normal.
    pub session_type: SessionType,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// 0 asks for a new session.
    pub tsih: u16,
    /// Connection ID.
    pub cid: u16,
}

/// The hash of a CHAP exchange. RFC 7143 §12.1.3; numbers by IANA.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum ChapAlgorithm {
    /// 5.
    Md5,
    /// 6.
    Sha1,
    /// 7.
    Sha256,
    /// 8.
    Sha3_256,
}

/// A CHAP secret. Its `Debug` shows nothing; the memory is cleared when dropped if the
/// implementation can promise it.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Takes the bytes of a secret.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A name and the secret that proves it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Credential {
    /// CHAP_N.
    pub user: String,
    /// What CHAP_R is computed with.
    pub secret: Secret,
}

/// What an initiator has to prove before it is let in.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChapDemand {
    /// In order of preference; the initiator's list order decides, this one filters.
    pub algorithms: Vec<ChapAlgorithm>,
    /// What the initiator must prove to know.
    pub initiator: Credential,
    /// What the target proves in return when asked (mutual CHAP).
    pub target: Option<Credential>,
}

/// The answer of the target's policy to a [`Claim`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Identified {
    /// Go on, under these conditions.
    Admit(Admission),
    /// Log in elsewhere: TargetAddress, `host:port[,tpgt]`. RFC 7143 §11.13.5 class 1.
    Redirect {
        /// Where to.
        address: String,
        /// For good, or for now.
        permanent: bool,
    },
    /// No. The status says why as far as the peer may know.
    Refuse(LoginStatus),
}

/// The conditions of one login.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Admission {
    /// TargetPortalGroupTag of the portal in use.
    pub portal_group_tag: u16,
    /// TargetAlias, told if set.
    pub target_alias: Option<String>,
    /// `None`: no proof is asked for (AuthMethod None).
    pub chap: Option<ChapDemand>,
    /// What this target is willing to negotiate.
    pub offer: Offer,
    /// Fresh random bytes from the operating system, for CHAP_C and CHAP_I.
    pub entropy: [u8; 33],
}

/// All is negotiated; the driver is asked to make or find the session. RFC 7143 §6.3.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Join {
    /// Who, now proven as far as the policy asked.
    pub claim: Claim,
    /// The CHAP name proven, if any.
    pub user: Option<String>,
    /// Portal group the login came through.
    pub portal_group_tag: u16,
    /// Negotiated for the session (meaningful on its leading connection).
    pub session: SessionParameters,
    /// Negotiated for this connection.
    pub connection: ConnectionParameters,
    /// CmdSN of the login: where a new session's numbering starts.
    pub cmd_sn: SerialNumber,
}

/// The session stands, the connection is part of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Joined {
    /// Never 0.
    pub tsih: u16,
    /// What holds for the session: what its leading connection negotiated. A further connection
    /// does not negotiate that again, so [`Join::session`] says nothing there.
    pub session: SessionParameters,
    /// The session's command window, for the final Login Response.
    pub exp_cmd_sn: SerialNumber,
    /// Likewise.
    pub max_cmd_sn: SerialNumber,
}

#[cfg(test)]
mod tests;
