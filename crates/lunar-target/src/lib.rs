//! The target role: logical units, access rules, and the execution of SCSI plans.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod abort;
mod access;
mod access_list;
mod awaited;
mod backing;
mod backoff;
mod catalogue;
mod clear_limit;
mod connection;
mod connection_shares;
mod connection_table;
mod detached_writes;
mod error;
mod execute;
mod final_sync;
mod join;
mod log_budget;
mod login;
mod login_refusal;
mod long_operation;
mod lun_index;
mod manage;
mod memory;
mod open_files;
mod options;
mod pieces;
mod poison;
mod presence;
mod quota;
mod ranges;
mod registration_room;
mod replace;
mod resets;
mod resize;
mod room;
mod server;
mod session;
mod session_info;
mod state_file;
mod statistics;
mod task_map;
mod tasks;
mod trace;
mod unit;
mod view;

pub use access_list::{Access, Network};
pub use backing::BackingFault;
pub use catalogue::Catalogue;
pub use error::Error;
pub use log_budget::LogBudget;
pub use lunar_net::{Direction, TappedPdu};
pub use options::{ChapEntry, Limits, LunOptions, Portal, ServerOptions, TargetOptions};
pub use quota::{BYTES_PER_SECOND_MIN, IOPS_MIN, InitiatorLimit, Limit};
pub use replace::Replaced;
pub use resize::Shrink;
pub use room::OutOfSpace;
pub use server::{Server, ShutdownReport};
pub use session_info::{ConnectionInfo, SessionInfo};
pub use statistics::{
    CommandErrors, LunStatistics, Observer, OperationClass, OperationStatistics, Statistics,
    TargetStatistics,
};
pub use trace::{NoTrace, TRACES_MAX, Trace};
pub use unit::{CacheMode, LogicalUnit, LogicalUnitOptions};
