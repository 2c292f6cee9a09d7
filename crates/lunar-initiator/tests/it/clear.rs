//! Clearing of blocks of a remote disk, piece by piece.

use crate::lost_writes::{Rig, block_on};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, Clear, MemoryDevice};
use lunar_scsi::vpd::WRITE_SAME_BLOCKS_MAX;
use std::sync::Arc;

const WRITE_SAME_16: u8 = 0x93;
const SYNCHRONIZE_CACHE: u8 = 0x35;
const MIB_BLOCKS: u64 = (1 << 20) / 512;

async fn is_zero(rig: &Rig, range: BlockRange) -> bool {
    let buffer = rig.disk.unit().initiator().pool().take(range.count as usize * 512);
    rig.disk.read(range, buffer).await.unwrap().iter().all(|byte| *byte == 0)
}

/// Fault: an UNMAP of a whole served LUN, or of 256 single blocks, was one operation of the disk,
/// during which commands of other hosts waited: 6 s at a target behind 20 ms of latency. Goal: a
/// piece is one WRITE SAME, and is flushed if it is to be durable.
#[test]
fn a_piece_is_one_command() {
    block_on(async {
        let memory = MemoryDevice::new(64 << 20, 512, 4096).unwrap();
        let rig = Rig::with(Arc::new(memory), |_| {}).await;
        let sparse = rig.disk.sparse().unwrap();
        let long = BlockRange::new(MIB_BLOCKS, 40 * MIB_BLOCKS);
        let whole = [BlockRange::new(1, 1), BlockRange::new(9, 0), BlockRange::new(16, 3), long];
        let middle = long.lba + u64::from(WRITE_SAME_BLOCKS_MAX);
        let cases = [
            (Clear::Unmap, false),
            (Clear::Unmap, true),
            (Clear::Zero { may_unmap: false }, false),
            (Clear::Zero { may_unmap: true }, true),
        ];
        for (clear, durable) in cases {
            for range in whole.iter().filter(|range| range.count > 0) {
                let ends = [range.lba, range.lba + range.count - 1];
                for lba in ends {
                    let data = Bytes::from(vec![7; 512]);
                    rig.disk.write(BlockRange::new(lba, 1), data, false).await.unwrap();
                }
            }
            let (mut rest, mut boundaries) = (whole.to_vec(), Vec::new());
            let flushes = rig.relay.sent(SYNCHRONIZE_CACHE);
            while !rest.is_empty() {
                let before = rig.relay.sent(WRITE_SAME_16);
                let end = sparse.clear_piece(rest.clone(), clear, durable).await.unwrap();
                assert_eq!(rig.relay.sent(WRITE_SAME_16), before + 1);
                boundaries.push(end);
                rest.retain_mut(|range| {
                    let skipped = end.saturating_sub(range.lba).min(range.count);
                    *range = BlockRange::new(range.lba + skipped, range.count - skipped);
                    range.count > 0
                });
            }
            assert_eq!(boundaries, [2, 19, middle, long.lba + long.count]);
            let flushed = rig.relay.sent(SYNCHRONIZE_CACHE) - flushes;
            assert_eq!(flushed, if durable { 4 } else { 0 });
            for range in whole.iter().filter(|range| range.count > 0) {
                assert!(is_zero(&rig, *range).await, "{clear:?}");
            }
        }
        let none = vec![BlockRange::new(5, 0)];
        assert_eq!(sparse.clear_piece(none, Clear::Unmap, true).await.unwrap(), 5);
        let far = vec![BlockRange::new(0, 1), BlockRange::new(128 * MIB_BLOCKS, 1)];
        sparse.clear_piece(far, Clear::Unmap, false).await.expect_err("beyond the end");
        rig.end().await;
    });
}
