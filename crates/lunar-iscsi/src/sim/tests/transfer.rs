//! Data transfer: completeness and position.

use super::{Pair, PairOptions, Rng, pattern, random_load, random_options, seeds};
use crate::connection::initiator::Residual;
use crate::pdu::*;
use std::vec;

/// Goal: written data is read back, whatever was negotiated; nothing exceeds the negotiated limits.
/// Method: random offers on both sides, random pieces on the link, sizes around every limit.
#[test]
fn every_size_around_the_borders_arrives_whole() {
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(seed, random_options(&mut rng));
        let link = pair.login();
        let agreed = pair.session_parameters(0);
        let borders = [0, agreed.first_burst_bytes, agreed.max_burst_bytes];
        for (number, border) in borders.into_iter().enumerate() {
            for blocks in 0..3 {
                let bytes = (border as usize / 512 + blocks).max(1) * 512;
                let data = pattern(seed + blocks as u64, bytes);
                let lba = (number * 700 + blocks * 200) as u64;
                let result = pair.write(link, lba, &data).expect("a status");
                assert_eq!((result.status, result.residual), (0, Residual::None));
                let at = lba as usize * 512;
                assert!(pair.disk(1).bytes(at..at + bytes) == data, "seed {seed}: {bytes} bytes");
                let (result, buffer) = pair.read(link, lba, bytes);
                let result = result.expect("a status");
                assert_eq!((result.status, result.data_in_bytes as usize), (0, bytes));
                assert!(buffer == data, "seed {seed}: {bytes} bytes");
            }
        }
        for r2t in pair.log().headers(Opcode::READY_TO_TRANSFER).map(ReadyToTransfer::decode) {
            let bytes = r2t.desired_length_bytes;
            assert!((1..=agreed.max_burst_bytes).contains(&bytes), "seed {seed}: {bytes}");
        }
        pair.assert_nothing_left();
    }
}

/// Goal: no data segment is copied twice: each byte is sent from the buffer of its owner, and each
/// received byte is put directly into its destination.
#[test]
fn no_data_segment_is_copied_twice() {
    for seed in seeds(20) {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(seed, random_options(&mut rng));
        let link = pair.login();
        random_load(&mut pair, &mut rng, &[link], 30);
        pair.run();
        assert!(pair.log().data_bytes > 0);
        assert_eq!(pair.log().foreign_bytes, 0, "seed {seed}: sent from a copy");
        let (payload, copied) = pair.payload_and_copied_bytes();
        assert_eq!(payload, copied, "seed {seed}: copied once, from the link");
        pair.assert_nothing_left();
    }
}

/// Goal: residuals of reads and writes match RFC 7143 §11.4.5.
#[test]
fn residuals() {
    for seed in seeds(10) {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(seed, random_options(&mut rng));
        let link = pair.login();
        pair.disk(1).fill(0, &pattern(seed, 4096));
        let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 4, 0]; // READ(10) of 4 blocks
        let cases = [
            (0, Residual::Overflow(2048), 0),
            (200, Residual::Overflow(1848), 200),
            (2048, Residual::None, 2048),
            (10_000, Residual::Underflow(7952), 2048),
        ];
        for (expected, residual, bytes) in cases {
            let id = pair.start(link, &read, &[], expected);
            pair.run();
            let (result, buffer) = pair.result(id);
            let result = result.expect("a status");
            assert_eq!((result.status, result.data_in_bytes), (0, bytes), "{expected}");
            // Without R and an expected length there is no residual except overflow.
            assert_eq!(result.residual, residual, "seed {seed}, {expected}");
            let have = bytes as usize;
            assert!(buffer[..have] == *pair.disk(1).bytes(0..have));
        }
        let write = [0x2a, 0, 0, 0, 0, 9, 0, 0, 4, 0]; // WRITE(10) of 4 blocks
        for (sent, residual) in [
            (1024, Residual::Overflow(1024)),
            (2048, Residual::None),
            (9000, Residual::Underflow(6952)),
        ] {
            let data = pattern(seed, sent);
            let id = pair.start(link, &write, &data, 0);
            pair.run();
            let result = pair.result(id).0.expect("a status");
            assert_eq!((result.status, result.residual), (0, residual), "seed {seed}, {sent}");
            let have = sent.min(2048);
            assert!(*pair.disk(1).bytes(9 * 512..9 * 512 + have) == data[..have]);
        }
        pair.assert_nothing_left();
    }
}

/// Goal: sense data arrives completely; a refused write with data on the way leaves nothing.
#[test]
fn refusals_carry_sense() {
    for seed in seeds(20) {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(seed, random_options(&mut rng));
        let link = pair.login();
        let unknown = [0xee, 0, 0, 0, 0, 0];
        for (data_out, data_in) in [(vec![], 0), (vec![7; 60_000], 0), (vec![], 5000)] {
            let id = pair.start(link, &unknown, &data_out, data_in);
            pair.run();
            let result = pair.result(id).0.expect("a status");
            assert_eq!(result.status, 2, "seed {seed}");
            assert_eq!((result.sense.len(), result.sense[2], result.sense[12]), (18, 5, 0x20));
            assert_eq!(result.data_in_bytes, 0);
        }
        pair.assert_nothing_left();
    }
}

/// Goal: a bidirectional command to a unit that refuses it ends with both residuals.
#[test]
fn both_directions_refused() {
    let mut pair = Pair::new(1, PairOptions::default());
    let link = pair.login();
    let id = pair.start(link, &[0xee; 32], &[1; 3000], 4000);
    pair.run();
    let result = pair.result(id).0.expect("a status");
    assert_eq!(result.status, 2);
    assert_eq!(result.residual, Residual::Underflow(3000));
    assert_eq!(result.read_residual, Residual::Underflow(4000));
    let cdb = pair.started().last().expect("it was started").clone();
    assert_eq!(cdb[..], [0xee; 32], "the whole CDB arrived, in its header segment");
    pair.assert_nothing_left();
}
