//! Results of copies, until RECEIVE COPY RESULTS fetches them. SPC-3 §6.17.
//!
//! A result belongs to one nexus and is found by its list identifier. It is removed when it has
//! been fetched, when the nexus begins another copy with that identifier, with the nexus, with a
//! reset of the unit, and when there are too many.

use super::limits::{
    COPIES_MAX, CSCD_DESCRIPTORS_MAX, DATA_GRANULARITY_EXPONENT, DESCRIPTOR_LIST_BYTES_MAX,
    IMPLEMENTED_DESCRIPTORS, RESULT_SHARES, RESULTS_MAX, RUNNING_SHARES, SEGMENT_DATA_BYTES_MAX,
    SEGMENT_DESCRIPTORS_MAX,
};
use crate::plan::{NexusId, Refusal};
use crate::reservations::ItNexus;
use crate::sense::{Sense, SenseBytes, Status};
use alloc::sync::Arc;
use alloc::vec::Vec;

lunar_wire::wire_struct! {
    /// COPY STATUS. SPC-3 §6.17.2.
    pub struct CopyStatus [12] {
        0 => available_bytes: u32,
        /// HDD 80h, COPY MANAGER STATUS 7Fh.
        4 => status: u8,
        5 => segments: u16,
        7 => units: u8,
        8 => count: u32,
    }
}

lunar_wire::wire_struct! {
    /// OPERATING PARAMETERS without the list of descriptor types. Names of SPC-4; SPC-3 §6.17.4.
    pub struct OperatingParameters [44] {
        0 => available_bytes: u32,
        /// SNLID 01h.
        4 => flags: u8,
        8 => cscd_descriptors_max: u16,
        10 => segment_descriptors_max: u16,
        12 => descriptor_list_bytes_max: u32,
        16 => segment_bytes_max: u32,
        20 => inline_bytes_max: u32,
        24 => held_data_bytes_max: u32,
        28 => stream_transfer_bytes_max: u32,
        34 => total_copies_max: u16,
        36 => copies_max: u8,
        37 => data_granularity_exponent: u8,
        38 => inline_granularity_exponent: u8,
        39 => held_granularity_exponent: u8,
        43 => descriptor_types: u8,
    }
}

lunar_wire::wire_struct! {
    /// FAILED SEGMENT DETAILS without the sense data. SPC-3 §6.17.5.
    pub struct FailedSegment [60] {
        0 => available_bytes: u32,
        56 => status: u8,
        58 => sense_bytes: u16,
    }
}

/// Identifies one copy of one unit; never reused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CopyId(u64);

/// The end of a copy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CopyEnd {
    /// Ended with GOOD.
    Completed,
    /// Ended with CHECK CONDITION and this sense data.
    Failed(SenseBytes),
    /// Ended by task management, without a report.
    Aborted,
}

/// The copies of one unit: running ones, and results of others.
#[derive(Debug, Default)]
pub struct CopyResults {
    next_id: u64,
    /// Copies in the order of their beginning.
    copies: Vec<CopyRecord>,
}

#[derive(Debug)]
struct CopyRecord {
    id: CopyId,
    nexus: NexusId,
    by: Arc<ItNexus>,
    /// `None`: the result cannot be fetched.
    list_identifier: Option<u8>,
    segments: u16,
    bytes: u64,
    state: State,
}

#[derive(Debug, Eq, PartialEq)]
enum State {
    Running,
    Ended {
        failed: bool,
        /// True once COPY STATUS has reported it.
        is_reported: bool,
        /// Sense for FAILED SEGMENT DETAILS, until reported.
        sense: Option<SenseBytes>,
    },
}

impl CopyResults {
    /// Begins a copy like `BlockUnit::begin_copy`, for the nexus of these ports.
    pub(crate) fn begin(
        &mut self,
        nexus: NexusId,
        by: &Arc<ItNexus>,
        list_identifier: Option<u8>,
    ) -> Result<CopyId, Refusal> {
        if let Some(at) = list_identifier.and_then(|name| self.find(nexus, name)) {
            if self.copies[at].state == State::Running {
                return Err(Sense::OPERATION_IN_PROGRESS.into());
            }
            self.copies.remove(at);
        }
        let running = self.copies.iter().filter(|copy| copy.state == State::Running);
        if !RUNNING_SHARES.admit(running.map(|copy| copy.by.owner()), by.owner(), 1) {
            return Err(Refusal::Busy);
        }
        let id = CopyId(self.next_id);
        self.next_id += 1;
        let (by, state) = (Arc::clone(by), State::Running);
        self.copies.push(CopyRecord {
            id,
            nexus,
            by,
            list_identifier,
            segments: 0,
            bytes: 0,
            state,
        });
        Ok(id)
    }

    /// Records the progress of a running copy: completed segments and written bytes.
    pub fn progress(&mut self, id: CopyId, segments: u16, bytes: u64) {
        if let Some(copy) = self.copies.iter_mut().find(|copy| copy.id == id) {
            copy.segments = segments;
            copy.bytes = bytes;
        }
    }

    /// Records the end of a copy.
    pub fn end(&mut self, id: CopyId, end: CopyEnd) {
        let Some(at) = self.copies.iter().position(|copy| copy.id == id) else { return };
        if self.copies[at].list_identifier.is_none() {
            self.copies.remove(at);
            return;
        }
        self.make_room(at);
        let Some(copy) = self.copies.iter_mut().find(|copy| copy.id == id) else { return };
        copy.state = match end {
            CopyEnd::Completed => State::Ended { failed: false, is_reported: false, sense: None },
            CopyEnd::Failed(sense) => {
                State::Ended { failed: true, is_reported: false, sense: Some(sense) }
            }
            CopyEnd::Aborted => State::Ended { failed: true, is_reported: false, sense: None },
        };
    }

