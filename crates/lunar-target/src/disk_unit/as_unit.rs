//! A disk as a [`Unit`]: its commands, and its state for the nexuses that use it.

use super::DiskUnit;
use super::cost::cost;
use super::fit::{cut_to_announced_length, fit_data_in, fit_data_out};
use crate::abort::Aborted;
use crate::detached_writes::ABORT_GRACE;
use crate::execute::{
    CheckedCommand, PlanContext, READ_PIECE_BYTES, ReadMemory, copy, execute_charged, run_relayed,
    try_now,
};
use crate::manage;
use crate::plan_result::PlanResult;
use crate::quota::Cost;
use crate::save_queue::UnsavedChange;
use crate::session::SessionKey;
use crate::session_table::SessionTable;
use crate::tasks::{Execution, ExecutionFuture};
use crate::unit::{
    AcceptedCommand, AcceptedPlan, ArrivedCommand, CommandData, NexusAttachment, RefusedCommand,
    Unit, UnitCommon, UnitNexuses, UnitStatistics, Work,
};
use bytes::Bytes;
use lunar_block::BoxFuture;
use lunar_scsi::commands::{self, ListKind};
use lunar_scsi::plan::{AwaitingParameterList, Compare, NexusId, Plan, Refusal};
use lunar_scsi::primary::PrimaryUnit;
use lunar_scsi::reported_identity::ReportedIdentity;
use lunar_scsi::reservations::ItNexus;
use lunar_scsi::rights::Rights;
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::{BlockUnit, Logins, NexusOptions};
use std::sync::Arc;
use uuid::Uuid;

impl Unit for DiskUnit {
    fn common(&self) -> &UnitCommon {
        &self.common
    }

    fn uuid(&self) -> Uuid {
        self.options().uuid
    }

    fn reported_identity(&self) -> Option<&ReportedIdentity> {
        self.options().reported_identity.as_deref()
    }

    fn name(&self) -> &str {
        self.device().name()
    }

    fn with_nexuses(&self, work: &mut dyn FnMut(&mut dyn UnitNexuses)) {
        let mut scsi = self.scsi();
        work(&mut DiskNexuses { unit: self, scsi: &mut scsi });
    }

    fn check(&self, command: &ArrivedCommand<'_>) -> Result<AcceptedCommand, RefusedCommand> {
        let (generation, context) = (self.generation(), command.context());
        let planned = {
            let mut scsi = self.scsi();
            command.attach(&mut DiskNexuses { unit: self, scsi: &mut scsi });
            scsi.plan(command.nexus(), &context, command.cdb)
        };
        let (mut plan, block_bytes) = (planned?, self.block_bytes());
        let expected = u64::from(command.expected_data_out_bytes);
        cut_to_announced_length(&mut plan, expected);
        let data_out_bytes = plan.data_out_bytes(block_bytes);
        if let Err(sense) = fit_data_out(&mut plan, block_bytes, data_out_bytes, expected) {
            return Err(RefusedCommand { refusal: sense.into(), data_out_bytes });
        }
        let data_in_bytes = fit_data_in(&mut plan, block_bytes, command.expected_data_in_bytes);
        if let Some(relayed) = self.relayed_plan(&plan, command) {
            let relayed = Some(Box::new(relayed));
            let collect_bytes = plan.data_out_bytes(block_bytes) as usize;
            let work = Work::Plan(AcceptedPlan { plan, generation, relayed });
            let accepted = AcceptedCommand::new(work);
            let moved = (data_out_bytes, data_in_bytes);
            return Ok(accepted.streaming(moved, collect_bytes));
        }
        let read_bytes = read_bytes(&plan, block_bytes);
        let reads_in_pieces = read_bytes.is_some_and(|bytes| bytes > READ_PIECE_BYTES);
        let moves_blocks = matches!(plan, Plan::Read { .. } | Plan::Write { .. });
        // READ and WRITE neither report LUNs nor are fenced.
        let row = if moves_blocks { None } else { commands::row(command.cdb) };
        Ok(AcceptedCommand {
            data_in_bytes,
            data_in_buffer_bytes: read_bytes.map(|bytes| bytes.min(READ_PIECE_BYTES)),
            reads_in_pieces,
            streams: false,
            data_out_bytes,
            // At most `expected`, a u32.
            collect_bytes: plan.data_out_bytes(block_bytes) as usize,
            tries_now: moves_blocks && !reads_in_pieces,
            goes_out_of_turn: goes_out_of_turn(&plan),
            fenced: row.is_some_and(|command| command.fenced),
            reports_luns: row.is_some_and(|command| command.reports_luns),
            work: match plan {
                Plan::Reply(reply) => Work::Reply(reply),
                plan => Work::Plan(AcceptedPlan { plan, generation, relayed: None }),
            },
        })
    }

