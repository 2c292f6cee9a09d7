//! Sessions: begin, further connections, replacement and end.

use super::{Pair, PairOptions, Rng, pattern, random_load, random_options, seeds};
use crate::connection::initiator::{CloseReason, Input, RequestFailure, SendTargets};
use crate::connection::target::Input as Serve;
use crate::login::initiator::ChapAnswer;
use crate::login::{ChapAlgorithm, ChapRequirement, Credential, Secret, SessionType};
use crate::pdu::*;
use crate::sim::{SimAnswer, TARGET_NAME};
use std::time::Duration;
use std::vec;

fn credential(user: &str, secret: &str) -> Credential {
    Credential { user: user.into(), secret: Secret::new(secret.as_bytes()) }
}

/// Goal: CHAP works with each hash, one-way and mutual; a wrong secret on either side is refused.
#[test]
fn chap() {
    use ChapAlgorithm::{Md5, Sha1, Sha3_256, Sha256};
    for algorithm in [Md5, Sha1, Sha256, Sha3_256] {
        for mutual in [false, true] {
            for (ours, theirs) in
                [("secret of host", "secret of target"), ("wrong", "x"), ("secret of host", "x")]
            {
                let requirement = ChapRequirement {
                    algorithms: vec![algorithm],
                    initiator: credential("host", "secret of host"),
                    target: Some(credential("target", "secret of target")),
                };
                let answer = ChapAnswer {
                    algorithms: vec![Sha3_256, Sha256, Sha1, Md5],
                    credential: credential("host", ours),
                    expect_target: mutual.then(|| credential("target", theirs)),
                };
                let options =
                    PairOptions { chap: Some((requirement, answer)), ..PairOptions::default() };
                let mut pair = Pair::new(1, options);
                let link = pair.connect(0, 0);
                pair.run();
                let right = ours != "wrong" && (!mutual || theirs != "x");
                assert_eq!(pair.is_logged_in(link), right, "{:?}", pair.closed(link));
                if right {
                    assert_eq!(pair.write(link, 0, &[7; 512]).expect("a status").status, 0);
                } else {
                    let closed = pair.closed(link);
                    assert!(matches!(closed, Some(CloseReason::LoginFailed(_))), "{closed:?}");
                }
                pair.assert_nothing_left();
            }
        }
    }
}

/// Goal: a discovery session returns the target and its address; it logs out.
#[test]
fn discovery() {
    for seed in seeds(5) {
        let mut pair = Pair::new(seed, PairOptions::default());
        let link = pair.connect_as(0, 0, SessionType::Discovery);
        pair.run();
        let id = pair.new_id();
        pair.ask(link, Input::SendTargets { id, which: SendTargets::All });
        pair.run();
        let SimAnswer::Targets(Ok(targets)) = pair.answer(id) else { panic!("seed {seed}") };
        assert_eq!(targets.len(), 1);
        assert_eq!(targets[0].name, TARGET_NAME);
        assert_eq!(targets[0].addresses, [("127.0.0.1:3260".into(), 1)]);
        pair.ask(link, Input::Logout { reason: LogoutReason::CLOSE_SESSION, cid: None });
        pair.run();
        assert_eq!(pair.closed(link), Some(&CloseReason::LoggedOut));
        pair.assert_nothing_left();
        assert_eq!(pair.served_sessions(), 0);
    }
}

/// Goal: a ping comes back with its data.
#[test]
fn pings() {
    for seed in seeds(5) {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(seed, random_options(&mut rng));
        let link = pair.login();
        let bytes = rng.below(512);
        let (id, data) = (pair.new_id(), rng.bytes(bytes).into());
        pair.ask(link, Input::Ping { id, data });
        pair.run();
        assert!(matches!(pair.answer(id), SimAnswer::Pong(Ok(()))), "seed {seed}");
        pair.assert_nothing_left();
    }
}

