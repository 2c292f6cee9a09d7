//! Data-out of a streaming command: its caller provides the data in parts, and R2Ts are answered
//! when their data is there. RFC 7143 §11.7, §11.8.
//!
//! R2Ts of one task are answered in their order; other tasks are not held up. A Data-Out PDU may be
//! sent before its data is complete. If the rest never comes, the target must not take what was
//! filled in for data: the PDU gets a wrong digest, or the connection is dropped if there is none.

use super::machine::{InitiatorConnection, State};
use super::request::Queued;
use super::task::{Burst, Task};
use super::{CloseReason, Management, Output, RequestFailure};
use crate::connection::zeroes::zeroes;
use crate::framing::{Pdu, TaskId};
use crate::pdu::{ManagementFunction, TAG_RESERVED};
use crate::session::initiator::ConnectionEnding;
use alloc::collections::VecDeque;
use bytes::Bytes;
use lunar_wire::Time;

/// Id of the ABORT TASK functions of the machine itself, which are not reported.
pub(super) const OWN_ABORT: TaskId = TaskId(u64::MAX);

/// Digest of a PDU that was filled with zeroes and must not be accepted. It matches by chance once
/// in 2^32 PDUs: as often as the digest of a damaged PDU.
const WRONG_DIGEST: u32 = 0x5ee5_bad5;

/// Data-out of one streaming command.
#[derive(Debug, Default)]
pub(super) struct DataOutStream {
    /// Sequences to send, in the order of their R2Ts.
    bursts: VecDeque<Burst>,
    /// Ranges that the caller was asked for and has not given, in the order of the R2Ts: start and
    /// end.
    owed: VecDeque<(u32, u32)>,
    /// Data and announcements of the caller that are not sent completely.
    given: VecDeque<Given>,
    /// Digest of the data that came with the command, if it is one segment.
    prefix_digest: Option<u32>,
    /// The PDU whose data is not complete.
    open: Option<OpenPdu>,
    /// True once the data was abandoned: what the caller gives later is dropped.
    is_over: bool,
    /// True while the task is in the list of tasks with something to send.
    pub(super) is_queued: bool,
}

/// Data of the caller.
#[derive(Debug)]
enum Given {
    /// Data, with its digest while it is one segment.
    Whole(Bytes, Option<u32>),
    Range(Range),
}

/// A range that was announced before its data was there.
#[derive(Debug)]
struct Range {
    /// Number of bytes that no PDU has announced yet.
    unsent_bytes: u32,
    /// Number of bytes that the caller has not given.
    missing_bytes: u32,
    /// Parts that were given and are not sent.
    parts: VecDeque<Bytes>,
    /// Digest of the whole range.
    digest: Option<u32>,
    /// True until a PDU was sent.
    is_whole: bool,
}

/// A Data-Out PDU whose data is not complete.
#[derive(Debug)]
struct OpenPdu {
    missing_bytes: u32,
    /// True if the PDU is all of its range.
    is_range: bool,
    /// True for the last PDU of its sequence.
    is_last: bool,
    /// Time until which the next part has to come.
    until: Time,
}

/// A mistake of the caller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Misplaced;

impl DataOutStream {
    /// Creates the stream of a command that was sent, with the digest of the data that it has.
    pub(super) fn new(prefix_digest: Option<u32>) -> Self {
        Self { prefix_digest, ..Self::default() }
    }

    /// Adds a sequence to send; returns the part of it that is not in the prefix.
    pub(super) fn add_burst(&mut self, burst: Burst, prefix_bytes: u32) -> Option<(u32, u32)> {
        self.bursts.push_back(burst);
        let start = burst.at_bytes.max(prefix_bytes);
        let owed = (start < burst.end_bytes).then_some((start, burst.end_bytes))?;
        self.owed.push_back(owed);
        Some(owed)
    }

    /// Sends no more than the rest of the open PDU: what comes behind it belongs to no task.
    fn stop(&mut self) {
        self.is_over = true;
        // The sequence that the open PDU ends: its R2T is open until then.
        let ends_burst = self.open.as_ref().is_some_and(|open| open.is_last);
        self.bursts.truncate(usize::from(ends_burst));
        self.owed.clear();
        self.given.truncate(usize::from(self.open.is_some()));
        if let Some(Given::Range(range)) = self.given.front_mut() {
            range.unsent_bytes = 0;
        }
    }

    /// Takes the range `offset_bytes..+bytes` from those that the caller owes, and adds its data.
    fn give(&mut self, offset_bytes: u32, bytes: usize, given: Given) -> Result<(), Misplaced> {
        if self.is_over {
            return Ok(());
        }
        self.take_owed(offset_bytes, bytes)?;
        self.given.push_back(given);
        Ok(())
    }