    /// Removes the oldest result of the copy's nexus, of its initiator or of all, whichever has
    /// reached its limit, to make room for the copy at `at`.
    fn make_room(&mut self, at: usize) {
        let CopyRecord { nexus, by, .. } = &self.copies[at];
        let ended = || self.copies.iter().filter(|copy| copy.state != State::Running);
        let mut of_nexus = ended().filter(|copy| copy.nexus == *nexus);
        let displaced = match of_nexus.clone().count() >= RESULTS_MAX {
            true => of_nexus.next(),
            false => {
                let owners = ended().map(|copy| copy.by.owner());
                RESULT_SHARES.displaced(owners, by.owner()).and_then(|index| ended().nth(index))
            }
        };
        if let Some(oldest) = displaced.map(|copy| copy.id) {
            self.copies.retain(|copy| copy.id != oldest);
        }
    }

    /// Removes the results of a lost nexus.
    pub fn forget_nexus(&mut self, nexus: NexusId) {
        self.forget(|copy| copy.nexus == nexus);
    }

    /// Removes all results after a reset of the unit.
    pub fn reset(&mut self) {
        self.forget(|_| true);
    }

    /// Removes results. A running copy still counts until it ends, but will leave no result.
    fn forget(&mut self, which: impl Fn(&CopyRecord) -> bool) {
        self.copies.retain(|copy| copy.state == State::Running || !which(copy));
        for copy in self.copies.iter_mut().filter(|copy| which(copy)) {
            copy.list_identifier = None;
        }
    }

    fn find(&self, nexus: NexusId, list_identifier: u8) -> Option<usize> {
        self.copies
            .iter()
            .position(|copy| copy.nexus == nexus && copy.list_identifier == Some(list_identifier))
    }

    /// COPY STATUS; the end of a copy is reported once.
    pub(crate) fn status(&mut self, nexus: NexusId, list_identifier: u8) -> Option<Vec<u8>> {
        const IN_PROGRESS: u8 = 0x00;
        const COMPLETED: u8 = 0x01;
        const COMPLETED_WITH_ERRORS: u8 = 0x02;
        let at = self.find(nexus, list_identifier)?;
        let copy = &mut self.copies[at];
        let (status, is_done) = match &mut copy.state {
            State::Running => (IN_PROGRESS, false),
            State::Ended { is_reported: true, .. } => return None,
            State::Ended { failed, is_reported, sense } => {
                *is_reported = true;
                let status = if *failed { COMPLETED_WITH_ERRORS } else { COMPLETED };
                (status, sense.is_none())
            }
        };
        let (units, count) = transfer_count(copy.bytes);
        let available_bytes = CopyStatus::LEN as u32 - 4;
        let reply = CopyStatus { available_bytes, status, segments: copy.segments, units, count };
        if is_done {
            self.copies.remove(at);
        }
        Some(reply.encode().to_vec())
    }

    /// FAILED SEGMENT DETAILS, reported once. AVAILABLE DATA is 0 for a copy without details.
    pub(crate) fn failure(&mut self, nexus: NexusId, list_identifier: u8) -> Option<Vec<u8>> {
        let at = self.find(nexus, list_identifier)?;
        let State::Ended { is_reported, sense, .. } = &mut self.copies[at].state else {
            return Some(alloc::vec![0; 4]);
        };
        let Some(sense) = sense.take() else { return Some(alloc::vec![0; 4]) };
        let is_done = *is_reported;
        let details = FailedSegment {
            available_bytes: (FailedSegment::LEN - 4 + sense.len()) as u32,
            status: Status::CHECK_CONDITION.0,
            sense_bytes: sense.len() as u16,
        };
        let mut reply = details.encode().to_vec();
        reply.extend_from_slice(&sense);
        if is_done {
            self.copies.remove(at);
        }
        Some(reply)
    }
}

/// TRANSFER COUNT UNITS and TRANSFER COUNT: bytes if they fit into 32 bits, else the smallest
/// sufficient unit of KiB, MiB, … SPC-3 §6.17.2.
fn transfer_count(bytes: u64) -> (u8, u32) {
    let mut units = 0;
    let mut count = bytes;
    loop {
        match u32::try_from(count) {
            Ok(count) => return (units, count),
            Err(_) => {
                units += 1;
                count >>= 10;
            }
        }
    }
}

/// OPERATING PARAMETERS, the same for every unit.
pub(crate) fn operating_parameters() -> Vec<u8> {
    /// LIST ID USAGE 11b is allowed: copies without an identifier.
    const SNLID: u8 = 0x01;
    let bytes = OperatingParameters::LEN + IMPLEMENTED_DESCRIPTORS.len();
    let parameters = OperatingParameters {
        available_bytes: bytes as u32 - 4,
        flags: SNLID,
        cscd_descriptors_max: CSCD_DESCRIPTORS_MAX,
        segment_descriptors_max: SEGMENT_DESCRIPTORS_MAX,
        descriptor_list_bytes_max: DESCRIPTOR_LIST_BYTES_MAX,
        segment_bytes_max: SEGMENT_DATA_BYTES_MAX,
        inline_bytes_max: 0,
        held_data_bytes_max: 0,
        stream_transfer_bytes_max: 0,
        total_copies_max: COPIES_MAX.into(),
        copies_max: COPIES_MAX,
        data_granularity_exponent: DATA_GRANULARITY_EXPONENT,
        inline_granularity_exponent: 0,
        held_granularity_exponent: 0,
        descriptor_types: IMPLEMENTED_DESCRIPTORS.len() as u8,
    };
    let mut reply = parameters.encode().to_vec();
    reply.extend_from_slice(&IMPLEMENTED_DESCRIPTORS);
    reply
}

#[cfg(test)]
mod tests;
