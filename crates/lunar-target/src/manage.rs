//! Task management across sessions: what a function does beyond the session that asked.
//! RFC 7143 §4.2.3, §11.5; SAM-5 §7.

use crate::detached_writes::ABORT_GRACE;
use crate::resets::{reset_target, reset_unit};
use crate::server::Shared;
use crate::session::Session;
use crate::unit::LogicalUnit;
use futures_util::future::join_all;
use lunar_iscsi::pdu::{ManagementFunction, ManagementResponse};
use lunar_iscsi::session::target::Input;
use lunar_scsi::plan::NexusId;
use lunar_wire::Lun;
use std::collections::BTreeSet;
use std::sync::Arc;

/// COMMANDS CLEARED BY ANOTHER INITIATOR.
const COMMANDS_CLEARED: u16 = 0x2f00;

/// Runs the rest of a function on this core, then tells the session.
pub(crate) fn spawn(
    shared: Arc<Shared>,
    session: Arc<Session>,
    id: u64,
    function: ManagementFunction,
    lun: Lun,
) {
    lunar_net::spawn_local_for(session.time_owner, async move {
        let (response, information) = match function {
            ManagementFunction::QUERY_ASYNCHRONOUS_EVENT => pending_event(&session, lun),
            _ => (run(&shared, &session, function, lun).await, [0; 3]),
        };
        let cold = function == ManagementFunction::TARGET_COLD_RESET;
        if cold {
            // Before its session ends, which it does once it has its answer.
            shared.target_resets.expect_return(&session);
            let view = session.view();
            view.units().iter().for_each(|unit| unit.scsi().expect_return(session.nexus));
        }
        session.managed(&shared, Input::Managed { id, response, information });
        if cold {
            end_all(&shared, &session).await;
        }
    });
}

async fn run(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    function: ManagementFunction,
    lun: Lun,
) -> ManagementResponse {
    match function {
        ManagementFunction::TARGET_WARM_RESET | ManagementFunction::TARGET_COLD_RESET => {
            reset_target(shared, session).await;
        }
        ManagementFunction::I_T_NEXUS_RESET => {
            session.lose_nexus();
        }
        _ => {
            let Some(unit) = session.unit(lun) else {
                return ManagementResponse::LUN_DOES_NOT_EXIST;
            };
            match function {
                // This session's own tasks are quiet already; nothing else is meant. The task set
                // is the nexus's own: TST is 001b.
                ManagementFunction::ABORT_TASK_SET | ManagementFunction::CLEAR_TASK_SET => {}
                // The unit is there; what runs on it the session knows.
                ManagementFunction::QUERY_TASK | ManagementFunction::QUERY_TASK_SET => {}
                ManagementFunction::LOGICAL_UNIT_RESET => {
                    reset_unit(shared, session, &unit).await;
                }
                _ => return ManagementResponse::FUNCTION_NOT_SUPPORTED,
            }
        }
    }
    ManagementResponse::FUNCTION_COMPLETE
}

/// RFC 7144 §6.4.2: FUNCTION SUCCEEDED if something waits to be told, which waits on.
fn pending_event(session: &Session, lun: Lun) -> (ManagementResponse, [u8; 3]) {
    let Some(unit) = session.unit(lun) else {
        return (ManagementResponse::LUN_DOES_NOT_EXIST, [0; 3]);
    };
    match session.scsi_of(&unit).pending_event(session.nexus) {
        Some(information) => (ManagementResponse::FUNCTION_SUCCEEDED, information),
        None => (ManagementResponse::FUNCTION_COMPLETE, [0; 3]),
    }
}

/// PREEMPT AND ABORT: the tasks of these nexuses on this unit; who lost some is told, as SAM-5 §5.6
/// has it for commands that another nexus clears. Those of the nexus that asks are left alone: the
/// command itself is one of them.
pub(crate) async fn abort_tasks_of(
    shared: Arc<Shared>,
    by: Arc<Session>,
    unit: Arc<LogicalUnit>,
    nexuses: Vec<NexusId>,
) {
    let nexuses: BTreeSet<_> = nexuses.into_iter().filter(|nexus| *nexus != by.nexus).collect();
    let mut begun = Vec::new();
    for nexus in nexuses {
        begun.extend(shared.visits.abort(&shared, nexus, &unit).await);
    }
    begun.retain(|(_, aborted)| !aborted.is_empty());
    let aborts = begun.into_iter().map(async |(other, aborted)| {
        let mut tasks: u32 = 0;
        for of_number in aborted {
            tasks = tasks.saturating_add(of_number.await.unwrap_or(0));
        }
        if tasks > 0 {
            other.scsi_of(&unit).raise_for(COMMANDS_CLEARED, other.nexus);
        }
    });
    join_all(aborts).await;
    // Their copies may be tasks of other units. They are shut out of this one by now, but for what
    // is being written. Where the disk hangs that may take for ever: as with aborted writes, who
    // wants those blocks waits, and nobody else.
    if tokio::time::timeout(ABORT_GRACE, unit.copies.wait()).await.is_err() {
        unit.ranges.seclude_copies();
    }
}

/// TARGET COLD RESET ends every session of the target, RFC 7143 §11.5.1. The one that asked ends by
/// itself once it has its answer. The target is what an initiator sees of it: a session that uses
/// units which it does not see goes on, without its tasks on those that it does.
async fn end_all(shared: &Arc<Shared>, by: &Arc<Session>) {
    let nexuses = shared.sessions().nexuses();
    let seen = Arc::clone(&by.view());
    for nexus in nexuses.into_iter().filter(|nexus| *nexus != by.nexus) {
        let visit = || {
            let session = shared.sessions().of_nexus(nexus);
            let session = session.filter(|session| {
                session.key.target_name == by.key.target_name && !session.is_ending()
            });
            let Some(session) = session else { return ((), 0) };
            let tasks = session.tasks();
            if seen.shows_all_of(&session.view()) {
                session.end(shared);
            }
            ((), tasks)
        };
        shared.visits.visit(visit).await;
    }
}
