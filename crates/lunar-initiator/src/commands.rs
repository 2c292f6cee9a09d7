//! SCSI commands of an initiator, and the parsing of their responses.

use crate::opcodes::{
    INQUIRY, MODE_SENSE_6, READ_CAPACITY_10, READ_CAPACITY_16, READ_CAPACITY_16_ACTION,
    REPORT_LUNS, SYNCHRONIZE_CACHE_10,
};
use crate::queue_depth::RetryState;
use crate::session::Session;
use crate::{CommandReply, Error, ErrorKind, Initiator};
use bytes::Bytes;
use lunar_iscsi::connection::initiator::Cdb;
use lunar_iscsi::pdu::ServiceResponse;
use lunar_scsi::cdb::sbc::{Blocks10, Capacity16, ReadCapacity10, ServiceActionIn16};
use lunar_scsi::cdb::spc::{Inquiry, ReportLuns};
use lunar_scsi::commands::{opcode, service_action};
use lunar_scsi::sense::{Sense, SenseKey, Status};
use lunar_scsi::vpd::BlockLimitsPage;
use lunar_wire::{Field, Lun};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of times that a command is sent if it ends with unit attentions or its data
/// arrives damaged.
const TRIES_MAX: u32 = 8;
/// Half the first pause after a busy status; pauses double each time, up to [`BUSY_PAUSE_MAX`].
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause after a busy status whose status qualifier names no time.
const BUSY_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Longest pause that a status qualifier can require.
const QUALIFIED_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Time from the first busy status on for which a command is sent again, unless the time limit of
/// commands is shorter. If the unit is served again, the initiators of that server stop after
/// 30 s or later; they send a command again if it ends with BUSY.
const BUSY_TIME: Duration = Duration::from_secs(10);
/// Length of the data of READ CAPACITY (16).
const CAPACITY_16_BYTES: usize = 32;
/// Room for INQUIRY data and VPD pages.
const INQUIRY_BYTES: u16 = 1024;

/// One LUN of a session, as the address of commands.
#[derive(Clone, Debug)]
pub struct Unit {
    initiator: Initiator,
    lun: Lun,
    /// When set, commands are sent in this session only.
    session: Option<Session>,
}

/// Standard INQUIRY data. SPC-4 §6.6.2.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    /// Peripheral qualifier; 0: a unit is present.
    pub qualifier: u8,
    /// Peripheral device type; 0: a disk.
    pub device_type: u8,
    /// T10 vendor identification, without padding.
    pub vendor: String,
    /// Product identification, without padding.
    pub product: String,
    /// Product revision level, without padding.
    pub revision: String,
}

/// Data returned by READ CAPACITY.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Capacity {
    /// Number of logical blocks.
    pub block_count: u64,
    /// Logical block length in bytes.
    pub block_bytes: u32,
    /// Physical block length in bytes.
    pub physical_block_bytes: u32,
    /// LBPME: blocks can be deallocated.
    pub thin: bool,
    /// LBPRZ: deallocated blocks read as zeroes.
    pub unmapped_reads_zeroes: bool,
}

/// One designator of the device identification page. SPC-4 §7.8.6.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Designator {
    /// 0: of the unit; 1: of the target port; 2: of the target device.
    pub association: u8,
    /// Designator type: 1 T10 vendor, 3 NAA, 8 SCSI name, Ah UUID …
    pub kind: u8,
    /// The text, or the bytes in hexadecimal.
    pub text: String,
}

/// Caching and write protection as reported by MODE SENSE.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DeviceMode {
    /// WP: the unit is write-protected.
    pub write_protected: bool,
    /// DPOFUA: the unit supports FUA.
    pub fua: bool,
    /// WCE: the unit has a volatile write cache.
    pub write_cache: bool,
}

impl Unit {
    /// Returns the unit `lun` of the session's target.
    pub fn new(initiator: Initiator, lun: u16) -> Self {
        Self { initiator, lun: Lun::new(lun), session: None }
    }

    /// Returns the same unit, bound to one session.
    pub(crate) fn in_session(&self, session: &Session) -> Self {
        Self { session: Some(session.clone()), ..self.clone() }
    }

