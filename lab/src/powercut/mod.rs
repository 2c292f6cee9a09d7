//! A disk that loses its power: a FUSE file system that keeps unsynced data in memory only.
//!
//! The rules of a power cut are a value, [`volume::Volume`], without a kernel; the other modules
//! make it available to programs. It keeps no more than POSIX promises, which is less than most
//! file systems do: a file's fsync makes neither its name durable nor that of its directory;
//! unsynced changes may be found in any order, with or without the file's length, and torn at 512
//! bytes; a rename may be found without the data of the file that was renamed.

mod disk;
mod faults;
mod file;
mod fuse;
mod image;
mod loop_device;
mod names;
pub mod volume;

pub use disk::{HangGuard, PowerCutDisk};
pub use faults::CallKind;
pub use image::SECTOR_BYTES;
pub use loop_device::{Ext4, LoopDevice, make_ext4, write_back};
