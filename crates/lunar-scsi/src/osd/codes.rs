//! Codes of fields.

lunar_wire::wire_enum! {
    /// ISOLATION: the separation of a command from others. OSD-2.
    pub struct IsolationMethod(u8) {
        DEFAULT = 0, NO_ISOLATION = 1, STRICT = 2, RANGE = 4, FUNCTIONAL = 5, VENDOR_SPECIFIC = 7,
    }
}

lunar_wire::wire_enum! {
    /// TIMESTAMPS CONTROL.
    pub struct TimestampsControl(u8) {
        /// The timestamps attributes are updated.
        UPDATE = 0x00,
        /// The timestamps attributes are not updated.
        BYPASS = 0x7f,
    }
}

lunar_wire::wire_enum! {
    /// The state of a range of bytes in READ MAP.
    pub struct MapType(u16) {
        /// In a request: all types.
        ALL = 0x0000,
        WRITTEN = 0x0001, HOLE = 0x0002, DAMAGED_DATA = 0x0003, DAMAGED_ATTRIBUTES = 0x8000,
    }
}

lunar_wire::wire_enum! {
    /// The function of PERFORM TASK MANAGEMENT FUNCTION.
    pub struct TaskManagementCode(u8) {
        ABORT_TASK = 0x01, ABORT_TASK_SET = 0x02, CLEAR_TASK_SET = 0x04, LOGICAL_UNIT_RESET = 0x08,
        I_T_NEXUS_RESET = 0x10, CLEAR_ACA = 0x40, QUERY_TASK = 0x80, QUERY_TASK_SET = 0x81,
        QUERY_UNIT_ATTENTION = 0x82,
    }
}

lunar_wire::wire_enum! {
    /// SECURITY METHOD.
    pub struct SecurityMethod(u8) { NOSEC = 0, CAPKEY = 1, CMDRSP = 2, ALLDATA = 3 }
}

lunar_wire::wire_enum! {
    /// CAPABILITY FORMAT.
    pub struct CapabilityFormat(u8) { NO_CAPABILITY = 0, OSD1 = 1, OSD2 = 2 }
}

lunar_wire::wire_enum! {
    /// OBJECT TYPE of a capability, and of attributes.
    pub struct ObjectType(u8) { ROOT = 0x01, PARTITION = 0x02, COLLECTION = 0x40, USER = 0x80 }
}

lunar_wire::wire_enum! {
    /// OBJECT DESCRIPTOR TYPE of a capability.
    pub struct ObjectDescriptorType(u8) {
        NO_DESCRIPTOR = 0,
        /// A user object; in OSD-1 also a collection.
        USER = 1,
        /// A partition, or the root.
        PARTITION = 2,
        /// A collection. OSD-2.
        COLLECTION = 3,
    }
}

lunar_wire::wire_flags! {
    /// PERMISSIONS BIT MASK of a capability: its first two bytes, of which the others are reserved.
    pub struct Permissions(u16) {
        READ = 0x8000, WRITE = 0x4000, GET_ATTR = 0x2000, SET_ATTR = 0x1000, CREATE = 0x0800,
        REMOVE = 0x0400, OBJ_MGMT = 0x0200, APPEND = 0x0100, DEV_MGMT = 0x0080, GLOBAL = 0x0040,
        POL_SEC = 0x0020,
        /// Members of a collection. OSD-2.
        M_OBJECT = 0x0010,
        /// OSD-2.
        QUERY = 0x0008,
        /// Removal of all members. OSD-2 revision 4.
        GBL_REM = 0x0004,
    }
}
