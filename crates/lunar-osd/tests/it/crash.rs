//! Power cuts at writes and flushes.

use crate::device::{DiskEvent, RecordingDevice, image_after_cut};
use crate::model::{
    FILLER, ModelStore, commands, contents, data, first_commands, partition_copies,
};
use lunar_osd::{
    AttributeId, ChangeOptions, FormatOptions, ObjectCommand, ObjectId, ObjectStore, StoreError,
    StoreOptions,
};
use proptest::prelude::Strategy;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const DISK_BYTES: usize = 8 << 20;

fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

/// A run that was recorded: the image before it, its events, and the contents after each command.
struct RecordedRun {
    image: Vec<u8>,
    events: Vec<DiskEvent>,
    states: Vec<ModelStore>,
}

/// Makes a store with little free space, so that blocks are soon used again.
async fn nearly_full_store() -> Vec<u8> {
    let device = RecordingDevice::new(vec![0; DISK_BYTES]);
    ObjectStore::format(device.clone(), FormatOptions::default()).await.unwrap();
    let store = ObjectStore::open(device.clone(), StoreOptions::default()).await.unwrap();
    store.create_partition(Some(FILLER)).await.unwrap();
    let object = store.create(FILLER, None).await.unwrap();
    while store.free_bytes() > 1_600_000 {
        store.append(object, data(9, 100_000)).await.unwrap();
    }
    store.close().await.unwrap();
    device.image()
}

/// Executes random commands until `count` of them have succeeded.
async fn record(seed: u8, count: usize, write_back: bool) -> RecordedRun {
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    let image = nearly_full_store().await;
    let device = RecordingDevice::new(image.clone());
    let options = StoreOptions { write_back, ..StoreOptions::default() };
    let store = ObjectStore::open(device.clone(), options).await.unwrap();
    let (mut states, mut first) = (vec![ModelStore::default()], first_commands().into_iter());
    let changes = ChangeOptions { durable: !write_back, time: Some(1) };
    let mut attempts = 0;
    while states.len() <= count {
        let random = || commands().new_tree(&mut runner).unwrap().current();
        let command = first.next().unwrap_or_else(random);
        if matches!(command, ObjectCommand::RemoveAll) {
            continue; // the filler stays
        }
        let (done, mut state) = (states.len(), states.last().unwrap().clone());
        attempts += 1;
        let is_copy = done % 8 == 7 && attempts % 2 == 0;
        let copy = is_copy.then(|| partition_copies().new_tree(&mut runner).unwrap());
        device.push(DiskEvent::Begun(done));
        let (result, is_possible) = match copy.map(|copy| copy.current()) {
            Some((source, target)) => {
                let result = store.copy_partition(source, target, changes).await.map(drop);
                (result, state.copy_partition(source, target))
            }
            None => {
                let result = store.execute(vec![command.clone()], changes).await.map(drop);
                (result, state.apply(&command))
            }
        };
        match result {
            Ok(()) => assert!(is_possible, "{command:?}"),
            Err(StoreError::NoSpace) => continue,
            Err(error) => {
                assert!(!is_possible, "{command:?}: {error}");
                continue;
            }
        }
        states.push(state);
        match (done % 16, done % 7) {
            (15, _) => store.checkpoint().await.unwrap(),
            (_, 6) => store.flush().await.unwrap(),
            _ if write_back => continue,
            _ => {}
        }
        device.push(DiskEvent::Acknowledged(done));
    }
    store.close().await.unwrap();
    RecordedRun { image, events: device.events(), states }
}

/// Opens an image after a cut, and returns its contents.
async fn reopen(image: Vec<u8>, what: &str) -> ModelStore {
    let device = RecordingDevice::new(image);
    let store = ObjectStore::open(device.clone(), StoreOptions::default()).await;
    let store = store.unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = contents(&store).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    store.close().await.unwrap();
    let report = lunar_osd::check(device).await.unwrap();
    assert_eq!(report.problems, [], "{what}");
    found
}

