//! The blocks of virtual disks on their storages: translation, growth, flushes and losses.

use crate::{Device, memory};
use lunar_block::{
    BlockDevice, BlockRange, BufferPool, Effect, ErrorKind, Fault, FaultDevice, FaultOperation,
};
use lunar_switch::{DeviceExtent, ExtentOrder, VirtualDisk, extent};
use proptest::prelude::*;
use std::num::NonZeroU64;
use std::sync::Arc;

const BLOCK: u64 = 512;

/// Extents of two storages that do not overlap: the gap before each, and its length.
type Lengths = Vec<(bool, u64, u64)>;

fn lengths() -> impl Strategy<Value = Lengths> {
    proptest::collection::vec((any::<bool>(), 0u64..5, 1u64..20), 1..6)
}

/// Two storages with room for all extents, and the extents.
fn extents_of(lengths: &Lengths) -> (Vec<Device>, Vec<DeviceExtent>) {
    let storages = vec![memory(256 * BLOCK, 512, 512), memory(256 * BLOCK, 512, 512)];
    let mut ends = [0u64; 2];
    let mut extents = Vec::new();
    for (is_second, gap, length) in lengths {
        let at = usize::from(*is_second);
        let blocks = BlockRange::new(ends[at] + gap, *length);
        ends[at] += gap + length;
        extents.push(DeviceExtent { device: Arc::clone(&storages[at]), blocks });
    }
    (storages, extents)
}

fn order_of(unit: u64) -> ExtentOrder {
    NonZeroU64::new(unit).map_or(ExtentOrder::Linear, ExtentOrder::Striped)
}

/// The storage and the block of each block of a virtual disk, enumerated one by one.
fn blocks_by_counting(
    storages: &[Device],
    extents: &[DeviceExtent],
    unit: u64,
) -> Vec<(usize, u64)> {
    let of = |extent: &DeviceExtent, block: u64| {
        let same = |storage: &Device| Arc::ptr_eq(storage, &extent.device);
        (storages.iter().position(same).unwrap(), extent.blocks.lba + block)
    };
    if unit == 0 {
        let blocks = |extent: &DeviceExtent| {
            let extent = extent.clone();
            (0..extent.blocks.count).map(move |block| (extent.clone(), block))
        };
        return extents.iter().flat_map(blocks).map(|(extent, block)| of(&extent, block)).collect();
    }
    let rows = extents[0].blocks.count / unit;
    let mut blocks = Vec::new();
    for row in 0..rows {
        for extent in extents {
            blocks.extend((0..unit).map(|inside| of(extent, row * unit + inside)));
        }
    }
    blocks
}

async fn read(device: &Device, lba: u64, count: u64) -> Vec<u8> {
    let buffer = BufferPool::default().take((count * BLOCK) as usize);
    device.read(BlockRange::new(lba, count), buffer).await.unwrap()[..].to_vec()
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Goal: a write reaches exactly the blocks that enumerating all blocks of the extents yields,
    /// on linear and striped disks. The parts of a range are these blocks, each once.
    #[test]
    fn writes_reach_their_blocks(
        mut lengths in lengths(),
        unit in 0u64..4,
        lba: u64,
        count: u64,
    ) {
        if unit > 0 {
            let rows = lengths[0].2 % 5 + 1;
            lengths.iter_mut().for_each(|one| one.2 = rows * unit);
        }
        run(async move {
            let (storages, extents) = extents_of(&lengths);
            let disk = VirtualDisk::new("virtual", &extents, order_of(unit)).unwrap();
            let expected = blocks_by_counting(&storages, &extents, unit);
            assert_eq!(disk.geometry().block_count, expected.len() as u64);
            let lba = lba % expected.len() as u64;
            let range = BlockRange::new(lba, count % (expected.len() as u64 - lba) + 1);
            let data: Vec<u8> =
                (0..range.count).flat_map(|at| vec![at as u8 + 1; BLOCK as usize]).collect();
            disk.write(range, data.clone().into(), false).await.unwrap();

            let mut models = [vec![0u8; 256], vec![0u8; 256]];
            for at in 0..range.count {
                let (storage, block) = expected[(lba + at) as usize];
                models[storage][block as usize] = at as u8 + 1;
            }
            for (storage, model) in storages.iter().zip(&models) {
                let bytes = read(storage, 0, 256).await;
                let firsts: Vec<u8> = bytes.chunks(BLOCK as usize).map(|block| block[0]).collect();
                assert_eq!(&firsts, model);
            }
            let mut parts: Vec<(usize, u64)> = Vec::new();
            for (device, part) in disk.routing().shape().parts(range) {
                let same = |storage: &Device| Arc::ptr_eq(storage, device);
                let storage = storages.iter().position(same).unwrap();
                parts.extend((part.lba..part.lba + part.count).map(|block| (storage, block)));
            }
            let mut blocks = expected[lba as usize..][..range.count as usize].to_vec();
            parts.sort_unstable();
            blocks.sort_unstable();
            assert_eq!(parts, blocks);
        });
    }
}

