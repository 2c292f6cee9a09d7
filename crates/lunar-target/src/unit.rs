//! A logical unit as the target sees it.
//!
//! Sessions, LUN tables, access rules, limits, statistics and task management know a unit only as a
//! [`Unit`]. A unit checks a command without I/O ([`Unit::check`]). The target then charges the
//! command, collects its data, orders it in its task set, and has it run.

use crate::disk_unit::RelayedPlan;
use crate::execute::PieceReader;
use crate::itl_nexus::ItlNexus;
use crate::quota::{Cost, InitiatorLimit, Limit, UnitQuota};
use crate::relay::{ConnectionRelay, RelayCounts, RelayStatistics};
use crate::request_queue::ResetQueue;
use crate::session::Session;
use crate::streams::DataStreams;
use crate::tasks::{Execution, ExecutionFuture};
use crate::view::View;
use crate::{CacheMode, OperationClass};
use bytes::Bytes;
use lunar_block::{BoxFuture, Buffer, DeviceLink, SpaceUsage, SyncCounts};
use lunar_scsi::plan::{NexusId, Plan, Refusal};
use lunar_scsi::reported_identity::ReportedIdentity;
use lunar_scsi::rights::Rights;
use lunar_scsi::sense::{Sense, SenseFormat};
use lunar_scsi::unit::{Context, NexusOptions};
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// A logical unit, which any number of LUNs may show.
pub trait Unit: Any + fmt::Debug + Send + Sync {
    /// The parts that the target keeps for each unit.
    fn common(&self) -> &UnitCommon;

    /// The identity of the unit.
    fn uuid(&self) -> Uuid;

    /// The identity of another unit that hosts see in place of the own one; `None` if the identity
    /// is derived from [`uuid`](Self::uuid).
    fn reported_identity(&self) -> Option<&ReportedIdentity> {
        None
    }

    /// Name of the unit in the log.
    fn name(&self) -> &str;

    /// Calls `work` with the state of the nexuses of the unit, under the lock of the unit. `work`
    /// waits for nothing and calls no other function of the unit.
    fn with_nexuses(&self, work: &mut dyn FnMut(&mut dyn UnitNexuses));

    /// Checks a command, without I/O. The nexus is [attached](ArrivedCommand::attach) first, under
    /// the lock of the unit.
    ///
    /// # Errors
    /// The refusal to answer with.
    fn check(&self, command: &ArrivedCommand<'_>) -> Result<AcceptedCommand, RefusedCommand>;

    /// Checks a command with [streams](AcceptedCommand::streams) again when it gets its first
    /// data-out, or is found to have none: commands of other nexuses may have changed the unit
    /// since. It consumes no unit attention.
    ///
    /// # Errors
    /// The refusal to answer with; the command has had no effect.
    fn check_again(&self, command: &ArrivedCommand<'_>) -> Result<(), Refusal> {
        let _ = command;
        Ok(())
    }

    /// Runs the work of a command that [tries to run now](AcceptedCommand::tries_now), if no
    /// waiting is needed and the command ends with GOOD; its data-in is then in `data`. Otherwise
    /// returns
    /// `false`, and the command continues in [`run`](Self::run) or in its job.
    fn try_run(&self, work: &Work, data: &mut CommandData) -> bool {
        let _ = (work, data);
        false
    }

    /// Runs a plan that the unit has checked. Units without plans keep the default, which ends with
    /// an internal failure.
    fn run(self: Arc<Self>, plan: AcceptedPlan, execution: Execution) -> ExecutionFuture {
        drop(plan);
        execution.fail()
    }

    /// Encodes sense data in the format that the unit is set to.
    fn encode_sense(&self, sense: &Sense) -> Vec<u8> {
        sense.encode(SenseFormat::Fixed)
    }

    /// Class in which a command is counted.
    fn operation_class(&self, cdb: &[u8]) -> OperationClass {
        OperationClass::of(cdb)
    }

    /// Cost of a command where commands or their data are limited; `None` if it is free. Asked only
    /// at a unit with limits, before the command begins.
    fn cost(&self, cdb: &[u8], work: &Work) -> Option<Cost>;

    /// Current values for the statistics.
    fn statistics(&self) -> UnitStatistics {
        UnitStatistics::default()
    }

    /// True when nothing is ever written to the unit.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Makes all acknowledged writes durable, when the unit is no longer served.
    fn flush(&self) -> BoxFuture<'_, Result<(), lunar_block::Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Stops operations that continue without a command where they are, or allows them again.
    fn stop_operation(&self, stopping: bool) {
        let _ = stopping;
    }

    /// True while an operation continues without a command.
    fn has_running_operation(&self) -> bool {
        false
    }

    /// True while the unit saves its state.
    fn saves(&self) -> bool {
        false
    }
}

impl dyn Unit {
    /// Calls `work` with the state of the nexuses, under the lock of the unit.
    pub(crate) fn nexuses<R: Default>(&self, work: impl FnOnce(&mut dyn UnitNexuses) -> R) -> R {
        let (mut work, mut result) = (Some(work), R::default());
        self.with_nexuses(&mut |nexuses| {
            if let Some(work) = work.take() {
                result = work(nexuses);
            }
        });
        result
    }

