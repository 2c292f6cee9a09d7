//! Causes of the end of a connection, as errors for callers.

use crate::{Error, ErrorKind};
use lunar_iscsi::connection::initiator::CloseReason;
use lunar_iscsi::login::ChapAlgorithm;
use lunar_iscsi::login::initiator::LoginFailure;
use lunar_iscsi::pdu::LoginStatus;

/// The end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionEnd {
    pub(crate) error: Error,
    /// Address of a redirect, where the login is to be repeated.
    pub(crate) redirect: Option<String>,
    /// True when the target closed the connection instead of answering TaskReporting and
    /// iSCSIProtocolLevel.
    pub(crate) closed_over_newer_keys: bool,
}

impl From<Error> for ConnectionEnd {
    fn from(error: Error) -> Self {
        Self { error, redirect: None, closed_over_newer_keys: false }
    }
}

/// Returns the end of a connection with `portal` for this reason.
pub(crate) fn ended(reason: &CloseReason, portal: &str) -> ConnectionEnd {
    let lost = |what: String| Error::new(ErrorKind::SessionLost, what);
    let error = match reason {
        CloseReason::LoginFailed(failure) => {
            let redirect = failure.redirect.as_ref().map(|(address, _)| address.clone());
            return ConnectionEnd { redirect, ..login_error(failure, portal).into() };
        }
        CloseReason::LoggedOut => lost(format!("logged out from {portal}")),
        CloseReason::Violation(violation) => {
            lost(format!("{portal} violated the protocol: {violation}"))
        }
        CloseReason::TimedOut("the login") => {
            lost(format!("{portal} did not answer the login in time")).hint(
                "check that this is an iSCSI target, and that its server is not stopped or \
                 overloaded",
            )
        }
        CloseReason::TimedOut(what) => lost(format!("{portal} did not answer in time: {what}")),
        CloseReason::PeerClosed => lost(format!("{portal} closed the connection")),
        CloseReason::NewerKeysUnanswered => {
            let error = lost(format!("{portal} closed the connection during the login"));
            return ConnectionEnd { closed_over_newer_keys: true, ..error.into() };
        }
        CloseReason::Dropped => lost(format!("the session with {portal} was dropped")),
        CloseReason::DataMissing => lost(format!(
            "the connection with {portal} was dropped: a write was begun, and the rest of its data \
                 was not provided in time"
        )),
    };
    error.into()
}

fn login_error(failure: &LoginFailure, portal: &str) -> Error {
    let what = format!("login to {portal} failed: {}", failure.what);
    match failure.status {
        // tgt 1.0.85 computes SHA-1 under the number that IANA assigned to SHA-256.
        Some(LoginStatus::AUTHENTICATION_FAILURE | LoginStatus::INITIATOR_ERROR)
            if failure.proven_by == Some(ChapAlgorithm::Sha256) =>
        {
            Error::new(ErrorKind::Authentication, what).hint(
                "check --chap-user and the secret; for a target with a faulty SHA-256 (such as \
                 tgt), use --chap-algorithm md5",
            )
        }
        Some(LoginStatus::AUTHENTICATION_FAILURE) => Error::new(ErrorKind::Authentication, what)
            .hint("check --chap-user and the secret, and those of the target (mutual CHAP)"),
        Some(LoginStatus::AUTHORIZATION_FAILURE) => Error::new(ErrorKind::Authentication, what)
            .hint(
                "the target does not allow this initiator name or address: check its access list",
            ),
        Some(LoginStatus::NOT_FOUND) => Error::new(ErrorKind::Login, what)
            .hint("see `lunar discover` for the targets that are offered"),
        Some(
            LoginStatus::TARGET_ERROR
            | LoginStatus::SERVICE_UNAVAILABLE
            | LoginStatus::OUT_OF_RESOURCES,
        ) => Error::new(ErrorKind::Unavailable, what),
        _ => Error::new(ErrorKind::Login, what),
    }
}