    fn take_owed(&mut self, offset_bytes: u32, bytes: usize) -> Result<(), Misplaced> {
        if self.given.back().is_some_and(Given::misses_data) {
            return Err(Misplaced);
        }
        let Some((start, end)) = self.owed.front_mut() else { return Err(Misplaced) };
        if *start != offset_bytes || bytes > (*end - *start) as usize {
            return Err(Misplaced);
        }
        *start += bytes as u32;
        if *start == *end {
            self.owed.pop_front();
        }
        Ok(())
    }

    fn add_part(&mut self, data: Bytes, digest: Option<u32>, until: Time) -> Result<(), Misplaced> {
        // Of abandoned data, only the rest of an open PDU is taken.
        let misplaced = if self.is_over { Ok(()) } else { Err(Misplaced) };
        let Some(Given::Range(range)) = self.given.back_mut() else { return misplaced };
        if data.len() > range.missing_bytes as usize {
            return misplaced;
        }
        range.missing_bytes -= data.len() as u32;
        range.digest = digest.filter(|_| range.missing_bytes == 0);
        range.parts.push_back(data);
        if let Some(open) = &mut self.open {
            open.until = until;
        }
        Ok(())
    }

    /// True if something can be sent now.
    fn is_ready(&self, prefix_bytes: u32) -> bool {
        let front = self.given.front();
        if self.open.is_some() {
            return matches!(front, Some(Given::Range(range)) if !range.parts.is_empty());
        }
        self.bursts.front().is_some_and(|burst| burst.at_bytes < prefix_bytes || front.is_some())
    }

    /// Time until which the next part of an open PDU has to come.
    fn waits_until(&self) -> Option<Time> {
        self.open.as_ref().map(|open| open.until)
    }

    /// Forgets everything that is not sent, and takes no more; returns the number of bytes that the
    /// open PDU misses.
    fn end(&mut self) -> usize {
        let missing_bytes = self.open.take().map_or(0, |open| open.missing_bytes as usize);
        *self = Self { is_queued: self.is_queued, is_over: true, ..Self::default() };
        missing_bytes
    }

    /// Takes the next part of the open PDU: the part, and the digest of the PDU if it is known.
    fn next_part(&mut self) -> Option<(Bytes, Option<u32>, bool)> {
        let (Some(open), Some(Given::Range(range))) = (&mut self.open, self.given.front_mut())
        else {
            return None;
        };
        let front = range.parts.front_mut()?;
        let part = front.split_to(front.len().min(open.missing_bytes as usize));
        if front.is_empty() {
            range.parts.pop_front();
        }
        open.missing_bytes -= part.len() as u32;
        if open.missing_bytes > 0 {
            return Some((part, None, false));
        }
        let digest = range.digest.filter(|_| open.is_range);
        let is_last = open.is_last;
        self.open = None;
        if self.is_over {
            self.given.clear();
        }
        self.drop_sent();
        Some((part, digest, is_last))
    }

    /// Takes data for the next PDU, which may hold `bytes_max`: the length of the PDU, the data
    /// that is there, and its digest if that is known.
    fn next_data(&mut self, bytes_max: u32, until: Time) -> Option<(u32, Bytes, Option<u32>)> {
        match self.given.front_mut()? {
            Given::Whole(rest, digest) => {
                let data = rest.split_to(rest.len().min(bytes_max as usize));
                // Taken: it is not that of the rest.
                let digest = digest.take().filter(|_| rest.is_empty());
                self.drop_sent();
                Some((data.len() as u32, data, digest))
            }
            Given::Range(range) => {
                let bytes = range.unsent_bytes.min(bytes_max);
                range.unsent_bytes -= bytes;
                let is_range = core::mem::take(&mut range.is_whole) && range.unsent_bytes == 0;
                let data = match range.parts.front_mut() {
                    Some(front) => front.split_to(front.len().min(bytes as usize)),
                    None => Bytes::new(),
                };
                if range.parts.front().is_some_and(Bytes::is_empty) {
                    range.parts.pop_front();
                }
                let missing_bytes = bytes - data.len() as u32;
                if missing_bytes > 0 {
                    let is_last = false;
                    self.open = Some(OpenPdu { missing_bytes, is_range, is_last, until });
                }
                self.drop_sent();
                Some((bytes, data, None))
            }
        }
    }

    /// Drops the front of the data if all of it is sent.
    fn drop_sent(&mut self) {
        let is_sent = match self.given.front() {
            Some(Given::Whole(data, _)) => data.is_empty(),
            Some(Given::Range(range)) => {
                range.unsent_bytes == 0 && range.parts.is_empty() && self.open.is_none()
            }
            None => false,
        };
        if is_sent {
            self.given.pop_front();
        }
    }
}

