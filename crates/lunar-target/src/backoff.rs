//! Delays of logins after failed logins from the same network.
//!
//! Secrets of 96 bits cannot be found by trying, shorter ones may be; and a peer that tries without
//! end costs work. Failures are counted for each network, so logins from other networks do not
//! wait.

use crate::options::Limits;
use crate::peer_network::PeerNetwork;
use lunar_wire::Time;
use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;

/// The first wait; each further failure doubles it.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// Number of networks that are remembered at once; beyond it the one that failed longest ago is
/// forgotten.
const NETWORKS_MAX: usize = 4096;
/// Number of logins of one network that wait at once; a further one replaces another.
const WAITING_MAX: usize = 8;
/// Time without refused logins after which a network is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// Refusals in a row that get a log line each; later there is one line an interval, and one for
/// each other reason.
const LINES_FREE: u32 = 5;
/// Time between further lines about one network.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// Initiator name of a login, as far as delays are concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claimant<'a> {
    /// The initiator name, which any peer may claim.
    pub(crate) name: &'a str,
    /// True when the target has a credential for exactly this name.
    pub(crate) is_configured: bool,
}

/// Delay before a login may continue.
#[derive(Debug)]
pub(crate) enum LoginDelay {
    /// No delay.
    Now,
    /// Delay, and the ticket of the login; the login counts as waiting until
    /// [`LoginBackoff::waited`] is called.
    After(Duration, WaitTicket),
}

/// Ticket that a login holds while it waits.
#[derive(Debug)]
pub(crate) struct WaitTicket {
    id: u64,
    replaced: oneshot::Receiver<()>,
}