/// Goal: extents that do not fit are refused: past the end, of other block lengths, of other
/// lengths than the stripe.
#[test]
fn refusals() {
    let (a, b) = (memory(1 << 20, 512, 512), memory(1 << 20, 4096, 4096));
    let of = |device: &Device, lba, count| DeviceExtent {
        device: Arc::clone(device),
        blocks: BlockRange::new(lba, count),
    };
    let two = ExtentOrder::Striped(NonZeroU64::new(2).unwrap());
    for (extents, order, what) in [
        (vec![], ExtentOrder::Linear, "no extent"),
        (vec![of(&a, 0, 0)], ExtentOrder::Linear, "has 0 blocks"),
        (vec![of(&a, 2047, 2)], ExtentOrder::Linear, "has 2048 blocks"),
        (vec![of(&a, u64::MAX, 2)], ExtentOrder::Linear, "has 2048 blocks"),
        (vec![of(&a, 0, 8), of(&b, 0, 8)], ExtentOrder::Linear, "have 4096 bytes"),
        (vec![of(&a, 0, 8), of(&a, 8, 6)], two, "the same length"),
        (vec![of(&a, 0, 3), of(&a, 8, 3)], two, "no multiple"),
    ] {
        let error = VirtualDisk::new("virtual", &extents, order).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Open);
        assert!(error.to_string().contains(what), "{error}");
    }
}

/// Goal: physical blocks of a virtual disk begin at physical blocks of its storages.
#[test]
fn physical_blocks() {
    let a = memory(1 << 20, 512, 4096);
    for (start, length, physical) in
        [(0, 4096, 4096), (4096, 8192, 4096), (2048, 4096, 2048), (512, 4096, 512)]
    {
        let extents = [extent(&a, start, length).unwrap(), extent(&a, 65_536, 4096).unwrap()];
        let disk = VirtualDisk::new("virtual", &extents, ExtentOrder::Linear).unwrap();
        assert_eq!(disk.geometry().physical_block_bytes, physical, "{start} {length}");
    }
}

/// Goal: a disk grows while it is used: by a longer last extent, by further extents on other
/// storages, as a stripe by longer extents. Nothing else is a growth, and only prepared sizes are
/// possible.
#[tokio::test]
async fn growth() {
    let (a, b) = (memory(1 << 20, 512, 512), memory(1 << 20, 512, 512));
    let of = |device: &Device, lba, count| DeviceExtent {
        device: Arc::clone(device),
        blocks: BlockRange::new(lba, count),
    };
    let disk = VirtualDisk::new("virtual", &[of(&a, 8, 8)], ExtentOrder::Linear).unwrap();
    disk.write(BlockRange::new(0, 8), vec![1; 4096].into(), false).await.unwrap();
    assert!(disk.resize().is_none());

    disk.prepare_growth(Some(vec![of(&a, 8, 16), of(&b, 0, 8)]));
    disk.resize().unwrap().resize(24 * BLOCK).await.unwrap();
    assert_eq!(disk.geometry().block_count, 24);
    assert!(disk.resize().is_none());
    disk.write(BlockRange::new(12, 12), vec![2; 12 * 512].into(), false).await.unwrap();
    assert_eq!(read(&a, 8, 4).await, [1; 2048]);
    assert_eq!(read(&a, 20, 4).await, [2; 2048]);
    assert_eq!(read(&b, 0, 8).await, [2; 4096]);

    for (extents, blocks) in [
        (vec![of(&a, 8, 16), of(&b, 0, 16)], 31),
        (vec![of(&a, 9, 16), of(&b, 0, 16)], 32),
        (vec![of(&a, 8, 20), of(&b, 0, 12)], 32),
        (vec![of(&b, 8, 16), of(&b, 0, 16)], 32),
        (vec![of(&a, 8, 16), of(&b, 0, 2048)], 2064),
    ] {
        let is_possible = blocks == 2064;
        disk.prepare_growth(Some(extents));
        let resized = disk.resize().unwrap().resize(blocks * BLOCK).await;
        assert_eq!(resized.is_ok(), is_possible, "{blocks}: {resized:?}");
    }

    disk.prepare_growth(Some(vec![of(&a, 8, 16), of(&b, 0, 2048)]));
    disk.prepare_growth(None);
    assert!(disk.resize().is_none());

    let two = order_of(2);
    let stripe = VirtualDisk::new("stripe", &[of(&a, 0, 4), of(&b, 0, 4)], two).unwrap();
    stripe.prepare_growth(Some(vec![of(&a, 0, 8), of(&b, 0, 8), of(&a, 8, 8)]));
    assert!(stripe.resize().unwrap().resize(24 * BLOCK).await.is_err());
    stripe.prepare_growth(Some(vec![of(&a, 0, 8), of(&b, 0, 8)]));
    stripe.resize().unwrap().resize(16 * BLOCK).await.unwrap();
    assert_eq!(stripe.geometry().block_count, 16);
}

/// Goal: a flush reaches every storage once, also those that were added, and fails if one of them
/// fails.
#[tokio::test]
async fn flushes_reach_all_storages() {
    let storages = [0, 1].map(|_| FaultDevice::new(memory(1 << 20, 512, 512), 1));
    let of = |at: usize, lba| DeviceExtent {
        device: Arc::<FaultDevice>::clone(&storages[at]),
        blocks: BlockRange::new(lba, 8),
    };
    let disk = VirtualDisk::new("virtual", &[of(0, 8), of(0, 0)], ExtentOrder::Linear).unwrap();
    disk.prepare_growth(Some(vec![of(0, 8), of(0, 0), of(1, 0)]));
    disk.resize().unwrap().resize(24 * BLOCK).await.unwrap();
    disk.flush().await.unwrap();
    let flushes = |storage: &Arc<FaultDevice>| storage.seen(FaultOperation::Flush);
    assert_eq!(storages.each_ref().map(flushes), [1, 1]);
    let fails = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Flush);
    storages[1].inject(fails);
    assert_eq!(disk.flush().await.unwrap_err().kind, ErrorKind::Medium);
}
