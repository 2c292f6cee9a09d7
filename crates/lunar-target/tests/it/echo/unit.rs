//! A unit that is no disk: it returns the data-out of a command as data-in.
//!
//! ECHO has a CDB of 200 bytes (variable length, SPC-4 §4.2.3) with these fields:
//!
//! | byte | field |
//! |---|---|
//! | 0 | 7Fh |
//! | 7 | ADDITIONAL CDB LENGTH: 192 |
//! | 8–9 | SERVICE ACTION: F001h |
//! | 12–15 | length of the data-out |
//! | 16–19 | ALLOCATION LENGTH |
//! | 20, bit 0 | HOLD: the command waits until the test releases it |
//! | 20, bit 1 | FAIL: CHECK CONDITION after the data-in |
//! | 20, bit 2 | STREAM: the data is returned as it arrives; HOLD keeps the first piece |
//! | 199 | KEY: each byte of the data is combined with it (XOR) |

use bytes::Bytes;
use lunar_block::{MemoryBudget, MemoryKind};
use lunar_iscsi::framing::SegmentDigest;
use lunar_scsi::attention::{Attention, AttentionQueue};
use lunar_scsi::plan::{NexusId, Refusal};
use lunar_scsi::rights::Rights;
use lunar_scsi::sense::{Sense, SenseKey};
use lunar_scsi::unit::NexusOptions;
use lunar_target::{
    AcceptedCommand, ArrivedCommand, CommandData, Cost, DataOutError, DataStreams, Execution,
    ExecutionEnd, Job, NexusAttachment, OperationClass, PlanResult, RefusedCommand, Unit,
    UnitCommon, UnitNexuses, UnitStatistics, Work,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::watch;

/// Peripheral device type of object-based storage. SPC-4 table 143.
pub const DEVICE_TYPE: u8 = 0x11;
pub const CDB_BYTES: usize = 200;
/// The longest data of a command.
pub const DATA_BYTES_MAX: u32 = 8 << 20;
/// Sense of a command with FAIL.
pub const FAILED: Sense = Sense::new(SenseKey::ABORTED_COMMAND, 0x4400);

const VARIABLE_LENGTH: u8 = 0x7f;
const ECHO: u16 = 0xf001;
const HOLD: u8 = 1;
const FAIL: u8 = 2;
const STREAM: u8 = 4;

/// An ECHO command.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Echo {
    pub data_out_bytes: u32,
    pub allocation_bytes: u32,
    pub hold: bool,
    pub fail: bool,
    pub stream: bool,
    pub key: u8,
}

impl Echo {
    /// A command that returns all of its data.
    pub fn of(bytes: u32) -> Self {
        Self { data_out_bytes: bytes, allocation_bytes: bytes, ..Self::default() }
    }

    pub fn cdb(self) -> Vec<u8> {
        let mut cdb = vec![0; CDB_BYTES];
        cdb[0] = VARIABLE_LENGTH;
        cdb[7] = (CDB_BYTES - 8) as u8;
        cdb[8..10].copy_from_slice(&ECHO.to_be_bytes());
        cdb[12..16].copy_from_slice(&self.data_out_bytes.to_be_bytes());
        cdb[16..20].copy_from_slice(&self.allocation_bytes.to_be_bytes());
        let flags = [(self.hold, HOLD), (self.fail, FAIL), (self.stream, STREAM)];
        cdb[20] = flags.into_iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum();
        cdb[199] = self.key;
        cdb
    }

    fn parse(cdb: &[u8]) -> Result<Self, Sense> {
        if cdb.len() != CDB_BYTES || cdb[7] as usize != CDB_BYTES - 8 {
            return Err(Sense::invalid_field_in_cdb(7, None));
        }
        if u16::from_be_bytes([cdb[8], cdb[9]]) != ECHO {
            return Err(Sense::invalid_field_in_cdb(8, None));
        }
        let word = |at: usize| u32::from_be_bytes(cdb[at..at + 4].try_into().unwrap());
        let (data_out_bytes, allocation_bytes) = (word(12), word(16));
        if data_out_bytes > DATA_BYTES_MAX {
            return Err(Sense::invalid_field_in_cdb(12, None));
        }
        let [hold, fail, stream] = [HOLD, FAIL, STREAM].map(|bit| cdb[20] & bit != 0);
        Ok(Self { data_out_bytes, allocation_bytes, hold, fail, stream, key: cdb[199] })
    }
}

