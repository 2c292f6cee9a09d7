//! Service actions of the OSD commands.

use super::OsdVersion;

macro_rules! actions {
    ($($variant:ident = $name:literal, $osd1:expr, $osd2:literal, $since:ident;)+) => {
        /// An OSD command, as SERVICE ACTION selects it.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum OsdAction { $(#[doc = $name] $variant,)+ }

        impl OsdAction {
            /// All commands, in the order of their OSD-2 codes.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name in the standard.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The SERVICE ACTION of OSD-1, that of OSD-2, and the first revision of OSD-2 with the
            /// command.
            const fn codes(self) -> (Option<u16>, u16, OsdVersion) {
                match self { $(Self::$variant => ($osd1, $osd2, OsdVersion::$since),)+ }
            }
        }
    };
}

actions! {
    ObjectStructureCheck = "OBJECT STRUCTURE CHECK", None, 0x8880, Osd2R03;
    FormatOsd = "FORMAT OSD", Some(0x8801), 0x8881, Osd2R03;
    Create = "CREATE", Some(0x8802), 0x8882, Osd2R03;
    List = "LIST", Some(0x8803), 0x8883, Osd2R03;
    Punch = "PUNCH", None, 0x8884, Osd2R03;
    Read = "READ", Some(0x8805), 0x8885, Osd2R03;
    Write = "WRITE", Some(0x8806), 0x8886, Osd2R03;
    Append = "APPEND", Some(0x8807), 0x8887, Osd2R03;
    Flush = "FLUSH", Some(0x8808), 0x8888, Osd2R03;
    Clear = "CLEAR", None, 0x8889, Osd2R03;
    Remove = "REMOVE", Some(0x880a), 0x888a, Osd2R03;
    CreatePartition = "CREATE PARTITION", Some(0x880b), 0x888b, Osd2R03;
    RemovePartition = "REMOVE PARTITION", Some(0x880c), 0x888c, Osd2R03;
    GetAttributes = "GET ATTRIBUTES", Some(0x880e), 0x888e, Osd2R03;
    SetAttributes = "SET ATTRIBUTES", Some(0x880f), 0x888f, Osd2R03;
    CreateAndWrite = "CREATE AND WRITE", Some(0x8812), 0x8892, Osd2R03;
    CopyUserObjects = "COPY USER OBJECTS", None, 0x8893, Osd2;
    CreateUserTrackingCollection = "CREATE USER TRACKING COLLECTION", None, 0x8894, Osd2;
    CreateCollection = "CREATE COLLECTION", Some(0x8815), 0x8895, Osd2R03;
    RemoveCollection = "REMOVE COLLECTION", Some(0x8816), 0x8896, Osd2R03;
    ListCollection = "LIST COLLECTION", Some(0x8817), 0x8897, Osd2R03;
    SetKey = "SET KEY", Some(0x8818), 0x8898, Osd2R03;
    SetMasterKey = "SET MASTER KEY", Some(0x8819), 0x8899, Osd2R03;
    FlushCollection = "FLUSH COLLECTION", Some(0x881a), 0x889a, Osd2R03;
    FlushPartition = "FLUSH PARTITION", Some(0x881b), 0x889b, Osd2R03;
    FlushOsd = "FLUSH OSD", Some(0x881c), 0x889c, Osd2R03;
    Query = "QUERY", None, 0x88a0, Osd2R03;
    RemoveMemberObjects = "REMOVE MEMBER OBJECTS", None, 0x88a1, Osd2R03;
    GetMemberAttributes = "GET MEMBER ATTRIBUTES", None, 0x88a2, Osd2R03;
    SetMemberAttributes = "SET MEMBER ATTRIBUTES", None, 0x88a3, Osd2R03;
    CreateClone = "CREATE CLONE", None, 0x88a8, Osd2;
    CreateSnapshot = "CREATE SNAPSHOT", None, 0x88a9, Osd2;
    DetachClone = "DETACH CLONE", None, 0x88aa, Osd2;
    RefreshSnapshotOrClone = "REFRESH SNAPSHOT OR CLONE", None, 0x88ab, Osd2;
    RestorePartitionFromSnapshot = "RESTORE PARTITION FROM SNAPSHOT", None, 0x88ac, Osd2;
    ReadMap = "READ MAP", None, 0x88b1, Osd2R03;
    ReadMapsAndCompare = "READ MAPS AND COMPARE", None, 0x88b2, Osd2;
    PerformScsiCommand = "PERFORM SCSI COMMAND", Some(0x8f7e), 0x8f7c, Osd2R03;
    PerformTaskManagementFunction =
        "PERFORM TASK MANAGEMENT FUNCTION", Some(0x8f7f), 0x8f7d, Osd2R03;
}

impl OsdAction {
    /// The SERVICE ACTION in CDBs of `version`; `None` if the version has no such command.
    pub const fn code(self, version: OsdVersion) -> Option<u16> {
        match (self.codes(), version) {
            ((osd1, ..), OsdVersion::Osd1) => osd1,
            ((.., OsdVersion::Osd2), OsdVersion::Osd2R03) => None,
            ((_, osd2, _), _) => Some(osd2),
        }
    }

    /// The command with this SERVICE ACTION in CDBs of `version`.
    ///
    /// Interpretation: a code of OSD-2 in a CDB of 200 bytes, as its first revisions may have it,
    /// is refused.
    pub fn from_code(version: OsdVersion, code: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|action| action.code(version) == Some(code))
    }

    /// True if bytes 48 to 51 of an OSD-2 CDB are CDB CONTINUATION LENGTH. The other commands use
    /// these bytes themselves.
    pub const fn has_continuation(self) -> bool {
        !matches!(self, Self::List | Self::ListCollection | Self::ReadMap | Self::SetKey)
    }

    /// True if IMMED_TR may be set: a tracking collection reports the progress of the command.
    ///
    /// Interpretation: the commands that change collections, or all members of one.
    pub const fn has_tracking(self) -> bool {
        matches!(
            self,
            Self::Query
                | Self::CreateUserTrackingCollection
                | Self::RemoveMemberObjects
                | Self::SetMemberAttributes
        )
    }

    /// True for the commands whose byte 10 has FLUSH SCOPE.
    pub(super) const fn has_flush_scope(self) -> bool {
        matches!(self, Self::Flush | Self::FlushCollection | Self::FlushPartition | Self::FlushOsd)
    }

    /// True for the commands that process attributes before anything else, because the object does
    /// not exist afterwards.
    pub const fn attributes_come_first(self) -> bool {
        matches!(self, Self::Remove | Self::RemovePartition | Self::RemoveCollection)
    }
}
