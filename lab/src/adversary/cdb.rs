//! Command descriptor blocks of the attacks, as SPC-4 and SBC-3 define them.

/// A CDB of 16 bytes; unused bytes at the end are zero.
pub type CdbBytes = [u8; 16];

/// Returns a CDB that begins with these bytes.
pub fn cdb(first: &[u8]) -> CdbBytes {
    let mut cdb = [0; 16];
    cdb[..first.len()].copy_from_slice(first);
    cdb
}

/// TEST UNIT READY.
pub const TEST_UNIT_READY: CdbBytes = [0; 16];

/// READ (16) of blocks of 512 bytes.
pub fn read(lba: u64, blocks: u32) -> CdbBytes {
    cdb_16(0x88, 0, lba, blocks)
}

/// WRITE (16) of blocks of 512 bytes.
pub fn write(lba: u64, blocks: u32) -> CdbBytes {
    cdb_16(0x8a, 0, lba, blocks)
}

/// A CDB with a block address of eight bytes and a count of four: SBC-3 §5.
pub fn cdb_16(operation: u8, flags: u8, lba: u64, count: u32) -> CdbBytes {
    let mut cdb = cdb(&[operation, flags]);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&count.to_be_bytes());
    cdb
}

/// A CDB with a block address of four bytes and a count of two.
pub fn cdb_10(operation: u8, flags: u8, lba: u32, count: u16) -> CdbBytes {
    let mut cdb = cdb(&[operation, flags]);
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&count.to_be_bytes());
    cdb
}

/// PERSISTENT RESERVE OUT with a parameter list of 24 bytes; type 1 is Write Exclusive.
pub fn reserve_out(service_action: u8, kind: u8) -> CdbBytes {
    let mut cdb = cdb(&[0x5f, service_action, kind]);
    cdb[8] = 24;
    cdb
}

/// The parameter list of PERSISTENT RESERVE OUT: SPC-4 §6.14.3.
pub fn reserve_list(key: u64, service_action_key: u64) -> Vec<u8> {
    let mut list = [key.to_be_bytes(), service_action_key.to_be_bytes()].concat();
    list.resize(24, 0);
    list
}

/// UNMAP with its parameter list: descriptors of block address and count, SBC-3 §5.28.
pub fn unmap(ranges: impl IntoIterator<Item = (u64, u32)>) -> (CdbBytes, Vec<u8>) {
    let mut list = vec![0; 8];
    for (lba, blocks) in ranges {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    let bytes = u16::try_from(list.len()).unwrap_or(u16::MAX);
    list[..2].copy_from_slice(&bytes.saturating_sub(2).to_be_bytes());
    list[2..4].copy_from_slice(&bytes.saturating_sub(8).to_be_bytes());
    let mut cdb = cdb(&[0x42]);
    cdb[7..9].copy_from_slice(&bytes.to_be_bytes());
    (cdb, list)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the fields are at the offsets that SBC-3 and SPC-4 define.
    #[test]
    fn fields_have_the_offsets_of_the_standards() {
        let read = read(0x0102_0304_0506_0708, 0x0a0b_0c0d);
        assert_eq!(read, [0x88, 0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 0, 0]);
        let verify = cdb_10(0x2f, 2, 0x0102_0304, 0x0506);
        assert_eq!(verify, cdb(&[0x2f, 2, 1, 2, 3, 4, 0, 5, 6]));
        assert_eq!(reserve_list(1, 2).len(), 24);
        let (cdb, list) = unmap([(9, 8), (1, 2)]);
        assert_eq!((cdb[0], cdb[8]), (0x42, 40));
        assert_eq!(list[..8], [0, 38, 0, 32, 0, 0, 0, 0]);
        assert_eq!(list[8..24], [0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 8, 0, 0, 0, 0]);
    }
}
