//! A raw iSCSI client on a socket, for requests that no correct initiator sends.
//!
//! Written from RFC 7143 alone and independent of the crates that it tests. No digests.

use anyhow::{Context, Result, bail, ensure};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Maximum time that the target may take for a response.
pub const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Opcodes of requests and responses. RFC 7143 §11.2.1.2.
pub mod opcode {
    /// NOP-Out.
    pub const NOP_OUT: u8 = 0x00;
    /// SCSI Command.
    pub const SCSI_COMMAND: u8 = 0x01;
    /// Task Management Function Request.
    pub const TASK_MANAGEMENT: u8 = 0x02;
    /// Login Request.
    pub const LOGIN: u8 = 0x03;
    /// Text Request.
    pub const TEXT: u8 = 0x04;
    /// SCSI Data-Out.
    pub const DATA_OUT: u8 = 0x05;
    /// Logout Request.
    pub const LOGOUT: u8 = 0x06;
    /// SNACK Request.
    pub const SNACK: u8 = 0x10;
    /// NOP-In.
    pub const NOP_IN: u8 = 0x20;
    /// SCSI Response.
    pub const SCSI_RESPONSE: u8 = 0x21;
    /// Login Response.
    pub const LOGIN_RESPONSE: u8 = 0x23;
    /// Text Response.
    pub const TEXT_RESPONSE: u8 = 0x24;
    /// SCSI Data-In.
    pub const DATA_IN: u8 = 0x25;
    /// Asynchronous Message.
    pub const ASYNC_MESSAGE: u8 = 0x32;
    /// Ready To Transfer.
    pub const R2T: u8 = 0x31;
    /// Reject.
    pub const REJECT: u8 = 0x3f;
}

/// A PDU as bytes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RawPdu {
    /// The basic header segment, 48 bytes; [`RawClient::send`] fills in the lengths.
    pub header: Vec<u8>,
    /// Additional header segments, sent unchanged.
    pub segments: Vec<u8>,
    /// The data segment without padding.
    pub data: Vec<u8>,
}

impl RawPdu {
    /// Creates a PDU with this opcode byte (immediate bit included) and flags.
    pub fn new(opcode: u8, flags: u8) -> Self {
        let mut header = vec![0; 48];
        header[0] = opcode;
        header[1] = flags;
        Self { header, ..Self::default() }
    }

    /// Puts bytes into the header.
    #[must_use]
    pub fn put(mut self, at: usize, bytes: &[u8]) -> Self {
        self.header[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Puts a 32-bit number into the header.
    #[must_use]
    pub fn put_u32(self, at: usize, number: u32) -> Self {
        self.put(at, &number.to_be_bytes())
    }

    /// Adds a data segment.
    #[must_use]
    pub fn with_data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.data = data.into();
        self
    }

    /// The opcode without the immediate bit.
    pub fn opcode(&self) -> u8 {
        self.header[0] & 0x3f
    }

    /// Returns a 32-bit number of the header.
    pub fn u32_at(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.header[at..at + 4]);
        u32::from_be_bytes(bytes)
    }

    /// Encodes the PDU for the wire: correct lengths, padded data.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header.clone();
        bytes[4] = u8::try_from(self.segments.len() / 4).unwrap_or(u8::MAX);
        let length = u32::try_from(self.data.len()).unwrap_or(u32::MAX).to_be_bytes();
        bytes[5..8].copy_from_slice(&length[1..]);
        bytes.extend_from_slice(&self.segments);
        bytes.extend_from_slice(&self.data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }
}

/// The result of waiting for a PDU of the target.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RawAnswer {
    /// A PDU.
    Pdu(RawPdu),
    /// The target closed the connection.
    Closed,
    /// No PDU arrived within the time limit.
    TimedOut,
}

/// One connection.
pub struct RawClient {
    tcp: TcpStream,
    /// CmdSN of the next command.
    pub cmd_sn: u32,
    /// StatSN of the next expected status.
    pub exp_stat_sn: u32,
    next_tag: u32,
    /// Text keys of all Login Responses so far.
    pub text: String,
    /// The LUN field of commands.
    pub lun: [u8; 8],
    /// The ISID of logins.
    pub isid: [u8; 6],
    /// The TSIH of logins; 0 for a new session.
    pub tsih: u16,
    /// The CID of logins.
    pub cid: u16,
}

/// The result of a command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RawOutcome {
    /// SCSI status.
    pub status: u8,
    /// Received data.
    pub data: Vec<u8>,
    /// Sense data, without its length.
    pub sense: Vec<u8>,
}