    fn try_run(&self, work: &Work, data: &mut CommandData) -> bool {
        let Work::Plan(accepted) = work else { return false };
        try_now(self, accepted.generation, &accepted.plan, data)
    }

    fn run(self: Arc<Self>, mut plan: AcceptedPlan, mut execution: Execution) -> ExecutionFuture {
        if execution.streams()
            && let Some(relayed) = plan.relayed.take()
        {
            return run_relayed(self, (plan.plan, plan.generation), relayed, execution);
        }
        Box::pin(async move {
            let result = match execution.begin().await {
                Ok(data) => self.run_plan(&execution, plan, data).await,
                Err(Aborted) => PlanResult::Aborted,
            };
            execution.end(result)
        })
    }

    fn encode_sense(&self, sense: &Sense) -> Vec<u8> {
        self.scsi().encode_sense(sense)
    }

    fn cost(&self, cdb: &[u8], work: &Work) -> Option<Cost> {
        match work {
            Work::Plan(accepted) => cost(cdb, Some(&accepted.plan), self),
            Work::Reply(_) | Work::Job(_) => cost(cdb, None, self),
        }
    }

    fn statistics(&self) -> UnitStatistics {
        let device = self.device();
        UnitStatistics {
            cache: self.options().cache,
            io_tier: device.io_tier(),
            size_bytes: device.geometry().size_bytes(),
            held_writes: self.held_writes() as u64,
            space: self.space_usage(),
            relayed: device.relay_map().map(|_| self.common.relay_counts.read()),
            backing_fault: !self.backing_faults().is_empty(),
            link: device.link(),
            syncs: device.sync_counts(),
        }
    }

    fn is_read_only(&self) -> bool {
        Self::is_read_only(self)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), lunar_block::Error>> {
        self.device().flush()
    }

    fn stop_operation(&self, stopping: bool) {
        Self::stop_operation(self, stopping);
    }

    fn has_running_operation(&self) -> bool {
        Self::has_running_operation(self)
    }

    fn saves(&self) -> bool {
        Self::saves(self)
    }
}

