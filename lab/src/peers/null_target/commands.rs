//! Canned SCSI: responses to the commands that initiators send before they read. SPC-4, SBC-3.

use lunar_wire::Field;

/// Value of every byte that is read.
pub const CANNED: u8 = 0x5a;
const BLOCK_BYTES: u32 = 512;
/// 4 KiB physical blocks: 2^3 logical ones. SBC-3 §5.16.2.
const PHYSICAL_EXPONENT: u8 = 3;

/// VPD page with the designators of the disk.
const DEVICE_IDENTIFICATION: u8 = 0x83;

/// Response to a command.
#[derive(Debug, Eq, PartialEq)]
pub enum CommandAnswer {
    /// Data from the canned piece, and GOOD.
    Read,
    /// GOOD, once all data has come with the command.
    Write,
    /// This data, and GOOD.
    Data(Vec<u8>),
    /// GOOD.
    Good,
    /// CHECK CONDITION: the command is not supported.
    Unknown,
}

/// Returns the response to a command on a disk of this size.
pub fn answer(cdb: &[u8; 16], disk_bytes: u64) -> CommandAnswer {
    let last = (disk_bytes / u64::from(BLOCK_BYTES)).saturating_sub(1);
    match cdb[0] {
        // READ (6), (10), (12), (16).
        0x08 | 0x28 | 0xa8 | 0x88 => CommandAnswer::Read,
        // WRITE (6), (10), (12), (16).
        0x0a | 0x2a | 0xaa | 0x8a => CommandAnswer::Write,
        // TEST UNIT READY, SYNCHRONIZE CACHE (10) and (16).
        0x00 | 0x35 | 0x91 => CommandAnswer::Good,
        // INQUIRY without a page.
        0x12 if cdb[1] & 0x01 == 0 => CommandAnswer::Data(inquiry()),
        // INQUIRY of page 00h, the list of pages.
        0x12 if cdb[2] == 0 => CommandAnswer::Data(vec![0, 0, 0, 2, 0, DEVICE_IDENTIFICATION]),
        0x12 if cdb[2] == DEVICE_IDENTIFICATION => CommandAnswer::Data(designators()),
        // READ CAPACITY (10).
        0x25 => {
            let mut data = vec![0; 8];
            u32::try_from(last).unwrap_or(u32::MAX).put(&mut data[..4]);
            BLOCK_BYTES.put(&mut data[4..]);
            CommandAnswer::Data(data)
        }
        // READ CAPACITY (16).
        0x9e if cdb[1] & 0x1f == 0x10 => {
            let mut data = vec![0; 32];
            last.put(&mut data[..8]);
            BLOCK_BYTES.put(&mut data[8..12]);
            data[13] = PHYSICAL_EXPONENT;
            CommandAnswer::Data(data)
        }
        // REPORT LUNS: LUN 0.
        0xa0 => CommandAnswer::Data(vec![0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        // MODE SENSE (6): no pages, not write protected.
        0x1a => CommandAnswer::Data(vec![3, 0, 0, 0]),
        // MODE SENSE (10) likewise.
        0x5a => CommandAnswer::Data(vec![0, 6, 0, 0, 0, 0, 0, 0]),
        _ => CommandAnswer::Unknown,
    }
}

/// Builds standard INQUIRY data of a disk. SPC-4 §6.4.2.
fn inquiry() -> Vec<u8> {
    let mut data = vec![0, 0, 0x06, 0x02, 31, 0, 0, 0x02];
    data.extend_from_slice(b"LUNAR   null target     0   ");
    data
}

/// Builds the page with a locally assigned NAA designator, another one in each process. SPC-4
/// §7.8.6.1, §7.8.6.6.
fn designators() -> Vec<u8> {
    let mut data = vec![0, DEVICE_IDENTIFICATION, 0, 12, 0x01, 0x03, 0, 8];
    data.extend_from_slice(&(3 << 60 | u64::from(std::process::id())).to_be_bytes());
    data
}

/// ILLEGAL REQUEST, INVALID COMMAND OPERATION CODE, with its length before it. SPC-4 §4.5.3;
/// RFC 7143 §11.4.7.2.
pub const SENSE: [u8; 20] = [0, 18, 0x70, 0, 0x05, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0];

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: capacities are laid out as in SBC-3.
    #[test]
    fn capacities() {
        let mut cdb = [0; 16];
        cdb[0] = 0x25;
        assert_eq!(answer(&cdb, 1 << 20), CommandAnswer::Data(vec![0, 0, 7, 255, 0, 0, 2, 0]));
        (cdb[0], cdb[1]) = (0x9e, 0x10);
        let CommandAnswer::Data(data) = answer(&cdb, 1 << 20) else { panic!("no data") };
        assert_eq!((data.len(), u64::get(&data[..8]), data[13]), (32, 2047, 3));
        assert_eq!(inquiry().len(), 36);
        assert_eq!(designators().len(), 16);
        assert_eq!(answer(&[0xff; 16], 1 << 20), CommandAnswer::Unknown);
    }
}
