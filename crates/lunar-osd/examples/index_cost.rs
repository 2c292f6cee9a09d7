//! Measures redb as the index of an object store: costs of commits and lookups, size, memory, and
//! the time to open after a crash. Decision 119 has the results.
//!
//! `cargo run --release -p lunar-osd --example index_cost -- DIRECTORY OBJECTS...`

use redb::{
    Builder, Database, Durability, ReadableDatabase, StorageBackend, TableDefinition,
    WriteTransaction,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;
type Key = (u64, u64, u64);

const OBJECTS: TableDefinition<Key, &[u8]> = TableDefinition::new("objects");
const ATTRIBUTES: TableDefinition<Key, &[u8]> = TableDefinition::new("attributes");
const EXTENTS: TableDefinition<Key, &[u8]> = TableDefinition::new("extents");
const BLOBS: TableDefinition<u64, &[u8]> = TableDefinition::new("blobs");

/// Number of objects between two checkpoints.
const CHECKPOINT_OBJECTS: u64 = 16_384;
const CACHE_BYTES: usize = 128 << 20;

#[derive(Debug, Default)]
struct Counts {
    reads: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    syncs: AtomicU64,
}

/// A file without syncs, which counts the operations.
#[derive(Debug)]
struct CountingFile(File, Arc<Counts>);

impl StorageBackend for CountingFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.1.reads.fetch_add(1, Relaxed);
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.1.syncs.fetch_add(1, Relaxed);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.1.writes.fetch_add(1, Relaxed);
        self.1.written_bytes.fetch_add(data.len() as u64, Relaxed);
        self.0.write_all_at(data, offset)
    }
}

fn open(path: &Path, counts: &Arc<Counts>) -> Outcome<Database> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    let backend = CountingFile(file, Arc::clone(counts));
    Ok(Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend)?)
}

fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

/// Inserts the five rows of a small object with two attributes.
fn insert(transaction: &WriteTransaction, id: u64) -> Outcome<()> {
    transaction.open_table(OBJECTS)?.insert((0x10000, id, 0), &[7; 32][..])?;
    let mut attributes = transaction.open_table(ATTRIBUTES)?;
    attributes.insert((0x10000, id, 1), &[1; 16][..])?;
    attributes.insert((0x10000, id, 2), &[2; 16][..])?;
    transaction.open_table(EXTENTS)?.insert((0x10000, id, 0), &[3; 20][..])?;
    transaction.open_table(BLOBS)?.insert(id * 7, &[4; 16][..])?;
    Ok(())
}

fn look_up(db: &Database, id: u64) -> Outcome<bool> {
    let transaction = db.begin_read()?;
    let object = transaction.open_table(OBJECTS)?.get((0x10000, id, 0))?.is_some();
    let extent = transaction.open_table(EXTENTS)?.get((0x10000, id, 0))?.is_some();
    let blob = transaction.open_table(BLOBS)?.get(id * 7)?.is_some();
    Ok(object && extent && blob)
}

/// Rows by table, which a checkpoint puts into the index in the order of their keys.
#[derive(Default)]
struct Overlay([BTreeMap<Key, Vec<u8>>; 4]);

impl Overlay {
    fn insert(&mut self, id: u64) {
        let [objects, attributes, extents, blobs] = &mut self.0;
        objects.insert((0x10000, id, 0), vec![7; 32]);
        attributes.insert((0x10000, id, 1), vec![1; 16]);
        attributes.insert((0x10000, id, 2), vec![2; 16]);
        extents.insert((0x10000, id, 0), vec![3; 20]);
        blobs.insert((id * 7, 0, 0), vec![4; 16]);
    }

    fn checkpoint(self, db: &Database) -> Outcome<()> {
        let mut transaction = db.begin_write()?;
        transaction.set_quick_repair(true);
        let [objects, attributes, extents, blobs] = self.0;
        for (name, rows) in [(OBJECTS, objects), (ATTRIBUTES, attributes), (EXTENTS, extents)] {
            let mut table = transaction.open_table(name)?;
            for (key, value) in rows {
                table.insert(key, &value[..])?;
            }
        }
        let mut table = transaction.open_table(BLOBS)?;
        for (key, value) in blobs {
            table.insert(key.0, &value[..])?;
        }
        drop(table);
        transaction.commit()?;
        Ok(())
    }
}

/// Inserts `objects` objects by way of an overlay, and prints the costs.
fn fill_overlay(db: &Database, counts: &Counts, objects: u64) -> Outcome<Vec<u64>> {
    let (mut random, mut ids) = (0x9e37_79b9_7f4a_7c15, Vec::new());
    let (mut inserts, mut checkpoints) = (Duration::ZERO, Vec::new());
    while (ids.len() as u64) < objects {
        let (mut overlay, began) = (Overlay::default(), Instant::now());
        for _ in 0..CHECKPOINT_OBJECTS {
            let id = next(&mut random) >> 8;
            overlay.insert(id);
            ids.push(id);
        }
        inserts += began.elapsed();
        let began = Instant::now();
        overlay.checkpoint(db)?;
        checkpoints.push(began.elapsed());
    }
    let n = ids.len() as f64;
    let total = checkpoints.iter().sum::<Duration>();
    checkpoints.sort();
    println!(
        "  overlay: {:.2} us an object, and {:.2} us in checkpoints: median {:?}, slowest {:?}; \
         {:.0} bytes written an object, {} syncs",
        inserts.as_secs_f64() * 1e6 / n,
        total.as_secs_f64() * 1e6 / n,
        checkpoints.get(checkpoints.len() / 2),
        checkpoints.last(),
        counts.written_bytes.load(Relaxed) as f64 / n,
        counts.syncs.load(Relaxed),
    );
    Ok(ids)
}

