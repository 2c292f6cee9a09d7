//! Shows the digests of a connection in a trace, by a PDU that was never sent.
//!
//! tshark detects digests by trial, on the first PDUs that fit completely into one packet. In a
//! trace that begins in the middle of a session, all PDUs may be longer or cut; then tshark takes a
//! data digest for the beginning of the next PDU.
//! beginning of the next PDU.

use lunar_iscsi::framing::{Digests, Pdu, encode_header, encode_tail};
use lunar_iscsi::pdu::{FinalFlag, FirstByte, NopIn, Opcode, TAG_RESERVED};
use lunar_wire::{Lun, SerialNumber, U24};

/// Comment on the packet in the file.
pub(super) const COMMENT: &str =
    "Synthetic: this NOP-In was not sent. It shows the decoder which digests the connection uses.";
/// Data of the PDU: whole words, so that no padding follows.
const DATA: &[u8; 8] = b"made up!";

/// An encoded NOP-In with these digests.
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
    encode_header(&pdu, digests, &mut bytes);
    bytes.extend_from_slice(&pdu.data);
    encode_tail(&pdu, digests, &mut bytes);
    bytes
}
