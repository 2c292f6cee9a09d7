//! Reasons why a login was refused, as log texts and as metric labels.

use lunar_iscsi::pdu::LoginStatus;

/// Reason why a login was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LoginRefusal {
    /// No target has the name.
    NoTarget,
    /// The access list of the target does not allow the initiator.
    AccessList,
    /// The initiator would see no LUN.
    NoLun,
    /// The target requires CHAP, but has no credential for this initiator.
    NoCredential,
    /// Earlier logins from the network failed, and too many of its logins wait.
    TooManyWait,
    /// The server stops.
    Stopping,
    /// The system provides no random bytes.
    NoEntropy,
    /// The limit of connections is reached.
    ConnectionLimit,
    /// The limit of connections without proof from this address is reached.
    NoRoomForAddress,
    /// The connection was closed to admit another one.
    Evicted,
    /// The protocol refused it.
    Protocol(LoginStatus),
    /// The login took too long.
    TimedOut,
}

impl LoginRefusal {
    /// Text for the log; `None` if the caller has a more exact reason.
    pub(crate) fn log_text(self) -> Option<&'static str> {
        Some(match self {
            Self::NoTarget => "the target does not exist",
            Self::AccessList => "the target does not allow this initiator name or address",
            Self::NoLun => "no LUN of the target is accessible to this initiator",
            Self::NoCredential => "the target has no CHAP credential for this initiator",
            Self::TooManyWait => "too many logins from this network are delayed after failures",
            Self::Stopping => "the server is stopping",
            Self::NoEntropy => "the system provides no random numbers",
            Self::ConnectionLimit => "the limit `connections` is reached",
            Self::NoRoomForAddress => {
                "the address has reached its share of unauthenticated connections"
            }
            Self::Evicted => "closed in favor of another connection",
            Self::Protocol(_) | Self::TimedOut => return None,
        })
    }

    /// Metric label; different reasons may share one.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::NoTarget => "no_target",
            Self::AccessList => "access_list",
            Self::NoLun => "no_lun",
            Self::NoCredential => "no_credential",
            Self::TooManyWait => "backoff",
            Self::Stopping => "stopping",
            Self::NoEntropy => "target_error",
            Self::ConnectionLimit | Self::NoRoomForAddress | Self::Evicted => "limit",
            Self::TimedOut => "timed_out",
            Self::Protocol(status) => match status {
                LoginStatus::AUTHENTICATION_FAILURE | LoginStatus::AUTHORIZATION_FAILURE => {
                    "authentication"
                }
                LoginStatus::NOT_FOUND | LoginStatus::TARGET_REMOVED => "no_target",
                LoginStatus::SESSION_DOES_NOT_EXIST | LoginStatus::CANT_INCLUDE_IN_SESSION => {
                    "no_session"
                }
                LoginStatus::TOO_MANY_CONNECTIONS | LoginStatus::OUT_OF_RESOURCES => "limit",
                LoginStatus::SERVICE_UNAVAILABLE => "stopping",
                LoginStatus::TARGET_ERROR => "target_error",
                _ => "protocol",
            },
        }
    }

    /// All values of [`label`](Self::label).
    pub(crate) const LABELS: [&'static str; 12] = [
        "access_list",
        "authentication",
        "backoff",
        "limit",
        "no_credential",
        "no_lun",
        "no_session",
        "no_target",
        "protocol",
        "stopping",
        "target_error",
        "timed_out",
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the list of labels is complete, with each label once.
    #[test]
    fn labels_are_complete() {
        use LoginRefusal::*;
        let own = [
            NoTarget,
            AccessList,
            NoLun,
            NoCredential,
            TooManyWait,
            Stopping,
            NoEntropy,
            ConnectionLimit,
            NoRoomForAddress,
            Evicted,
        ];
        let statuses = (0x0200..0x0310).map(|status| Protocol(LoginStatus(status)));
        let mut labels: Vec<_> = own.into_iter().chain([TimedOut]).chain(statuses).collect();
        let mut labels: Vec<_> = labels.drain(..).map(LoginRefusal::label).collect();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels, LoginRefusal::LABELS);
        assert!(own.iter().all(|refusal| refusal.log_text().is_some()));
    }
}
