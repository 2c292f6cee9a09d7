//! Task management during I/O.

use super::{Pair, Rng, random_load, random_options, seeds};
use crate::connection::initiator::{Management, RequestFailure};
use crate::framing::TaskId;
use crate::pdu::*;
use crate::sim::{EVENT, SimAnswer};
use lunar_wire::{Lun, SerialNumber};
use std::collections::BTreeMap;
use std::vec::Vec;

/// Goal: functions on tasks in any state end them cleanly: each command has exactly one result, no
/// PDU of an aborted task follows the response of the function, and the session continues.
#[test]
fn functions_during_io() {
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(seed, random_options(&mut rng));
        let mut links = std::vec![pair.login()];
        if rng.once_in(2) {
            links.push(pair.connect(0, 1));
            pair.run();
        }
        let mut ids = Vec::new();
        let mut functions = Vec::new();
        for _ in 0..6 {
            ids.extend(random_load(&mut pair, &mut rng, &links, 5));
            pair.run_steps(rng.below(200));
            let link = links[0];
            let function = *rng.pick(&[
                ManagementFunction::ABORT_TASK,
                ManagementFunction::ABORT_TASK_SET,
                ManagementFunction::CLEAR_TASK_SET,
                ManagementFunction::LOGICAL_UNIT_RESET,
                ManagementFunction::TARGET_WARM_RESET,
                ManagementFunction::QUERY_TASK,
                ManagementFunction::QUERY_TASK_SET,
                ManagementFunction::QUERY_ASYNCHRONOUS_EVENT,
            ]);
            let id = pair.new_id();
            let referenced = Some(*rng.pick(&ids));
            let lun = Lun::new(1);
            pair.manage(link, Management { id, function, lun, referenced });
            functions.push((function, id));
            pair.run_steps(rng.below(100));
        }
        pair.run();
        let aborted = ids
            .iter()
            .filter(|id| match pair.result(**id).0 {
                Ok(result) => {
                    assert_eq!(result.status, 0, "seed {seed}");
                    false
                }
                Err(failure) => {
                    let closed: Vec<_> = links
                        .iter()
                        .map(|link| (pair.closed(*link), pair.closed_by_target(*link)))
                        .collect();
                    assert_eq!(failure, RequestFailure::Aborted, "seed {seed}: {closed:?}");
                    true
                }
            })
            .count();
        std::eprintln!("{aborted} of {} aborted", ids.len());
        let level_2 = pair.session_parameters(0).protocol_level == 2;
        for (function, id) in functions {
            let answer = pair.answer(id);
            assert!(is_fine(function, level_2, &answer), "seed {seed}: {function:?} {answer:?}");
        }
        for link in links {
            assert_eq!(pair.closed(link), None, "seed {seed}");
        }
        assert_fenced(&pair, seed);
        pair.assert_nothing_left();
    }
}

/// Goal: a command that is aborted while announced data is missing ends like any aborted command,
/// and its connection continues. Without digests, the rest of that data is given before the abort.
#[test]
fn aborts_within_announced_data() {
    let (mut aborts, mut aborted) = (0, 0);
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(seed, random_options(&mut rng));
        let link = pair.login();
        let ids = random_load(&mut pair, &mut rng, &[link], 12);
        for _ in 0..4 {
            while pair.announcing(link).is_none() && pair.step() {}
            let Some(referenced) = pair.announcing(link) else { break };
            let (id, function) = (pair.new_id(), ManagementFunction::ABORT_TASK);
            let (lun, referenced) = (Lun::new(1), Some(referenced));
            pair.manage(link, Management { id, function, lun, referenced });
            aborts += 1;
            pair.run_steps(rng.below(100));
        }
        pair.run();
        for id in ids {
            match pair.result(id).0 {
                Ok(result) => assert_eq!(result.status, 0, "seed {seed}: {id:?}"),
                Err(failure) => {
                    let closed = pair.closed(link);
                    assert_eq!(failure, RequestFailure::Aborted, "seed {seed}: {closed:?}");
                    aborted += 1;
                }
            }
        }
        assert_eq!(pair.closed(link), None, "seed {seed}");
        pair.assert_nothing_left();
    }
    std::eprintln!("{aborted} of {aborts} aborted");
    assert!(aborted > 0, "all ended before their aborts");
}