/// Number of data bytes that a read holds in memory until they are sent.
#[inline]
fn read_bytes(plan: &Plan, block_bytes: u32) -> Option<usize> {
    let Plan::Read { range, .. } = plan else { return None };
    let bytes = range.count * u64::from(block_bytes);
    Some(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// True when a command holds its blocks while it waits, exclusively or from a write to its end:
/// others that need these blocks wait for it.
fn goes_out_of_turn(plan: &Plan) -> bool {
    match plan {
        Plan::CompareAndWrite { .. } | Plan::OrWrite { .. } | Plan::WriteAtomic { .. } => true,
        Plan::WriteAndVerify { compare, .. } => *compare != Compare::Medium,
        _ => false,
    }
}

impl DiskUnit {
    async fn run_plan(
        self: &Arc<Self>,
        execution: &Execution,
        accepted: AcceptedPlan,
        data: CommandData,
    ) -> PlanResult {
        let Execution { session, memory, .. } = execution;
        let AcceptedPlan { mut plan, generation, .. } = accepted;
        let (abort, quota_charge) = (execution.abort.clone(), execution.quota_charge.clone());
        let (read_memory, mut data) = ReadMemory::split(data);
        let mut unsaved = None;
        // The plan contains the values of the parameters: their charge also covers the plan.
        let mut _parameters = Bytes::new();
        if let Plan::Parameters { awaiting, .. } = plan {
            (plan, unsaved) = match self.resume(execution, awaiting, &data) {
                Ok(resumed) => resumed,
                Err(refused) => return refused,
            };
            _parameters = std::mem::take(&mut data);
        }
        if let Plan::AbortTasksOf { nexuses, save } = plan {
            // If this command is aborted, it does not wait any longer: the wait may be for a task
            // that waits for this one. All tasks that it was to abort are aborted all the same:
            // their nexuses have lost their registrations already. The work stays charged to the
            // owner, whose further commands are refused while it holds too much.
            let aborting = self.abort_tasks_of(execution, nexuses);
            let aborting = lunar_net::spawn_local_for(session.time_owner, aborting);
            let _ = abort.unless(aborting).await;
            plan = if save { Plan::SaveState } else { Plan::Reply(Vec::new()) };
        }
        if let Plan::Copy { list } = plan {
            // The future is large and rarely needed.
            return Box::pin(copy(session, self, list, abort, &quota_charge, memory)).await;
        }
        if let (Plan::SaveState, Some(change)) = (&plan, unsaved) {
            return change.saved(&abort).await;
        }
        let (memory, checked) =
            (memory.clone(), CheckedCommand::new(generation, execution.cdb.clone()));
        let work = PlanContext {
            session,
            checked: &checked,
            data,
            read_memory,
            abort,
            quota_charge,
            memory,
        };
        execute_charged(Arc::clone(self), plan, work).await
    }

    /// Checks a command whose parameter list has arrived. Returns its plan, and the change of the
    /// reservations that is being saved.
    fn resume(
        self: &Arc<Self>,
        by: &Execution,
        awaiting: AwaitingParameterList,
        list: &[u8],
    ) -> Result<(Plan, Option<UnsavedChange>), PlanResult> {
        let Execution { services, session, memory, .. } = by;
        let kind = awaiting.kind;
        if kind == ListKind::NexusBuffer && !session.charge_buffers(self, &memory.buffers) {
            return Err(PlanResult::Busy);
        }
        let resume = |scsi: &mut BlockUnit| {
            let view = session.view();
            let logins = UnitLogins { sessions: &services.sessions, unit: self };
            scsi.resume(session.nexus, &session.context_at(&view, &logins), awaiting, list)
        };
        let (resumed, unsaved) = match kind {
            ListKind::Reservations if by.abort.check().is_err() => {
                return Err(PlanResult::Aborted);
            }
            ListKind::Reservations => {
                let origin = session.owner().origin;
                self.change_reservations(&services.registration_room, origin, resume)
            }
            _ => (resume(&mut self.scsi()), None),
        };
        match resumed {
            Ok(plan) => Ok((plan, unsaved)),
            Err(Refusal::Check(sense)) => Err(PlanResult::Check(sense)),
            Err(Refusal::ReservationConflict) => Err(PlanResult::Conflict),
            Err(Refusal::Busy) => Err(PlanResult::Busy),
        }
    }

    /// Aborts the tasks of these nexuses for a command, and waits for their copies, which may be
    /// tasks of other units. They can no longer use this disk, except for the writes in progress.
    /// If the disk hangs these may take for ever: as with aborted writes, I/O to their blocks
    /// waits, and no other I/O.
    fn abort_tasks_of(
        self: &Arc<Self>,
        by: &Execution,
        nexuses: Vec<NexusId>,
    ) -> impl Future<Output = ()> + use<> {
        let (sessions, session) = (Arc::clone(&by.services.sessions), Arc::clone(&by.session));
        let disk = Arc::clone(self);
        let aborted = manage::abort_tasks_of(sessions, session, Arc::<Self>::clone(self), nexuses);
        async move {
            let _charge = aborted.await;
            if tokio::time::timeout(ABORT_GRACE, disk.copies.wait()).await.is_err() {
                disk.ranges.block_readers_of_copies();
            }
        }
    }
}

/// The state of a disk for its nexuses, under its lock.
struct DiskNexuses<'a> {
    unit: &'a DiskUnit,
    scsi: &'a mut BlockUnit,
}

/// The part of that state to which a nexus is attached.
struct DiskAttachment<'a> {
    unit: &'a DiskUnit,
    scsi: &'a mut PrimaryUnit,
}

