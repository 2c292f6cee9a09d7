#![allow(clippy::unwrap_used)] // a test may unwrap

use super::*;

const ROUND: Duration = Duration::from_millis(500);

/// Goal: all shapes are measured in both directions, over one connection and several, and the
/// effect of a relay shows: a ping takes two delays, a stream no more than the rate.
#[test]
fn all_shapes_are_measured_in_both_directions() {
    let plain = Probe::start(None).unwrap();
    for writes in [false, true] {
        for (depth, connections) in [(1, 1), (7, 3), (2, 8)] {
            let shape = ProbeShape { writes, io_bytes: 4096, depth, connections };
            let round = || {
                let mut probed = ProbeResults::default();
                plain.round(shape, ROUND, &mut probed).unwrap();
                assert!(probed.ping_micros().median > 0.0, "{shape:?}");
                assert_eq!(probed.variation_warning(), None, "one round does not move");
                let rates = [probed.exchanges_per_second(), probed.stream_bytes_per_second()];
                rates.map(|rate| rate.median)
            };
            // On a busy machine a round may pass without an answer, but not every one.
            let mut rates = round();
            for _ in 0..60 {
                if rates.iter().all(|rate| *rate > 0.0) {
                    break;
                }
                rates = round();
            }
            assert!(rates.iter().all(|rate| *rate > 0.0), "{shape:?}: {rates:?}");
        }
    }
    let delay = Duration::from_millis(3);
    let model = Model { delay, rate_bytes_per_second: Some(10_000_000), window_bytes: None };
    const MOST: f64 = 10_100_000.0;
    let far = Probe::start(Some(model)).unwrap();
    let mut probed = ProbeResults::default();
    let shape = ProbeShape { writes: false, io_bytes: 4096, depth: 8, connections: 2 };
    // One read may cover a whole window; and a thread that was suspended before the window reads
    // data late that was released earlier, but not in every round.
    for round in 0..12 {
        if round >= 3 && probed.stream_bytes_per_second().least <= MOST {
            break;
        }
        far.round(shape, ROUND, &mut probed).unwrap();
    }
    assert!(probed.ping_micros().least >= 6_000.0, "{probed:?}");
    assert!(probed.stream_bytes_per_second().least <= MOST, "{probed:?}");
}

/// Goal: a busy machine causes a warning that names the figure that varied most; small variations
/// do not.
#[test]
fn variation_between_rounds_causes_a_warning() {
    let round = |micros, exchanges| Round {
        ping: Duration::from_micros(micros),
        exchanges_per_second: exchanges,
        stream_bytes_per_second: 1e9,
    };
    let calm = ProbeResults { rounds: vec![round(100, 1e5), round(110, 1.2e5), round(105, 1.1e5)] };
    assert_eq!(calm.variation_warning(), None);
    let moved = ProbeResults { rounds: vec![round(100, 1e5), round(110, 1.5e5), round(105, 1e5)] };
    let warning = moved.variation_warning().unwrap();
    assert!(warning.contains("pipelined exchange") && warning.contains("50 %"), "{warning}");
}
