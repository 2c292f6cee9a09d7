//! Tests of the session alone: numbers, window, queue, changing connections.

use super::*;
use std::vec;
use std::vec::Vec;

const CMD_SN: SerialNumber = SerialNumber(u32::MAX - 1);

fn parameters() -> SessionParameters {
    SessionParameters { max_connections: 3, ..SessionParameters::default() }
}

/// Creates a session of two connections, 1 and 2, with a window of `commands`.
fn session(commands: u32) -> InitiatorSession {
    let isid = [0x80, 0, 0, 1, 0, 0];
    let mut session = InitiatorSession::new(InitiatorSessionOptions {
        isid,
        cmd_sn: CMD_SN,
        queue_requests_max: 4,
    });
    assert_eq!(session.open(1), Some(LoginNumbers { isid, tsih: 0, cmd_sn: CMD_SN }));
    assert_eq!(session.open(2), None, "the leading login is not through");
    let joined = ToSession::Joined { tsih: 77, parameters: parameters() };
    say(&mut session, 1, joined);
    assert_eq!(outputs(&mut session), [Output::Established { tsih: 77, parameters: parameters() }]);
    assert_eq!(session.open(2), Some(LoginNumbers { isid, tsih: 77, cmd_sn: CMD_SN }));
    assert_eq!(session.open(2), None, "the CID is in use");
    say(&mut session, 2, joined);
    let max_cmd_sn = CMD_SN.plus(commands).minus(1);
    say(&mut session, 1, ToSession::Window { exp_cmd_sn: CMD_SN, max_cmd_sn });
    assert_eq!(outputs(&mut session), []);
    session
}

fn say(session: &mut InitiatorSession, cid: u16, message: ToSession) {
    session.handle(Input::Connection(cid, message));
}

fn ask(session: &mut InitiatorSession, cid: u16, ticket: u64) {
    say(session, cid, ToSession::Request { ticket, immediate: false, tag: true });
}

fn outputs(session: &mut InitiatorSession) -> Vec<Output> {
    core::iter::from_fn(|| session.poll()).collect()
}

fn grants(session: &mut InitiatorSession) -> Vec<(u16, u64, u32)> {
    let grant = |output| match output {
        Output::ToConnection(cid, ToConnection::Grant { ticket, cmd_sn, .. }) => {
            (cid, ticket, cmd_sn.since(CMD_SN))
        }
        other => panic!("{other:?}"),
    };
    outputs(session).into_iter().map(grant).collect()
}

/// Goal: all connections share one CmdSN sequence, across the wrap; requests beyond the window wait
/// in order; requests beyond the queue are refused; a withdrawn request gets no number.
#[test]
fn one_window_for_all_connections() {
    let mut session = session(2);
    for (ticket, cid) in [1, 2, 2, 1, 1, 2].into_iter().enumerate() {
        ask(&mut session, cid, ticket as u64);
    }
    assert_eq!(grants(&mut session), [(1, 0, 0), (2, 1, 1)]);
    ask(&mut session, 1, 6);
    let refused = |cid, ticket| Output::ToConnection(cid, ToConnection::Refused { ticket });
    assert_eq!(outputs(&mut session), [refused(1, 6)]);
    say(&mut session, 1, ToSession::Withdraw { ticket: 3 });
    assert_eq!(outputs(&mut session), [refused(1, 3)]);
    let (exp_cmd_sn, max_cmd_sn) = (CMD_SN.plus(2), CMD_SN.plus(9));
    say(&mut session, 2, ToSession::Window { exp_cmd_sn, max_cmd_sn });
    assert_eq!(grants(&mut session), [(2, 2, 2), (1, 4, 3), (2, 5, 4)]);
    assert!(!session.is_idle(), "tags are in use");
    for tag in 0..=8 {
        say(&mut session, 1, ToSession::TagFree(tag));
    }
    assert!(session.is_idle());
}

/// Goal: while a function on several tasks is open no connection gets a number; a connection that
/// ends releases its hold.
#[test]
fn functions_hold_numbers_back() {
    let mut session = session(8);
    say(&mut session, 1, ToSession::Hold);
    say(&mut session, 2, ToSession::Hold);
    ask(&mut session, 2, 0);
    say(&mut session, 1, ToSession::Release);
    assert_eq!(outputs(&mut session), []);
    say(&mut session, 2, ToSession::Release);
    assert_eq!(grants(&mut session), [(2, 0, 0)]);
    say(&mut session, 1, ToSession::Hold);
    let (exp_cmd_sn, max_cmd_sn) = (CMD_SN.next(), CMD_SN.plus(9));
    say(&mut session, 2, ToSession::Window { exp_cmd_sn, max_cmd_sn });
    ask(&mut session, 2, 1);
    assert_eq!(outputs(&mut session), []);
    say(&mut session, 1, ToSession::Closed { ending: ConnectionEnding::Lost });
    assert_eq!(grants(&mut session), [(2, 1, 1)]);
}

/// Goal: tags are unique while in use and never reserved, across the wrap of their counter.
#[test]
fn tags_are_unique() {
    let mut session = session(100);
    session.start_tags_at(u32::MAX - 2);
    let mut tags = Vec::new();
    for ticket in 0..8 {
        say(&mut session, 1, ToSession::Request { ticket, immediate: true, tag: true });
        match session.poll() {
            Some(Output::ToConnection(1, ToConnection::Grant { initiator_task_tag, .. })) => {
                tags.push(initiator_task_tag);
            }
            other => panic!("{other:?}"),
        }
        session.start_tags_at(if ticket == 5 { u32::MAX - 2 } else { tags[ticket as usize] });
    }
    let mut sorted = tags.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), 8, "{tags:?}");
    assert!(!tags.contains(&crate::pdu::TAG_RESERVED));
}

