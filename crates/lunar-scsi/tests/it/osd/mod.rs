//! OSD commands.

mod cdb;
mod lists;
mod strategies;
