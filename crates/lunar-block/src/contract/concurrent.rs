//! Concurrent tasks on several threads: on disjoint blocks, and on the same blocks.

use super::model::Model;
use super::{Subject, are_equal};
use crate::{BlockRange, random};
use futures_util::future::join_all;
use std::sync::Arc;
use tokio::sync::oneshot;

pub(super) const THREADS: u64 = 3;
pub(super) const TASKS: u64 = 4;
pub(super) const STEPS: u64 = 40;

/// Number of blocks that all tasks access.
const CONTENDED_BLOCKS: u64 = 24;

impl Subject {
    /// Checks that tasks with disjoint parts of the disk see only their own writes.
    pub(super) async fn disjoint(&self) {
        let share = self.blocks() / (THREADS * TASKS);
        if share == 0 {
            return;
        }
        self.on_threads(move |subject, task| async move {
            let first = task * share;
            let mine = BlockRange::new(first, share);
            let mut model = Model::new(subject.read(mine).await, subject.block_bytes());
            let mut random = subject.seed ^ task;
            for _ in 0..STEPS {
                let range = subject.random_range(&mut random, first, share);
                let inside = BlockRange::new(range.lba - first, range.count);
                let draw = random::next(&mut random);
                if draw & 1 == 0 {
                    let len = range.count as usize * subject.block_bytes();
                    let data = subject.random_data(len, draw);
                    let durable = draw & 0xFF00 == 0;
                    subject.device.write(range, data.clone(), durable).await.unwrap();
                    model.write(inside, &data);
                } else {
                    let actual = subject.read(range).await;
                    assert!(actual == model.bytes(inside), "task {task}: {range:?} differs");
                }
            }
            model.compare(&subject.read(mine).await, "a part of its own");
        })
        .await;
    }

    /// Checks concurrent writing, clearing and reading of the same blocks: at every moment each
    /// block holds the data of one writer.
    pub(super) async fn same_blocks(&self) {
        let blocks = self.blocks().min(CONTENDED_BLOCKS);
        let all = BlockRange::new(0, blocks);
        let zeroes = vec![0; blocks as usize * self.block_bytes()];
        self.device.write(all, zeroes.into(), false).await.unwrap();
        self.on_threads(move |subject, task| async move {
            let mut random = subject.seed ^ (task + 1000);
            for step in 0..STEPS {
                let range = subject.random_range(&mut random, 0, blocks);
                let draw = random::next(&mut random);
                match (draw % 8, subject.device.sparse()) {
                    (0..=3, _) => {
                        let mut data =
                            subject.pool.take(range.count as usize * subject.block_bytes());
                        data.fill((1 + task * STEPS + step) as u8);
                        let durable = draw & 0xFF00 == 0;
                        subject.device.write(range, data.freeze(), durable).await.unwrap();
                    }
                    (4, Some(sparse)) => sparse.unmap(range, false).await.unwrap(),
                    _ => subject.check_whole(range).await,
                }
            }
        })
        .await;
        self.check_whole(all).await;
    }

    /// Checks that each block consists of equal bytes.
    async fn check_whole(&self, range: BlockRange) {
        let bytes = self.read(range).await;
        for (index, block) in bytes.chunks(self.block_bytes()).enumerate() {
            let torn = || block.iter().position(|byte| *byte != block[0]);
            let lba = range.lba + index as u64;
            assert!(are_equal(block), "block {lba} is torn at byte {:?}", torn());
        }
    }

    /// Runs `TASKS` tasks on each of `THREADS` threads, each thread with its own runtime. The
    /// caller's runtime keeps running, for disks that depend on it.
    pub(super) async fn on_threads<F: Future<Output = ()>>(
        &self,
        task: impl Fn(Arc<Subject>, u64) -> F + Clone + Send + 'static,
    ) {
        let threads = (0..THREADS).map(|thread| {
            let (task, (done, result)) = (task.clone(), oneshot::channel());
            let subject = Arc::new(Subject {
                device: Arc::clone(&self.device),
                pool: self.pool.clone(),
                seed: self.seed,
            });
            let run = move || {
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                runtime.enable_all().build().unwrap().block_on(crate::with_ring(async {
                    let tasks = (0..TASKS).map(|n| task(Arc::clone(&subject), thread * TASKS + n));
                    join_all(tasks).await;
                }));
                // Nothing of the disk may be held here when the tests have ended.
                drop((task, subject));
                // If the thread panics, the sender is dropped instead.
                let _ = done.send(());
            };
            std::thread::spawn(run);
            result
        });
        for result in join_all(threads).await {
            result.expect("a thread found a breach; its message is above");
        }
    }
}
