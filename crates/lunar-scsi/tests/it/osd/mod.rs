//! OSD commands.

mod cdb;
mod continuation;
mod lists;
mod strategies;
