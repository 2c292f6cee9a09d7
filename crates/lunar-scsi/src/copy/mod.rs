//! Third-party copy with one-byte list identifiers: EXTENDED COPY (LID1) and its RECEIVE COPY
//! RESULTS. SPC-4 §6.5; SPC-3 §6.3, §6.17, whose text is clearer.
//!
//! Lists are decoded and checked here, and carried out elsewhere: a parameter list becomes a
//! [`CopyList`], each of its segments, once the units are known, a [`Move`]. The target resolves
//! descriptors to units, because the result depends on the units that the initiator may see.

mod fault;
mod limits;
mod list;
mod moves;
mod results;
mod vpd;

pub use fault::{CopyFault, Reported, SegmentRole};
pub use limits::*;
pub use list::{CopyList, CopySegment, Cscd};
pub use moves::Move;
pub(crate) use results::operating_parameters;
pub use results::{CopyEnd, CopyId, CopyResults};
pub(crate) use vpd::descriptors as vpd_descriptors;
