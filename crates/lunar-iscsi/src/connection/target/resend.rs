//! PDUs that were sent and may have to be sent again. RFC 7143 §7.1.4.2, §11.16.
//!
//! From ErrorRecoveryLevel 1 on, an initiator that misses a response, an R2T or data-in asks for it
//! with a SNACK. Such PDUs are kept as values: their headers, and their data, which shares the
//! buffers that were sent. These buffers stay charged as long as the PDUs are kept. At level 0
//! nothing is kept, and each SNACK is rejected.

use super::full_feature::{FullFeature, Receiving, Refusal};
use super::numbering::Numbering;
use super::{Output, Outputs};
use crate::framing::{Header, Pdu, TaskId};
use crate::pdu::{
    DataIn, DataInFlags, HEADER_BYTES, Opcode, RejectReason, SnackFlags, SnackRequest,
};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;
use lunar_wire::{Field, SerialNumber};

/// The lowest ErrorRecoveryLevel at which PDUs are sent again. RFC 7143 §7.1.5.
const RESENDS_LEVEL: u8 = 1;

/// Offsets of StatSN, and of DataSN and R2TSN.
const AT_STAT_SN: usize = 24;
const AT_DATA_SN: usize = 36;

/// The PDUs that the initiator has not acknowledged, in the order in which they were sent.
#[derive(Debug)]
pub(super) struct ResendStore {
    kept: VecDeque<Kept>,
    /// Memory of the kept PDUs.
    bytes: usize,
    /// Maximum of `bytes`: the oldest PDUs are dropped.
    bytes_max: usize,
    /// Tasks whose data is not kept.
    not_resendable: Vec<TaskId>,
}

#[derive(Debug)]
struct Kept {
    /// The task; `None` for responses to other requests, and for messages.
    task: Option<TaskId>,
    pdu: Pdu,
}

impl Kept {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.pdu.data.len()
    }

    /// StatSN of a PDU that has consumed one.
    fn stat_sn(&self) -> Option<SerialNumber> {
        let has_status = match self.pdu.opcode() {
            Opcode::DATA_IN => DataIn::decode(&self.pdu.bhs).flags.has(DataInFlags::STATUS),
            opcode => opcode != Opcode::READY_TO_TRANSFER,
        };
        has_status.then(|| SerialNumber(number_at(&self.pdu, AT_STAT_SN)))
    }

    /// DataSN or R2TSN.
    fn data_sn(&self) -> Option<u32> {
        let is_numbered = matches!(self.pdu.opcode(), Opcode::DATA_IN | Opcode::READY_TO_TRANSFER);
        is_numbered.then(|| number_at(&self.pdu, AT_DATA_SN))
    }
}

fn number_at(pdu: &Pdu, at: usize) -> u32 {
    Field::get(&pdu.bhs[at..at + 4])
}

impl ResendStore {
    /// Creates the store of a connection; `None` at a level at which nothing is sent again.
    pub(super) fn new(error_recovery_level: u8, bytes_max: usize) -> Option<Box<Self>> {
        let (kept, not_resendable) = Default::default();
        let store = Self { kept, bytes: 0, bytes_max, not_resendable };
        (error_recovery_level >= RESENDS_LEVEL).then(|| Box::new(store))
    }

    /// Keeps a PDU that is sent now. Data-In of a task that is not resendable is not kept.
    #[cold]
    pub(super) fn keep(&mut self, task: Option<TaskId>, pdu: &Pdu) {
        let kept = Kept { task, pdu: pdu.clone() };
        let is_excluded = task.is_some_and(|task| self.not_resendable.contains(&task));
        if is_excluded && kept.stat_sn().is_none() {
            return;
        }
        self.bytes += kept.bytes();
        self.kept.push_back(kept);
        while self.bytes > self.bytes_max
            && let Some(oldest) = self.kept.pop_front()
        {
            self.bytes -= oldest.bytes();
        }
    }

    /// Marks a task as not resendable: its data was passed on and is not kept, so a SNACK for it is
    /// rejected. Its response is kept.
    #[cold]
    pub(super) fn mark_not_resendable(&mut self, task: TaskId) {
        if !self.not_resendable.contains(&task) {
            self.not_resendable.push(task);
            self.remove(|kept| kept.task == Some(task));
        }
    }

    /// Forgets a task that ends without a response.
    #[cold]
    pub(super) fn forget(&mut self, task: TaskId) {
        self.not_resendable.retain(|other| *other != task);
        self.remove(|kept| kept.task == Some(task));
    }