    /// The limits of the unit.
    pub(crate) fn quota(&self) -> &Arc<UnitQuota> {
        &self.common().quota
    }
}

/// The attachment of nexuses to a unit, under the lock of the unit.
pub trait NexusAttachment {
    /// Attaches a nexus, at the latest with its first command. It gets the power-on as its first
    /// unit attention, unless the unit knows better, then those raised since its login.
    fn attach(&mut self, nexus: NexusId, options: NexusOptions);

    /// Raises a unit attention (`0xAAQQ`) for one nexus; ignores a nexus that is not attached.
    fn raise_for(&mut self, attention_code: u16, nexus: NexusId);
}

/// State of a unit for the nexuses that are attached to it. All methods are called under the lock
/// of the unit, and ignore a nexus that is not attached.
pub trait UnitNexuses: NexusAttachment {
    /// Detaches a nexus, and removes its state.
    fn detach(&mut self, nexus: NexusId);

    /// Handles I_T NEXUS RESET: state of the nexus alone is removed, and its initiator gets I_T
    /// NEXUS LOSS OCCURRED. SAM-5 §6.3.4.
    fn nexus_loss(&mut self, nexus: NexusId);

    /// Sets the rights of the initiator of a nexus.
    fn set_rights(&mut self, nexus: NexusId, rights: Rights);

    /// Clears the unit attention of changed LUNs, because the initiator has read the list of LUNs.
    fn luns_were_reported(&mut self, nexus: NexusId);

    /// Handles LOGICAL UNIT RESET, or a reset of the target, whose tasks have been aborted. All
    /// nexuses get a unit attention except `by`, which alone has requested the reset.
    fn reset(&mut self, by: Option<NexusId>);

    /// Records that a nexus has requested a reset that ends its session: the initiator's next
    /// nexus ([`NexusOptions::returns_from`]) gets no unit attention for it.
    fn expect_login_after_reset(&mut self, nexus: NexusId);

    /// Additional Response Information of QUERY ASYNCHRONOUS EVENT: the next unit attention of the
    /// nexus, which stays pending. SAM-5 §7.
    fn pending_event(&mut self, nexus: NexusId) -> Option<[u8; 3]>;

    /// Up to `count` of the attached nexuses from `first` on, in ascending order.
    fn nexuses_from(&self, first: NexusId, count: usize) -> Vec<NexusId>;

    /// The attached nexus with the largest number.
    fn last_nexus(&self) -> Option<NexusId>;
}

/// The parts that the target keeps for each unit: its limits, and the resets that wait.
#[derive(Debug, Default)]
pub struct UnitCommon {
    quota: Arc<UnitQuota>,
    /// LOGICAL UNIT RESETs that wait for their turn.
    pub(crate) resets: ResetQueue,
    /// Commands whose data was relayed.
    pub(crate) relay_counts: RelayCounts,
}

impl UnitCommon {
    /// Limit of all initiators together.
    pub fn limit(&self) -> Limit {
        self.quota.limit()
    }

    /// Sets the limit of all initiators together, from now on; waiting commands are checked again.
    pub fn set_limit(&self, limit: Limit) {
        self.quota.set_limit(limit);
    }

    /// Limits of each initiator at the unit.
    pub fn initiator_limits(&self) -> Vec<InitiatorLimit> {
        self.quota.initiators().limits()
    }