/// Goal: after a logout during I/O, of the session or of one of two connections, each command has
/// exactly one result, and the rest continues or everything has ended.
#[test]
fn logout_during_io() {
    for seed in seeds(40) {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(seed, random_options(&mut rng));
        let first = pair.login();
        let second = pair.connect(0, 1);
        pair.run();
        let ids = random_load(&mut pair, &mut rng, &[first, second], 20);
        pair.run_steps(rng.below(300));
        let whole = rng.once_in(2);
        let reason = match whole {
            true => LogoutReason::CLOSE_SESSION,
            false => LogoutReason::CLOSE_CONNECTION,
        };
        pair.ask(first, Input::Logout { reason, cid: None });
        pair.run();
        let closed = [first, second].map(|link| (pair.closed(link), pair.closed_by_target(link)));
        let Some(Ok(reply)) = pair.logged_out(first) else { panic!("seed {seed}: {closed:?}") };
        assert_eq!(reply.result, LogoutResult::CLOSED, "seed {seed}");
        assert_eq!(pair.closed(first), Some(&CloseReason::LoggedOut), "seed {seed}");
        assert_eq!(pair.closed(second).is_some(), whole, "seed {seed}");
        for id in ids {
            match pair.result(id).0 {
                Ok(result) => assert_eq!(result.status, 0, "seed {seed}: {result:?}"),
                Err(
                    RequestFailure::LoggedOut | RequestFailure::Refused(_) | RequestFailure::Lost,
                ) => {}
                Err(failure) => panic!("seed {seed}: {failure:?}"),
            }
        }
        pair.assert_nothing_left();
        if !whole {
            assert_eq!(pair.write(second, 0, &[1; 512]).expect("a status").status, 0);
        }
        assert_eq!(pair.served_sessions(), usize::from(!whole), "seed {seed}");
    }
}

/// Goal: a second login of the same initiator and ISID ends the first session and its tasks.
#[test]
fn session_reinstatement() {
    for seed in seeds(30) {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(seed, random_options(&mut rng));
        let old = pair.login();
        let ids = random_load(&mut pair, &mut rng, &[old], 10);
        pair.run_steps(rng.below(200));
        let host = pair.add_host("iqn.2026-01.example:host", [0x80, 0, 0, 7, 0, 0]);
        let new = pair.connect(host, 0);
        pair.run();
        assert!(pair.is_logged_in(new), "seed {seed}");
        assert!(pair.closed(old).is_some() && pair.closed_by_target(old).is_some());
        for id in ids {
            assert!(pair.is_answered(id), "seed {seed}");
        }
        let data = pattern(seed, 2048);
        assert_eq!(pair.write(new, 0, &data).expect("a status").status, 0);
        assert_eq!(pair.served_sessions(), 1, "seed {seed}");
        pair.assert_nothing_left();
    }
}

/// Goal: a target that stops requests a logout; open commands end well, then everything has ended.
#[test]
fn a_target_stops() {
    for seed in seeds(20) {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(seed, random_options(&mut rng));
        let link = pair.login();
        let ids = random_load(&mut pair, &mut rng, &[link], 10);
        pair.run_steps(rng.below(100));
        pair.handle_at_target(link, Serve::Shutdown { within_seconds: 10 });
        pair.pass(Duration::from_secs(30));
        assert_eq!(pair.events(link).len(), 1, "seed {seed}");
        assert_eq!(pair.events(link)[0].event, AsyncEvent::LOGOUT_REQUESTED);
        assert_eq!(pair.closed(link), Some(&CloseReason::LoggedOut), "seed {seed}");
        for id in ids {
            match pair.result(id).0 {
                Ok(result) => assert_eq!(result.status, 0, "seed {seed}"),
                Err(RequestFailure::Refused(_)) => {}
                Err(failure) => panic!("seed {seed}: {failure:?}"),
            }
        }
        pair.assert_nothing_left();
        assert_eq!(pair.served_sessions(), 0, "seed {seed}");
    }
}