/// True if the function may have this answer.
fn is_fine(function: ManagementFunction, level_2: bool, answer: &SimAnswer) -> bool {
    use ManagementResponse as Response;
    if function.info().is_none_or(|info| info.level == 2) && !level_2 {
        return matches!(answer, SimAnswer::Managed(Err(RequestFailure::Refused(_)), _));
    }
    let SimAnswer::Managed(Ok(response), information) = answer else { return false };
    let event = function == ManagementFunction::QUERY_ASYNCHRONOUS_EVENT;
    let expected: &[Response] = match function {
        ManagementFunction::ABORT_TASK => {
            &[Response::FUNCTION_COMPLETE, Response::TASK_DOES_NOT_EXIST]
        }
        ManagementFunction::QUERY_TASK | ManagementFunction::QUERY_TASK_SET => {
            &[Response::FUNCTION_COMPLETE, Response::FUNCTION_SUCCEEDED]
        }
        _ if event => &[Response::FUNCTION_SUCCEEDED],
        _ => &[Response::FUNCTION_COMPLETE],
    };
    expected.contains(response) && *information == if event { EVENT } else { [0; 3] }
}

/// Compares the order of PDUs with the affected tasks: after the response of a function, there is
/// no Data-In and no SCSI Response of a command with an older CmdSN.
fn assert_fenced(pair: &Pair, seed: u64) {
    let (mut sent, mut requests) = (Vec::new(), BTreeMap::new());
    let mut over: Vec<u32> = Vec::new();
    for bhs in pair.log().all() {
        let tag = BasicHeader::decode(bhs).initiator_task_tag;
        match Opcode(bhs[0] & 0x3f) {
            Opcode::SCSI_COMMAND => sent.push((tag, ScsiCommand::decode(bhs).cmd_sn)),
            Opcode::TASK_MANAGEMENT_REQUEST => {
                let request = TaskManagementRequest::decode(bhs);
                let meant = match request.function() {
                    ManagementFunction::ABORT_TASK => std::vec![request.referenced_task_tag],
                    function if !function.is_multi_task() => std::vec![],
                    _ => {
                        let older = |sent: &&(u32, SerialNumber)| sent.1.before(request.cmd_sn);
                        sent.iter().filter(older).map(|(tag, _)| *tag).collect()
                    }
                };
                requests.insert(tag, meant);
            }
            Opcode::TASK_MANAGEMENT_RESPONSE => {
                let response = TaskManagementResponse::decode(bhs).response;
                let meant = requests.remove(&tag).expect("a request");
                if response == ManagementResponse::FUNCTION_COMPLETE {
                    over.extend(meant);
                }
            }
            opcode @ (Opcode::SCSI_RESPONSE | Opcode::DATA_IN | Opcode::READY_TO_TRANSFER) => {
                assert!(!over.contains(&tag), "seed {seed}: {opcode:?} of {tag} after its end");
            }
            _ => {}
        }
    }
}

/// Goal: a reset that another initiator asks for does not touch the order or the tasks of a
/// session by itself; here each session keeps its own.
#[test]
fn functions_of_a_missing_unit() {
    let mut pair = Pair::new(3, super::PairOptions::default());
    let link = pair.login();
    let id = pair.new_id();
    let function = ManagementFunction::LOGICAL_UNIT_RESET;
    let lun = Lun::new(9);
    let referenced: Option<TaskId> = None;
    pair.manage(link, Management { id, function, lun, referenced });
    pair.run();
    let answer = pair.answer(id);
    let SimAnswer::Managed(Ok(ManagementResponse::LUN_DOES_NOT_EXIST), _) = answer else {
        panic!("{answer:?}")
    };
    pair.assert_nothing_left();
}
