//! The blocks of pcapng (draft-ietf-opsawg-pcapng) that a trace uses, in big-endian order.

/// LINKTYPE_RAW: packets begin with the IP header.
const LINKTYPE_RAW: u16 = 101;
/// Length field of a section of unknown length.
const LENGTH_UNKNOWN: u64 = u64::MAX;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// Version of the format.
const VERSION: [u16; 2] = [1, 0];
/// Timestamp resolution as a negative power of ten: nanoseconds.
const TIME_RESOLUTION: u8 = 9;
/// Alignment of blocks.
const WORD_BYTES: usize = 4;

/// Block types.
pub(super) mod block {
    /// Section Header Block.
    pub(crate) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
    /// Interface Description Block.
    pub(crate) const INTERFACE: u32 = 1;
    /// Interface Statistics Block.
    pub(crate) const STATISTICS: u32 = 5;
    /// Enhanced Packet Block.
    pub(crate) const PACKET: u32 = 6;
}

/// Option codes.
pub(super) mod option {
    pub(crate) const COMMENT: u16 = 1;
    pub(crate) const SHB_HARDWARE: u16 = 2;
    pub(crate) const SHB_USER_APPLICATION: u16 = 4;
    pub(crate) const IF_DESCRIPTION: u16 = 3;
    pub(crate) const IF_TIME_RESOLUTION: u16 = 9;
    pub(crate) const EPB_FLAGS: u16 = 2;
    pub(crate) const EPB_DROP_COUNT: u16 = 4;
    pub(crate) const ISB_START_TIME: u16 = 2;
    pub(crate) const ISB_END_TIME: u16 = 3;
    pub(crate) const ISB_RECEIVED: u16 = 4;
    pub(crate) const ISB_DROPPED: u16 = 5;
}

/// Fields of a packet block, without the bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    /// Nanoseconds since 1970.
    pub(super) at: u64,
    /// Original length in bytes.
    pub(super) original_bytes: u32,
    /// True for a received PDU, false for a sent one.
    pub(super) inbound: bool,
    /// Number of PDUs lost before this one.
    pub(super) dropped_before: u64,
    /// Comment for people.
    pub(super) comment: &'static str,
}

/// Fields of a statistics block.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Counts {
    /// Nanoseconds since 1970.
    pub(super) began: u64,
    pub(super) now: u64,
    pub(super) received: u64,
    pub(super) dropped: u64,
}

/// Appends the section header that begins a file.
pub(super) fn section_header(out: &mut Vec<u8>, hardware: &str, application: &str, comment: &str) {
    write(out, block::SECTION_HEADER, |body| {
        body.extend(BYTE_ORDER_MAGIC.to_be_bytes());
        body.extend(VERSION.iter().flat_map(|part| part.to_be_bytes()));
        body.extend(LENGTH_UNKNOWN.to_be_bytes());
        put(body, option::COMMENT, comment.as_bytes());
        put(body, option::SHB_HARDWARE, hardware.as_bytes());
        put(body, option::SHB_USER_APPLICATION, application.as_bytes());
        end_of_options(body);
    });
}

/// Appends the description of the only interface, number 0.
pub(super) fn interface(out: &mut Vec<u8>, description: &str) {
    write(out, block::INTERFACE, |body| {
        body.extend(LINKTYPE_RAW.to_be_bytes());
        body.extend([0; 2]);
        body.extend(0u32.to_be_bytes()); // no limit on packets: PDUs are cut instead
        put(body, option::IF_DESCRIPTION, description.as_bytes());
        put(body, option::IF_TIME_RESOLUTION, &[TIME_RESOLUTION]);
        end_of_options(body);
    });
}

/// Appends a packet, of which `bytes` were kept.
pub(super) fn packet(out: &mut Vec<u8>, packet: Packet, bytes: [&[u8]; 2]) {
    let kept: usize = bytes.iter().map(|part| part.len()).sum();
    write(out, block::PACKET, |body| {
        body.extend(0u32.to_be_bytes());
        body.extend(packet.at.to_be_bytes());
        body.extend(u32::try_from(kept).unwrap_or(u32::MAX).to_be_bytes());
        body.extend(packet.original_bytes.to_be_bytes());
        bytes.iter().for_each(|part| body.extend_from_slice(part));
        body.resize(body.len() + padding(kept), 0);
        let direction: u32 = if packet.inbound { 1 } else { 2 };
        put(body, option::EPB_FLAGS, &direction.to_be_bytes());
        if !packet.comment.is_empty() {
            put(body, option::COMMENT, packet.comment.as_bytes());
        }
        if packet.dropped_before > 0 {
            put(body, option::EPB_DROP_COUNT, &packet.dropped_before.to_be_bytes());
        }
        end_of_options(body);
    });
}

/// Appends the counts so far.
pub(super) fn statistics(out: &mut Vec<u8>, counts: Counts) {
    write(out, block::STATISTICS, |body| {
        body.extend(0u32.to_be_bytes());
        body.extend(counts.now.to_be_bytes());
        put(body, option::ISB_START_TIME, &counts.began.to_be_bytes());
        put(body, option::ISB_END_TIME, &counts.now.to_be_bytes());
        put(body, option::ISB_RECEIVED, &counts.received.to_be_bytes());
        put(body, option::ISB_DROPPED, &counts.dropped.to_be_bytes());
        end_of_options(body);
    });
}

/// Appends a block, whose body `fill` writes in whole words.
fn write(out: &mut Vec<u8>, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_be_bytes());
    out.extend([0; 4]);
    fill(out);
    let bytes = u32::try_from(out.len() - start + 4).unwrap_or(u32::MAX).to_be_bytes();
    out[start + 4..start + 8].copy_from_slice(&bytes);
    out.extend(bytes);
}

/// Appends an option; a value too long for the length field is cut.
fn put(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    let value = &value[..usize::from(length)];
    body.extend(code.to_be_bytes());
    body.extend(length.to_be_bytes());
    body.extend_from_slice(value);
    body.resize(body.len() + padding(value.len()), 0);
}

fn end_of_options(body: &mut Vec<u8>) {
    body.extend([0; 4]);
}

fn padding(bytes: usize) -> usize {
    bytes.next_multiple_of(WORD_BYTES) - bytes
}
