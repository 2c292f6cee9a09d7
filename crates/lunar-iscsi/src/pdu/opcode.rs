//! The first byte of every PDU. RFC 7143 §11.2.1.2.

lunar_wire::wire_enum! {
    /// The six-bit operation code. RFC 7143 §11.2.1.2.
    pub struct Opcode(u8) {
        NOP_OUT = 0x00,
        SCSI_COMMAND = 0x01,
        TASK_MANAGEMENT_REQUEST = 0x02,
        LOGIN_REQUEST = 0x03,
        TEXT_REQUEST = 0x04,
        DATA_OUT = 0x05,
        LOGOUT_REQUEST = 0x06,
        SNACK_REQUEST = 0x10,
        NOP_IN = 0x20,
        SCSI_RESPONSE = 0x21,
        TASK_MANAGEMENT_RESPONSE = 0x22,
        LOGIN_RESPONSE = 0x23,
        TEXT_RESPONSE = 0x24,
        DATA_IN = 0x25,
        LOGOUT_RESPONSE = 0x26,
        READY_TO_TRANSFER = 0x31,
        ASYNC_MESSAGE = 0x32,
        REJECT = 0x3f,
    }
}

/// Byte 0: the immediate bit (requests only) and the opcode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FirstByte(pub u8);

impl FirstByte {
    const IMMEDIATE: u8 = 0x40;

    /// An opcode without the immediate bit.
    pub const fn plain(opcode: Opcode) -> Self {
        Self(opcode.0)
    }

    /// A request for immediate delivery. RFC 7143 §11.2.1.1.
    pub const fn immediate(opcode: Opcode) -> Self {
        Self(opcode.0 | Self::IMMEDIATE)
    }

    /// The opcode.
    pub const fn opcode(self) -> Opcode {
        Opcode(self.0 & 0x3f)
    }

    /// The I bit.
    pub const fn is_immediate(self) -> bool {
        self.0 & Self::IMMEDIATE != 0
    }
}

impl lunar_wire::Field for FirstByte {
    const SIZE: usize = 1;
    fn get(bytes: &[u8]) -> Self {
        Self(bytes[0])
    }
    fn put(self, bytes: &mut [u8]) {
        bytes[0] = self.0;
    }
}