impl RawOutcome {
    /// Returns sense key, and additional sense code with its qualifier, of either format; zero if
    /// there is no sense.
    pub fn sense_codes(&self) -> (u8, u16) {
        let at = |index: usize| self.sense.get(index).copied().unwrap_or(0);
        if at(0) & 0x7f >= 0x72 {
            (at(1) & 0x0f, u16::from_be_bytes([at(2), at(3)]))
        } else {
            (at(2) & 0x0f, u16::from_be_bytes([at(12), at(13)]))
        }
    }
}

fn login_text(target: &str, number: u32) -> String {
    format!(
        "InitiatorName=iqn.2026-11.org.lunarsan.test:raw-{number}\0SessionType=Normal\0\
         TargetName={target}\0InitialR2T=Yes\0ImmediateData=Yes\0HeaderDigest=None\0\
         DataDigest=None\0MaxRecvDataSegmentLength=65536\0"
    )
}

impl RawClient {
    /// Opens a TCP connection and sends nothing.
    ///
    /// # Errors
    /// The connection is refused.
    pub fn connect(address: &str) -> Result<Self> {
        let address: SocketAddr = address.parse().with_context(|| address.to_owned())?;
        let tcp = TcpStream::connect_timeout(&address, ANSWER_MAX)?;
        Self::from_tcp(tcp)
    }

