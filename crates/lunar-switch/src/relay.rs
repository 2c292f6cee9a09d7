//! The fast path of the switch: READ and WRITE commands are forwarded to the storage targets, and
//! their data as it arrives; the device of the LUN does not execute them. Decision 115.
//!
//! The blocks of the paper "A Packet Forwarding Method for the iSCSI Virtualization Switch":
//!
//! | block | here |
//! |---|---|
//! | Header Extractor | `lunar_net::drive`, with the framing |
//! | Dispatcher | the check of a disk in `lunar_target` (`relayed_plan`) |
//! | Address Translator | [`RelayMap`](lunar_block::RelayMap) |
//! | PDU Duplicating Handler | the parts of a command |
//! | Dynamic Session Mapping Table | the [`MappingTable`] of each [`StorageSession`] |
//! | Header Adaptor | the protocol machines of both roles in `lunar_iscsi` |
//! | Data Mover | the handlers of the sockets, which pass buffers on |

mod host;
mod link;
mod link_count;
mod mapping;
mod session;
mod setup;
mod shares;
mod socket;

pub use host::SwitchRelays;
pub use mapping::{MappingEntry, MappingTable, TransferDirection};
pub use session::{
    IncomingDestination, RelayedCommand, StorageInput, StorageOutput, StorageSession, StorageUnit,
};

/// Longest data segment that a storage target may send: MaxRecvDataSegmentLength of the relay. A
/// segment is passed on when it has arrived and was checked.
pub const SEGMENT_BYTES_MAX: u32 = 64 << 10;

/// Longest sequence of data-out that a storage target may ask for at once: MaxBurstLength.
pub const BURST_BYTES_MAX: u32 = 128 << 10;

/// Maximum number of outstanding R2Ts of a command: MaxOutstandingR2T.
pub const OUTSTANDING_R2T_MAX: u16 = 2;

/// Maximum data of one command in memory: received, and not yet accepted by the other socket.
pub const COMMAND_BYTES_MAX: usize = 512 << 10;

/// Maximum memory that is reserved for the data-in of all commands of one connection to a storage.
/// Further commands are executed by the device.
pub const LINK_BYTES_MAX: usize = 16 << 20;

/// Maximum number of commands of one connection to a storage. Further commands are executed by the
/// device.
pub const LINK_COMMANDS_MAX: usize = 128;

/// Maximum number of storages that one connection of a host has connections to.
pub const LINKS_MAX: usize = 32;

/// Maximum number of connections to storages of all hosts. The hosts of one address may open
/// another connection only while they have fewer connections than are free.
pub const ALL_LINKS_MAX: usize = 2048;