    /// Sets the limits of each initiator at the unit, from now on.
    pub fn set_initiator_limits(&self, limits: Vec<InitiatorLimit>) {
        self.quota.initiators().set(limits);
    }

    pub(crate) fn quota(&self) -> &Arc<UnitQuota> {
        &self.quota
    }
}

/// A command to be checked, and the nexus that has sent it.
#[derive(Debug)]
pub struct ArrivedCommand<'a> {
    /// The CDB: 16 bytes, of which a short one uses the first, or more.
    pub cdb: &'a [u8],
    /// Length of the data-out that the initiator announces.
    pub expected_data_out_bytes: u32,
    /// Length of the data-in that the initiator has room for.
    pub expected_data_in_bytes: u32,
    pub(crate) session: &'a Session,
    pub(crate) view: &'a View,
    pub(crate) nexus: &'a ItlNexus,
    /// The relay of the connection, if it has one.
    pub(crate) relay: Option<&'a Rc<dyn ConnectionRelay>>,
}

impl<'a> ArrivedCommand<'a> {
    /// The nexus that has sent the command.
    pub fn nexus(&self) -> NexusId {
        self.session.nexus
    }

    /// Data for commands that concern more than the unit: the initiator's LUNs, the target's ports.
    pub fn context(&self) -> Context<'a> {
        self.session.context(self.view)
    }

    /// Attaches the nexus to the unit that checks the command, unless it is attached already.
    /// Called under the lock of the unit, before its state for the nexus is used.
    #[inline]
    pub fn attach(&self, nexuses: &mut dyn NexusAttachment) {
        if !self.nexus.is_attached() {
            self.session.attach(self.nexus, nexuses);
        }
    }
}

/// A command that may run.
#[derive(Debug)]
pub struct AcceptedCommand {
    /// The work of the command.
    pub work: Work,
    /// Data-out that the command would transfer in bytes, for the residual.
    pub data_out_bytes: u64,
    /// Data-out in bytes that the command runs with: at most as much as is announced.
    pub collect_bytes: usize,
    /// Length of the buffer for data-in that the command runs with. It counts as data of a read,
    /// and is taken when all data-out has arrived.
    pub data_in_buffer_bytes: Option<usize>,
    /// True if that is the length of a piece: the command gets [`CommandData::Pieces`].
    pub reads_in_pieces: bool,
    /// True if the command takes its data-out as it arrives and gives its data-in in pieces: it
    /// begins without its data, and gets [`CommandData::Streams`] instead of buffers. Its data-out
    /// may be longer than a buffer.
    pub streams: bool,
    /// Data-in that the command would transfer in bytes, for the residual, if it returns less
    /// because the initiator has no room for more.
    pub data_in_bytes: u32,
    /// True if the unit tries to run the command at once ([`Unit::try_run`]).
    pub tries_now: bool,
    /// True if commands of other owners may wait for this one while it waits.
    pub goes_out_of_turn: bool,
    /// True if no later response may pass its response.
    pub fenced: bool,
    /// True if it reports the LUNs that the initiator may see.
    pub reports_luns: bool,
}

impl AcceptedCommand {
    /// A command that transfers nothing but the data-in that its work returns.
    pub fn new(work: Work) -> Self {
        Self {
            work,
            data_out_bytes: 0,
            collect_bytes: 0,
            data_in_buffer_bytes: None,
            reads_in_pieces: false,
            streams: false,
            data_in_bytes: 0,
            tries_now: false,
            goes_out_of_turn: false,
            fenced: false,
            reports_luns: false,
        }
    }

    /// The command, whose data moves while it runs. `moved` is the data-out and the data-in that it
    /// would transfer, and `collect_bytes` the data-out that it runs with.
    pub(crate) fn streaming(self, moved: (u64, u32), collect_bytes: usize) -> Self {
        let (data_out_bytes, data_in_bytes) = moved;
        Self { streams: true, data_out_bytes, data_in_bytes, collect_bytes, ..self }
    }

    /// Data-out that the command would transfer, as far as its residual can say.
    #[inline]
    pub(crate) fn wants_bytes(&self) -> u32 {
        u32::try_from(self.data_out_bytes).unwrap_or(u32::MAX)
    }
}

