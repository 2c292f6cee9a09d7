//! The machines of both roles against each other.

mod faults;
mod life;
mod manage;
mod nexus;
mod order;
mod pass_through;
mod transfer;

use super::{Pair, PairOptions, Rng};
use crate::framing::TaskId;
use crate::text::{Digest, Offer, TaskReporting};
use std::vec;
use std::vec::Vec;

/// Seeds for one test: a sample, or `LUNAR_SEEDS` of them.
fn seeds(sample: u64) -> impl Iterator<Item = u64> {
    let asked = std::env::var("LUNAR_SEEDS").ok().and_then(|count| count.parse().ok());
    (0..asked.unwrap_or(sample)).inspect(|seed| std::eprintln!("seed {seed}"))
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    Rng::new(seed ^ 0xdead_beef).bytes(bytes)
}

const BOTH: [Digest; 2] = [Digest::Crc32c, Digest::None];

const REPORTING: [TaskReporting; 3] =
    [TaskReporting::FastAbort, TaskReporting::ResponseFence, TaskReporting::Rfc3720];

/// Requires digests on both sides.
fn with_digests(mut options: PairOptions) -> PairOptions {
    for offer in [&mut options.initiator, &mut options.target] {
        offer.header_digest = vec![Digest::Crc32c];
        offer.data_digest = vec![Digest::Crc32c];
    }
    options
}

/// Random offers on both sides, with small lengths so that little data makes many PDUs.
fn random_options(rng: &mut Rng) -> PairOptions {
    let mut options = PairOptions::default();
    for offer in [&mut options.initiator, &mut options.target] {
        let first_burst_bytes = *rng.pick(&[512, 1024, 2000, 4096, 8192]);
        let more = *rng.pick(&[0, 512, 1000, 4096, 60_000]);
        *offer = Offer {
            header_digest: vec![*rng.pick(&BOTH), Digest::None],
            data_digest: vec![*rng.pick(&BOTH), Digest::None],
            initial_r2t: rng.once_in(2),
            immediate_data: !rng.once_in(3),
            max_recv_data_segment_bytes: *rng.pick(&[512, 777, 1024, 4096, 8192, 65_536]),
            max_burst_bytes: first_burst_bytes + more,
            first_burst_bytes,
            max_outstanding_r2t: 1 + rng.below(4) as u16,
            data_pdu_in_order: !rng.once_in(4),
            data_sequence_in_order: !rng.once_in(4),
            task_reporting: vec![*rng.pick(&REPORTING), TaskReporting::Rfc3720],
            protocol_level: *rng.pick(&[1, 2]),
            ..offer.clone()
        };
    }
    options.session_limits.window_commands = *rng.pick(&[1, 2, 7, 64]);
    options
}

/// Starts `count` reads and writes of random sizes at random blocks of the upper half of the disk.
fn random_load(pair: &mut Pair, rng: &mut Rng, links: &[usize], count: usize) -> Vec<TaskId> {
    (0..count)
        .map(|_| {
            let (link, lba) = (*rng.pick(links), 2048 + rng.below(1024) as u64);
            let bytes = (1 + rng.below(40)) * 512;
            match rng.once_in(2) {
                true => pair.start_read(link, lba, bytes),
                false => {
                    let data = rng.bytes(bytes);
                    pair.start_write(link, lba, &data)
                }
            }
        })
        .collect()
}
