//! Several commands at a time on one connection.

use anyhow::{Result, bail, ensure};
use lunar_testkit::raw::{ANSWER_MAX, RawAnswer, RawClient, RawOutcome, opcode};
use std::collections::HashMap;
use std::time::Duration;

/// A session with several commands under way; `T` is a value that its owner attaches to each.
pub struct Queue<T> {
    raw: RawClient,
    under_way: HashMap<u32, (T, Vec<u8>)>,
}

impl<T> Queue<T> {
    /// Creates a queue over a session without commands under way and without pending unit
    /// attentions.
    pub fn over(raw: RawClient) -> Self {
        Self { raw, under_way: HashMap::new() }
    }

    /// Returns the number of commands under way.
    pub fn depth(&self) -> usize {
        self.under_way.len()
    }

    /// Sends a command that writes these bytes, all of them immediate data: at most 8192.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn send(&mut self, cdb: &[u8], data: &[u8], what: T) -> Result<()> {
        let flags = if data.is_empty() { 0x80 } else { 0xa0 };
        let command = self.raw.command(flags, cdb, u32::try_from(data.len())?).with_data(data);
        self.enter(command, what)
    }

    /// Sends a command that reads this many bytes.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn send_read(&mut self, cdb: &[u8], bytes: u32, what: T) -> Result<()> {
        let command = self.raw.command(0xc0, cdb, bytes);
        self.enter(command, what)
    }

    fn enter(&mut self, command: lunar_testkit::raw::RawPdu, what: T) -> Result<()> {
        self.under_way.insert(command.u32_at(16), (what, Vec::new()));
        self.raw.send(&command)
    }

    /// Waits for the next command that ends; `None`: the connection has ended.
    ///
    /// # Errors
    /// No PDU arrives in time, or a response matches no command.
    pub fn wait(&mut self) -> Result<Option<(T, RawOutcome)>> {
        self.wait_within(ANSWER_MAX)
    }

    /// Waits with a given limit.
    ///
    /// # Errors
    /// No PDU arrives within the limit, or a response matches no command.
    pub fn wait_within(&mut self, limit: Duration) -> Result<Option<(T, RawOutcome)>> {
        loop {
            let pdu = match self.raw.answer(limit)? {
                RawAnswer::Pdu(pdu) => pdu,
                RawAnswer::Closed => return Ok(None),
                RawAnswer::TimedOut => bail!("{} commands were not answered", self.depth()),
            };
            let tag = pdu.u32_at(16);
            match pdu.opcode() {
                opcode::DATA_IN => {
                    let Some((_, data)) = self.under_way.get_mut(&tag) else {
                        bail!("Data-In for an unknown tag: {tag:#x}");
                    };
                    ensure!(pdu.u32_at(40) as usize == data.len(), "Data-In out of order");
                    data.extend_from_slice(&pdu.data);
                    if pdu.header[1] & 1 == 0 {
                        continue;
                    }
                }
                opcode::SCSI_RESPONSE => {}
                opcode::NOP_IN | opcode::ASYNC_MESSAGE => continue,
                other => bail!("unexpected PDU {other:#04x}"),
            }
            self.raw.exp_stat_sn = pdu.u32_at(24).wrapping_add(1);
            let Some((what, data)) = self.under_way.remove(&tag) else {
                bail!("a response for an unknown tag: {tag:#x}");
            };
            let sense = if pdu.opcode() == opcode::SCSI_RESPONSE { &pdu.data[..] } else { &[] };
            let sense = sense.get(2..).unwrap_or_default().to_vec();
            return Ok(Some((what, RawOutcome { status: pdu.header[3], data, sense })));
        }
    }
}
