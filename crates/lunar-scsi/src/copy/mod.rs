//! Third-party copy with one-byte list identifiers: EXTENDED COPY (LID1) and what RECEIVE COPY
//! RESULTS tells of it. SPC-4 §6.5; SPC-3 §6.3, §6.17, whose words are clearer.
//!
//! Read here, judged here, carried out elsewhere: a parameter list becomes a [`CopyList`], each of
//! its segments, once the units are known, a [`Move`]. Which unit a descriptor means is for the
//! target to say, which knows what the initiator may see.

mod fault;
mod limits;
mod list;
mod moves;
mod results;
mod vpd;

pub use fault::{CopyFault, Party, Reported};
pub use limits::*;
pub use list::{CopyList, Cscd, Segment};
pub use moves::Move;
pub(crate) use results::operating_parameters;
pub use results::{CopyEnd, CopyId, CopyResults};
pub(crate) use vpd::descriptors as vpd_descriptors;
