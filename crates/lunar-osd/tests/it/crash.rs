//! Power cuts at each write and flush.

use crate::device::{DiskEvent, RecordingDevice, image_after_cut};
use crate::model::{ModelStore, commands, contents, first_commands};
use lunar_osd::{FormatOptions, ObjectCommand, ObjectStore, OpenOptions};
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

/// Returns commands that the model can apply, and the contents after each.
fn history(seed: u8, count: usize) -> (Vec<ObjectCommand>, Vec<ModelStore>) {
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    let (mut done, mut states) = (Vec::new(), vec![ModelStore::default()]);
    let mut first = first_commands().into_iter();
    while done.len() < count {
        let command = match first.next() {
            Some(command) => command,
            None => commands().new_tree(&mut runner).unwrap().current(),
        };
        let mut state = states.last().unwrap().clone();
        if state.apply(&command) {
            done.push(command);
            states.push(state);
        }
    }
    (done, states)
}

/// Executes the commands, and returns the image before them and the events.
async fn record(commands: &[ObjectCommand], write_back: bool) -> (Vec<u8>, Vec<DiskEvent>) {
    let device = RecordingDevice::new(vec![0; DISK_BYTES]);
    ObjectStore::format(device.clone(), FormatOptions::default()).await.unwrap();
    let image = device.image();
    let device = RecordingDevice::new(image.clone());
    let options = OpenOptions { write_back, ..OpenOptions::default() };
    let store = ObjectStore::open(device.clone(), options).await.unwrap();
    for (at, command) in commands.iter().enumerate() {
        device.push(DiskEvent::Begun(at + 1));
        store.execute(vec![command.clone()], !write_back).await.unwrap();
        if at % 16 == 15 {
            store.checkpoint().await.unwrap();
        } else if write_back && at % 7 == 6 {
            store.flush().await.unwrap();
        }
        if !write_back || at % 16 == 15 || at % 7 == 6 {
            device.push(DiskEvent::Acknowledged(at + 1));
        }
    }
    store.close().await.unwrap();
    (image, device.events())
}

/// Opens an image after a cut, and returns its contents.
async fn reopen(image: Vec<u8>, what: &str) -> ModelStore {
    let device = RecordingDevice::new(image);
    let store = ObjectStore::open(device, OpenOptions::default()).await;
    let store = store.unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = contents(&store).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    store.close().await.unwrap();
    found
}

async fn cut_everywhere(seed: u8, write_back: bool) {
    let (commands, states) = history(seed, 48);
    let (image, events) = record(&commands, write_back).await;
    let mut random = u64::from(seed) * 2 + 1;
    let (mut acknowledged, mut begun) = (0, 0);
    for cut in 0..=events.len() {
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
        match events.get(cut) {
            Some(DiskEvent::Acknowledged(count)) => acknowledged = *count,
            Some(DiskEvent::Begun(count)) => begun = *count,
            _ => {}
        }
    }
}

#[tokio::test]
async fn acknowledged_commands_survive_and_others_are_whole_or_absent() {
    for seed in 1..4 {
        cut_everywhere(seed, false).await;
    }
}

#[tokio::test]
async fn with_write_back_flushed_commands_survive_and_others_are_whole_or_absent() {
    for seed in 4..7 {
        cut_everywhere(seed, true).await;
    }
}