/// Goal: the last window received by a closing connection opens the window for others, not for its
/// own requests, which would never be sent and leave their numbers missing.
#[test]
fn the_last_window_of_a_connection_serves_the_others() {
    let mut session = session(1);
    for (cid, ticket) in [(2, 0), (2, 1), (1, 2)] {
        ask(&mut session, cid, ticket);
    }
    assert_eq!(grants(&mut session), [(2, 0, 0)]);
    say(&mut session, 2, ToSession::WithdrawAll);
    let (exp_cmd_sn, max_cmd_sn) = (CMD_SN.next(), CMD_SN.plus(9));
    say(&mut session, 2, ToSession::Window { exp_cmd_sn, max_cmd_sn });
    assert_eq!(grants(&mut session), [(1, 2, 1)]);
    say(&mut session, 2, ToSession::Closed { ending: ConnectionEnding::Lost });
    assert_eq!(outputs(&mut session), [], "no command is missing: the session continues");
}

/// Goal: a lost connection ends the session exactly if a CmdSN may be lost with it.
#[test]
fn a_lost_connection_may_leave_a_gap() {
    for counted in [true, false] {
        let mut session = session(8);
        ask(&mut session, 2, 0);
        outputs(&mut session);
        if counted {
            let (exp_cmd_sn, max_cmd_sn) = (CMD_SN.next(), CMD_SN.plus(9));
            say(&mut session, 1, ToSession::Window { exp_cmd_sn, max_cmd_sn });
        }
        say(&mut session, 2, ToSession::Closed { ending: ConnectionEnding::Lost });
        let close = Output::ToConnection(1, ToConnection::Close);
        assert_eq!(outputs(&mut session), if counted { vec![] } else { vec![close] });
        assert!(session.is_idle());
        say(&mut session, 1, ToSession::Closed { ending: ConnectionEnding::Lost });
        assert_eq!(outputs(&mut session), [Output::Ended(ConnectionEnding::Lost)]);
        assert_eq!(session.open(3), None);
    }
}

/// Goal: a connection whose target broke the protocol ends all the others, also if no CmdSN is
/// lost. RFC 7143 §7.7.
#[test]
fn a_violation_ends_the_session() {
    let mut session = session(8);
    say(&mut session, 2, ToSession::Closed { ending: ConnectionEnding::Violation });
    assert_eq!(outputs(&mut session), [Output::ToConnection(1, ToConnection::Close)]);
    ask(&mut session, 1, 0);
    let refused = Output::ToConnection(1, ToConnection::Refused { ticket: 0 });
    assert_eq!(outputs(&mut session), [refused]);
    say(&mut session, 1, ToSession::Closed { ending: ConnectionEnding::Lost });
    assert_eq!(outputs(&mut session), [Output::Ended(ConnectionEnding::Violation)]);
}

/// Goal: a session logout stops requests on every connection; the session ends when all have
/// closed.
#[test]
fn a_session_logout_stops_all() {
    let mut session = session(0);
    ask(&mut session, 2, 0);
    say(&mut session, 1, ToSession::LoggingOut);
    ask(&mut session, 2, 1);
    assert_eq!(
        outputs(&mut session),
        [
            Output::ToConnection(2, ToConnection::Refused { ticket: 0 }),
            Output::ToConnection(2, ToConnection::LoggingOut),
            Output::ToConnection(2, ToConnection::Refused { ticket: 1 }),
        ]
    );
    say(&mut session, 1, ToSession::Closed { ending: ConnectionEnding::SessionLogout });
    assert_eq!(outputs(&mut session), [Output::ToConnection(2, ToConnection::Close)]);
    say(&mut session, 2, ToSession::Closed { ending: ConnectionEnding::Lost });
    assert_eq!(outputs(&mut session), [Output::Ended(ConnectionEnding::SessionLogout)]);
}

/// Goal: if the target closes the other connections of a session first, the connection that
/// requested the logout still gets its answer; if that connection is lost, the others close.
#[test]
fn a_session_logout_may_be_answered_last() {
    for asker_is_lost in [false, true] {
        let mut session = session(8);
        ask(&mut session, 2, 0);
        outputs(&mut session);
        say(&mut session, 1, ToSession::LoggingOut);
        outputs(&mut session);
        let (gone, left) = if asker_is_lost { (1, 2) } else { (2, 1) };
        say(&mut session, gone, ToSession::Closed { ending: ConnectionEnding::Lost });
        let close = Output::ToConnection(left, ToConnection::Close);
        assert_eq!(outputs(&mut session), if asker_is_lost { vec![close] } else { vec![] });
        say(&mut session, left, ToSession::Closed { ending: ConnectionEnding::SessionLogout });
        assert_eq!(outputs(&mut session), [Output::Ended(ConnectionEnding::SessionLogout)]);
    }
}

/// Goal: the ISID rule: never two sessions of one ISID with one target; freed ISIDs are reused.
#[test]
fn isids_are_never_shared_with_one_target() {
    let mut pool = IsidPool::new([1, 2, 3]);
    let (a, b) = (pool.take("iqn.a").expect("one"), pool.take("iqn.a").expect("another"));
    assert_ne!(a, b);
    assert_eq!(pool.take("iqn.b"), Some(a), "another target may see the same");
    pool.release("iqn.a", a);
    assert_eq!(pool.take("iqn.a"), Some(a), "conservative reuse");
    assert_eq!(a[0] >> 6, 2, "the format for random numbers");
    assert_eq!(pool.in_use(), 3);
}