impl Given {
    /// True for a range whose data is not complete.
    fn misses_data(&self) -> bool {
        matches!(self, Self::Range(range) if range.missing_bytes > 0)
    }
}

impl InitiatorConnection {
    /// Adds data that the caller gives for a streaming command. Data for a command that has ended
    /// is dropped.
    pub(super) fn on_data_out(
        &mut self,
        id: TaskId,
        offset_bytes: u32,
        data: Bytes,
        digest: Option<u32>,
    ) {
        if data.is_empty() {
            return;
        }
        let bytes = data.len();
        self.give(id, |stream, _| stream.give(offset_bytes, bytes, Given::Whole(data, digest)));
    }

    /// Adds a range whose data follows in parts.
    pub(super) fn on_data_out_begin(&mut self, id: TaskId, offset_bytes: u32, bytes: u32) {
        if bytes == 0 {
            return;
        }
        let range = Given::Range(Range {
            unsent_bytes: bytes,
            missing_bytes: bytes,
            parts: VecDeque::new(),
            digest: None,
            is_whole: true,
        });
        self.give(id, |stream, _| stream.give(offset_bytes, bytes as usize, range));
    }

    /// Adds the next part of the range that was announced last.
    pub(super) fn on_data_out_part(&mut self, id: TaskId, data: Bytes, digest: Option<u32>) {
        if !data.is_empty() {
            self.give(id, |stream, until| stream.add_part(data, digest, until));
        }
    }

    fn give(
        &mut self,
        id: TaskId,
        add: impl FnOnce(&mut DataOutStream, Time) -> Result<(), Misplaced>,
    ) {
        let Some(tag) = self.streams.get(&id).copied() else { return };
        let until = self.timers.now.after(self.limits.data_out_part_time);
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        let is_over = |stream: &DataOutStream| stream.is_over && stream.open.is_none();
        let Some(stream) = task.stream.as_mut().filter(|stream| !is_over(stream)) else { return };
        match add(stream, until) {
            Ok(()) => self.queue_stream(tag),
            Err(Misplaced) => self.fail_stream(tag),
        }
    }

    /// Queues a sequence of a streaming command; asks the caller for the data that is not there.
    pub(super) fn queue_stream_burst(&mut self, burst: Burst) {
        let tag = burst.initiator_task_tag;
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        let (id, prefix_bytes) = (task.id, task.prefix_bytes());
        let Some(stream) = task.stream.as_mut().filter(|stream| !stream.is_over) else { return };
        if let Some((start, end)) = stream.add_burst(burst, prefix_bytes) {
            let wants = Output::Wants { id, offset_bytes: start, bytes: end - start };
            self.outputs.push_back(wants);
        }
        self.queue_stream(tag);
    }

    /// Adds a task to those with something to send, if it has.
    pub(super) fn queue_stream(&mut self, tag: u32) {
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        let prefix_bytes = task.prefix_bytes();
        let Some(stream) = &mut task.stream else { return };
        if !stream.is_queued && stream.is_ready(prefix_bytes) {
            stream.is_queued = true;
            self.ready.push_back(tag);
        }
    }

    /// Adds the tasks that were paused to those with something to send.
    pub(super) fn queue_all_streams(&mut self) {
        for tag in self.streams.values().copied().collect::<alloc::vec::Vec<_>>() {
            self.queue_stream(tag);
        }
    }

    /// Returns what the next streaming task in turn has to send.
    pub(super) fn next_of_streams(&mut self) -> Option<Output> {
        while let Some(tag) = self.ready.pop_front() {
            let output = self.next_of_stream(tag);
            if let Some(stream) = self.tasks.get_mut(&tag).and_then(|task| task.stream.as_mut()) {
                stream.is_queued = false;
            }
            if output.is_some() {
                self.queue_stream(tag);
                return output;
            }
        }
        None
    }