/// Returns the number of runs, and whether their cuts are sampled. With `LUNAR_SEEDS` each run is
/// cut at each of its events.
fn seeds() -> (u8, bool) {
    let seeds = std::env::var("LUNAR_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    (seeds.unwrap_or(3).min(250), seeds.is_none())
}

async fn cut_everywhere(seed: u8, write_back: bool) {
    let RecordedRun { image, events, states } = record(seed, 60, write_back).await;
    let mut random = u64::from(seed) * 2 + 1;
    let (mut acknowledged, mut begun) = (0, 0);
    for cut in 0..=events.len() {
        match cut.checked_sub(1).map(|at| &events[at]) {
            Some(DiskEvent::Acknowledged(count)) => acknowledged = *count,
            Some(DiskEvent::Begun(count)) => begun = *count,
            _ => {}
        }
        // Each seed samples other cuts.
        if seeds().1 && !next(&mut random).is_multiple_of(8) {
            continue;
        }
        let kept = next(&mut random) % 4;
        let survives = || next(&mut random) % 4 <= kept;
        let image = image_after_cut(image.clone(), &events[..cut], survives);
        let what = format!("seed {seed}, cut after {cut} of {} events", events.len());
        let found = reopen(image, &what).await;
        assert!(
            states[acknowledged..=begun].contains(&found),
            "{what}: neither of the states {acknowledged} to {begun}, but {:?}",
            states.iter().position(|state| *state == found)
        );
    }
}

#[tokio::test]
async fn acknowledged_commands_survive_and_others_are_whole_or_absent() {
    for seed in 1..=seeds().0 {
        cut_everywhere(seed, false).await;
    }
}

#[tokio::test]
async fn with_write_back_flushed_commands_survive_and_others_are_whole_or_absent() {
    for seed in 1..=seeds().0 {
        cut_everywhere(seed.wrapping_add(3), true).await;
    }
}

/// A record of an earlier opening, behind the end of the log, never counts again.
#[tokio::test]
async fn records_behind_a_lost_one_do_not_return() {
    let device = RecordingDevice::new(vec![0; DISK_BYTES]);
    ObjectStore::format(device.clone(), FormatOptions::default()).await.unwrap();
    let options = StoreOptions { write_back: true, ..StoreOptions::default() };
    let store = ObjectStore::open(device.clone(), options).await.unwrap();
    let id = |number| AttributeId::new(1, number);
    let before = device.image();
    let skipped = device.events().len();
    for number in 1..4 {
        store.set_attribute(ObjectId::ROOT, id(number), Some(data(1, 9))).await.unwrap();
    }
    let events = device.events();
    let [DiskEvent::Write(start, record), _, _] = &events[skipped..] else {
        panic!("other events: {events:?}");
    };
    let mut lost = device.image();
    lost[*start..start + record.len()].copy_from_slice(&before[*start..start + record.len()]);

    let device = RecordingDevice::new(lost);
    let store = ObjectStore::open(device.clone(), options).await.unwrap();
    store.set_attribute(ObjectId::ROOT, id(9), Some(data(2, 9))).await.unwrap();
    let device = RecordingDevice::new(device.image());
    let store = ObjectStore::open(device, options).await.unwrap();
    let found = store.attributes(ObjectId::ROOT, id(0), 10).await.unwrap();
    assert_eq!(found, [(id(9), data(2, 9))]);
}

/// The superblock and the index change together, also when the list of chunks takes two sectors.
#[tokio::test]
async fn cuts_while_the_index_grows() {
    let device = RecordingDevice::new(vec![0; DISK_BYTES]);
    ObjectStore::format(device.clone(), FormatOptions::default()).await.unwrap();
    let image = device.image();
    let device = RecordingDevice::new(image.clone());
    let store = ObjectStore::open(device.clone(), StoreOptions::default()).await.unwrap();
    let id = |number| AttributeId::new(1, number);
    for number in 0..64 {
        let value = Some(data(number as u8, 60_000));
        store.set_attribute(ObjectId::ROOT, id(number), value).await.unwrap();
        device.push(DiskEvent::Acknowledged(number as usize + 1));
    }
    let (events, mut random, mut acknowledged) = (device.events(), 5, 0);
    for cut in 0..=events.len() {
        if let Some(DiskEvent::Acknowledged(count)) = events[..cut].last() {
            acknowledged = *count;
        }
        // A superblock is one of few writes; others are sampled.
        let is_superblock = |event: &DiskEvent| {
            matches!(event, DiskEvent::Write(start, data)
            if data.len() == 4096 && (*start == 0 || *start == DISK_BYTES - (128 << 10)))
        };
        let near = &events[cut.saturating_sub(2)..events.len().min(cut + 2)];
        if !near.iter().any(is_superblock) && cut % 16 != 0 {
            continue;
        }
        let survives = || next(&mut random).is_multiple_of(2);
        let disk = RecordingDevice::new(image_after_cut(image.clone(), &events[..cut], survives));
        let store = ObjectStore::open(disk, StoreOptions::default()).await;
        let store = store.unwrap_or_else(|error| panic!("cut after {cut}: {error}"));
        let found = store.attributes(ObjectId::ROOT, id(0), 99).await.unwrap();
        assert!((acknowledged..acknowledged + 2).contains(&found.len()), "cut after {cut}");
        assert!(found.iter().all(|(id, value)| *value == data(id.number as u8, 60_000)));
        store.close().await.unwrap();
    }
}

/// Replay checks data outside the log, so its blocks must not be used again before a checkpoint.
#[tokio::test]
async fn cuts_while_large_data_is_replaced() {
    let image = nearly_full_store().await;
    let device = RecordingDevice::new(image.clone());
    let store = ObjectStore::open(device.clone(), StoreOptions::default()).await.unwrap();
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    let first = device.events().len();
    for round in 1..16 {
        store.write(object, 0, data(round, 200_000)).await.unwrap();
        device.push(DiskEvent::Acknowledged(usize::from(round)));
    }
    let (events, mut random, mut acknowledged) = (device.events(), 5, 0);
    for cut in first..=events.len() {
        if let Some(DiskEvent::Acknowledged(count)) = events[..cut].last() {
            acknowledged = *count as u8;
        }
        let survives = || !next(&mut random).is_multiple_of(4);
        let disk = RecordingDevice::new(image_after_cut(image.clone(), &events[..cut], survives));
        let store = ObjectStore::open(disk, StoreOptions::default()).await.unwrap();
        let found = store.read(object, 0, 300_000).await.unwrap();
        let was_written = |round| match round {
            0 => found.is_empty(),
            round => found == data(round, 200_000),
        };
        assert!((acknowledged..acknowledged + 2).any(was_written), "cut after {cut}");
        store.close().await.unwrap();
    }
}
