//! OSD commands.

mod cdb;
mod strategies;