impl WaitTicket {
    /// Ready once a later login has replaced this one.
    pub(crate) fn poll_replaced(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.replaced.is_terminated() {
            return Poll::Pending;
        }
        match Pin::new(&mut self.replaced).poll(context) {
            Poll::Ready(Ok(())) => Poll::Ready(()),
            // The network was forgotten: no login replaces this one any more.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

/// A login that waits.
#[derive(Debug)]
struct WaitingLogin {
    id: u64,
    /// Hash of the initiator name.
    name_hash: u64,
    is_configured: bool,
    replace: oneshot::Sender<()>,
}

/// Kind of a refused login.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum FailedLogin {
    /// A failed authentication: possibly a guess of a secret.
    Unproven,
    /// A name that the target does not know or does not show: possibly a guess of a name.
    Hidden,
    /// Neither: the peer could learn nothing from the refusal, which therefore causes no delay.
    Other,
}

/// The failed logins of all networks.
#[derive(Debug)]
pub(crate) struct LoginBackoff {
    failures_free: u32,
    wait_max: Duration,
    hasher: RandomState,
    last_id: AtomicU64,
    networks: Mutex<HashMap<PeerNetwork, Failures>>,
}

#[derive(Debug, Default)]
struct Failures {
    count: u32,
    /// True when one of them was a failed authentication: only a successful one outweighs it.
    unproven: bool,
    last: Time,
    /// The oldest first.
    waiting: Vec<WaitingLogin>,
    lines: u32,
    last_line: Time,
    /// Reasons that were logged in this interval.
    logged_labels: Vec<&'static str>,
    suppressed: u64,
}

impl LoginBackoff {
    /// Creates a state without failures. The longest delay is half the time of a login, so that the
    /// other half remains.
    pub(crate) fn new(limits: &Limits) -> Self {
        let wait_max = limits.login_backoff_seconds_max.min(limits.login_seconds / 2);
        Self {
            failures_free: limits.login_failures_free,
            wait_max: Duration::from_secs(wait_max.into()),
            hasher: RandomState::new(),
            last_id: AtomicU64::new(0),
            networks: Mutex::default(),
        }
    }

    /// Returns the delay of a login of this network. If too many logins of the network wait
    /// already, this one replaces another.
    pub(crate) fn turn(&self, network: PeerNetwork, who: Claimant<'_>, now: Time) -> LoginDelay {
        let mut networks = self.networks();
        let Some(failures) = networks.get_mut(&network) else { return LoginDelay::Now };
        let beyond = failures.count.saturating_sub(self.failures_free);
        let wait = match beyond.checked_sub(1) {
            _ if now.since(failures.last) >= FORGOTTEN_AFTER => Duration::ZERO,
            None => Duration::ZERO,
            Some(doublings) => {
                let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
                FIRST_WAIT.saturating_mul(factor).min(self.wait_max)
            }
        };
        if wait.is_zero() {
            return LoginDelay::Now;
        }
        let (replace, replaced) = oneshot::channel();
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let name_hash = self.hasher.hash_one(who.name);
        let is_configured = who.is_configured;
        failures.waiting.push(WaitingLogin { id, name_hash, is_configured, replace });
        failures.bound_waiting();
        LoginDelay::After(wait, WaitTicket { id, replaced })
    }

    /// Called when a login stops waiting, whatever its result.
    pub(crate) fn waited(&self, network: PeerNetwork, ticket: &WaitTicket) {
        if let Some(failures) = self.networks().get_mut(&network) {
            failures.waiting.retain(|login| login.id != ticket.id);
        }
    }

    /// Counts a refused login with a reason of this label. Returns the number of refusals of this
    /// network that were not logged, if this one is to be logged.
    pub(crate) fn refused(
        &self,
        network: PeerNetwork,
        why: FailedLogin,
        label: &'static str,
        now: Time,
    ) -> Option<u64> {
        let mut networks = self.networks();
        if !networks.contains_key(&network) && networks.len() >= NETWORKS_MAX {
            make_room(&mut networks, now);
        }
        let failures = networks.entry(network).or_default();
        if now.since(failures.last) >= FORGOTTEN_AFTER {
            failures.clear();
        }
        if why != FailedLogin::Other {
            failures.count = failures.count.saturating_add(1);
        }
        failures.last = now;
        failures.unproven |= why == FailedLogin::Unproven;
        failures.line(label, now)
    }

    /// Called when a login succeeded. A success outweighs all failures, except that a login with
    /// nothing to prove (`proven` is false) does not outweigh wrong proofs: otherwise a target open
    /// to all would allow endless guesses at another.
    pub(crate) fn succeeded(&self, network: PeerNetwork, proven: bool) {
        let mut networks = self.networks();
        let Some(failures) = networks.get_mut(&network) else { return };
        if proven || !failures.unproven {
            // Waiting logins still count; otherwise each success would let in eight more.
            failures.clear();
            if failures.waiting.is_empty() {
                networks.remove(&network);
            }
        }
    }

    fn networks(&self) -> MutexGuard<'_, HashMap<PeerNetwork, Failures>> {
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failures {
    /// Forgets all but the waiting logins.
    fn clear(&mut self) {
        *self = Self { waiting: std::mem::take(&mut self.waiting), ..Self::default() };
    }

    /// Removes a waiting login if there are too many. Each name that has a credential counts for
    /// itself, all other names count together. The group with the most logins loses one; in the
    /// group of other names, the name with the most; of that name, the oldest login.
    fn bound_waiting(&mut self) {
        if self.waiting.len() <= WAITING_MAX {
            return;
        }
        let share = |login: &WaitingLogin| {
            let of_name = |other: &&WaitingLogin| other.name_hash == login.name_hash;
            let same_kind =
                self.waiting.iter().filter(|other| other.is_configured == login.is_configured);
            let of_name = same_kind.clone().filter(of_name).count();
            (if login.is_configured { of_name } else { same_kind.count() }, of_name)
        };
        let shares: Vec<_> = self.waiting.iter().map(share).collect();
        let largest = shares.iter().max();
        if let Some(oldest) = shares.iter().position(|share| Some(share) == largest) {
            // If the receiver is gone, the login is about to report that it no longer waits.
            let _ = self.waiting.remove(oldest).replace.send(());
        }
    }

    fn line(&mut self, label: &'static str, now: Time) -> Option<u64> {
        self.lines = self.lines.saturating_add(1);
        let passed = now.since(self.last_line) >= LINE_INTERVAL;
        if passed {
            self.logged_labels.clear();
        }
        let is_new = !self.logged_labels.contains(&label);
        if self.lines > LINES_FREE && !passed && !is_new {
            self.suppressed += 1;
            return None;
        }
        if is_new {
            self.logged_labels.push(label);
        }
        self.last_line = now;
        Some(std::mem::take(&mut self.suppressed))
    }
}

fn make_room(networks: &mut HashMap<PeerNetwork, Failures>, now: Time) {
    networks.retain(|_, failures| now.since(failures.last) < FORGOTTEN_AFTER);
    if networks.len() >= NETWORKS_MAX
        && let Some(oldest) = networks.iter().min_by_key(|(_, f)| f.last).map(|(key, _)| *key)
    {
        networks.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};
    use std::task::Waker;

    fn backoff(login_failures_free: u32, login_backoff_seconds_max: u16) -> LoginBackoff {
        let limits = Limits { login_failures_free, login_backoff_seconds_max, ..Limits::default() };
        LoginBackoff::new(&limits)
    }

    fn network(text: &str) -> PeerNetwork {
        PeerNetwork::of(text.parse().unwrap())
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO.after(Duration::from_secs(seconds))
    }

    /// The delay of the next login of `who`, in milliseconds.
    fn wait(backoff: &LoginBackoff, who: PeerNetwork, now: Time) -> u128 {
        match backoff.turn(who, claimant("iqn.a", false), now) {
            LoginDelay::Now => 0,
            LoginDelay::After(wait, ticket) => {
                backoff.waited(who, &ticket);
                wait.as_millis()
            }
        }
    }

    fn claimant(name: &str, is_configured: bool) -> Claimant<'_> {
        Claimant { name, is_configured }
    }

    /// The ticket of a login that begins to wait.
    fn ticket(
        backoff: &LoginBackoff,
        who: PeerNetwork,
        name: &str,
        is_configured: bool,
    ) -> WaitTicket {
        match backoff.turn(who, claimant(name, is_configured), at(1)) {
            LoginDelay::After(_, ticket) => ticket,
            LoginDelay::Now => panic!("it does not wait"),
        }
    }

    fn is_replaced(ticket: &mut WaitTicket) -> bool {
        ticket.poll_replaced(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn delays_grow_to_a_limit_and_expire() {
        let (backoff, who) = (backoff(2, 2), network("192.0.2.1"));
        let mut waits = Vec::new();
        for _ in 0..40 {
            waits.push(wait(&backoff, who, at(1)));
            backoff.refused(who, FailedLogin::Unproven, "a reason", at(1));
        }
        assert_eq!(waits[..8], [0, 0, 0, 250, 500, 1000, 2000, 2000]);
        assert_eq!(waits[39], 2000, "no overflow");
        assert_eq!(wait(&backoff, network("192.0.2.2"), at(1)), 0, "another network");
        assert_eq!(wait(&backoff, who, at(600)), 2000);
        assert_eq!(wait(&backoff, who, at(601)), 0);
        backoff.refused(who, FailedLogin::Unproven, "a reason", at(601));
        assert_eq!(wait(&backoff, who, at(601)), 0, "counted anew");
    }

    #[test]
    fn a_success_clears_earlier_failures() {
        let (backoff, who) = (backoff(0, 8), network("192.0.2.1"));
        for (failure, proven, cleared) in [
            (FailedLogin::Hidden, false, true),
            (FailedLogin::Hidden, true, true),
            (FailedLogin::Unproven, false, false),
            (FailedLogin::Unproven, true, true),
            (FailedLogin::Other, false, true),
        ] {
            backoff.refused(who, failure, "a reason", at(1));
            backoff.succeeded(who, proven);
            assert_eq!(wait(&backoff, who, at(1)) == 0, cleared, "{failure:?} {proven}");
            backoff.succeeded(who, true);
        }
    }

    #[test]
    fn no_wait_outlasts_a_login() {
        let limits = Limits {
            login_failures_free: 0,
            login_backoff_seconds_max: 60,
            login_seconds: 3,
            ..Limits::default()
        };
        let (backoff, who) = (LoginBackoff::new(&limits), network("::1"));
        (0..9).for_each(|_| _ = backoff.refused(who, FailedLogin::Unproven, "a reason", at(1)));
        assert_eq!(wait(&backoff, who, at(1)), 1000);
        let never = LoginBackoff::new(&Limits { login_backoff_seconds_max: 0, ..limits });
        (0..9).for_each(|_| _ = never.refused(who, FailedLogin::Unproven, "a reason", at(1)));
        assert_eq!(wait(&never, who, at(1)), 0);
    }

    #[test]
    fn only_so_many_wait_at_once() {
        let (backoff, who) = (backoff(0, 8), network("192.0.2.1"));
        backoff.refused(who, FailedLogin::Unproven, "a reason", at(1));
        let mut tickets: Vec<_> =
            (0..2 * WAITING_MAX).map(|_| ticket(&backoff, who, "iqn.a", false)).collect();
        let replaced: Vec<_> = tickets.iter_mut().map(is_replaced).collect();
        assert_eq!(replaced, [[true; WAITING_MAX], [false; WAITING_MAX]].concat(), "the oldest");
        backoff.waited(who, &tickets.pop().unwrap());
        let another = ticket(&backoff, who, "iqn.a", false);
        assert!(!tickets[WAITING_MAX..].iter_mut().any(is_replaced), "there was room");
        // A success forgets the failures, but not the waiting logins.
        backoff.succeeded(who, true);
        assert_eq!(wait(&backoff, who, at(1)), 0);
        assert_eq!(backoff.networks()[&who].waiting.len(), WAITING_MAX);
        tickets.iter().chain([&another]).for_each(|ticket| backoff.waited(who, ticket));
        backoff.succeeded(who, true);
        assert!(backoff.networks().is_empty());
        // Tickets of a network that is forgotten.
        tickets.iter().for_each(|ticket| backoff.waited(who, ticket));
        assert!(!tickets[WAITING_MAX..].iter_mut().any(is_replaced));
    }

    /// Fault: the waiting slots of a network went to the logins that came first. Guesses in a loop
    /// took all of them, and a login with the right secret never got one.
    #[test]
    fn a_flood_takes_no_slots_of_other_names() {
        let (backoff, who) = (backoff(0, 8), network("192.0.2.1"));
        backoff.refused(who, FailedLogin::Unproven, "a reason", at(1));
        for (flood_is_configured, honest_is_configured, invents_names) in [
            (false, false, false),
            (false, true, false),
            (false, true, true),
            (true, true, false),
            (true, false, false),
        ] {
            let guess = |number: u32| {
                let name = if invents_names { format!("iqn.{number}") } else { "iqn.x".into() };
                ticket(&backoff, who, &name, flood_is_configured)
            };
            let mut guesses: Vec<_> = (0..100).map(guess).collect();
            let mut honest = ticket(&backoff, who, "iqn.honest", honest_is_configured);
            guesses.extend((100..200).map(guess));
            assert!(!is_replaced(&mut honest), "{flood_is_configured} {honest_is_configured}");
            let waiting = guesses.iter_mut().map(is_replaced).filter(|replaced| !replaced);
            assert_eq!(waiting.count(), WAITING_MAX - 1, "guesses are as few as before");
            guesses.iter().chain([&honest]).for_each(|ticket| backoff.waited(who, ticket));
        }
    }

    #[test]
    fn networks_group_addresses_that_a_peer_can_choose() {
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:0:0:1"));
        assert_ne!(network("2001:db8:0:1::1"), network("2001:db8:0:2::1"));
        let origin = |text| network(text).origin();
        assert_eq!(origin("::ffff:192.0.2.1"), origin("192.0.2.1"));
        assert_ne!(origin("192.0.2.1"), origin("192.0.2.2"));
        assert_eq!(origin("2001:db8::1"), origin("2001:db8::ffff:0:0:1"));
        assert_ne!(origin("2001:db8:0:1::1"), origin("2001:db8:0:2::1"));
    }

    /// Goal: the table is bounded, and the networks that failed last stay in it.
    #[test]
    fn the_oldest_is_forgotten_for_a_new_one() {
        let backoff = backoff(0, 8);
        let numbered = |number: u32| PeerNetwork::of(IpAddr::V4(Ipv4Addr::from_bits(number)));
        for number in 0..NETWORKS_MAX as u32 + 10 {
            let now = Time::from_nanos(u64::from(number) + 1);
            backoff.refused(numbered(number), FailedLogin::Unproven, "a reason", now);
            assert!(backoff.networks().len() <= NETWORKS_MAX);
        }
        let now = at(1);
        assert_eq!(wait(&backoff, numbered(9), now), 0);
        assert_eq!(wait(&backoff, numbered(10), now), 250);
        let later = at(2).after(FORGOTTEN_AFTER);
        backoff.refused(numbered(0), FailedLogin::Unproven, "a reason", later);
        assert_eq!(backoff.networks().len(), 1, "the expired ones make room first");
    }

    #[test]
    fn a_flood_is_logged_once_per_interval() {
        let (backoff, who) = (backoff(3, 8), network("192.0.2.1"));
        let suppressed = |second: u64| -> Vec<u64> {
            (0..10)
                .filter_map(|_| backoff.refused(who, FailedLogin::Unproven, "a reason", at(second)))
                .collect()
        };
        assert_eq!(suppressed(1), [0; 5]);
        assert_eq!(suppressed(2), []);
        assert_eq!(suppressed(61), [15]);
        assert_eq!(suppressed(120), []);
        assert_eq!(suppressed(121), [19]);
        // Another reason is logged in spite of the flood, and causes no flood of its own.
        let other_reason = |_| backoff.refused(who, FailedLogin::Hidden, "another", at(122));
        assert_eq!((0..10).filter_map(other_reason).collect::<Vec<_>>(), [9]);
        // A login that is refused for other reasons causes neither delays nor a flood.
        let other = network("192.0.2.2");
        let refuse = |_| backoff.refused(other, FailedLogin::Other, "a reason", at(5000));
        assert_eq!((0..50).filter_map(refuse).count(), 5);
        assert_eq!(wait(&backoff, other, at(5000)), 0);
    }
}