    /// Returns the session.
    pub fn initiator(&self) -> &Initiator {
        &self.initiator
    }

    /// Returns the LUN.
    pub fn lun(&self) -> Lun {
        self.lun
    }

    /// Executes a command that must end with GOOD. The command is sent again after a unit
    /// attention, which is recorded, and after its data arrived damaged; after a busy status it is
    /// sent again with growing pauses. A command whose session is lost is not repeated.
    ///
    /// # Errors
    /// `Sense` · `Status` · as [`Initiator::execute`].
    pub async fn command(
        &self,
        cdb: impl Into<Cdb>,
        data_out: Bytes,
        data_in_max: u32,
    ) -> Result<CommandReply, Error> {
        let cdb = cdb.into();
        let mut attempt = Attempt::default();
        loop {
            let (initiator, lun) = (&self.initiator, self.lun);
            let reply = match &self.session {
                Some(session) => {
                    initiator.execute_on(session, lun, &cdb, &data_out, data_in_max).await?
                }
                None => initiator.execute(lun, cdb.clone(), data_out.clone(), data_in_max).await?,
            };
            match attempt.interpret_end(initiator.command_time(), &cdb, &reply.result)? {
                RetryDecision::Good => return Ok(reply),
                RetryDecision::Again => {}
                RetryDecision::Refused => initiator.pause(attempt.turn.pause).await,
            }
        }
    }

    /// Checks that the unit is ready, with TEST UNIT READY.
    ///
    /// # Errors
    /// The errors of [`command`](Self::command).
    pub async fn test_ready(&self) -> Result<(), Error> {
        self.command(vec![0; 6], Bytes::new(), 0).await.map(drop)
    }

    /// Reads the standard INQUIRY data.
    ///
    /// # Errors
    /// `Protocol` when it is too short · as [`command`](Self::command).
    pub async fn identity(&self) -> Result<Identity, Error> {
        let data = self.inquiry(0, 0).await?;
        let [first, ..] = *data else { return Err(invalid_response("INQUIRY")) };
        if data.len() < 36 {
            return Err(invalid_response("INQUIRY"));
        }
        Ok(Identity {
            qualifier: first >> 5,
            device_type: first & 0x1f,
            vendor: text(&data[8..16]),
            product: text(&data[16..32]),
            revision: text(&data[32..36]),
        })
    }

