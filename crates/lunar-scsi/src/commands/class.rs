//! Classes of commands: by which they are counted, and by which limits charge them.

use super::BLOCK_COMMANDS;

/// Class of a command, by which commands are counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd)]
#[repr(usize)]
pub enum OperationClass {
    /// READ of any length.
    Read,
    /// WRITE, WRITE AND VERIFY, WRITE ATOMIC, ORWRITE.
    Write,
    /// SYNCHRONIZE CACHE.
    Flush,
    /// UNMAP.
    Unmap,
    /// WRITE SAME.
    WriteSame,
    /// COMPARE AND WRITE.
    CompareAndWrite,
    /// VERIFY.
    Verify,
    /// EXTENDED COPY.
    Copy,
    /// All others: inquiries about the unit, reservations, mode pages.
    Other,
}

impl OperationClass {
    /// All classes.
    pub const ALL: [Self; 9] = [
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::Unmap,
        Self::WriteSame,
        Self::CompareAndWrite,
        Self::Verify,
        Self::Copy,
        Self::Other,
    ];

    /// Class of a CDB by the table of block units. See [`CommandTable::class_of`].
    ///
    /// [`CommandTable::class_of`]: super::CommandTable::class_of
    #[inline]
    pub fn of(cdb: &[u8]) -> Self {
        BLOCK_COMMANDS.class_of(cdb)
    }

    /// Name in metrics: `read`, `compare_and_write`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Unmap => "unmap",
            Self::WriteSame => "write_same",
            Self::CompareAndWrite => "compare_and_write",
            Self::Verify => "verify",
            Self::Copy => "copy",
            Self::Other => "other",
        }
    }
}

/// Cost of a command under limits of IOPS and bandwidth, charged before the command begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QuotaClass {
    /// No cost: the command moves no data of the medium, or is charged by other means.
    Free,
    /// A command without bytes: it moves none, or is charged for them piece by piece.
    Command,
    /// A command, and the bytes of its blocks.
    BytesOnce,
    /// A command, and twice the bytes of its blocks: it reads and writes them.
    BytesTwice,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::COMMANDS;

    /// Goal: each command of the table is charged for the data that it moves.
    #[test]
    fn names_and_costs_agree() {
        for command in COMMANDS {
            let expected = [
                ("READ (", QuotaClass::BytesOnce),
                ("WRITE (", QuotaClass::BytesOnce),
                ("WRITE ATOMIC", QuotaClass::BytesOnce),
                ("VERIFY", QuotaClass::BytesOnce),
                ("PRE-FETCH", QuotaClass::BytesOnce),
                ("WRITE AND", QuotaClass::BytesTwice),
                ("COMPARE AND", QuotaClass::BytesTwice),
                ("ORWRITE", QuotaClass::BytesTwice),
                ("WRITE SAME", QuotaClass::Command),
                ("UNMAP", QuotaClass::Command),
            ];
            let expected = expected.iter().find(|(start, _)| command.name.starts_with(start));
            let expected = expected.map_or(QuotaClass::Free, |(_, class)| *class);
            assert_eq!(command.quota_class, expected, "{}", command.name);
        }
    }

    /// Goal: each command of the table has the class of its name.
    #[test]
    fn names_and_kinds_agree() {
        for command in COMMANDS {
            let name = command.name;
            let expected = [
                ("READ (", OperationClass::Read),
                ("WRITE (", OperationClass::Write),
                ("WRITE AND", OperationClass::Write),
                ("WRITE ATOMIC", OperationClass::Write),
                ("ORWRITE", OperationClass::Write),
                ("SYNCHRONIZE", OperationClass::Flush),
                ("UNMAP", OperationClass::Unmap),
                ("WRITE SAME", OperationClass::WriteSame),
                ("COMPARE AND", OperationClass::CompareAndWrite),
                ("VERIFY", OperationClass::Verify),
                ("EXTENDED COPY", OperationClass::Copy),
            ];
            let expected = expected.iter().find(|(start, _)| name.starts_with(start));
            let expected = expected.map_or(OperationClass::Other, |(_, operation)| *operation);
            assert_eq!(OperationClass::of(&[command.opcode]), expected, "{name}");
        }
        for unknown in [&[][..], &[0x01], &[0xff, 0]] {
            assert_eq!(OperationClass::of(unknown), OperationClass::Other);
        }
        assert!(OperationClass::ALL.iter().enumerate().all(|(at, each)| *each as usize == at));
    }
}
