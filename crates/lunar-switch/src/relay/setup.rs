//! The commands that begin a session with a storage: they check that the unit is ready and that it
//! is the expected one.

use bytes::Bytes;
use lunar_iscsi::connection::initiator::{CommandResult, RequestFailure};
use lunar_iscsi::pdu::ServiceResponse;
use lunar_scsi::cdb::sbc::ServiceActionIn16;
use lunar_scsi::cdb::spc::Inquiry;
use lunar_scsi::commands::{opcode, service_action};
use lunar_scsi::sense::{Sense, SenseKey, Status};

/// Maximum number of times that a command is sent if it ends with unit attentions.
const TRIES_MAX: u32 = 8;
/// Allocation length for the device identification page.
const PAGE_BYTES: u16 = 1024;
/// Length of the data of READ CAPACITY (16).
const CAPACITY_BYTES: u32 = 32;
/// EVPD of INQUIRY.
const EVPD: u8 = 1;
/// The device identification page.
const DEVICE_IDENTIFICATION: u8 = 0x83;
/// Length of the header of a vital product data page.
const PAGE_HEADER_BYTES: usize = 4;

/// Progress of the commands that show whether the unit may be used.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    step: SetupStep,
    tries: u32,
    /// Data-in of the current command.
    reply: Vec<u8>,
    designators: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SetupStep {
    TestReady,
    Designators,
    Capacity,
}

/// Result of a command of the setup.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum SetupProgress {
    /// Another command is to be sent.
    Next,
    /// The unit is ready and has this identity: the body of its device identification page, and the
    /// data of READ CAPACITY (16).
    Known(Vec<u8>, Vec<u8>),
    /// The unit is not ready, or does not answer as it should.
    Failed,
}

impl Setup {
    pub(super) fn new() -> Self {
        let (reply, designators) = (Vec::new(), Vec::new());
        Self { step: SetupStep::TestReady, tries: 0, reply, designators }
    }

    /// Returns the CDB of the next command, and its data-in in bytes.
    pub(super) fn command(&mut self) -> (Vec<u8>, u32) {
        self.reply.clear();
        match self.step {
            SetupStep::TestReady => (vec![opcode("TEST UNIT READY"), 0, 0, 0, 0, 0], 0),
            SetupStep::Designators => {
                let inquiry = Inquiry {
                    opcode: opcode("INQUIRY"),
                    flags: EVPD,
                    page: DEVICE_IDENTIFICATION,
                    allocation_bytes: PAGE_BYTES,
                    control: 0,
                };
                (inquiry.encode().to_vec(), PAGE_BYTES.into())
            }
            SetupStep::Capacity => {
                let capacity = ServiceActionIn16 {
                    opcode: opcode("READ CAPACITY (16)"),
                    service_action: service_action("READ CAPACITY (16)"),
                    lba: 0,
                    allocation_bytes: CAPACITY_BYTES,
                    flags: 0,
                    control: 0,
                };
                (capacity.encode().to_vec(), CAPACITY_BYTES)
            }
        }
    }

    /// Takes data-in of the current command, within its length.
    pub(super) fn data_in(&mut self, offset_bytes: u32, data: &Bytes) {
        let (start, end) = (offset_bytes as usize, offset_bytes as usize + data.len());
        if self.reply.len() < end {
            self.reply.resize(end, 0);
        }
        if let Some(room) = self.reply.get_mut(start..end) {
            room.copy_from_slice(data);
        }
    }

    /// Handles the end of the current command.
    pub(super) fn completed(
        &mut self,
        result: Result<CommandResult, RequestFailure>,
    ) -> SetupProgress {
        let Ok(result) = result else { return SetupProgress::Failed };
        if is_unit_attention(&result) && self.tries < TRIES_MAX {
            self.tries += 1;
            return SetupProgress::Next;
        }
        let is_good = result.response == ServiceResponse::COMMAND_COMPLETED
            && Status(result.status) == Status::GOOD;
        if !is_good {
            return SetupProgress::Failed;
        }
        self.reply.truncate(result.data_in_bytes as usize);
        match self.step {
            SetupStep::TestReady => self.step = SetupStep::Designators,
            SetupStep::Designators => {
                self.designators = page_body(&self.reply);
                self.step = SetupStep::Capacity;
            }
            SetupStep::Capacity => {
                let designators = std::mem::take(&mut self.designators);
                return SetupProgress::Known(designators, std::mem::take(&mut self.reply));
            }
        }
        SetupProgress::Next
    }
}

/// Returns the body of a vital product data page, as far as it was received.
fn page_body(page: &[u8]) -> Vec<u8> {
    let [_, code, high, low, ..] = *page else { return Vec::new() };
    let bytes = usize::from(u16::from_be_bytes([high, low]));
    let body = page.get(PAGE_HEADER_BYTES..).unwrap_or_default();
    if code == DEVICE_IDENTIFICATION {
        body.get(..bytes).unwrap_or(body).to_vec()
    } else {
        Vec::new()
    }
}

/// True for CHECK CONDITION with a unit attention.
pub(super) fn is_unit_attention(result: &CommandResult) -> bool {
    Status(result.status) == Status::CHECK_CONDITION
        && Sense::decode(&result.sense).is_some_and(|sense| sense.key == SenseKey::UNIT_ATTENTION)
}
