//! Layouts of SBC-3 commands. Most block commands share one layout per length; [`Blocks`] holds
//! their common fields.

use super::first;

lunar_wire::wire_struct! {
    /// READ (6), WRITE (6). SBC-3 §5.12.
    pub struct Blocks6 [6] {
        0 => opcode: u8,
        /// 21 bits; the upper three bits are reserved.
        1 => lba: lunar_wire::U24,
        4 => count: u8,
        5 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// READ, WRITE, VERIFY, WRITE AND VERIFY, WRITE SAME, PRE-FETCH, SYNCHRONIZE CACHE (10).
    pub struct Blocks10 [10] {
        0 => opcode: u8,
        1 => flags: u8,
        2 => lba: u32,
        6 => group: u8,
        7 => count: u16,
        9 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// READ, WRITE, VERIFY, WRITE AND VERIFY (12).
    pub struct Blocks12 [12] {
        0 => opcode: u8,
        1 => flags: u8,
        2 => lba: u32,
        6 => count: u32,
        10 => group: u8,
        11 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// The same commands (16), and ORWRITE (16).
    pub struct Blocks16 [16] {
        0 => opcode: u8,
        1 => flags: u8,
        2 => lba: u64,
        10 => count: u32,
        14 => group: u8,
        15 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// COMPARE AND WRITE, SBC-3 §5.2.
    pub struct CompareAndWrite [16] {
        0 => opcode: u8,
        1 => flags: u8,
        2 => lba: u64,
        13 => count: u8,
        14 => group: u8,
        15 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// WRITE ATOMIC (16), SBC-4.
    pub struct WriteAtomic [16] {
        0 => opcode: u8,
        1 => flags: u8,
        2 => lba: u64,
        10 => boundary: u16,
        12 => count: u16,
        14 => group: u8,
        15 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// UNMAP, SBC-3 §5.28.
    pub struct Unmap [10] {
        0 => opcode: u8,
        /// ANCHOR 01h.
        1 => flags: u8,
        6 => group: u8,
        7 => parameter_list_bytes: u16,
        9 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// The header of UNMAP's parameter list. SBC-3 §5.28.2.
    pub struct UnmapHeader [8] {
        0 => data_length: u16,
        2 => descriptors_bytes: u16,
    }
}

lunar_wire::wire_struct! {
    /// One UNMAP block descriptor. SBC-3 §5.28.2.
    pub struct UnmapDescriptor [16] {
        0 => lba: u64,
        8 => count: u32,
    }
}

lunar_wire::wire_struct! {
    /// READ CAPACITY (10), SBC-3 §5.16.
    pub struct ReadCapacity10 [10] {
        0 => opcode: u8,
        2 => lba: u32,
        /// PMI 01h.
        8 => flags: u8,
        9 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// READ CAPACITY (16), SBC-3 §5.17, and GET LBA STATUS, SBC-3 §5.4.
    pub struct ServiceActionIn16 [16] {
        0 => opcode: u8,
        1 => service_action: u8,
        2 => lba: u64,
        10 => allocation_bytes: u32,
        /// READ CAPACITY: PMI 01h.
        14 => flags: u8,
        15 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// The parameter data of READ CAPACITY (16). SBC-3 §5.17.2.
    pub struct Capacity16 [32] {
        0 => last_lba: u64,
        8 => block_bytes: u32,
        /// P_TYPE, PROT_EN: no protection information here.
        12 => protection: u8,
        /// P_I_EXPONENT F0h, logical blocks per physical block exponent 0Fh.
        13 => exponents: u8,
        /// LBPME 8000h, LBPRZ 4000h, lowest aligned LBA 3FFFh.
        14 => provisioning: u16,
    }
}

lunar_wire::wire_struct! {
    /// One LBA status descriptor. SBC-3 §5.4.2.
    pub struct LbaStatus [16] {
        0 => lba: u64,
        8 => count: u32,
        /// 0 mapped, 1 deallocated, 2 anchored.
        12 => status: u8,
    }
}

lunar_wire::wire_struct! {
    /// START STOP UNIT, SBC-3 §5.25.
    pub struct StartStop [6] {
        0 => opcode: u8,
        /// IMMED 01h.
        1 => flags: u8,
        /// POWER CONDITION MODIFIER 0Fh.
        3 => modifier: u8,
        /// POWER CONDITION F0h, NO_FLUSH 04h, LOEJ 02h, START 01h.
        4 => condition: u8,
        5 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// READ DEFECT DATA (10), SBC-3 §5.18.
    pub struct ReadDefectData10 [10] {
        0 => opcode: u8,
        /// REQ_PLIST 10h, REQ_GLIST 08h, DEFECT LIST FORMAT 07h.
        2 => request: u8,
        7 => allocation_bytes: u16,
        9 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// READ DEFECT DATA (12), SBC-3 §5.19.
    pub struct ReadDefectData12 [12] {
        0 => opcode: u8,
        /// REQ_PLIST 10h, REQ_GLIST 08h, DEFECT LIST FORMAT 07h.
        1 => request: u8,
        2 => descriptor_index: u32,
        6 => allocation_bytes: u32,
        11 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// SANITIZE, SBC-3 §5.24.
    pub struct Sanitize [10] {
        0 => opcode: u8,
        /// IMMED 80h, ZNR 40h (SBC-4), AUSE 20h, SERVICE ACTION 1Fh.
        1 => flags: u8,
        2 => reserved: [u8; 5],
        7 => parameter_bytes: u16,
        9 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// The parameter list of SANITIZE OVERWRITE up to its pattern. SBC-3 §5.24.2.
    pub struct OverwriteHeader [4] {
        /// INVERT 80h, TEST 60h, OVERWRITE COUNT 1Fh.
        0 => method: u8,
        2 => pattern_bytes: u16,
    }
}

lunar_wire::wire_struct! {
    /// FORMAT UNIT, SBC-3 §5.3.
    pub struct FormatUnit [6] {
        0 => opcode: u8,
        /// FMTPINFO C0h, LONGLIST 20h, FMTDATA 10h, CMPLST 08h, DEFECT LIST FORMAT 07h.
        1 => flags: u8,
        5 => control: u8,
    }
}

lunar_wire::wire_struct! {
    /// The short header of FORMAT UNIT's parameter list. SBC-3 §5.3.2.2.
    pub struct FormatHeader [4] {
        /// PROTECTION FIELD USAGE 07h.
        0 => protection: u8,
        /// FOV 80h, DPRY 40h, DCRT 20h, STPF 10h, IP 08h, IMMED 02h.
        1 => options: u8,
        2 => defects_bytes: u16,
    }
}

lunar_wire::wire_struct! {
    /// The long header. SBC-3 §5.3.2.2.
    pub struct LongFormatHeader [8] {
        /// PROTECTION FIELD USAGE 07h.
        0 => protection: u8,
        /// Same as in the short header.
        1 => options: u8,
        /// P_I_INFORMATION F0h, PROTECTION INTERVAL EXPONENT 0Fh.
        3 => interval: u8,
        4 => defects_bytes: u32,
    }
}

lunar_wire::wire_struct! {
    /// The initialization pattern descriptor up to its pattern. SBC-3 §5.3.2.3.
    pub struct InitializationPattern [4] {
        /// IP MODIFIER C0h (obsolete), SI 20h.
        0 => modifier: u8,
        1 => kind: u8,
        2 => bytes: u16,
    }
}

/// The common fields of the block commands, whatever their length.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Blocks {
    /// First block.
    pub lba: u64,
    /// Number of blocks in the CDB; the command defines the meaning of 0 (READ and WRITE (6) have
    /// already replaced it by 256).
    pub count: u64,
    /// Byte 1; 0 for 6-byte CDBs.
    pub flags: u8,
    /// Byte offset of the count, for field pointers.
    pub count_at: u16,
}

impl Blocks {
    /// Decodes the layout for the operation code of `cdb`.
    pub fn decode(cdb: &[u8]) -> Self {
        match cdb.first().map_or(0, |opcode| opcode >> 5) {
            0 => Self::from6(Blocks6::decode(&first(cdb))),
            4 => {
                let raw = Blocks16::decode(&first(cdb));
                let (lba, count) = (raw.lba, raw.count.into());
                Self { lba, count, flags: raw.flags, count_at: 10 }
            }
            5 => {
                let raw = Blocks12::decode(&first(cdb));
                let (lba, count) = (raw.lba.into(), raw.count.into());
                Self { lba, count, flags: raw.flags, count_at: 6 }
            }
            _ => {
                let raw = Blocks10::decode(&first(cdb));
                let (lba, count) = (raw.lba.into(), raw.count.into());
                Self { lba, count, flags: raw.flags, count_at: 7 }
            }
        }
    }

    fn from6(raw: Blocks6) -> Self {
        let lba = u64::from(raw.lba.value() & 0x1f_ffff);
        let count = if raw.count == 0 { 256 } else { u64::from(raw.count) };
        Self { lba, count, flags: 0, count_at: 4 }
    }

    /// RDPROTECT, WRPROTECT or VRPROTECT.
    pub const fn protect(self) -> u8 {
        self.flags >> 5
    }

    /// FUA of READ and WRITE (10, 12, 16), ORWRITE, COMPARE AND WRITE.
    pub const fn fua(self) -> bool {
        self.flags & 0x08 != 0
    }

    /// BYTCHK of VERIFY and WRITE AND VERIFY.
    pub const fn byte_check(self) -> u8 {
        (self.flags >> 1) & 3
    }
}
