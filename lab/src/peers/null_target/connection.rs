//! One connection: PDUs from one buffer, responses in one send.

use super::commands::{self, CANNED, CommandAnswer, SENSE};
use super::login::{self, Agreed, SEGMENT_BYTES_MAX};
use anyhow::{Context, Result, bail, ensure};
use lunar_iscsi::pdu::{
    BasicHeader, CommandFlags, DataIn, DataInFlags, DataOut, FinalFlag, FirstByte, HEADER_BYTES,
    LoginFlags, LoginRequest, LoginResponse, LoginStatus, LogoutResponse, LogoutResult, NopIn,
    NopOut, Opcode, ReadyToTransfer, ResponseFlags, ScsiCommand, ScsiResponse, ServiceResponse,
    Stage, TAG_RESERVED,
};
use lunar_wire::{Lun, SerialNumber, U24};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::LazyLock;

/// Size of the receive buffer: one PDU with the most data, and as much again behind it.
const INPUT_BYTES: usize = 2 * (SEGMENT_BYTES_MAX as usize + HEADER_BYTES);
/// Commands that an initiator may have under way.
const WINDOW: u32 = 1024;
/// Maximum length of a read; a longer one is refused.
const READ_BYTES_MAX: u32 = 16 << 20;
/// Maximum number of pieces in the responses of one turn; a peer that requests more is no valid
/// load for a ceiling. Two for each PDU: its header and its data.
const TURN_PIECES_MAX: usize = 256 << 10;
/// Number of requests after which a session that is alone gets its responses, so that both ends
/// work at the same time: otherwise the initiator waits while responses are made, and real targets
/// that send earlier are faster than their ceiling.
const BURST_PDUS: usize = 8;
/// Pieces of one vectored send. Linux: `IOV_MAX`.
const PIECES_MAX: usize = 1024;
/// Time after which a peer that reads nothing counts as gone.
const SILENCE_SECONDS_MAX: i64 = 30;
/// Maximum data length of a Data-In PDU.
const CANNED_BYTES: usize = SEGMENT_BYTES_MAX as usize;

static DATA: LazyLock<Vec<u8>> = LazyLock::new(|| vec![CANNED; CANNED_BYTES]);

/// A piece of the data to be sent.
enum Piece {
    /// A range of `own`.
    Own(Range<usize>),
    /// This many canned bytes.
    Canned(usize),
}

/// A write whose data comes on request.
#[derive(Clone, Copy, Debug)]
struct PendingWrite {
    expected_bytes: u32,
    received_bytes: u32,
    /// End of the sequence that was requested last.
    requested_bytes: u32,
    r2t_sn: u32,
}

/// A connection, which is a session.
pub struct NullConnection {
    socket: TcpStream,
    disk_bytes: u64,
    agreed: Agreed,
    is_logged_in: bool,
    told_group: bool,
    stat_sn: SerialNumber,
    exp_cmd_sn: SerialNumber,
    input: Vec<u8>,
    filled: usize,
    own: Vec<u8>,
    pieces: Vec<Piece>,
    /// By the initiator task tag; at most as many as the window.
    writes: HashMap<u32, PendingWrite>,
}