/// A command that may not run.
#[derive(Debug)]
pub struct RefusedCommand {
    /// The answer.
    pub refusal: Refusal,
    /// Data-out that the command would have transferred in bytes, for the residual.
    pub data_out_bytes: u64,
}

impl From<Refusal> for RefusedCommand {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, data_out_bytes: 0 }
    }
}

impl From<Sense> for RefusedCommand {
    fn from(sense: Sense) -> Self {
        Refusal::Check(sense).into()
    }
}

/// The work of an accepted command.
#[derive(Debug)]
pub enum Work {
    /// Answer GOOD with this data-in, when the command's turn in its task set has come.
    Reply(Vec<u8>),
    /// A plan of a unit for block commands, kept without an allocation.
    Plan(AcceptedPlan),
    /// Any other work.
    Job(Job),
}

/// A plan, and the state of the unit in which it was checked.
#[derive(Debug)]
pub struct AcceptedPlan {
    pub(crate) plan: Plan,
    /// The [`generation`](crate::disk_unit::DiskUnit::generation) from before the check.
    pub(crate) generation: crate::long_operation::Generation,
    /// The parts that a relay moves; `None`: the device moves the data.
    pub(crate) relayed: Option<Box<RelayedPlan>>,
}

/// Work of a command in a box.
pub struct Job(Box<dyn FnOnce(Execution) -> ExecutionFuture>);

impl Job {
    /// Creates the work of a command. The future of `run` first waits for the command's turn
    /// ([`Execution::begin`]), and calls [`Execution::end`] last.
    ///
    /// A future of more than 4 KiB boxes its larger parts: that much is charged for it.
    pub fn new<F>(run: impl FnOnce(Execution) -> F + 'static) -> Self
    where
        F: Future<Output = crate::ExecutionEnd> + 'static,
    {
        Self(Box::new(move |execution| Box::pin(run(execution))))
    }

    pub(crate) fn run(self, execution: Execution) -> ExecutionFuture {
        (self.0)(execution)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Job")
    }
}

/// The data of a command that is about to run.
#[derive(Debug, Default)]
pub enum CommandData {
    /// No data.
    #[default]
    None,
    /// Buffer for its data-in.
    In(Buffer),
    /// Memory for its data-in, which is read and sent in pieces.
    Pieces(PieceReader),
    /// Its data-out as it arrives, and its data-in in pieces.
    Streams(Box<DataStreams>),
    /// Buffer with all its data-out.
    Out(Buffer),
    /// Both, of a bidirectional command.
    Both {
        /// Buffer with all its data-out.
        data_out: Buffer,
        /// Buffer for its data-in.
        data_in: Buffer,
    },
}

impl CommandData {
    /// The buffer for data-in that is not read in pieces, and the data-out.
    pub fn split(self) -> (Option<Buffer>, Bytes) {
        match self {
            Self::None | Self::Pieces(_) | Self::Streams(_) => (None, Bytes::new()),
            Self::In(data_in) => (Some(data_in), Bytes::new()),
            Self::Out(data_out) => (None, data_out.freeze()),
            Self::Both { data_out, data_in } => (Some(data_in), data_out.freeze()),
        }
    }

    /// The data-in of a command that has run.
    #[inline]
    pub(crate) fn into_reply(self) -> Bytes {
        match self {
            Self::In(data_in) | Self::Both { data_in, .. } => data_in.freeze(),
            Self::None | Self::Pieces(_) | Self::Streams(_) | Self::Out(_) => Bytes::new(),
        }
    }
}

/// Current values of a unit for the statistics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnitStatistics {
    /// Cache mode.
    pub cache: CacheMode,
    /// Method of its I/O.
    pub io_tier: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Writes that wait for room.
    pub held_writes: u64,
    /// Space of a thin disk in a file; `None` if unknown.
    pub space: Option<SpaceUsage>,
    /// Commands that were given to a relay; `None` for a unit whose device has no relay map.
    pub relayed: Option<RelayStatistics>,
    /// True when its backing file has a fault.
    pub backing_fault: bool,
    /// State of the connection to its device; `None` for a device of this machine.
    pub link: Option<DeviceLink>,
    /// Its syncs; `None` if it has none, or they are not counted.
    pub syncs: Option<SyncCounts>,
}
