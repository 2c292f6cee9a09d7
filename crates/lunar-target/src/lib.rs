//! The target role: logical units, access rules, and the execution of SCSI plans.
//!
//! A [`Server`] listens on [`Portal`]s and serves targets, whose [`DiskUnit`]s are on any
//! [`BlockDevice`](lunar_block::BlockDevice). Targets, LUNs and limits may change while it runs
//! ([`Catalogue`]).
//!
//! ```
//! use lunar_block::{BufferPool, MemoryDevice};
//! use lunar_target::{
//!     Access, Limits, DiskUnit, DiskUnitOptions, LunOptions, Portal, Server,
//!     ServerOptions, TargetOptions,
//! };
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let disk = Arc::new(MemoryDevice::new(64 << 20, 512, 4096)?);
//! // The UUID is the identity of the unit, for initiators with several paths.
//! let unit = DiskUnit::open(DiskUnitOptions::new(uuid::Uuid::from_u128(1), disk))?;
//! let server = Server::start(ServerOptions {
//!     portals: vec![Portal::new("127.0.0.1:0".parse()?)],
//!     targets: vec![TargetOptions {
//!         name: "iqn.2026-11.org.example:disk".to_owned(),
//!         alias: None,
//!         portal_group: 1,
//!         access: Access::default(), // every initiator
//!         administer: None,
//!         chap: Vec::new(),
//!         offer: Default::default(),
//!         redirect: None,
//!         initiator_limits: Vec::new(),
//!         luns: vec![LunOptions::new(0, unit)],
//!     }],
//!     discovery_chap: None,
//!     cores: 1,
//!     latency_mode: false,
//!     limits: Limits::default(),
//!     buffers: BufferPool::default(),
//!     relays: None,
//! })?;
//! assert_ne!(server.addresses()[0].port(), 0);
//! server.shutdown(std::time::Duration::from_secs(5), &mut |_| {});
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod abort;
mod access;
mod access_list;
mod admission;
mod awaited;
mod backing;
mod backoff;
mod cache_losses;
mod catalogue;
mod clear_limit;
mod cold_resets;
mod connection;
mod connection_shares;
mod connection_table;
mod detached_writes;
mod disk_unit;
mod error;
mod execute;
mod final_sync;
mod itl_nexus;
mod join;
mod lock;
mod log_budget;
mod log_text;
mod login;
mod login_refusal;
mod long_operation;
mod lun_index;
mod lun_table;
mod manage;
mod memory;
mod observer;
mod open_files;
mod operation_slots;
mod options;
pub mod osd;
mod peer_network;
mod pieces;
mod plan_result;
mod poison;
mod portals;
mod quota;
mod ranges;
mod registration_room;
mod relay;
mod replace;
mod request_queue;
mod resets;
mod resize;
mod rights;
mod save_queue;
mod server;
mod session;
mod session_info;
mod session_table;
mod state_file;
mod statistics;
mod streams;
mod task_map;
mod task_set;
mod tasks;
mod thin_space;
mod trace;
mod unit;
mod view;
mod visit_pace;

pub use abort::Aborted;
pub use access_list::{Access, Network};
pub use backing::BackingFault;
pub use catalogue::Catalogue;
pub use disk_unit::{CacheMode, DiskUnit, DiskUnitOptions};
pub use error::Error;
pub use execute::PieceReader;
pub use log_budget::LogBudget;
pub use lunar_net::{Direction, TappedPdu};
pub use lunar_scsi::reported_identity::ReportedIdentity;
pub use memory::RelaySocketMemory;
pub use observer::Observer;
pub use options::{ChapEntry, Limits, LunOptions, Portal, ServerOptions, TargetOptions};
pub use plan_result::PlanResult;
pub use quota::{BYTES_PER_SECOND_MIN, Cost, IOPS_MIN, InitiatorLimit, Limit};
pub use relay::{
    ConnectionRelay, PartReader, PartWriteEvent, PartWriter, RelayFactory, RelayFailure, RelayHost,
    RelayStatistics, RelayedPiece,
};
pub use replace::Replaced;
pub use resize::Shrink;
pub use server::{Server, ShutdownReport};
pub use session_info::{ConnectionInfo, SessionInfo};
pub use statistics::{
    CommandErrors, LunStatistics, OperationClass, OperationStatistics, Statistics, TargetStatistics,
};
pub use streams::{
    DATA_IN_CONNECTION_BYTES_MAX, DATA_IN_TASK_BYTES_MAX, DATA_OUT_CONNECTION_BYTES_MAX,
    DATA_OUT_RANGE_BYTES_MAX, DATA_OUT_TASK_BYTES_MAX, DataInWriter, DataOutError, DataOutPiece,
    DataOutReader, DataStreams,
};
pub use tasks::{Execution, ExecutionEnd, ExecutionFuture};
pub use thin_space::OutOfSpace;
pub use trace::{TRACES_MAX, Trace, TraceError};
pub use unit::{
    AcceptedCommand, AcceptedPlan, ArrivedCommand, CommandData, Job, NexusAttachment,
    RefusedCommand, Unit, UnitCommon, UnitNexuses, UnitStatistics, Work,
};
