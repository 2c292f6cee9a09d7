//! Tests of virtual disks.
#![allow(clippy::unwrap_used)] // a test may unwrap

mod contracts;
mod migration;
mod relay;
mod storage;
mod translation;

use lunar_block::{BlockDevice, MemoryDevice};
use std::sync::Arc;

type Device = Arc<dyn BlockDevice>;

/// A disk in memory.
fn memory(bytes: u64, block_bytes: u32, physical_block_bytes: u32) -> Device {
    Arc::new(MemoryDevice::new(bytes, block_bytes, physical_block_bytes).unwrap())
}