    /// Creates a client on an existing TCP connection.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn from_tcp(tcp: TcpStream) -> Result<Self> {
        tcp.set_nodelay(true)?;
        tcp.set_write_timeout(Some(ANSWER_MAX))?;
        let isid = [0x80, 0, 0, 0, 0, 7];
        let (text, lun, tsih, cid) = (String::new(), [0; 8], 0, 0);
        Ok(Self { tcp, cmd_sn: 1, exp_stat_sn: 0, lun, isid, tsih, cid, next_tag: 1, text })
    }

    /// Connects and logs in to `target` without authentication.
    ///
    /// # Errors
    /// The target refuses.
    pub fn log_in(address: &str, target: &str) -> Result<Self> {
        Self::log_in_as(address, target, 0)
    }

    /// Like [`log_in`](Self::log_in), with an initiator name that ends with `number`: sessions with
    /// different numbers do not replace each other.
    ///
    /// # Errors
    /// The target refuses.
    pub fn log_in_as(address: &str, target: &str, number: u32) -> Result<Self> {
        Self::log_in_with(address, &login_text(target, number))
    }

    /// Connects and logs in without authentication; `text` are the keys of the first Login Request.
    ///
    /// # Errors
    /// The target refuses.
    pub fn log_in_with(address: &str, text: &str) -> Result<Self> {
        Self::connect(address)?.complete_login(text)
    }

    /// Like [`log_in_as`](Self::log_in_as), on an existing TCP connection.
    ///
    /// # Errors
    /// The target refuses.
    pub fn log_in_from_tcp(tcp: TcpStream, target: &str, number: u32) -> Result<Self> {
        Self::from_tcp(tcp)?.complete_login(&login_text(target, number))
    }

    fn complete_login(self, text: &str) -> Result<Self> {
        let mut raw = self;
        raw.send(&raw.login(text.as_bytes()))?;
        loop {
            let answer = raw.expect(opcode::LOGIN_RESPONSE)?;
            raw.text += &String::from_utf8_lossy(&answer.data);
            let status = &answer.header[36..38];
            ensure!(status == [0, 0], "login status {status:02x?}");
            raw.exp_stat_sn = answer.u32_at(24).wrapping_add(1);
            if answer.header[1] & 0x80 != 0 {
                return Ok(raw);
            }
            raw.send(&raw.login(b""))?;
        }
    }

    /// Builds a Login Request from the operational stage to the full feature phase.
    /// RFC 7143 §11.12.
    pub fn login(&self, text: &[u8]) -> RawPdu {
        RawPdu::new(0x40 | opcode::LOGIN, 0x87)
            .put(8, &self.isid)
            .put(14, &self.tsih.to_be_bytes())
            .put_u32(16, 0)
            .put(20, &self.cid.to_be_bytes())
            .put_u32(24, self.cmd_sn)
            .put_u32(28, self.exp_stat_sn)
            .with_data(text)
    }

    /// Builds a SCSI Command with the next tag and CmdSN. RFC 7143 §11.3.
    pub fn command(&mut self, flags: u8, cdb: &[u8], expected_bytes: u32) -> RawPdu {
        let pdu = RawPdu::new(opcode::SCSI_COMMAND, flags)
            .put(8, &self.lun)
            .put_u32(16, self.new_tag())
            .put_u32(20, expected_bytes)
            .put_u32(24, self.cmd_sn)
            .put_u32(28, self.exp_stat_sn)
            .put(32, cdb);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        pdu
    }

    /// Returns a tag not used before.
    pub fn new_tag(&mut self) -> u32 {
        self.next_tag += 1;
        self.next_tag
    }

    /// Sends a PDU.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn send(&mut self, pdu: &RawPdu) -> Result<()> {
        self.send_bytes(&pdu.bytes())
    }

    /// Sends arbitrary bytes.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.tcp.write_all(bytes)?)
    }

    /// Returns the TCP connection.
    pub fn into_tcp(self) -> TcpStream {
        self.tcp
    }

    /// Closes the sending half of the connection.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn close_sending(&mut self) -> Result<()> {
        Ok(self.tcp.shutdown(std::net::Shutdown::Write)?)
    }

    /// Receives the next PDU from the target within `limit`.
    ///
    /// # Errors
    /// The system refuses to read.
    pub fn answer(&mut self, limit: Duration) -> Result<RawAnswer> {
        let mut header = vec![0; 48];
        match self.fill(&mut header, limit)? {
            FillResult::Complete => {}
            FillResult::Closed => return Ok(RawAnswer::Closed),
            FillResult::TimedOut => return Ok(RawAnswer::TimedOut),
        }
        let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut segments = vec![0; usize::from(header[4]) * 4];
        let mut data = vec![0; length.next_multiple_of(4)];
        for part in [&mut segments, &mut data] {
            if !matches!(self.fill(part, ANSWER_MAX)?, FillResult::Complete) {
                return Ok(RawAnswer::Closed);
            }
        }
        data.truncate(length);
        Ok(RawAnswer::Pdu(RawPdu { header, segments, data }))
    }

    /// Receives the next PDU, which must have this opcode; replies to NOP-Ins in between.
    ///
    /// # Errors
    /// Another PDU, silence, or the end of the connection.
    pub fn expect(&mut self, opcode: u8) -> Result<RawPdu> {
        loop {
            match self.answer(ANSWER_MAX)? {
                RawAnswer::Pdu(pdu) if pdu.opcode() == opcode => return Ok(pdu),
                RawAnswer::Pdu(ping) if ping.opcode() == opcode::NOP_IN => {
                    self.answer_nop_in(&ping)?;
                }
                other => bail!("expected a PDU {opcode:#04x}, got {other:02x?}"),
            }
        }
    }

    /// Replies to a NOP-In of the target if it requests a reply. RFC 7143 §11.19.
    fn answer_nop_in(&mut self, ping: &RawPdu) -> Result<()> {
        if ping.u32_at(20) == u32::MAX {
            return Ok(());
        }
        let reply = RawPdu::new(0x40 | opcode::NOP_OUT, 0x80)
            .put(8, &ping.header[8..16])
            .put_u32(16, u32::MAX)
            .put(20, &ping.header[20..24])
            .put_u32(24, self.cmd_sn)
            .put_u32(28, ping.u32_at(24));
        self.send(&reply)
    }

    /// Discards PDUs until the target closes the connection.
    ///
    /// # Errors
    /// The connection is still open after `limit`.
    pub fn wait_until_closed(&mut self, limit: Duration) -> Result<()> {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "the connection is still open after {limit:?}");
            if self.answer(left)? == RawAnswer::Closed {
                return Ok(());
            }
        }
    }

    /// READ (10) of one block; the target must answer with GOOD and 512 bytes.
    ///
    /// # Errors
    /// The command does not end with GOOD and all the data.
    pub fn read_block(&mut self, lba: u32) -> Result<Vec<u8>> {
        self.read_blocks(lba, 1)
    }

    /// READ (10) of blocks of 512 bytes.
    ///
    /// # Errors
    /// The command does not end with GOOD and all the data.
    pub fn read_blocks(&mut self, lba: u32, blocks: u16) -> Result<Vec<u8>> {
        let bytes = u32::from(blocks) * 512;
        let (status, data) = self.execute(&cdb_10(0x28, lba, blocks), bytes)?;
        ensure!(status == 0, "READ ended with status {status:#04x}");
        ensure!(data.len() == bytes as usize, "READ gave {} bytes", data.len());
        Ok(data)
    }

    /// WRITE (10) of whole blocks, all as immediate data: at most 8192 bytes.
    ///
    /// # Errors
    /// The command does not end with GOOD.
    pub fn write_blocks(&mut self, lba: u32, data: &[u8]) -> Result<()> {
        let cdb = cdb_10(0x2a, lba, u16::try_from(data.len() / 512)?);
        let outcome = self.execute_with(&cdb, data)?;
        ensure!(outcome.status == 0, "WRITE ended with {outcome:02x?}");
        Ok(())
    }

    /// Runs a command that sends these bytes, all as immediate data: at most 8192.
    ///
    /// # Errors
    /// The target sends an unexpected PDU.
    pub fn execute_with(&mut self, cdb: &[u8], data: &[u8]) -> Result<RawOutcome> {
        self.exchange(0xa0, cdb, u32::try_from(data.len())?, data)
    }

    /// Runs a command that reads; returns its result, whatever its status is. Repeats a command
    /// that ends with a unit attention, like the first one of a session.
    ///
    /// # Errors
    /// The target sends an unexpected PDU.
    pub fn run(&mut self, cdb: &[u8], expected_bytes: u32) -> Result<RawOutcome> {
        self.exchange(0xc0, cdb, expected_bytes, &[])
    }

    /// Works as [`run`](Self::run); returns the status and the data only.
    ///
    /// # Errors
    /// The target sends an unexpected PDU.
    pub fn execute(&mut self, cdb: &[u8], expected_bytes: u32) -> Result<(u8, Vec<u8>)> {
        let RawOutcome { status, data, .. } = self.run(cdb, expected_bytes)?;
        Ok((status, data))
    }

    fn exchange(
        &mut self,
        flags: u8,
        cdb: &[u8],
        expected_bytes: u32,
        immediate: &[u8],
    ) -> Result<RawOutcome> {
        for _ in 0..8 {
            let command = self.command(flags, cdb, expected_bytes).with_data(immediate);
            self.send(&command)?;
            let (status, data, sense) = self.outcome()?;
            let sense = sense.get(2..).unwrap_or_default().to_vec();
            let outcome = RawOutcome { status, data, sense };
            if status != 2 || outcome.sense_codes().0 != 6 {
                return Ok(outcome);
            }
        }
        bail!("eight unit attentions in a row")
    }

    /// Receives Data-In until the status. Returns the status, the data, and the data segment of the
    /// SCSI Response: the sense data after its length.
    ///
    /// # Errors
    /// The target sends an unexpected PDU.
    pub fn outcome(&mut self) -> Result<(u8, Vec<u8>, Vec<u8>)> {
        let mut data = Vec::new();
        loop {
            let RawAnswer::Pdu(pdu) = self.answer(ANSWER_MAX)? else { bail!("no answer") };
            match pdu.opcode() {
                opcode::DATA_IN => {
                    let offset = pdu.u32_at(40) as usize;
                    ensure!(offset == data.len(), "Data-In out of order");
                    data.extend_from_slice(&pdu.data);
                    if pdu.header[1] & 1 != 0 {
                        self.exp_stat_sn = pdu.u32_at(24).wrapping_add(1);
                        return Ok((pdu.header[3], data, Vec::new()));
                    }
                }
                opcode::SCSI_RESPONSE => {
                    self.exp_stat_sn = pdu.u32_at(24).wrapping_add(1);
                    return Ok((pdu.header[3], data, pdu.data));
                }
                opcode::NOP_IN => self.answer_nop_in(&pdu)?,
                other => bail!("unexpected PDU {other:#04x}: {:02x?}", pdu.header),
            }
        }
    }

    fn fill(&mut self, into: &mut [u8], limit: Duration) -> Result<FillResult> {
        let until = Instant::now() + limit;
        let mut filled = 0;
        while filled < into.len() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(FillResult::TimedOut);
            }
            self.tcp.set_read_timeout(Some(left))?;
            match self.tcp.read(&mut into[filled..]) {
                Ok(0) => return Ok(FillResult::Closed),
                Ok(count) => filled += count,
                Err(error) => match error.kind() {
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                        return Ok(FillResult::Closed);
                    }
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return Err(error.into()),
                },
            }
        }
        Ok(FillResult::Complete)
    }
}

/// Builds a CDB of ten bytes from an operation code, a block address and a count of blocks.
fn cdb_10(operation: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = [operation, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// The result of reading a number of bytes.
enum FillResult {
    Complete,
    Closed,
    TimedOut,
}
