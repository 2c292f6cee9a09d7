//! Mirrors, in virtual time.

mod clears;
mod closing;
mod count;
mod cuts;
mod failures;
mod hosts;
mod late;
mod linear;
mod losses;
mod opening;
mod reads;
mod rejoin;
mod replace;
mod resize;
mod resolve;
mod resync;
mod rig;
mod scrub;
mod sharing;
mod slow;
mod spares;
mod trial;
