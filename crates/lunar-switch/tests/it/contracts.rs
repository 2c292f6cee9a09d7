//! The contract of a disk, over virtual disks.

use crate::{Device, memory};
use lunar_block::contract::Contract;
use lunar_block::{BlockRange, FaultDevice, Geometry};
use lunar_switch::{DeviceExtent, ExtentOrder, VirtualDisk};
use std::num::NonZeroU64;
use std::sync::Arc;

/// Unit of all starts and lengths: a multiple of every block, also of every physical one.
const UNIT_BYTES: u64 = 4096;

fn storage(bytes: u64, shape: Geometry) -> Device {
    memory(bytes, shape.block_bytes, shape.physical_block_bytes)
}

fn part(device: &Device, start_bytes: u64, length_bytes: u64) -> DeviceExtent {
    let block = u64::from(device.geometry().block_bytes);
    let blocks = BlockRange::new(start_bytes / block, length_bytes / block);
    DeviceExtent { device: Arc::clone(device), blocks }
}

fn disk(extents: &[DeviceExtent], order: ExtentOrder) -> Device {
    Arc::new(VirtualDisk::new("virtual", extents, order).unwrap())
}

/// Two extents of one storage in reverse order, and one of another between them.
fn linear(device: fn(u64, Geometry) -> Device, shape: Geometry) -> Device {
    let bytes = shape.size_bytes();
    let third = bytes / 3;
    let (a, b) = (device(bytes + 4 * UNIT_BYTES, shape), device(bytes, shape));
    let extents = [
        part(&a, third + 3 * UNIT_BYTES, third),
        part(&b, UNIT_BYTES, third),
        part(&a, UNIT_BYTES, third),
    ];
    disk(&extents, ExtentOrder::Linear)
}

/// Goal: the contract holds on a linear virtual disk.
#[test]
fn linear_disk() {
    Contract::new(&|shape| linear(storage, shape)).size_multiple_of(3 * UNIT_BYTES as u32).run();
}

/// Goal: the contract holds on a linear virtual disk whose storages cannot transfer without
/// waiting.
#[test]
fn linear_disk_that_waits() {
    let slow = |bytes, shape| -> Device { FaultDevice::new(storage(bytes, shape), 1) };
    Contract::new(&|shape| linear(slow, shape)).size_multiple_of(3 * UNIT_BYTES as u32).run();
}

/// Goal: the contract holds on a stripe over extents, two of them on one storage.
#[test]
fn striped_disk() {
    Contract::new(&|shape: Geometry| {
        let third = shape.size_bytes() / 3;
        let (a, b) = (storage(3 * third, shape), storage(2 * third, shape));
        let extents = [part(&a, 2 * third, third), part(&b, third, third), part(&a, 0, third)];
        let unit = NonZeroU64::new(UNIT_BYTES / u64::from(shape.block_bytes)).unwrap();
        disk(&extents, ExtentOrder::Striped(unit))
    })
    .size_multiple_of(3 * UNIT_BYTES as u32)
    .run();
}