fn checkpoint(db: &Database, quick: bool) -> Outcome<()> {
    let mut transaction = db.begin_write()?;
    transaction.set_quick_repair(quick);
    transaction.commit()?;
    Ok(())
}

/// Inserts `objects` objects with random ids in groups, and prints the costs.
fn fill(db: &Database, counts: &Counts, objects: u64, group: u64, seed: u64) -> Outcome<Vec<u64>> {
    let (mut random, mut ids) = (seed, Vec::new());
    let (mut commits, mut checkpoints) = (Duration::ZERO, Vec::new());
    let mut since = 0;
    while (ids.len() as u64) < objects {
        let began = Instant::now();
        let mut transaction = db.begin_write()?;
        transaction.set_durability(Durability::None)?;
        for _ in 0..group {
            let id = next(&mut random) >> 8;
            insert(&transaction, id)?;
            ids.push(id);
        }
        transaction.commit()?;
        commits += began.elapsed();
        since += group;
        if since >= CHECKPOINT_OBJECTS {
            let began = Instant::now();
            checkpoint(db, true)?;
            checkpoints.push(began.elapsed());
            since = 0;
        }
    }
    checkpoints.sort();
    let each = commits.as_secs_f64() * 1e6 / objects as f64;
    let written = counts.written_bytes.load(Relaxed) as f64 / objects as f64;
    println!(
        "  group {group:>2}: {each:.1} us an object, {:.1} us a commit; checkpoints: median {:?}, \
         slowest {:?}; {written:.0} bytes written an object, {} syncs",
        each * group as f64,
        checkpoints.get(checkpoints.len() / 2),
        checkpoints.last(),
        counts.syncs.load(Relaxed),
    );
    Ok(ids)
}

fn look_up_some(db: &Database, counts: &Counts, ids: &[u64], what: &str) -> Outcome<()> {
    let (mut random, n) = (99, 20_000);
    for _ in 0..n {
        look_up(db, ids[(next(&mut random) % ids.len() as u64) as usize])?;
    }
    let (reads, began) = (counts.reads.load(Relaxed), Instant::now());
    for _ in 0..n {
        if !look_up(db, ids[(next(&mut random) % ids.len() as u64) as usize])? {
            return Err("an object is missing".into());
        }
    }
    println!(
        "  look-up of object, extent and blob, {what}: {:.2} us, {:.2} device reads",
        began.elapsed().as_secs_f64() * 1e6 / f64::from(n),
        (counts.reads.load(Relaxed) - reads) as f64 / f64::from(n),
    );
    Ok(())
}

fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().filter(|line| line.starts_with("VmRSS")).collect()
}

/// Opens a copy of the file that the running database has not closed.
fn open_after_crash(path: &Path, what: &str) -> Outcome<()> {
    let copy = path.with_extension("crashed");
    std::fs::copy(path, &copy)?;
    let (counts, began) = (Arc::default(), Instant::now());
    let db = open(&copy, &counts)?;
    println!(
        "  open after a crash, {what}: {:?}, {} reads",
        began.elapsed(),
        counts.reads.load(Relaxed)
    );
    std::mem::forget(db);
    std::fs::remove_file(copy)?;
    Ok(())
}

fn measure(folder: &Path, objects: u64) -> Outcome<()> {
    println!("{objects} objects, cache of {} MiB", CACHE_BYTES >> 20);
    for group in [0, 1, 32].into_iter().filter(|group| *group != 1 || objects <= 100_000) {
        let path = folder.join(format!("index-{group}"));
        let counts = Arc::default();
        let db = open(&path, &counts)?;
        let ids = match group {
            0 => fill_overlay(&db, &counts, objects)?,
            _ => fill(&db, &counts, objects, group, 0x9e37_79b9_7f4a_7c15)?,
        };
        look_up_some(&db, &counts, &ids, "warm")?;
        println!("  file {} MiB, {}", std::fs::metadata(&path)?.len() >> 20, resident());
        if group == 32 {
            checkpoint(&db, true)?;
            open_after_crash(&path, "quick-repair commit")?;
            fill(&db, &Counts::default(), 8_192, 1, 77)?;
            open_after_crash(&path, "8,192 commits without durability since")?;
            let id = ids[0];
            let transaction = db.begin_write()?;
            transaction.open_table(OBJECTS)?.remove((0x10000, id, 0))?;
            transaction.commit()?;
            open_after_crash(&path, "default commit")?;
        }
        drop(db);
        std::fs::remove_file(&path)?;
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: index_cost DIRECTORY OBJECTS...")?;
    for objects in arguments {
        measure(Path::new(&folder), objects.parse()?)?;
    }
    Ok(())
}
