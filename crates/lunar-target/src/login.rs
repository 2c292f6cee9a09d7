//! Policy part of a login: its delay, and the log line about its end.

use crate::access::{self, ConnectionPath};
use crate::backoff::{Claimant, FailedLogin, LoginDelay, PeerNetwork, WaitTicket};
use crate::connection_table::NoRoom;
use crate::login_refusal::LoginRefusal;
use crate::server::Shared;
use lunar_iscsi::login::{Claim, Identified, Join};
use lunar_iscsi::pdu::LoginStatus;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Sleep;

/// Longest logged part of a name chosen by a peer, in characters. Names have 223 bytes at most (RFC
/// 7143 §4.2.7.2); a peer may send a longer one.
const LOGGED_NAME_MAX: usize = 223;

/// Longest logged reason, in characters.
const LOGGED_WHY_MAX: usize = 512;

/// State of a login in progress.
#[derive(Debug, Default)]
pub(crate) struct Login {
    claim: Option<Claim>,
    /// Reason of a refusal by policy.
    refusal: Option<LoginRefusal>,
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    timer: Pin<Box<Sleep>>,
    ticket: WaitTicket,
    shared: Arc<Shared>,
    network: PeerNetwork,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.backoff.waited(self.network, &self.ticket);
    }
}

impl Login {
    /// Judges the first claim of a login. Returns `None` if the login has to wait;
    /// [`poll`](Self::poll) then returns the answer.
    pub(crate) fn identify(
        &mut self,
        shared: &Arc<Shared>,
        claim: Claim,
        path: ConnectionPath,
    ) -> Option<Identified> {
        let network = PeerNetwork::of(path.peer.ip());
        let who = Claimant {
            name: &claim.initiator_name,
            is_configured: access::has_own_credential(shared, &claim),
        };
        let turn = shared.backoff.turn(network, who, shared.clock.now());
        self.claim = Some(claim);
        match turn {
            LoginDelay::Now => Some(self.judge(shared, path)),
            LoginDelay::After(wait, ticket) => {
                tracing::debug!(peer = %path.peer, ?wait, "login delayed after earlier failures");
                let timer = Box::pin(tokio::time::sleep(wait));
                let shared = Arc::clone(shared);
                self.waiting = Some(Waiting { timer, ticket, shared, network });
                None
            }
        }
    }

    /// Returns the answer to a login that has waited long enough.
    pub(crate) fn poll(
        &mut self,
        path: ConnectionPath,
        context: &mut Context<'_>,
    ) -> Option<Identified> {
        let waiting = self.waiting.as_mut()?;
        if waiting.ticket.poll_replaced(context).is_ready() {
            self.waiting = None;
            self.refusal = Some(LoginRefusal::TooManyWait);
            return Some(Identified::Refuse(LoginStatus::SERVICE_UNAVAILABLE));
        }
        let Poll::Ready(()) = waiting.timer.as_mut().poll(context) else { return None };
        let shared = Arc::clone(&waiting.shared);
        self.waiting = None;
        Some(self.judge(&shared, path))
    }

    /// Called when the login is proven but there is no room for the connection.
    pub(crate) fn no_room(&mut self, why: NoRoom) -> LoginStatus {
        self.refusal = Some(match why {
            NoRoom::Table => LoginRefusal::NoRoom,
            NoRoom::Address => LoginRefusal::NoRoomForAddress,
        });
        LoginStatus::OUT_OF_RESOURCES
    }

    fn judge(&mut self, shared: &Shared, path: ConnectionPath) -> Identified {
        let Some(claim) = &self.claim else {
            return Identified::Refuse(LoginStatus::TARGET_ERROR);
        };
        match access::identify(shared, claim, path) {
            Ok(identified) => identified,
            Err((status, why)) => {
                self.refusal = Some(why);
                Identified::Refuse(status)
            }
        }
    }

    /// Called when the login has proven everything that was required.
    pub(crate) fn succeeded(shared: &Shared, join: &Join, path: ConnectionPath) {
        shared.backoff.succeeded(PeerNetwork::of(path.peer.ip()), join.user.is_some());
    }

    /// Called when the login was refused. The refusal counts as a failure if the initiator may have
    /// been guessing names or secrets, and is logged unless such lines come in a flood.
    pub(crate) fn refused(
        &self,
        shared: &Shared,
        path: ConnectionPath,
        status: LoginStatus,
        why: &str,
    ) {
        let failure = match status {
            LoginStatus::TARGET_MOVED_TEMPORARILY | LoginStatus::TARGET_MOVED_PERMANENTLY => {
                return tracing::debug!(peer = %path.peer, "login redirected");
            }
            LoginStatus::AUTHENTICATION_FAILURE => FailedLogin::Unproven,
            LoginStatus::AUTHORIZATION_FAILURE | LoginStatus::NOT_FOUND => FailedLogin::Hidden,
            _ => FailedLogin::Other,
        };
        let refusal = self.refusal.unwrap_or(LoginRefusal::Protocol(status));
        self.tell(shared, path, refusal, failure, Some(status), refusal.words().unwrap_or(why));
    }

    /// Called when the login took too long: the peer is gone, or never meant to log in.
    pub(crate) fn timed_out(&self, shared: &Shared, path: ConnectionPath) {
        let why = format!("the login took longer than {} s", shared.limits.login_seconds);
        self.tell(shared, path, LoginRefusal::TimedOut, FailedLogin::Other, None, &why);
    }

    fn tell(
        &self,
        shared: &Shared,
        path: ConnectionPath,
        refusal: LoginRefusal,
        failure: FailedLogin,
        status: Option<LoginStatus>,
        why: &str,
    ) {
        let now = shared.clock.now();
        shared.counters.login_refused(refusal);
        let network = PeerNetwork::of(path.peer.ip());
        let of_network = shared.backoff.refused(network, failure, refusal.label(), now);
        let Some(of_network) = of_network else { return };
        let Some(of_all) = shared.login_lines.line(now) else { return };
        let untold = of_network.saturating_add(of_all);
        let claim = self.claim.as_ref();
        tracing::warn!(
            initiator = claim.map(|claim| shortened(&claim.initiator_name)),
            target = claim.and_then(|claim| claim.target_name.as_deref()).map(shortened),
            peer = %path.peer,
            status = status.map(tracing::field::debug),
            untold = (untold > 0).then_some(untold),
            "login refused: {}",
            printable(why)
        );
    }
}

/// Escapes a text that may contain strings from a peer for one log line: nothing in it moves the
/// cursor or begins another line.
pub(crate) fn printable(text: &str) -> String {
    let escaped = |letter: char| match letter {
        '"' | '\'' | '\\' => letter.to_string(),
        _ => letter.escape_debug().to_string(),
    };
    text.chars().take(LOGGED_WHY_MAX).map(escaped).collect()
}

fn shortened(name: &str) -> &str {
    name.char_indices().nth(LOGGED_NAME_MAX).map_or(name, |(end, _)| &name[..end])
}