    /// Removes the responses that the initiator has acknowledged, with the other PDUs of the tasks
    /// that they end.
    #[cold]
    pub(super) fn acknowledge(&mut self, numbering: &Numbering) {
        let is_over =
            |kept: &Kept| kept.stat_sn().is_some_and(|number| numbering.is_acknowledged(number));
        if !self.kept.iter().any(is_over) {
            return;
        }
        let ended: Vec<_> =
            self.kept.iter().filter(|kept| is_over(kept)).filter_map(|kept| kept.task).collect();
        self.not_resendable.retain(|task| !ended.contains(task));
        self.remove(|kept| is_over(kept) || kept.task.is_some_and(|task| ended.contains(&task)));
    }

    fn remove(&mut self, is_over: impl Fn(&Kept) -> bool) {
        self.kept.retain(|kept| !is_over(kept));
        self.bytes = self.kept.iter().map(Kept::bytes).sum();
        if self.kept.is_empty() {
            self.kept = VecDeque::new();
        }
    }

    /// The PDUs that a SNACK asks for; `None` if not all of them are kept.
    fn find(&self, snack: &SnackRequest) -> Option<Vec<Pdu>> {
        let [first, count] = [snack.first_missing, snack.run_length];
        let kept = self.requested(snack)?.filter(|(_, number)| is_within(*number, first, count));
        let (all, numbers): (Vec<_>, Vec<_>) = kept.unzip();
        // Both numbers 0: all responses that are not acknowledged.
        let from_any = first == 0 && count == 0 && snack.flags == STATUS_SNACK;
        let begins = from_any || numbers.first() == Some(&first);
        let is_complete = begins && (count == 0 || numbers.len() == count as usize);
        is_complete.then(|| all.into_iter().cloned().collect())
    }

    /// The kept PDUs of the kind that a SNACK asks for, each with its number.
    fn requested(&self, snack: &SnackRequest) -> Option<impl Iterator<Item = (&Pdu, u32)>> {
        let of_data = match snack.flags {
            DATA_SNACK => true,
            STATUS_SNACK => false,
            // Data acknowledgements are never requested, and data is not cut anew.
            _ => return None,
        };
        let tagged = |kept: &&Kept| kept.pdu.initiator_task_tag() == snack.initiator_task_tag;
        let newest = self.kept.iter().rev().filter(tagged).find_map(|kept| kept.task);
        Some(self.kept.iter().filter_map(move |kept| {
            let number = match of_data {
                true => kept.data_sn().filter(|_| newest.is_some() && kept.task == newest)?,
                false => kept.stat_sn()?.0,
            };
            Some((&kept.pdu, number))
        }))
    }

    /// Memory of the kept PDUs, except their data, which is charged by its buffers.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.kept.capacity() * size_of::<Kept>()
            + self.not_resendable.capacity() * size_of::<TaskId>()
    }
}

/// Byte 1 of the two kinds of SNACK that are carried out.
const DATA_SNACK: SnackFlags = SnackFlags::FINAL;
const STATUS_SNACK: SnackFlags = SnackFlags::FINAL.with(SnackFlags::STATUS);

/// True if `number` is one of the `count` numbers from `first` on; a count of 0 has no end.
/// RFC 7143 §11.16.6, §11.16.7.
fn is_within(number: u32, first: u32, count: u32) -> bool {
    let (number, first) = (SerialNumber(number), SerialNumber(first));
    !number.before(first) && (count == 0 || number.before(first.plus(count)))
}

impl FullFeature {
    /// Sends a response or a message: consumes a StatSN, and keeps the PDU if it may have to be
    /// sent again.
    pub(super) fn send_status(
        &mut self,
        mut bhs: [u8; HEADER_BYTES],
        data: Bytes,
        out: &mut Outputs,
    ) {
        self.numbering.stamp_status(&mut bhs);
        let pdu = Pdu::with_data(bhs, data);
        if let Some(store) = &mut self.resend {
            store.keep(None, &pdu);
        }
        out.push_back(Output::Send(pdu));
    }

    /// Sends PDUs again. They are exact copies, except for ExpCmdSN and MaxCmdSN, which are current
    /// (RFC 7143 §11.16).
    pub(super) fn check_snack(
        &mut self,
        header: &Header,
        out: &mut Outputs,
    ) -> Result<Receiving, Refusal> {
        let snack = SnackRequest::decode(&header.bhs);
        let found = self.resend.as_ref().and_then(|store| store.find(&snack));
        let Some(pdus) = found else {
            return Err(Refusal::Reject(RejectReason::SNACK_REJECT));
        };
        out.extend(pdus.into_iter().map(Output::Send));
        Err(Refusal::Ignore)
    }
}
