//! What the fuzzer does, over its committed corpus and over seeded changes of it.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails that way

#[path = "hostile/cdb.rs"]
mod cdb;
#[path = "hostile/extended_copy.rs"]
mod extended_copy;
#[path = "hostile/mode_select.rs"]
mod mode_select;
#[path = "hostile/persistent_reserve_out.rs"]
mod persistent_reserve_out;
#[path = "hostile/unmap_list.rs"]
mod unmap_list;

use std::path::Path;

/// Of each file of a corpus; fewer where a round is long.
const ROUNDS: u64 = 2000;
const ROUNDS_WITH_A_CROWD: u64 = 100;

/// Goal: no command and no parameter list leads outside the unit or breaks anything.
#[test]
fn commands() {
    over_corpus("cdb", ROUNDS, cdb::run);
}

/// Goal: no list of EXTENDED COPY leads outside two units, no question after its results breaks
/// anything.
#[test]
fn extended_copies() {
    over_corpus("extended_copy", ROUNDS, extended_copy::run);
}

/// Goal: no list breaks what is registered and reserved, and a refused one changes nothing.
#[test]
fn persistent_reserve_out_lists() {
    over_corpus("persistent_reserve_out", ROUNDS_WITH_A_CROWD, persistent_reserve_out::run);
}

/// Goal: mode parameters change where they may, all of a list or nothing, and are told of.
#[test]
fn mode_parameter_lists() {
    over_corpus("mode_select", ROUNDS, mode_select::run);
}

/// Goal: UNMAP does what its list says, read once more by other code.
#[test]
fn unmap_lists() {
    over_corpus("unmap_list", ROUNDS, unmap_list::run);
}

/// Method: each file of the fuzzer's corpus as it is, then with a few bytes changed, by seed.
fn over_corpus(target: &str, rounds: u64, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "a corpus in {}", folder.display());
    for file in files {
        let input = std::fs::read(&file).unwrap();
        run(&input);
        for seed in 0..rounds {
            println!("{} seed {seed}", file.display());
            run(&changed(&input, seed));
        }
    }
}

/// `input` with one to four bytes changed.
fn changed(input: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = input.to_vec();
    for _ in 0..=next(&mut state) % 4 {
        let at = usize::try_from(next(&mut state) % input.len() as u64).unwrap();
        let [new, ..] = next(&mut state).to_be_bytes();
        bytes[at] = if new & 1 == 0 { new } else { bytes[at] ^ (new & 0x0f) };
    }
    bytes
}

/// splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