/// The unit.
#[derive(Debug)]
pub struct EchoUnit {
    common: UnitCommon,
    uuid: uuid::Uuid,
    state: Arc<EchoState>,
}

/// State of the unit, which its running commands share.
#[derive(Debug)]
pub struct EchoState {
    nexuses: Mutex<EchoNexuses>,
    /// True when commands with HOLD continue.
    released: watch::Sender<bool>,
    /// Number of ECHO commands that have begun.
    pub begun: AtomicUsize,
    /// Number of ECHO commands that were aborted after they had begun.
    pub aborted: AtomicUsize,
    /// Number of those with STREAM whose transfer failed.
    pub failed: AtomicUsize,
    /// Number of pieces that those with STREAM have got, and of those with a digest.
    pub pieces: AtomicUsize,
    pub digests: AtomicUsize,
    /// The most memory of data-out in use when a piece came.
    pub data_out_most: AtomicUsize,
    /// Budget of the server.
    pub budget: OnceLock<MemoryBudget>,
    /// True when commands with STREAM are refused as they get their first data.
    pub refuses: AtomicBool,
}

impl EchoUnit {
    pub fn new(uuid: u128) -> Self {
        let state = EchoState {
            nexuses: Mutex::default(),
            released: watch::Sender::new(false),
            begun: AtomicUsize::new(0),
            aborted: AtomicUsize::new(0),
            failed: AtomicUsize::new(0),
            pieces: AtomicUsize::new(0),
            digests: AtomicUsize::new(0),
            data_out_most: AtomicUsize::new(0),
            budget: OnceLock::new(),
            refuses: AtomicBool::new(false),
        };
        Self {
            common: UnitCommon::default(),
            uuid: uuid::Uuid::from_u128(uuid),
            state: Arc::new(state),
        }
    }

    pub fn state(&self) -> &EchoState {
        &self.state
    }

    fn inquiry(&self, cdb: &[u8]) -> Result<Vec<u8>, Sense> {
        const EVPD: u8 = 1;
        if cdb[1] & EVPD != 0 || cdb[2] != 0 {
            return Err(Sense::invalid_field_in_cdb(2, None));
        }
        let mut data = vec![DEVICE_TYPE, 0, 6, 2, 31, 0, 0, 0];
        data.extend_from_slice(b"LUNAR   ECHO            0001");
        data.truncate(u16::from_be_bytes([cdb[3], cdb[4]]).into());
        Ok(data)
    }
}

impl EchoState {
    /// Lets commands with HOLD continue.
    pub fn release(&self) {
        self.released.send_replace(true);
    }

    /// Number of attached nexuses.
    pub fn nexuses(&self) -> usize {
        self.nexuses.lock().unwrap_or_else(PoisonError::into_inner).nexuses.len()
    }

    /// Runs an ECHO command.
    async fn run(self: Arc<Self>, echo: Echo, mut execution: Execution) -> ExecutionEnd {
        let Ok(data) = execution.begin().await else { return execution.end(PlanResult::Aborted) };
        self.begun.fetch_add(1, SeqCst);
        if let CommandData::Streams(streams) = data {
            let result = self.stream(echo, *streams, &execution).await;
            return execution.end(result.unwrap_or_else(|failed| failed));
        }
        if echo.hold && self.wait_until_released(&execution).await.is_err() {
            return execution.end(PlanResult::Aborted);
        }
        let (data_in, data_out) = data.split();
        let data_in = data_in.map_or_else(Default::default, |mut data_in| {
            let bytes = data_in.iter_mut().zip(&data_out);
            bytes.for_each(|(byte, sent)| *byte = sent ^ echo.key);
            data_in.freeze()
        });
        execution.end(match echo.fail {
            true => PlanResult::CheckAfter { data_in, sense: FAILED },
            false => PlanResult::Good(data_in),
        })
    }

    async fn wait_until_released(&self, execution: &Execution) -> Result<(), PlanResult> {
        let mut released = self.released.subscribe();
        let wait = released.wait_for(|released| *released);
        match execution.unless_aborted(wait).await {
            Ok(_) => Ok(()),
            Err(_) => Err(self.was_aborted()),
        }
    }

    fn was_aborted(&self) -> PlanResult {
        self.aborted.fetch_add(1, SeqCst);
        PlanResult::Aborted
    }

