//! OSD commands.

mod cdb;
mod continuation;
mod lists;
mod pages;
mod responses;
mod sense;
mod strategies;
mod vectors;
