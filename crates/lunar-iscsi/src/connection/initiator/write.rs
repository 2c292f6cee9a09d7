//! Data-Out: unsolicited data and data requested by R2Ts. RFC 7143 §4.2.5.2, §11.7, §11.8.

use super::Violation;
use super::machine::InitiatorConnection;
use super::task::Burst;
use crate::framing::{Header, Pdu};
use crate::pdu::{Opcode, ReadyToTransfer, TAG_RESERVED};
use crate::text::{ConnectionParameters, SessionParameters};
use lunar_wire::U24;

/// The initial data-out of a command. RFC 7143 §4.2.5.2, §13.10, §13.11, §13.14.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct InitialData {
    /// Bytes in the command PDU itself.
    pub(super) immediate_bytes: u32,
    /// Bytes of immediate data and of the data that follows without an R2T.
    pub(super) unsolicited_bytes: u32,
}

impl InitialData {
    /// Calculates the largest amount that was negotiated: a target expects whole first bursts
    /// (RFC 7143 §11.4.7.2, "not enough unsolicited data").
    pub(super) fn of(
        data_out_bytes: u32,
        session: &SessionParameters,
        connection: &ConnectionParameters,
    ) -> Self {
        let first = data_out_bytes.min(session.first_burst_bytes);
        let immediate_bytes = match session.immediate_data {
            true => first.min(connection.send_data_segment_bytes_max),
            false => 0,
        };
        let unsolicited_bytes = if session.initial_r2t { immediate_bytes } else { first };
        Self { immediate_bytes, unsolicited_bytes }
    }

    /// Reduces the amount to the `bytes` that are available. Unsolicited PDUs have to fill the
    /// first burst (RFC 7143 §11.4.7.2), so without all of it only immediate data is sent.
    pub(super) fn limited_to(self, bytes: u32) -> Self {
        if bytes >= self.unsolicited_bytes {
            return self;
        }
        let immediate_bytes = self.immediate_bytes.min(bytes);
        Self { immediate_bytes, unsolicited_bytes: immediate_bytes }
    }
}

impl InitiatorConnection {
    /// Queues the data of one R2T behind that of earlier R2Ts, which keeps the order that
    /// RFC 7143 §11.8 requires.
    pub(super) fn on_ready_to_transfer(&mut self, header: &Header) -> Result<(), Violation> {
        const PDU: Opcode = Opcode::READY_TO_TRANSFER;
        let malformed = |what| Violation::Malformed { pdu: PDU, what };
        let r2t = ReadyToTransfer::decode(&header.bhs);
        self.on_next_stat_sn(r2t.stat_sn)?;
        self.on_window(r2t.exp_cmd_sn, r2t.max_cmd_sn);
        let (tag, bytes) = (r2t.initiator_task_tag, r2t.desired_length_bytes);
        if r2t.data_segment_length.value() != 0 {
            return Err(malformed("the R2T has a data segment"));
        }
        if bytes == 0 || bytes > self.session.max_burst_bytes {
            return Err(malformed("the desired length is 0 or more than MaxBurstLength"));
        }
        if r2t.target_transfer_tag == TAG_RESERVED {
            return Err(malformed("the Target Transfer Tag is reserved"));
        }
        let Some(task) = self.tasks.get_mut(&tag) else {
            let known = self.ended_tags.contains(&tag);
            return if known { Ok(()) } else { Err(Violation::UnknownTag { pdu: PDU, tag }) };
        };
        if r2t.r2t_sn != task.input_sn {
            let (got, expected) = (r2t.r2t_sn, task.input_sn);
            return Err(Violation::DataSn { pdu: PDU, got, expected });
        }
        if task.r2ts_open >= u32::from(self.session.max_outstanding_r2t) {
            return Err(malformed("more R2Ts are open than MaxOutstandingR2T"));
        }
        let (offset, total) = (r2t.buffer_offset_bytes, task.data_out_bytes);
        task.requested
            .add(offset, bytes, total, self.session.data_sequence_in_order)
            .map_err(|misfit| malformed(misfit.as_str()))?;
        task.input_sn = task.input_sn.wrapping_add(1);
        task.r2ts_open += 1;
        if self.data_is_over {
            return Ok(());
        }
        let streams = task.stream.is_some();
        let burst = Burst {
            initiator_task_tag: tag,
            target_transfer_tag: r2t.target_transfer_tag,
            lun: r2t.lun,
            at_bytes: offset,
            end_bytes: offset + bytes,
            data_sn: 0,
        };
        match streams {
            true => self.queue_stream_burst(burst),
            false => self.bursts.push_back(burst),
        }
        Ok(())
    }

    /// Discards the remaining Data-Out, except the rest of open PDUs. The target terminates all
    /// tasks when it receives the Logout Request (RFC 7143 §11.14), so data behind it would belong
    /// to no task. tgt 1.0.85 closes the connection on such data, without a Logout Response.
    pub(super) fn end_data(&mut self) {
        self.data_is_over = true;
        self.bursts.clear();
        self.stop_streams();
    }

    /// Index of the oldest burst that is not paused.
    fn next_burst(&self) -> Option<usize> {
        let pauses = |burst: &Burst| {
            let task = self.tasks.get(&burst.initiator_task_tag);
            task.is_some_and(|task| task.paused_by.is_some())
        };
        self.bursts.iter().position(|burst| !pauses(burst))
    }

    /// Returns the next Data-Out that is due; built only on demand, so that waiting data needs no
    /// memory.
    pub(super) fn next_data_out(&mut self) -> Option<Pdu> {
        let at = self.next_burst()?;
        let burst = self.bursts.get_mut(at)?;
        let task = self.tasks.get_mut(&burst.initiator_task_tag)?;
        let step = (burst.end_bytes - burst.at_bytes)
            .min(self.connection.send_data_segment_bytes_max)
            .min(U24::MAX);
        let (from, to) = (burst.at_bytes, burst.at_bytes + step);
        let is_last = to == burst.end_bytes;
        let header = burst.header(step, self.exp_stat_sn);
        burst.advance(step);
        let data = task.data_out.slice(from as usize..to as usize);
        if is_last {
            if burst.target_transfer_tag != TAG_RESERVED {
                task.r2ts_open -= 1;
            }
            self.bursts.remove(at);
        }
        Some(Pdu::with_data(header.encode(), data))
    }
}
