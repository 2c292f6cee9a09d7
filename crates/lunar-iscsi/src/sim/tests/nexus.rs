//! Functions that affect other sessions, and one that ends its own session.

use super::{Pair, Rng, random_load, random_options, seeds};
use crate::connection::initiator::{Management, RequestFailure};
use crate::framing::TaskId;
use crate::pdu::*;
use crate::sim::{PairOptions, SimAnswer};
use crate::text::TaskReporting;
use lunar_wire::Lun;
use std::vec;
use std::vec::Vec;

fn options(rng: &mut Rng) -> PairOptions {
    let mut options = random_options(rng);
    for offer in [&mut options.initiator, &mut options.target] {
        offer.task_reporting = vec![TaskReporting::FastAbort];
        offer.protocol_level = 2;
    }
    options.one_core = rng.once_in(2);
    options
}

/// Creates two sessions of one or two connections each; returns their links.
fn two_sessions(pair: &mut Pair, rng: &mut Rng) -> [Vec<usize>; 2] {
    let mut links = [vec![pair.login()], Vec::new()];
    let other = pair.add_host("iqn.2026-01.example:other", [0x80, 0, 0, 8, 0, 0]);
    links[1].push(pair.connect(other, 0));
    pair.run();
    for (host, links) in links.iter_mut().enumerate() {
        if rng.once_in(2) {
            links.push(pair.connect(host, 1));
            pair.run();
        }
    }
    links
}

fn manage(pair: &mut Pair, link: usize, function: ManagementFunction) -> TaskId {
    let id = pair.new_id();
    pair.manage(link, Management { id, function, lun: Lun::new(1), referenced: None });
    id
}

/// Number of aborted commands; asserts that all others succeeded.
fn aborted(pair: &mut Pair, ids: &[TaskId], seed: u64) -> usize {
    let ended = ids.iter().filter(|id| match pair.result(**id).0 {
        Ok(result) => {
            assert_eq!(result.status, 0, "seed {seed}");
            false
        }
        Err(failure) => {
            assert_eq!(failure, RequestFailure::Aborted, "seed {seed}");
            true
        }
    });
    ended.count()
}

/// Goal: with FastAbort, whatever one session's functions do to another's tasks, each command has
/// exactly one result at its initiator, and nothing hangs waiting for data or a response.
#[test]
fn third_parties_are_informed_of_the_end_of_their_tasks() {
    let mut total = 0;
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(seed, options(&mut rng));
        let links = two_sessions(&mut pair, &mut rng);
        let (mut ids, mut functions) = (Vec::new(), Vec::new());
        for _ in 0..6 {
            for links in &links {
                ids.extend(random_load(&mut pair, &mut rng, links, 4));
            }
            pair.run_steps(rng.below(300));
            let function = *rng.pick(&[
                ManagementFunction::ABORT_TASK_SET,
                ManagementFunction::CLEAR_TASK_SET,
                ManagementFunction::LOGICAL_UNIT_RESET,
                ManagementFunction::TARGET_WARM_RESET,
            ]);
            let link = links[rng.below(2)][0];
            functions.push(manage(&mut pair, link, function));
            pair.run_steps(rng.below(100));
        }
        pair.run();
        total += aborted(&mut pair, &ids, seed);
        for id in functions {
            let answer = pair.answer(id);
            let SimAnswer::Managed(Ok(ManagementResponse::FUNCTION_COMPLETE), _) = answer else {
                panic!("seed {seed}: {answer:?}")
            };
        }
        assert!(links.iter().flatten().all(|link| pair.closed(*link).is_none()), "seed {seed}");
        pair.assert_nothing_left();
    }
    assert!(total > 0, "nothing was ever aborted");
}

/// Goal: I_T NEXUS RESET ends its own session and all its commands; the other session is not
/// affected. RFC 7144 §6.3.
#[test]
fn i_t_nexus_reset_is_of_one_session() {
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(seed, options(&mut rng));
        let links = two_sessions(&mut pair, &mut rng);
        let own = random_load(&mut pair, &mut rng, &links[0], 6);
        let others = random_load(&mut pair, &mut rng, &links[1], 6);
        pair.run_steps(rng.below(300));
        let id = manage(&mut pair, links[0][0], ManagementFunction::I_T_NEXUS_RESET);
        pair.run();
        for id in own {
            let result = pair.result(id).0;
            // Commands that wait for their numbers when the session ends are refused.
            let (Ok(_)
            | Err(RequestFailure::Aborted | RequestFailure::Lost | RequestFailure::Refused(_))) =
                result
            else {
                panic!("seed {seed}: {result:?}")
            };
        }
        let answer = pair.answer(id);
        let SimAnswer::Managed(Ok(ManagementResponse::FUNCTION_COMPLETE), _) = answer else {
            panic!("seed {seed}: {answer:?}")
        };
        for link in &links[0] {
            let by_target = pair.closed_by_target(*link);
            assert!(pair.closed(*link).is_some() && by_target.is_some(), "seed {seed}");
        }
        assert_eq!(aborted(&mut pair, &others, seed), 0, "seed {seed}");
        assert_eq!(pair.served_sessions(), 1);
        pair.assert_nothing_left();
    }
}