    /// Reads the body of a vital product data page; `None` if the unit has no such page.
    ///
    /// # Errors
    /// The errors of [`command`](Self::command).
    pub async fn vpd_page(&self, page: u8) -> Result<Option<Bytes>, Error> {
        match self.inquiry(1, page).await {
            Ok(data) if data.len() >= 4 && data[1] == page => {
                let body_bytes = usize::from(u16::get(&data[2..4]));
                let end = data.len().min(4 + body_bytes);
                Ok(Some(data.slice(4..end)))
            }
            // Some units return another page than the requested one.
            Ok(_) => Ok(None),
            Err(error) if is_illegal(&error) => Ok(None),
            // istgt 0.4 refuses a page that it does not have without sense data.
            Err(Error { kind: ErrorKind::Sense(None), .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn inquiry(&self, flags: u8, page: u8) -> Result<Bytes, Error> {
        let allocation_bytes = INQUIRY_BYTES;
        let cdb = Inquiry { opcode: INQUIRY, flags, page, allocation_bytes, control: 0 };
        let reply =
            self.command(cdb.encode().to_vec(), Bytes::new(), allocation_bytes.into()).await?;
        Ok(reply.data_in)
    }

    /// Reads the unit serial number; `None` if the unit has none.
    ///
    /// # Errors
    /// The errors of [`command`](Self::command).
    pub async fn serial_number(&self) -> Result<Option<String>, Error> {
        Ok(self.vpd_page(0x80).await?.map(|body| text(&body)))
    }

    /// Reads the designators of the device identification page.
    ///
    /// # Errors
    /// The errors of [`command`](Self::command).
    pub async fn designators(&self) -> Result<Vec<Designator>, Error> {
        Ok(self.vpd_page(0x83).await?.map_or_else(Vec::new, |body| parse_designators(&body)))
    }

    /// Reads the block limits; `None` if the unit does not report them.
    ///
    /// # Errors
    /// The errors of [`command`](Self::command).
    pub async fn block_limits(&self) -> Result<Option<BlockLimitsPage>, Error> {
        const BYTES: usize = 60;
        Ok(self.vpd_page(0xb0).await?.map(|body| {
            // Older units have a shorter page; missing fields are 0.
            let mut raw = [0; BYTES];
            let copied = body.len().min(BYTES);
            raw[..copied].copy_from_slice(&body[..copied]);
            BlockLimitsPage::decode(&raw)
        }))
    }

    /// Reads size and block lengths.
    ///
    /// # Errors
    /// `Protocol` when the response is malformed · as [`command`](Self::command).
    pub async fn capacity(&self) -> Result<Capacity, Error> {
        let cdb = ServiceActionIn16 {
            opcode: READ_CAPACITY_16,
            service_action: READ_CAPACITY_16_ACTION,
            lba: 0,
            allocation_bytes: CAPACITY_16_BYTES as u32,
            flags: 0,
            control: 0,
        };
        let reply =
            self.command(cdb.encode().to_vec(), Bytes::new(), CAPACITY_16_BYTES as u32).await;
        let data = match reply {
            Ok(reply) => reply.data_in,
            Err(error) if is_illegal(&error) => return self.capacity_10().await,
            Err(error) => return Err(error),
        };
        parse_capacity_16(&data)
    }

    async fn capacity_10(&self) -> Result<Capacity, Error> {
        let cdb = ReadCapacity10 { opcode: READ_CAPACITY_10, lba: 0, flags: 0, control: 0 };
        let reply = self.command(cdb.encode().to_vec(), Bytes::new(), 8).await?;
        let raw: [u8; 8] =
            reply.data_in[..].try_into().map_err(|_| invalid_response("READ CAPACITY (10)"))?;
        let block_bytes = checked_block(u32::get(&raw[4..]))?;
        Ok(Capacity {
            block_count: u64::from(u32::get(&raw[..4])) + 1,
            block_bytes,
            physical_block_bytes: block_bytes,
            thin: false,
            unmapped_reads_zeroes: false,
        })
    }

    /// Reads caching and write protection; `None` if the unit does not report them.
    ///
    /// # Errors
    /// The errors of [`command`](Self::command); a unit without MODE SENSE is no error.
    pub async fn mode(&self) -> Result<Option<DeviceMode>, Error> {
        const CACHING: u8 = 0x08;
        const DISABLE_BLOCK_DESCRIPTORS: u8 = 0x08;
        let cdb = vec![MODE_SENSE_6, DISABLE_BLOCK_DESCRIPTORS, CACHING, 0, 255, 0];
        let data = match self.command(cdb, Bytes::new(), 255).await {
            Ok(reply) => reply.data_in,
            Err(error) if is_illegal(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let [_, _, specific, descriptors, ..] = *data else { return Ok(None) };
        let page = data.get(4 + usize::from(descriptors)..).unwrap_or_default();
        let caching = matches!(page, [code, ..] if code & 0x3f == CACHING);
        Ok(Some(DeviceMode {
            write_protected: specific & 0x80 != 0,
            fua: specific & 0x10 != 0,
            write_cache: caching && page.get(2).is_some_and(|flags| flags & 0x04 != 0),
        }))
    }

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// The errors of [`command`](Self::command).
    pub async fn synchronize_cache(&self) -> Result<(), Error> {
        let cdb = Blocks10 {
            opcode: SYNCHRONIZE_CACHE_10,
            flags: 0,
            lba: 0,
            group: 0,
            count: 0,
            control: 0,
        };
        self.command(cdb.encode().to_vec(), Bytes::new(), 0).await.map(drop)
    }

    /// Reads the LUNs of the target, as 8-byte fields.
    ///
    /// # Errors
    /// The errors of [`command`](Self::command).
    pub async fn report_luns(&self) -> Result<Vec<Lun>, Error> {
        const BYTES: u32 = 8 + 8 * 1024;
        let cdb = ReportLuns {
            opcode: REPORT_LUNS,
            select_report: 0,
            allocation_bytes: BYTES,
            control: 0,
        };
        let reply = self.command(cdb.encode().to_vec(), Bytes::new(), BYTES).await?;
        let list = reply.data_in.get(8..).unwrap_or_default();
        Ok(list.chunks_exact(8).map(Lun::get).collect())
    }

    /// Reads the reservation in force; `None` if there is none, or the unit does not support
    /// reservations.
    ///
    /// # Errors
    /// The errors of [`command`](Self::command).
    pub async fn reservation(&self) -> Result<Option<Reservation>, Error> {
        const NAME: &str = "PERSISTENT RESERVE IN: READ RESERVATION";
        const PERSISTENT_RESERVE_IN: u8 = opcode(NAME);
        const READ_RESERVATION: u8 = service_action(NAME);
        const BYTES: u8 = 24;
        let cdb = vec![PERSISTENT_RESERVE_IN, READ_RESERVATION, 0, 0, 0, 0, 0, 0, BYTES, 0];
        match self.command(cdb, Bytes::new(), BYTES.into()).await {
            Ok(reply) if reply.data_in.len() >= usize::from(BYTES) => {
                let data = reply.data_in;
                Ok(Some(Reservation { key: u64::get(&data[8..16]), kind: data[21] & 0x0f }))
            }
            Ok(_) => Ok(None),
            Err(error) if is_illegal(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A persistent reservation. SPC-4 §6.15.3.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reservation {
    /// Reservation key.
    pub key: u64,
    /// TYPE: 1 write exclusive, 3 exclusive access, 5 to 8 their registrants-only forms.
    pub kind: u8,
}

/// Verdict on a command: it ended well, or has to be sent again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RetryDecision {
    Good,
    Again,
    /// The unit was busy: the command is sent again in its turn, or after a pause.
    Refused,
}

/// Number of times a command was sent.
#[derive(Debug, Default)]
pub(crate) struct Attempt {
    tries: u32,
    /// Turn of the command after a busy status.
    pub(crate) turn: RetryState,
    /// Time until which another busy status is accepted, not counting the time for which the
    /// command waited while the unit executed others.
    busy_until: Option<Instant>,
}

impl Attempt {
    /// Decides what follows the end of a command that may take `command_time`.
    pub(crate) fn interpret_end(
        &mut self,
        command_time: Option<Duration>,
        cdb: &[u8],
        result: &lunar_iscsi::connection::initiator::CommandResult,
    ) -> Result<RetryDecision, Error> {
        let opcode = cdb.first().copied().unwrap_or_default();
        if result.response != ServiceResponse::COMMAND_COMPLETED {
            let what = format!("command {opcode:02x}h failed in the target (iSCSI target failure)");
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        match Status(result.status) {
            Status::GOOD | Status::CONDITION_MET => Ok(RetryDecision::Good),
            Status::CHECK_CONDITION => {
                self.tries += 1;
                if is_transient(&result.sense) && self.tries < TRIES_MAX {
                    return Ok(RetryDecision::Again);
                }
                Err(sense_error(opcode, &result.sense))
            }
            Status::BUSY | Status::TASK_SET_FULL if self.may_wait(command_time) => {
                let pause = busy_pause(self.turn.refusals + 1, result.status_qualifier);
                self.turn.record_refusal(pause);
                Ok(RetryDecision::Refused)
            }
            Status(status) => {
                let what = match Status(status) {
                    Status::RESERVATION_CONFLICT => "reservation conflict".to_owned(),
                    status => format!("{status:?}"),
                };
                let what = format!("command {opcode:02x}h: {what}");
                Err(Error::new(ErrorKind::Status(status), what))
            }
        }
    }
}

impl Attempt {
    /// True if a command that ended with a busy status may be sent again.
    fn may_wait(&mut self, command_time: Option<Duration>) -> bool {
        let now = Instant::now();
        let time = command_time.map_or(BUSY_TIME, |limit| limit.min(BUSY_TIME));
        now < *self.busy_until.get_or_insert(now + time) + self.turn.waited
    }
}

/// Returns the pause after this many busy statuses. A status qualifier names the time after which
/// the command may be sent again in tenths of a second, for different scopes. SAM-5 §5.3.2.
fn busy_pause(count: u32, status_qualifier: u16) -> Duration {
    let tenths = u32::from(status_qualifier & 0x3fff);
    if tenths > 0 {
        return (Duration::from_millis(100) * tenths).min(QUALIFIED_PAUSE_MAX);
    }
    (BUSY_PAUSE * (1 << count.min(10))).min(BUSY_PAUSE_MAX)
}

/// True for a unit attention, for the error of an earlier command, with which this one was not
/// executed (SPC-4 §4.5.7), and for data that arrived damaged, which the target has not used (RFC
/// 7143 §11.4.7.2).
fn is_transient(sense: &[u8]) -> bool {
    let damaged = Sense::PROTOCOL_SERVICE_CRC_ERROR;
    Sense::is_deferred(sense)
        || Sense::decode(sense).is_some_and(|sense| {
            sense.key == SenseKey::UNIT_ATTENTION
                || (sense.key, sense.code) == (damaged.key, damaged.code)
        })
}

fn sense_error(opcode: u8, bytes: &[u8]) -> Error {
    let mut sense = Sense::decode(bytes);
    let is_deferred = Sense::is_deferred(bytes);
    let what = match &mut sense {
        Some(sense) => {
            if is_deferred {
                sense.information = None; // not a block of this command
            }
            let [code, qualifier] = sense.code.to_be_bytes();
            let note = if is_deferred { " (deferred error of an earlier command)" } else { "" };
            format!("command {opcode:02x}h: {:?} {code:02x}h/{qualifier:02x}h{note}", sense.key)
        }
        None => format!("command {opcode:02x}h: CHECK CONDITION without sense data"),
    };
    Error::new(ErrorKind::Sense(sense), what)
}

/// True when the unit does not support the command, or this form of it.
pub(crate) fn is_illegal(error: &Error) -> bool {
    error.sense().is_some_and(|sense| sense.key == SenseKey::ILLEGAL_REQUEST)
}

fn invalid_response(command: &str) -> Error {
    Error::new(ErrorKind::Protocol, format!("the response to {command} is invalid"))
}

/// Parses the data of READ CAPACITY (16).
pub(crate) fn parse_capacity_16(data: &[u8]) -> Result<Capacity, Error> {
    let raw: [u8; CAPACITY_16_BYTES] =
        data.try_into().map_err(|_| invalid_response("READ CAPACITY (16)"))?;
    let capacity = Capacity16::decode(&raw);
    let block_bytes = checked_block(capacity.block_bytes)?;
    // Sizes are counted in bytes: a size that does not fit in 64 bits is invalid.
    let block_count = capacity
        .last_lba
        .checked_add(1)
        .filter(|count| count.checked_mul(block_bytes.into()).is_some())
        .ok_or_else(|| invalid_response("READ CAPACITY (16)"))?;
    Ok(Capacity {
        block_count,
        block_bytes,
        physical_block_bytes: block_bytes << (capacity.exponents & 0x0f),
        thin: capacity.provisioning & 0x8000 != 0,
        unmapped_reads_zeroes: capacity.provisioning & 0x4000 != 0,
    })
}

/// Returns `block_bytes` if a `BlockDevice` can have blocks of this length.
fn checked_block(block_bytes: u32) -> Result<u32, Error> {
    if block_bytes.is_power_of_two() && (512..=4096).contains(&block_bytes) {
        return Ok(block_bytes);
    }
    let what = format!("the unit has an unsupported block size of {block_bytes} bytes");
    Err(Error::new(ErrorKind::Protocol, what).hint("only 512, 1024, 2048 and 4096 are supported"))
}

/// Decodes ASCII that is padded with spaces or zeroes.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    plain.trim().to_owned()
}

/// Parses the body of the device identification page, up to the first incomplete designator.
pub(crate) fn parse_designators(mut body: &[u8]) -> Vec<Designator> {
    const ASCII: u8 = 2;
    const UTF_8: u8 = 3;
    const UUID: u8 = 0x0a;
    let mut designators = Vec::new();
    while let [code_set, kind, _, length, rest @ ..] = body {
        let Some((designator, rest)) = rest.split_at_checked(usize::from(*length)) else { break };
        let kind_number = kind & 0x0f;
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let shown = match code_set & 0x0f {
            ASCII | UTF_8 => text(designator),
            _ if kind_number == UUID => hex(designator.get(2..).unwrap_or_default()),
            _ => hex(designator),
        };
        let association = (kind >> 4) & 0x03;
        designators.push(Designator { association, kind: kind_number, text: shown });
        body = rest;
    }
    designators
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_scsi::sense::SenseFormat;

    /// Goal: designators of a malformed page are read without panic, up to the first incomplete
    /// one.
    #[test]
    fn designators_end_where_the_page_ends() {
        let page = [
            0x01, 0x03, 0, 8, 0x30, 1, 2, 3, 4, 5, 6, 7, // NAA
            0x03, 0x18, 0, 8, b'i', b'q', b'n', b'.', b'x', 0, 0, 0, // name of the port
            0x01, 0x0a, 0, 200, 1, 2, // cut off
        ];
        let designators = parse_designators(&page);
        assert_eq!(designators.len(), 2);
        assert_eq!(designators[0].text, "3001020304050607");
        assert_eq!((designators[1].association, designators[1].text.as_str()), (1, "iqn.x"));
        for end in 0..page.len() {
            parse_designators(&page[..end]);
        }
    }

    /// Goal: a command is sent again after a unit attention, after its data was damaged on the way,
    /// and after the deferred error of an earlier command; not after other aborted commands.
    #[test]
    fn transient_sense_is_retried() {
        for format in [SenseFormat::Fixed, SenseFormat::Descriptor] {
            let passes = |sense: Sense| is_transient(&sense.encode(format));
            assert!(passes(Sense::POWER_ON_RESET));
            assert!(passes(Sense::PROTOCOL_SERVICE_CRC_ERROR));
            assert!(!passes(Sense { code: 0, ..Sense::PROTOCOL_SERVICE_CRC_ERROR }));
            let mut error = Sense::WRITE_ERROR.encode(format);
            assert!(!is_transient(&error));
            error[0] |= 1;
            assert!(is_transient(&error));
        }
        assert!(!is_transient(&[]));
    }

    /// Goal: the error of an earlier command names no block of the current one.
    #[test]
    fn a_deferred_error_names_no_block_of_the_command() {
        let mut bytes = Sense::WRITE_ERROR.with_information(7).encode(SenseFormat::Fixed);
        assert_eq!(sense_error(0x28, &bytes).sense().unwrap().information, Some(7));
        bytes[0] |= 1;
        let error = sense_error(0x28, &bytes);
        assert_eq!(error.sense().unwrap().information, None);
        assert_eq!(
            error.what,
            "command 28h: MEDIUM_ERROR 0ch/00h (deferred error of an earlier command)"
        );
    }

    /// Goal: pauses after busy statuses grow to a limit, or follow the status qualifier.
    #[test]
    fn pauses_after_busy_statuses() {
        let pauses: Vec<_> = (1..=9).map(|count| busy_pause(count, 0).as_millis()).collect();
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1000, 1000, 1000]);
        assert_eq!(busy_pause(u32::MAX, 0), BUSY_PAUSE_MAX);
        for (qualifier, millis) in [(1, 100), (0x4003, 300), (0x3ffe, 5000), (0x8000, 40)] {
            assert_eq!(busy_pause(2, qualifier).as_millis(), millis, "{qualifier:04x}");
        }
    }

    #[test]
    fn impossible_blocks_are_refused() {
        for block in [0, 1, 520, 8192, u32::MAX] {
            assert!(checked_block(block).is_err(), "{block}");
        }
        assert_eq!(checked_block(4096).unwrap(), 4096);
    }
}