impl NexusAttachment for DiskAttachment<'_> {
    fn attach(&mut self, nexus: NexusId, options: NexusOptions) {
        if let Some(losses) = self.unit.device().cache_losses() {
            self.unit.cache_losses.begin(&options.ports, losses);
        }
        self.scsi.attach_with(nexus, options);
    }

    fn raise_for(&mut self, attention_code: u16, nexus: NexusId) {
        self.scsi.raise_for(attention_code, nexus);
    }
}

impl NexusAttachment for DiskNexuses<'_> {
    fn attach(&mut self, nexus: NexusId, options: NexusOptions) {
        DiskAttachment { unit: self.unit, scsi: self.scsi }.attach(nexus, options);
    }

    fn raise_for(&mut self, attention_code: u16, nexus: NexusId) {
        self.scsi.raise_for(attention_code, nexus);
    }
}

impl UnitNexuses for DiskNexuses<'_> {
    fn detach(&mut self, nexus: NexusId) {
        if let Some(ports) = self.scsi.ports(nexus) {
            self.unit.cache_losses.end(&SessionKey::of_nexus(ports));
        }
        self.scsi.detach(nexus);
    }

    fn nexus_loss(&mut self, nexus: NexusId) {
        self.scsi.nexus_loss(nexus);
    }

    fn set_rights(&mut self, nexus: NexusId, rights: Rights) {
        self.scsi.set_rights(nexus, rights);
    }

    fn luns_were_reported(&mut self, nexus: NexusId) {
        self.scsi.luns_were_reported(nexus);
    }

    fn reset(&mut self, by: Option<NexusId>) {
        self.scsi.reset(by);
    }

    fn expect_login_after_reset(&mut self, nexus: NexusId) {
        self.scsi.expect_login_after_reset(nexus);
    }

    fn pending_event(&mut self, nexus: NexusId) -> Option<[u8; 3]> {
        self.scsi.pending_event(nexus)
    }

    fn nexuses_from(&self, first: NexusId, count: usize) -> Vec<NexusId> {
        self.scsi.nexuses_from(first, count)
    }

    fn last_nexus(&self) -> Option<NexusId> {
        self.scsi.last_nexus()
    }
}

/// The sessions that see a disk, for the disk itself.
#[derive(Debug)]
struct UnitLogins<'a> {
    sessions: &'a SessionTable,
    unit: &'a Arc<DiskUnit>,
}

impl Logins for UnitLogins<'_> {
    /// Called under the lock of the unit's SCSI state, which is taken before those of the sessions.
    fn attach(&self, ports: &ItNexus, scsi: &mut PrimaryUnit) {
        let session = self.sessions.lock().find(&SessionKey::of_nexus(ports));
        if let Some(session) = session {
            session.attach_to(self.unit, &mut DiskAttachment { unit: self.unit, scsi });
        }
    }
}

#[cfg(test)]
impl crate::session::Session {
    /// Locks the SCSI state of the disk of `nexus`, and attaches the nexus.
    pub(crate) fn scsi_at<'a>(
        &self,
        nexus: &'a crate::itl_nexus::ItlNexus,
    ) -> super::ScsiGuard<'a> {
        let unit = DiskUnit::borrow(&*nexus.unit).unwrap();
        let mut scsi = unit.scsi();
        self.attach(nexus, &mut DiskNexuses { unit, scsi: &mut scsi });
        scsi
    }
}