    /// Returns the data as it arrives.
    async fn stream(
        &self,
        echo: Echo,
        streams: DataStreams,
        execution: &Execution,
    ) -> Result<PlanResult, PlanResult> {
        let DataStreams { mut data_out, data_in } = streams;
        data_out.want_all();
        let mut at = 0;
        loop {
            let piece = match data_out.next().await {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(DataOutError::Aborted) => return Err(self.was_aborted()),
                Err(failed) => {
                    let by_transfer = matches!(failed, DataOutError::TransferFailed);
                    self.failed.fetch_add(by_transfer.into(), SeqCst);
                    return Err(failed.into());
                }
            };
            self.pieces.fetch_add(1, SeqCst);
            let has_digest = matches!(piece.digest, SegmentDigest::Matched(_));
            self.digests.fetch_add(has_digest.into(), SeqCst);
            if let Some(budget) = self.budget.get() {
                let used = budget.usage().by_kind[MemoryKind::DataOut as usize];
                self.data_out_most.fetch_max(used, SeqCst);
            }
            if echo.hold && at == 0 {
                self.wait_until_released(execution).await?;
            }
            assert_eq!(piece.offset_bytes, at);
            at += piece.data.len() as u32;
            let room = echo.allocation_bytes.saturating_sub(piece.offset_bytes) as usize;
            let mut data = piece.data;
            data.truncate(room);
            if echo.key != 0 {
                let mut changed = execution.take_buffer(data.len()).await?;
                let bytes = changed.iter_mut().zip(&data);
                bytes.for_each(|(byte, sent)| *byte = sent ^ echo.key);
                data = changed.freeze();
            }
            let sent = data_in.send(piece.offset_bytes, data).await;
            sent.map_err(|_| self.was_aborted())?;
        }
        let data_in = Bytes::new();
        Ok(match echo.fail {
            true => PlanResult::CheckAfter { data_in, sense: FAILED },
            false => PlanResult::Good(data_in),
        })
    }

    fn check(self: &Arc<Self>, command: &ArrivedCommand<'_>) -> Result<AcceptedCommand, Sense> {
        let echo = Echo::parse(command.cdb)?;
        // Data beyond the room of either side is not transferred, and becomes a residual.
        let collect_bytes = echo.data_out_bytes.min(command.expected_data_out_bytes);
        let data_in_bytes = echo.allocation_bytes.min(collect_bytes);
        let buffer_bytes = data_in_bytes.min(command.expected_data_in_bytes) as usize;
        let state = Arc::clone(self);
        Ok(AcceptedCommand {
            data_out_bytes: echo.data_out_bytes.into(),
            collect_bytes: collect_bytes as usize,
            data_in_buffer_bytes: (buffer_bytes > 0 && !echo.stream).then_some(buffer_bytes),
            streams: echo.stream,
            data_in_bytes,
            ..AcceptedCommand::new(Work::Job(Job::new(move |execution| state.run(echo, execution))))
        })
    }
}

impl Unit for EchoUnit {
    fn common(&self) -> &UnitCommon {
        &self.common
    }

    fn uuid(&self) -> uuid::Uuid {
        self.uuid
    }

    fn name(&self) -> &str {
        "echo"
    }