impl NullConnection {
    /// Creates a connection from a socket.
    ///
    /// # Errors
    /// The system refuses its options.
    pub fn new(socket: TcpStream, disk_bytes: u64) -> Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            disk_bytes,
            agreed: Agreed::default(),
            is_logged_in: false,
            told_group: false,
            stat_sn: SerialNumber(1),
            exp_cmd_sn: SerialNumber(0),
            input: vec![0; INPUT_BYTES],
            filled: 0,
            own: Vec::new(),
            pieces: Vec::new(),
            writes: HashMap::new(),
        })
    }

    /// Returns the socket to wait for.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Receives pending requests and answers them, in bursts of [`BURST_PDUS`] if it `is_alone`.
    ///
    /// # Errors
    /// The connection is over, or its peer requests a feature that does not exist here.
    pub fn turn(&mut self, is_alone: bool) -> Result<()> {
        match self.socket.read(&mut self.input[self.filled..]) {
            Ok(0) => bail!("the peer closed the connection"),
            Ok(bytes) => self.filled += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let mut at = 0;
        let mut is_open = true;
        let mut burst = 0;
        while let Some((header, data)) = next(&self.input[at..self.filled])? {
            let data = at + data.start..at + data.end;
            at = data.end.next_multiple_of(4).min(self.filled);
            is_open &= self.pdu(&header, data)?;
            ensure!(self.pieces.len() <= TURN_PIECES_MAX, "too many requests in one turn");
            burst += 1;
            if is_alone && burst % BURST_PDUS == 0 {
                self.send()?;
            }
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        self.send()?;
        ensure!(is_open, "the peer logged out");
        Ok(())
    }

    /// Answers one PDU; `false`: the connection ends.
    fn pdu(&mut self, header: &[u8; HEADER_BYTES], data: Range<usize>) -> Result<bool> {
        match BasicHeader::decode(header).first.opcode() {
            Opcode::LOGIN_REQUEST if !self.is_logged_in => {
                self.login(&LoginRequest::decode(header), data)?;
            }
            Opcode::SCSI_COMMAND if self.is_logged_in => {
                self.command(&ScsiCommand::decode(header), data.len())?;
            }
            Opcode::DATA_OUT if self.is_logged_in => {
                self.data_out(&DataOut::decode(header), data.len());
            }
            Opcode::NOP_OUT if self.is_logged_in => self.ping(&NopOut::decode(header), data),
            Opcode::LOGOUT_REQUEST if self.is_logged_in => {
                let tag = BasicHeader::decode(header).initiator_task_tag;
                let response = LogoutResponse {
                    first: FirstByte::plain(Opcode::LOGOUT_RESPONSE),
                    flags: FinalFlag::FINAL,
                    response: LogoutResult::CLOSED,
                    total_ahs_words: 0,
                    data_segment_length: U24::default(),
                    initiator_task_tag: tag,
                    stat_sn: self.next_stat_sn(),
                    exp_cmd_sn: self.exp_cmd_sn,
                    max_cmd_sn: self.max_cmd_sn(),
                    time_to_wait_seconds: 0,
                    time_to_retain_seconds: 0,
                };
                self.put(&response.encode(), &[]);
                return Ok(false);
            }
            other => bail!("the null target does not support {other:?}"),
        }
        Ok(true)
    }

    fn login(&mut self, request: &LoginRequest, data: Range<usize>) -> Result<()> {
        ensure!(
            !request.flags.has(LoginFlags::CONTINUE),
            "the login text does not fit into one PDU"
        );
        let answers = login::answer(&self.input[data], &mut self.agreed);
        let mut answers = answers.context("the null target does not support these keys")?;
        if !self.told_group {
            answers.pair("TargetPortalGroupTag", 1);
            self.told_group = true;
        }
        let flags = request.flags;
        let next = flags.has(LoginFlags::TRANSIT).then(|| flags.next());
        self.is_logged_in = next == Some(Stage::FULL_FEATURE_PHASE);
        self.exp_cmd_sn = request.cmd_sn;
        let answers = answers.into_bytes();
        let response = LoginResponse {
            first: FirstByte::plain(Opcode::LOGIN_RESPONSE),
            flags: LoginFlags::stage(flags.current(), next),
            version_max: 0,
            version_active: 0,
            total_ahs_words: 0,
            data_segment_length: U24::truncate(answers.len() as u32),
            isid: request.isid,
            tsih: u16::from(self.is_logged_in),
            initiator_task_tag: request.initiator_task_tag,
            stat_sn: self.next_stat_sn(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn(),
            status: LoginStatus::SUCCESS,
        };
        self.put(&response.encode(), &answers);
        Ok(())
    }

    fn command(&mut self, command: &ScsiCommand, immediate: usize) -> Result<()> {
        if !command.first.is_immediate() {
            self.exp_cmd_sn = command.cmd_sn.plus(1);
        }
        let expected = command.expected_data_transfer_length;
        match commands::answer(&command.cdb, self.disk_bytes) {
            CommandAnswer::Read if expected <= READ_BYTES_MAX => {
                self.read(command.initiator_task_tag, expected);
            }
            CommandAnswer::Write if immediate as u64 == u64::from(expected) => {
                self.good(command, 0);
            }
            CommandAnswer::Write if (immediate as u64) < u64::from(expected) => {
                ensure!(self.writes.len() < WINDOW as usize, "too many writes");
                let received_bytes = immediate as u32;
                let write = PendingWrite {
                    expected_bytes: expected,
                    received_bytes,
                    requested_bytes: received_bytes,
                    r2t_sn: 0,
                };
                self.request_data(command.initiator_task_tag, write);
            }
            CommandAnswer::Data(mut data) => {
                data.truncate(expected as usize);
                let left = expected - data.len() as u32;
                match data.is_empty() {
                    true => self.good(command, left),
                    false => self.data_in(command.initiator_task_tag, &data, left),
                }
            }
            CommandAnswer::Good => self.good(command, expected),
            CommandAnswer::Read | CommandAnswer::Write | CommandAnswer::Unknown => {
                let check = self.response(command.initiator_task_tag, 0x02, expected);
                let length = U24::truncate(SENSE.len() as u32);
                self.put(&ScsiResponse { data_segment_length: length, ..check }.encode(), &SENSE);
            }
        }
        Ok(())
    }

    /// Requests the next sequence of a write.
    fn request_data(&mut self, tag: u32, mut write: PendingWrite) {
        let left = write.expected_bytes - write.requested_bytes;
        let bytes = left.min(self.agreed.burst_bytes);
        let request = ReadyToTransfer {
            first: FirstByte::plain(Opcode::READY_TO_TRANSFER),
            flags: FinalFlag::FINAL,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            lun: Lun::ZERO,
            initiator_task_tag: tag,
            target_transfer_tag: 0,
            stat_sn: self.stat_sn,
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn(),
            r2t_sn: write.r2t_sn,
            buffer_offset_bytes: write.requested_bytes,
            desired_length_bytes: bytes,
        };
        write.requested_bytes += bytes;
        write.r2t_sn += 1;
        self.writes.insert(tag, write);
        self.put(&request.encode(), &[]);
    }

    /// Discards data of a write; after the last byte of a sequence it requests the next one or
    /// ends the command. Data of other commands belongs to writes that were refused.
    fn data_out(&mut self, header: &DataOut, bytes: usize) {
        let tag = header.initiator_task_tag;
        let Some(mut write) = self.writes.remove(&tag) else { return };
        write.received_bytes = write.received_bytes.saturating_add(bytes as u32);
        if write.received_bytes < write.requested_bytes {
            self.writes.insert(tag, write);
        } else if write.received_bytes < write.expected_bytes {
            self.request_data(tag, write);
        } else {
            let good = self.response(tag, 0, 0);
            self.put(&good.encode(), &[]);
        }
    }

    /// Queues Data-In PDUs of the longest length that the initiator accepts; the last one carries
    /// the status.
    fn read(&mut self, tag: u32, bytes: u32) {
        let Agreed { segment_bytes, burst_bytes } = self.agreed;
        let (mut offset, mut data_sn) = (0, 0);
        while offset < bytes {
            let left_of_burst = burst_bytes - offset % burst_bytes;
            let piece = segment_bytes.min(left_of_burst).min(bytes - offset).min(SEGMENT_BYTES_MAX);
            let is_last = offset + piece == bytes;
            let ends_burst = is_last || piece == left_of_burst;
            let header = DataIn {
                first: FirstByte::plain(Opcode::DATA_IN),
                flags: DataInFlags::NONE
                    .with_if(ends_burst, DataInFlags::FINAL)
                    .with_if(is_last, DataInFlags::STATUS),
                status: 0,
                total_ahs_words: 0,
                data_segment_length: U24::truncate(piece),
                lun: Lun::ZERO,
                initiator_task_tag: tag,
                target_transfer_tag: TAG_RESERVED,
                stat_sn: if is_last { self.next_stat_sn() } else { SerialNumber(0) },
                exp_cmd_sn: self.exp_cmd_sn,
                max_cmd_sn: self.max_cmd_sn(),
                data_sn,
                buffer_offset_bytes: offset,
                residual_bytes: 0,
            };
            self.put(&header.encode(), &[]);
            self.pieces.push(Piece::Canned(piece.next_multiple_of(4) as usize));
            (offset, data_sn) = (offset + piece, data_sn + 1);
        }
    }

    /// Queues data and status in one PDU.
    fn data_in(&mut self, tag: u32, data: &[u8], left: u32) {
        let flags = DataInFlags::FINAL | DataInFlags::STATUS;
        let header = DataIn {
            first: FirstByte::plain(Opcode::DATA_IN),
            flags: flags.with_if(left > 0, DataInFlags::UNDERFLOW),
            status: 0,
            total_ahs_words: 0,
            data_segment_length: U24::truncate(data.len() as u32),
            lun: Lun::ZERO,
            initiator_task_tag: tag,
            target_transfer_tag: TAG_RESERVED,
            stat_sn: self.next_stat_sn(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn(),
            data_sn: 0,
            buffer_offset_bytes: 0,
            residual_bytes: left,
        };
        self.put(&header.encode(), data);
    }

    fn good(&mut self, command: &ScsiCommand, left: u32) {
        // Expected data that is not transferred is reported as a residual count. RFC 7143 §11.4.1.
        let moves = CommandFlags(CommandFlags::READ.0 | CommandFlags::WRITE.0);
        let left = if command.flags.0 & moves.0 == 0 { 0 } else { left };
        let good = self.response(command.initiator_task_tag, 0, left);
        self.put(&good.encode(), &[]);
    }

    fn response(&mut self, tag: u32, status: u8, left: u32) -> ScsiResponse {
        ScsiResponse {
            first: FirstByte::plain(Opcode::SCSI_RESPONSE),
            flags: ResponseFlags::FINAL.with_if(left > 0, ResponseFlags::UNDERFLOW),
            response: ServiceResponse::COMMAND_COMPLETED,
            status,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            status_qualifier: 0,
            initiator_task_tag: tag,
            snack_tag: 0,
            stat_sn: self.next_stat_sn(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn(),
            exp_data_sn: 0,
            bidi_read_residual_bytes: 0,
            residual_bytes: left,
        }
    }

    fn ping(&mut self, ping: &NopOut, data: Range<usize>) {
        if !ping.first.is_immediate() {
            self.exp_cmd_sn = ping.cmd_sn.plus(1);
        }
        if ping.initiator_task_tag == TAG_RESERVED {
            return;
        }
        let echo = self.input[data].to_vec();
        let answer = NopIn {
            first: FirstByte::plain(Opcode::NOP_IN),
            flags: FinalFlag::FINAL,
            total_ahs_words: 0,
            data_segment_length: U24::truncate(echo.len() as u32),
            lun: Lun::ZERO,
            initiator_task_tag: ping.initiator_task_tag,
            target_transfer_tag: TAG_RESERVED,
            stat_sn: self.next_stat_sn(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn(),
        };
        self.put(&answer.encode(), &echo);
    }

    fn next_stat_sn(&mut self) -> SerialNumber {
        let this = self.stat_sn;
        self.stat_sn = this.plus(1);
        this
    }

    fn max_cmd_sn(&self) -> SerialNumber {
        self.exp_cmd_sn.plus(WINDOW - 1)
    }

    /// Queues a PDU to be sent with the rest of this turn.
    fn put(&mut self, header: &[u8; HEADER_BYTES], data: &[u8]) {
        let from = self.own.len();
        self.own.extend_from_slice(header);
        self.own.extend_from_slice(data);
        self.own.resize(self.own.len().next_multiple_of(4), 0);
        let to = self.own.len();
        // Adjacent ranges are merged into one piece.
        match self.pieces.last_mut() {
            Some(Piece::Own(last)) if last.end == from => last.end = to,
            _ => self.pieces.push(Piece::Own(from..to)),
        }
    }

    /// Sends all pieces, in as few calls as possible.
    fn send(&mut self) -> Result<()> {
        for pieces in self.pieces.chunks(PIECES_MAX) {
            let slices = pieces.iter().map(|piece| match piece {
                Piece::Own(range) => IoSlice::new(&self.own[range.clone()]),
                Piece::Canned(bytes) => IoSlice::new(&DATA[..*bytes]),
            });
            let mut slices: Vec<IoSlice<'_>> = slices.collect();
            let mut rest = &mut slices[..];
            while !rest.is_empty() {
                match (&self.socket).write_vectored(rest) {
                    Ok(bytes) => IoSlice::advance_slices(&mut rest, bytes),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        wait_for_room(&self.socket)?;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        self.own.clear();
        self.pieces.clear();
        Ok(())
    }
}

/// Waits until the peer has read some data. All other sessions wait meanwhile: a client of a
/// benchmark always reads the data that it requested.
fn wait_for_room(socket: &TcpStream) -> Result<()> {
    let mut waiting = [PollFd::new(socket, PollFlags::OUT)];
    let timeout = Timespec { tv_sec: SILENCE_SECONDS_MAX, tv_nsec: 0 };
    let ready = poll(&mut waiting, Some(&timeout))?;
    ensure!(ready > 0, "the peer does not receive data");
    Ok(())
}

/// Returns the next PDU, if all of it has arrived: its header, and the range of its data.
fn next(input: &[u8]) -> Result<Option<([u8; HEADER_BYTES], Range<usize>)>> {
    let Some(header) = input.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let basic = BasicHeader::decode(header);
    let bytes = basic.data_segment_length.value();
    ensure!(bytes <= SEGMENT_BYTES_MAX, "a data segment of {bytes} bytes");
    let from = HEADER_BYTES + 4 * usize::from(basic.total_ahs_words);
    let to = from + bytes as usize;
    Ok((input.len() >= to.next_multiple_of(4)).then_some((*header, from..to)))
}
