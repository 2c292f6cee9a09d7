//! Policy part of a login: its delay, and the log line about its end.

use crate::access::AccessRules;
use crate::backoff::{Claimant, FailedLogin, LoginBackoff, LoginDelay, WaitTicket};
use crate::connection_table::ConnectionLimit;
use crate::log_budget::LogBudget;
use crate::log_text::{printable, shortened};
use crate::login_refusal::LoginRefusal;
use crate::options::Limits;
use crate::peer_network::PeerNetwork;
use crate::portals::ConnectionPath;
use crate::statistics::Counters;
use lunar_iscsi::login::{AdmissionDecision, Claim, Join};
use lunar_iscsi::pdu::LoginStatus;
use lunar_net::Clock;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::watch;
use tokio::time::Sleep;

/// Policy of a server for logins.
#[derive(Debug)]
pub(crate) struct LoginPolicy {
    rules: Arc<AccessRules>,
    backoff: LoginBackoff,
    counters: Arc<Counters>,
    /// Budget of log lines about failed logins.
    log_budget: LogBudget,
    clock: Clock,
    login_seconds: u16,
    /// True when the server stops.
    stop: watch::Receiver<bool>,
}

impl LoginPolicy {
    pub(crate) fn new(
        limits: &Limits,
        rules: Arc<AccessRules>,
        counters: Arc<Counters>,
        clock: Clock,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self {
            rules,
            backoff: LoginBackoff::new(limits),
            counters,
            log_budget: LogBudget::default(),
            clock,
            login_seconds: limits.login_seconds,
            stop,
        }
    }

    fn identify(
        &self,
        claim: &Claim,
        path: ConnectionPath,
    ) -> Result<AdmissionDecision, (LoginStatus, LoginRefusal)> {
        if *self.stop.borrow() {
            return Err((LoginStatus::SERVICE_UNAVAILABLE, LoginRefusal::Stopping));
        }
        self.rules.identify(claim, path)
    }

    /// Called when a login has proven everything that was required.
    pub(crate) fn succeeded(&self, join: &Join, path: ConnectionPath) {
        self.backoff.succeeded(PeerNetwork::of(path.peer.ip()), join.user.is_some());
    }
}

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
    policy: Arc<LoginPolicy>,
    network: PeerNetwork,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.policy.backoff.waited(self.network, &self.ticket);
    }
}

impl Login {
    /// Checks the first claim of a login. Returns `None` if the login has to wait;
    /// [`poll`](Self::poll) then returns the answer.
    pub(crate) fn identify(
        &mut self,
        policy: &Arc<LoginPolicy>,
        claim: Claim,
        path: ConnectionPath,
    ) -> Option<AdmissionDecision> {
        let network = PeerNetwork::of(path.peer.ip());
        let who = Claimant {
            name: &claim.initiator_name,
            is_configured: policy.rules.has_own_credential(&claim),
        };
        let turn = policy.backoff.turn(network, who, policy.clock.now());
        self.claim = Some(claim);
        match turn {
            LoginDelay::Now => Some(self.verify_login(policy, path)),
            LoginDelay::After(wait, ticket) => {
                tracing::debug!(peer = %path.peer, ?wait, "login delayed after earlier failures");
                let timer = Box::pin(tokio::time::sleep(wait));
                let policy = Arc::clone(policy);
                self.waiting = Some(Waiting { timer, ticket, policy, network });
                None
            }
        }
    }

    /// Returns the answer to a login that has waited long enough.
    pub(crate) fn poll(
        &mut self,
        path: ConnectionPath,
        context: &mut Context<'_>,
    ) -> Option<AdmissionDecision> {
        let waiting = self.waiting.as_mut()?;
        if waiting.ticket.poll_replaced(context).is_ready() {
            self.waiting = None;
            self.refusal = Some(LoginRefusal::TooManyWait);
            return Some(AdmissionDecision::Refuse(LoginStatus::SERVICE_UNAVAILABLE));
        }
        let Poll::Ready(()) = waiting.timer.as_mut().poll(context) else { return None };
        let policy = Arc::clone(&waiting.policy);
        self.waiting = None;
        Some(self.verify_login(&policy, path))
    }

    /// Called when the login is proven but there is no room for the connection.
    pub(crate) fn connection_limit(&mut self, why: ConnectionLimit) -> LoginStatus {
        self.refusal = Some(match why {
            ConnectionLimit::Table => LoginRefusal::ConnectionLimit,
            ConnectionLimit::Address => LoginRefusal::NoRoomForAddress,
        });
        LoginStatus::OUT_OF_RESOURCES
    }

    fn verify_login(&mut self, policy: &LoginPolicy, path: ConnectionPath) -> AdmissionDecision {
        let Some(claim) = &self.claim else {
            return AdmissionDecision::Refuse(LoginStatus::TARGET_ERROR);
        };
        match policy.identify(claim, path) {
            Ok(identified) => identified,
            Err((status, why)) => {
                self.refusal = Some(why);
                AdmissionDecision::Refuse(status)
            }
        }
    }

    /// Called when the login was refused. The refusal counts as a failure if the initiator may have
    /// been guessing names or secrets, and is logged unless such lines come in a flood.
    pub(crate) fn refused(
        &self,
        policy: &LoginPolicy,
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
        self.log_refusal(
            policy,
            path,
            refusal,
            failure,
            Some(status),
            refusal.log_text().unwrap_or(why),
        );
    }

    /// Called when the login took too long: the peer is gone, or never meant to log in.
    pub(crate) fn timed_out(&self, policy: &LoginPolicy, path: ConnectionPath) {
        let why = format!("the login took longer than {} s", policy.login_seconds);
        self.log_refusal(policy, path, LoginRefusal::TimedOut, FailedLogin::Other, None, &why);
    }

    fn log_refusal(
        &self,
        policy: &LoginPolicy,
        path: ConnectionPath,
        refusal: LoginRefusal,
        failure: FailedLogin,
        status: Option<LoginStatus>,
        why: &str,
    ) {
        let now = policy.clock.now();
        policy.counters.login_refused(refusal);
        let network = PeerNetwork::of(path.peer.ip());
        let suppressed_of_network = policy.backoff.refused(network, failure, refusal.label(), now);
        let Some(suppressed_of_network) = suppressed_of_network else { return };
        let Some(suppressed_of_all) = policy.log_budget.take_line(now) else { return };
        let suppressed = suppressed_of_network.saturating_add(suppressed_of_all);
        let claim = self.claim.as_ref();
        tracing::warn!(
            initiator = claim.map(|claim| shortened(&claim.initiator_name)),
            target = claim.and_then(|claim| claim.target_name.as_deref()).map(shortened),
            peer = %path.peer,
            status = status.map(tracing::field::debug),
            suppressed = (suppressed > 0).then_some(suppressed),
            "login refused: {}",
            printable(why)
        );
    }
}
