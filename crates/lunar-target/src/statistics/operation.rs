//! Kinds of commands that are counted separately.

/// A kind of commands.
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
    /// All kinds.
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

    /// Kind by operation code, so that refused commands are counted by the operation they
    /// requested.
    pub(crate) fn of(cdb: &[u8]) -> Self {
        match cdb.first().copied().unwrap_or(0) {
            0x08 | 0x28 | 0x88 | 0xa8 => Self::Read,
            0x0a | 0x2a | 0x8a | 0xaa | 0x2e | 0x8e | 0xae | 0x8b | 0x9c => Self::Write,
            0x35 | 0x91 => Self::Flush,
            0x42 => Self::Unmap,
            0x41 | 0x93 => Self::WriteSame,
            0x89 => Self::CompareAndWrite,
            0x2f | 0x8f | 0xaf => Self::Verify,
            0x83 => Self::Copy,
            _ => Self::Other,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each command of the table has the kind of its name.
    #[test]
    fn names_and_kinds_agree() {
        for command in lunar_scsi::commands::COMMANDS {
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
        assert!(OperationClass::ALL.iter().enumerate().all(|(at, each)| *each as usize == at));
    }
}
