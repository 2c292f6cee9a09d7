//! Members and helpers that the tests share.

mod cut;
mod leased;
mod shared;
mod volatile;

pub use cut::{LineDevice, PowerLine};
pub use leased::{LeasedDisk, LeasedHostDisk};
pub use shared::{HostDisk, SharedDisk};
pub use volatile::VolatileDevice;

use bytes::Bytes;
use lunar_block::{
    BlockDevice, BlockRange, BoxFuture, Buffer, BufferPool, Error, ErrorKind, ExtentState,
    Geometry, MemoryDevice,
};
use lunar_pool::format::DATA_OFFSET_BYTES;
use std::sync::Arc;

/// Bytes that a member needs beside its data.
pub const OVERHEAD_BYTES: u64 = DATA_OFFSET_BYTES + 4096;

/// Number of blocks of 512 bytes before the data of a member.
pub const DATA_START: u64 = DATA_OFFSET_BYTES / 512;

pub type Device = Arc<dyn BlockDevice>;

/// Creates a memory disk with room for `data_bytes` of data.
pub fn memory(data_bytes: u64, block_bytes: u32, physical_block_bytes: u32) -> Device {
    let size_bytes = data_bytes + OVERHEAD_BYTES;
    Arc::new(MemoryDevice::new(size_bytes, block_bytes, physical_block_bytes).unwrap())
}

/// Creates `count` memory disks with room for `data_bytes` each, in blocks of 512 bytes.
pub fn memories(count: usize, data_bytes: u64) -> Vec<Device> {
    (0..count).map(|_| memory(data_bytes, 512, 512)).collect()
}

pub fn filled(value: u8, blocks: u64) -> Bytes {
    vec![value; blocks as usize * 512].into()
}

pub async fn read(device: &dyn BlockDevice, lba: u64, count: u64) -> Bytes {
    let block = device.geometry().block_bytes as usize;
    let buffer = BufferPool::default().take(count as usize * block);
    device.read(BlockRange::new(lba, count), buffer).await.unwrap().freeze()
}

/// Returns the first byte of a block.
pub async fn first_byte(device: &dyn BlockDevice, lba: u64) -> u8 {
    read(device, lba, 1).await[0]
}

/// Copies disks as a power cut leaves them.
pub async fn snapshots(disks: &[Device]) -> Vec<Device> {
    let mut copies = Vec::new();
    for disk in disks {
        copies.push(snapshot(&**disk).await);
    }
    copies
}

/// Copies a disk as a power cut leaves it.
pub async fn snapshot(disk: &dyn BlockDevice) -> Device {
    let geometry = disk.geometry();
    let copy = MemoryDevice::new(geometry.size_bytes(), 512, 512).unwrap();
    let all = BlockRange::new(0, geometry.block_count);
    let extents = disk.sparse().unwrap().status(all, usize::MAX).await.unwrap();
    for extent in extents.iter().filter(|extent| extent.state == ExtentState::Mapped) {
        let data = read(disk, extent.range.lba, extent.range.count).await;
        copy.write(extent.range, data, false).await.unwrap();
    }
    Arc::new(copy)
}

/// SplitMix64.
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns the device as one that refuses writes.
pub fn read_only(device: Device) -> Device {
    Arc::new(ReadOnly(device))
}

#[derive(Debug)]
struct ReadOnly(Device);

impl BlockDevice for ReadOnly {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        self.0.read(range, into)
    }

    fn write(&self, _: BlockRange, _: Bytes, _: bool) -> BoxFuture<'_, Result<(), Error>> {
        let error = Error::new(ErrorKind::ReadOnly, self.name(), "it is read-only");
        Box::pin(std::future::ready(Err(error)))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.0.flush()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn io_tier(&self) -> String {
        self.0.io_tier()
    }
}
