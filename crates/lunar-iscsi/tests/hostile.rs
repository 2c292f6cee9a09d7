//! What the fuzzer does, over its committed corpora and over seeded changes of them.
#![allow(clippy::unwrap_used)] // a test fails that way

#[path = "hostile/framing.rs"]
mod framing;
#[path = "hostile/full_feature.rs"]
mod full_feature;
#[path = "hostile/login.rs"]
mod login;
#[path = "hostile/text.rs"]
mod text;

use std::path::Path;

const ROUNDS_EACH: u64 = 300;

/// Goal: the corpora of the fuzzer, and inputs near them, break nothing.
/// Method: each file as it is, then with a few bytes changed, cut out or doubled, by seed.
#[test]
fn texts() {
    over("text", text::run);
}

/// As [`texts`], for logins of both roles.
#[test]
fn logins() {
    over("login", login::run);
}

/// As [`texts`], for streams of bytes.
#[test]
fn streams() {
    over("framing", framing::run);
}

/// As [`texts`], for sessions in full feature phase.
#[test]
fn sessions() {
    over("full_feature", full_feature::run);
}

fn over(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "a corpus in {}", folder.display());
    for file in files {
        let input = std::fs::read(&file).unwrap();
        run(&input);
        for seed in 0..ROUNDS_EACH {
            println!("{} seed {seed}", file.display());
            run(&changed(&input, seed));
        }
    }
}

/// `input` with one to four places changed.
fn changed(input: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = input.to_vec();
    for _ in 0..=next(&mut state) % 4 {
        let at = next(&mut state) as usize % (bytes.len() + 1);
        let end = (at + next(&mut state) as usize % 9).min(bytes.len());
        match next(&mut state) % 4 {
            0 => drop(bytes.drain(at..end)),
            1 => bytes.insert(at, next(&mut state) as u8),
            2 => bytes.extend_from_within(at..end),
            _ => bytes[at..end].iter_mut().for_each(|byte| *byte = next(&mut state) as u8),
        }
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
