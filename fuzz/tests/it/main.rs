//! Runs the entry points of the fuzz targets over their committed corpora and over seeded changes
//! of those.
#![allow(clippy::unwrap_used)] // a test may

use lunar_fuzz::{
    cdb, extended_copy, framing, full_feature, initiator, login, mode_select, osd, osd_store,
    persistent_reserve_out, pool_label, relay_storage, text, unmap_list,
};
use std::path::Path;

/// Number of seeded changes per corpus file: changed bytes, same length.
const BYTE_CHANGES: u64 = 2000;
/// The same for PERSISTENT RESERVE OUT, whose inputs run longer: they register many initiators.
const BYTE_CHANGES_OF_RESERVATIONS: u64 = 100;
/// The same for images of object stores, each of which is opened twice.
const IMAGE_CHANGES: u64 = 4;
/// Number of seeded changes per corpus file: bytes changed, removed or doubled.
const PIECE_CHANGES: u64 = 300;

/// Goal: no text breaks the negotiation.
/// Method: each file of the corpus, then changed by seed.
#[test]
fn texts() {
    over("text", PIECE_CHANGES, change_pieces, text::run);
}

/// Goal: no login breaks either role.
/// Method: each file of the corpus, then changed by seed.
#[test]
fn logins() {
    over("login", PIECE_CHANGES, change_pieces, login::run);
}

/// Goal: no stream of bytes breaks the framing.
/// Method: each file of the corpus, then changed by seed.
#[test]
fn streams() {
    over("framing", PIECE_CHANGES, change_pieces, framing::run);
}

/// Goal: no sequence of requests breaks a session in full feature phase.
/// Method: each file of the corpus, then changed by seed.
#[test]
fn sessions() {
    over("full_feature", PIECE_CHANGES, change_pieces, full_feature::run);
}

/// Goal: no sequence of PDUs of a target breaks an initiator, with data that moves as a whole and
/// in pieces.
/// Method: each file of the corpus, then changed by seed.
#[test]
fn targets() {
    over("initiator", PIECE_CHANGES, change_pieces, initiator::run);
}

/// Goal: no sequence of PDUs of a storage breaks a relay, or gives a host data that is not its own.
/// Method: each file of the corpus, then changed by seed.
#[test]
fn storages_of_relays() {
    over("relay_storage", PIECE_CHANGES, change_pieces, relay_storage::run);
}

/// Goal: no command and no parameter list leads outside the unit or breaks anything.
/// Method: each file of the corpus, then changed by seed.
#[test]
fn commands() {
    over("cdb", BYTE_CHANGES, change_bytes, cdb::run);
}

/// Goal: no list of EXTENDED COPY leads outside two units, and no RECEIVE COPY RESULTS breaks
/// anything.
/// Method: each file of the corpus, then changed by seed.
#[test]
fn extended_copies() {
    over("extended_copy", BYTE_CHANGES, change_bytes, extended_copy::run);
}

/// Goal: no list breaks registrations and reservations, and a refused one changes nothing.
/// Method: each file of the corpus, then changed by seed.
#[test]
fn persistent_reserve_out_lists() {
    let entry = persistent_reserve_out::run;
    over("persistent_reserve_out", BYTE_CHANGES_OF_RESERVATIONS, change_bytes, entry);
}

/// Goal: a list of mode parameters changes only changeable bits, completely or not at all, with a
/// unit attention.
/// Method: each file of the corpus, then changed by seed.
#[test]
fn mode_parameter_lists() {
    over("mode_select", BYTE_CHANGES, change_bytes, mode_select::run);
}

/// Goal: no label and no intent page on a disk breaks anything.
/// Method: each file of the corpus, then changed by seed.
#[test]
fn labels_of_pools() {
    over("pool_label", PIECE_CHANGES, change_bytes, pool_label::run);
}

/// Goal: no OSD command, list or response breaks its decoder, and what is accepted can be built.
/// Method: each file of the corpus, then changed by seed.
#[test]
fn osd_commands() {
    over("osd", BYTE_CHANGES, change_bytes, osd::run);
}

/// Goal: no image of an object store breaks a check or an opening, or leads outside the disk.
/// Method: each file of the corpus, then changed by seed.
#[test]
fn images_of_object_stores() {
    over("osd_store", IMAGE_CHANGES, change_bytes, osd_store::run);
}

/// Goal: UNMAP follows its list, compared with a second implementation of the standard.
/// Method: each file of the corpus, then changed by seed.
#[test]
fn unmap_lists() {
    over("unmap_list", BYTE_CHANGES, change_bytes, unmap_list::run);
}

/// Runs `entry` over each file of a corpus and over `rounds` changes of it.
fn over(corpus: &str, rounds: u64, change: fn(&[u8], u64) -> Vec<u8>, entry: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(corpus);
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 5, "a corpus in {}", folder.display());
    for file in files {
        let input = std::fs::read(&file).unwrap();
        entry(&input);
        for seed in 0..rounds {
            println!("{} seed {seed}", file.display());
            entry(&change(&input, seed));
        }
    }
}

/// Returns `input` with one to four bytes changed.
fn change_bytes(input: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = input.to_vec();
    for _ in 0..=next(&mut state) % 4 {
        let at = usize::try_from(next(&mut state) % input.len() as u64).unwrap();
        let [new, ..] = next(&mut state).to_be_bytes();
        bytes[at] = if new & 1 == 0 { new } else { bytes[at] ^ (new & 0x0f) };
    }
    bytes
}

/// Returns `input` with one to four pieces changed, removed or doubled, or a byte inserted.
fn change_pieces(input: &[u8], seed: u64) -> Vec<u8> {
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
