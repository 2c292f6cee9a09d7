//! COMPARE AND WRITE of a remote disk, which cannot simply be repeated.

use crate::lost_writes::{Rig, block_on};
use crate::relay::Rule;
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange};

const COMPARE_AND_WRITE: u8 = 0x89;

/// Replaces block 1 if it is full of `old`. Returns the offset of the first difference.
async fn compare(rig: &Rig, old: u8, new: u8) -> Option<u64> {
    let data = Bytes::from([[old; 512], [new; 512]].concat());
    let device = rig.disk.compare_and_write().unwrap();
    assert!(device.blocks_max() > 0);
    device.compare_and_write(BlockRange::new(1, 1), data, false).await.unwrap()
}

/// Goal: COMPARE AND WRITE writes if the blocks have the old content, and otherwise returns the
/// offset of the first difference.
#[test]
fn equal_blocks_are_replaced_and_others_reported() {
    block_on(async {
        let rig = Rig::new(1).await;
        assert!(rig.disk.compare_and_write().is_none(), "the target received no command");
        rig.disk.offer_compare_and_write().await;
        assert_eq!(compare(&rig, 0, 1).await, None);
        assert_eq!(compare(&rig, 0, 2).await, Some(0));
        assert_eq!(compare(&rig, 1, 2).await, None);
        let mut data = vec![2; 1024];
        data[300] = 3;
        let device = rig.disk.compare_and_write().unwrap();
        let compared = device.compare_and_write(BlockRange::new(1, 1), data.clone().into(), true);
        assert_eq!(compared.await.unwrap(), Some(300));
        for (range, bytes) in [(BlockRange::new(1, 0), 0), (BlockRange::new(1, 1), 1023)] {
            let data = Bytes::from(vec![2; bytes]);
            device.compare_and_write(range, data, false).await.expect_err("a wrong length");
        }
        rig.end().await;
    });
}

/// Goal: a command that has written, and whose response is lost with its session, is not reported
/// as a difference when it is sent again; one that has not written is.
/// Method: the connection is cut instead of the response to the first try.
#[test]
fn a_lost_response_is_no_difference() {
    block_on(async {
        let rig = Rig::new(1).await;
        rig.disk.offer_compare_and_write().await;
        rig.relay.rule(Rule { cut: true, ..Rule::of(COMPARE_AND_WRITE) });
        assert_eq!(
            compare(&rig, 0, 1).await,
            None,
            "the command had written before the connection was cut"
        );
        rig.relay.rule(Rule { cut: true, ..Rule::of(COMPARE_AND_WRITE) });
        assert_eq!(
            compare(&rig, 0, 2).await,
            Some(0),
            "the content is neither the old nor the new one"
        );
        assert_eq!(compare(&rig, 1, 2).await, None);
        rig.end().await;
    });
}

/// Fault: a target that never answers the probe (istgt 0.4) could not be served: the command waited
/// without end, and the storage counted as unreachable.
///
/// Goal: the probe ends, COMPARE AND WRITE is not offered, and the disk works.
/// Method: the response to the probe is held back.
#[test]
fn a_target_that_does_not_answer_the_probe() {
    block_on(async {
        let rig = Rig::new(1).await;
        rig.relay.rule(Rule { held: true, ..Rule::of(COMPARE_AND_WRITE) });
        rig.disk.offer_compare_and_write().await;
        assert!(rig.disk.compare_and_write().is_none(), "the target did not answer");
        rig.relay.release_held();
        let data = Bytes::from(vec![1; 512]);
        rig.disk.write(BlockRange::new(1, 1), data, false).await.unwrap();
        rig.end().await;
    });
}
