//! Which digests a connection has, shown by a PDU that was not sent.
//!
//! tshark finds out by trying, at the first PDUs that are whole in one packet. Those of a trace,
//! which begins in the middle, may all be longer or cut; then it takes a data digest for the
//! beginning of the next PDU.

use lunar_iscsi::framing::{Digests, Pdu, encode_head, encode_tail};
use lunar_iscsi::pdu::{FinalFlag, FirstByte, NopIn, Opcode, TAG_RESERVED};
use lunar_wire::{Lun, SerialNumber, U24};

/// Said with it in the file.
pub(super) const COMMENT: &str =
    "Made up: this NOP-In was not sent. It shows the decoder which digests the connection has.";
/// Its data: whole words, as padding would follow otherwise.
const DATA: &[u8; 8] = b"made up!";

/// A NOP-In with these digests, as it would be on the wire.
pub(super) fn example(digests: Digests) -> Vec<u8> {
    let none = SerialNumber(0);
    let header = NopIn {
        first: FirstByte::plain(Opcode::NOP_IN),
        flags: FinalFlag::FINAL,
        total_ahs_words: 0,
        data_segment_length: U24::truncate(DATA.len() as u32),
        lun: Lun::ZERO,
        initiator_task_tag: TAG_RESERVED,
        target_transfer_tag: TAG_RESERVED,
        stat_sn: none,
        exp_cmd_sn: none,
        max_cmd_sn: none,
    };
    let pdu = Pdu::with_data(header.encode(), DATA.as_slice().into());
    let mut bytes = Vec::new();
    encode_head(&pdu, digests, &mut bytes);
    bytes.extend_from_slice(&pdu.data);
    encode_tail(&pdu, digests, &mut bytes);
    bytes
}
