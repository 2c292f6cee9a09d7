//! OSD commands.

mod cdb;
mod continuation;
mod lists;
mod responses;
mod sense;
mod strategies;