    fn with_nexuses(&self, work: &mut dyn FnMut(&mut dyn UnitNexuses)) {
        work(&mut *self.state.nexuses.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn check(&self, command: &ArrivedCommand<'_>) -> Result<AcceptedCommand, RefusedCommand> {
        const TEST_UNIT_READY: u8 = 0x00;
        const INQUIRY: u8 = 0x12;
        const REPORT_LUNS: u8 = 0xa0;
        let opcode = command.cdb[0];
        {
            let mut nexuses = self.state.nexuses.lock().unwrap_or_else(PoisonError::into_inner);
            command.attach(&mut *nexuses);
            if !matches!(opcode, INQUIRY | REPORT_LUNS)
                && let Some(attention) = nexuses.take_attention(command.nexus())
            {
                return Err(attention.sense().into());
            }
        }
        match opcode {
            TEST_UNIT_READY => Ok(AcceptedCommand::new(Work::Reply(Vec::new()))),
            INQUIRY => Ok(AcceptedCommand::new(Work::Reply(self.inquiry(command.cdb)?))),
            REPORT_LUNS => {
                let luns = command.context().luns;
                let mut list = (8 * luns.len() as u32).to_be_bytes().to_vec();
                list.extend([0; 4]);
                luns.iter().for_each(|lun| list.extend(lun.0));
                let reply = AcceptedCommand::new(Work::Reply(list));
                Ok(AcceptedCommand { reports_luns: true, ..reply })
            }
            VARIABLE_LENGTH => Ok(self.state.check(command)?),
            _ => Err(Sense::INVALID_OPERATION_CODE.into()),
        }
    }

    fn check_again(&self, _: &ArrivedCommand<'_>) -> Result<(), Refusal> {
        match self.state.refuses.load(SeqCst) {
            true => Err(Refusal::ReservationConflict),
            false => Ok(()),
        }
    }

    fn operation_class(&self, cdb: &[u8]) -> OperationClass {
        match cdb[0] {
            VARIABLE_LENGTH => OperationClass::Write,
            _ => OperationClass::Other,
        }
    }

    fn cost(&self, cdb: &[u8], work: &Work) -> Option<Cost> {
        let (Work::Job(_), Ok(echo)) = (work, Echo::parse(cdb)) else { return None };
        let bytes = u64::from(echo.data_out_bytes) + u64::from(echo.allocation_bytes);
        Some(Cost { commands: 1, bytes })
    }

    fn statistics(&self) -> UnitStatistics {
        UnitStatistics { io_tier: "echo".to_owned(), ..UnitStatistics::default() }
    }
}

/// The nexuses of the unit, with their unit attentions.
#[derive(Debug, Default)]
struct EchoNexuses {
    nexuses: BTreeMap<NexusId, AttentionQueue>,
    /// The nexus whose TARGET COLD RESET has ended its session.
    returning: Option<NexusId>,
}

impl EchoNexuses {
    fn take_attention(&mut self, nexus: NexusId) -> Option<Attention> {
        self.nexuses.get_mut(&nexus)?.take()
    }
}

impl NexusAttachment for EchoNexuses {
    fn attach(&mut self, nexus: NexusId, options: NexusOptions) {
        let mut attentions = AttentionQueue::new();
        let returns = self.returning.take_if(|by| options.returns_from == Some(*by));
        if returns.is_none() {
            // Implies all unit attentions since the login.
            attentions.establish(Attention::POWER_ON_RESET);
        }
        self.nexuses.insert(nexus, attentions);
    }

    fn raise_for(&mut self, attention_code: u16, nexus: NexusId) {
        if let Some(attentions) = self.nexuses.get_mut(&nexus) {
            attentions.establish(Attention(attention_code));
        }
    }
}

impl UnitNexuses for EchoNexuses {
    fn detach(&mut self, nexus: NexusId) {
        self.nexuses.remove(&nexus);
    }

    fn nexus_loss(&mut self, nexus: NexusId) {
        self.raise_for(Attention::NEXUS_LOSS.0, nexus);
    }

    fn set_rights(&mut self, _: NexusId, _: Rights) {}

    fn luns_were_reported(&mut self, nexus: NexusId) {
        if let Some(attentions) = self.nexuses.get_mut(&nexus) {
            attentions.clear(Attention::REPORTED_LUNS_DATA_HAS_CHANGED);
        }
    }

    fn reset(&mut self, by: Option<NexusId>) {
        for (nexus, attentions) in &mut self.nexuses {
            if Some(*nexus) != by {
                attentions.establish(Attention::RESET_BY_FUNCTION);
            }
        }
    }

    fn expect_login_after_reset(&mut self, nexus: NexusId) {
        self.returning = Some(nexus);
    }

    fn pending_event(&mut self, nexus: NexusId) -> Option<[u8; 3]> {
        const ONE: u8 = 0x10;
        let sense = self.nexuses.get(&nexus)?.peek()?.sense();
        let [code, qualifier] = sense.code.to_be_bytes();
        Some([ONE | sense.key.0, code, qualifier])
    }

    fn nexuses_from(&self, first: NexusId, count: usize) -> Vec<NexusId> {
        self.nexuses.range(first..).map(|(nexus, _)| *nexus).take(count).collect()
    }

    fn last_nexus(&self) -> Option<NexusId> {
        self.nexuses.last_key_value().map(|(nexus, _)| *nexus)
    }
}
