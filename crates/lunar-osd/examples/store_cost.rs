//! Measures an object store on a file: creations, small writes, opening after a crash.
//!
//! `cargo run --release -p lunar-osd --example store_cost -- FILE OBJECTS`

use lunar_block::{BlockDevice, BlockRange, FileDevice, FileOptions};
use lunar_osd::{
    AttributeId, ChangeOptions, FormatOptions, ObjectCommand, ObjectId, ObjectStore, StoreOptions,
};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Number of commands of a measurement.
const ROUNDS: u64 = 500;
const DEPTH: u64 = 32;

/// Prints the median of the times of `ROUNDS` calls.
async fn measure<F: Future<Output = Outcome<()>>>(
    what: &str,
    mut work: impl FnMut(u64) -> F,
) -> Outcome<()> {
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let began = Instant::now();
        work(round).await?;
        times.push(began.elapsed());
    }
    times.sort();
    println!("{what}: {:?}", times[times.len() / 2]);
    Ok(())
}

async fn latencies(device: &Arc<FileDevice>, store: &ObjectStore, partition: u64) -> Outcome<()> {
    let (object, id) = (store.create(partition, None).await?, AttributeId::new(1, 1));
    let data = || vec![7; 64].into();
    // The last blocks before the superblock: nothing of the store is there yet.
    let last = device.geometry().block_count - 1000;
    let range = |round| BlockRange::new(last + round % 64 * 8, 8);
    let block = || vec![7; 4096].into();
    measure("block write of 4 KiB", async |round| {
        Ok(device.write(range(round), block(), true).await?)
    })
    .await?;
    measure("WRITE of 64 bytes", async |round| {
        Ok(store.write(object, round % 100 * 4096, data()).await?)
    })
    .await?;
    measure("APPEND of 64 bytes", async |_| Ok(store.append(object, data()).await.map(drop)?))
        .await?;
    measure("SET ATTRIBUTES", async |_| Ok(store.set_attribute(object, id, Some(data())).await?))
        .await?;
    measure("CREATE", async |_| Ok(store.create(partition, None).await.map(drop)?)).await?;
    measure("READ of 64 bytes", async |round| {
        Ok(store.read(object, round % 100 * 4096, 64).await.map(drop)?)
    })
    .await?;
    measure("GET ATTRIBUTES", async |_| Ok(store.attribute(object, id).await.map(drop)?)).await?;
    let ids = store.list(partition, object.object + 1, ROUNDS as usize).await?;
    measure("REMOVE", async |round| {
        Ok(store.remove(ObjectId::new(partition, ids[round as usize])).await?)
    })
    .await?;
    let began = Instant::now();
    for _ in 0..ROUNDS / DEPTH {
        let all = (0..DEPTH).map(|_| store.create(partition, None));
        for created in futures_util::future::join_all(all).await {
            created?;
        }
    }
    let count = (ROUNDS / DEPTH * DEPTH) as f64;
    println!("CREATE at depth {DEPTH}: {:.0}/s", count / began.elapsed().as_secs_f64());
    Ok(())
}

/// Creates small objects with two attributes each, and prints the rate of each tenth.
async fn fill(store: &ObjectStore, partition: u64, objects: u64) -> Outcome<()> {
    let mut began = Instant::now();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for done in (0..objects).step_by(16) {
        let mut commands = Vec::new();
        for _ in 0..16 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let object = ObjectId::new(partition, (random >> 8) | 1 << 56);
            commands.push(ObjectCommand::Create { partition, id: Some(object.object) });
            commands.push(ObjectCommand::Append { object, data: vec![1; 100].into() });
            for number in 0..2 {
                let (id, value) = (AttributeId::new(1, number), Some(vec![2; 16].into()));
                commands.push(ObjectCommand::SetAttribute { owner: object, id, value });
            }
        }
        store.execute(commands, ChangeOptions::default()).await?;
        if (done + 16) % (objects / 10).next_multiple_of(16) == 0 {
            let seconds = began.elapsed().as_secs_f64();
            println!("{} objects: {:.0}/s", done + 16, objects as f64 / 10.0 / seconds);
            began = Instant::now();
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: store_cost FILE OBJECTS";
    let path = arguments.next().ok_or(usage)?;
    let objects: u64 = arguments.next().ok_or(usage)?.parse()?;
    let device = FileDevice::open(FileOptions {
        path: path.into(),
        create_size_bytes: Some(8 << 30),
        block_bytes: 512,
        physical_block_bytes: 4096,
        direct: false,
        io_uring: false,
        read_only: false,
        thin: true,
    })?;
    ObjectStore::format(device.clone(), FormatOptions::default()).await?;
    let store = ObjectStore::open(device.clone(), StoreOptions::default()).await?;
    let partition = store.create_partition(None).await?;
    latencies(&device, &store, partition).await?;
    fill(&store, partition, objects).await?;
    store.flush().await?;
    // The thread of this store is idle from now on, as after a crash.
    let began = Instant::now();
    let again = ObjectStore::open(device.clone(), StoreOptions::default()).await?;
    println!("opening with the log of the last commands: {:?}", began.elapsed());
    let began = Instant::now();
    again.close().await?;
    println!("close: {:?}", began.elapsed());
    let began = Instant::now();
    let again = ObjectStore::open(device, StoreOptions::default()).await?;
    println!("opening after a close: {:?}", began.elapsed());
    again.close().await?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default());
    std::process::exit(0); // the first store must not write to the device any more
}