    fn next_of_stream(&mut self, tag: u32) -> Option<Output> {
        let until = self.timers.now.after(self.limits.data_out_part_time);
        let bytes_max = self.connection.send_data_segment_bytes_max.min(lunar_wire::U24::MAX);
        let exp_stat_sn = self.exp_stat_sn;
        let task = self.tasks.get_mut(&tag)?;
        let Task { data_out: prefix, stream, r2ts_open, paused_by, .. } = task;
        let stream = stream.as_mut()?;
        if stream.open.is_some() {
            let (data, digest, is_last) = stream.next_part()?;
            if is_last && stream.end_burst() {
                *r2ts_open -= 1;
            }
            return Some(Output::SendData { initiator_task_tag: tag, data, digest });
        }
        if paused_by.is_some() {
            return None;
        }
        let burst = *stream.bursts.front()?;
        let room_bytes = (burst.end_bytes - burst.at_bytes).min(bytes_max);
        let prefix_left = (prefix.len() as u32).saturating_sub(burst.at_bytes);
        let (bytes, data, digest) = match room_bytes.min(prefix_left) {
            0 => stream.next_data(room_bytes, until)?,
            bytes => {
                let start = burst.at_bytes as usize;
                let data = prefix.slice(start..start + bytes as usize);
                let digest = stream.prefix_digest.filter(|_| data.len() == prefix.len());
                (bytes, data, digest)
            }
        };
        let is_last = burst.at_bytes + bytes == burst.end_bytes;
        let header = burst.header(bytes, exp_stat_sn);
        if let Some(front) = stream.bursts.front_mut() {
            front.advance(bytes);
        }
        if let Some(open) = &mut stream.open {
            open.is_last = is_last;
            let earliest = self.timers.parts_by.map_or(until, |by| by.min(until));
            self.timers.parts_by = Some(earliest);
        } else if is_last && stream.end_burst() {
            *r2ts_open -= 1;
        }
        Some(Output::Send(Pdu { digest, ..Pdu::open(header.encode(), bytes, data) }))
    }

    /// Fails a streaming command whose caller gave wrong data, or none in time, and aborts it.
    #[cold]
    pub(super) fn fail_stream(&mut self, tag: u32) {
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        task.is_data_missing = true;
        let (lun, referenced) = (task.lun, Some(task.id));
        if self.abandon_stream(tag) {
            let function = ManagementFunction::ABORT_TASK;
            let abort = Management { id: OWN_ABORT, function, lun, referenced };
            self.enqueue(Queued::Management(abort));
        }
    }

    /// Abandons the data of a command: what is not sent is dropped, and an open PDU is completed so
    /// that the target does not accept it. Returns false if that requires to drop the connection.
    #[cold]
    pub(super) fn abandon_stream(&mut self, tag: u32) -> bool {
        let Some(task) = self.tasks.get_mut(&tag) else { return true };
        let missing_bytes = task.stream.as_mut().map_or(0, |stream| stream.end());
        task.is_digest_falsified |= missing_bytes > 0;
        if missing_bytes > 0 && !self.connection.digests.data {
            let reason = CloseReason::DataMissing;
            self.close(reason, ConnectionEnding::Lost, RequestFailure::Lost);
            return false;
        }
        self.fill(tag, missing_bytes, Some(WRONG_DIGEST));
        true
    }

    /// Completes the open PDU of a task that the target has ended: its data is not used.
    pub(super) fn complete_stream(&mut self, tag: u32, task: &mut Task) {
        self.streams.remove(&task.id);
        let missing_bytes = task.stream.as_mut().map_or(0, |stream| stream.end());
        // At the end of a connection the PDU stays incomplete, so that the target drops it.
        if !matches!(self.state, State::Closed) {
            self.fill(tag, missing_bytes, None);
        }
    }

    fn fill(&mut self, tag: u32, missing_bytes: usize, digest: Option<u32>) {
        let mut left = missing_bytes;
        for data in zeroes(missing_bytes) {
            left -= data.len();
            let digest = digest.filter(|_| left == 0);
            self.outputs.push_back(Output::SendData { initiator_task_tag: tag, data, digest });
        }
    }

    /// Sends no more data of streaming commands than the rest of open PDUs.
    pub(super) fn stop_streams(&mut self) {
        for tag in self.streams.values() {
            if let Some(stream) = self.tasks.get_mut(tag).and_then(|task| task.stream.as_mut()) {
                stream.stop();
            }
        }
    }

    /// Fails the commands whose Data-Out PDU has waited too long for its data.
    #[cold]
    pub(super) fn fail_late_parts(&mut self, now: Time) {
        for tag in self.streams.values().copied().collect::<alloc::vec::Vec<_>>() {
            if self.part_is_due(tag).is_some_and(|until| until <= now) {
                self.fail_stream(tag);
            }
        }
        let due = self.streams.values().filter_map(|tag| self.part_is_due(*tag));
        self.timers.parts_by = due.min();
    }

    fn part_is_due(&self, tag: u32) -> Option<Time> {
        self.tasks.get(&tag)?.stream.as_ref()?.waits_until()
    }
}

impl DataOutStream {
    /// Ends the first sequence; returns whether it answered an R2T.
    fn end_burst(&mut self) -> bool {
        let ended = self.bursts.pop_front();
        ended.is_some_and(|burst| burst.target_transfer_tag != TAG_RESERVED)
    }
}
