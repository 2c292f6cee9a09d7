//! Mirrors, in virtual time.

mod bench;
mod closing;
mod failures;
mod late;
mod linear;
mod losses;
mod opening;
mod replace;
mod resync;
mod trial;
