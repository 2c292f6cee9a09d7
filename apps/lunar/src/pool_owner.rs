//! The owner of a pool whose members other machines reach (decision 111).

use crate::output::{Failure, FailureKind};
use lunar_block::{StateDirectory, StateLock};
use lunar_control::config::model::PoolConfig;
use lunar_control::identity;
use lunar_pool::Pool;
use lunar_pool::format::{FoundLabel, LABEL_BYTES, Label};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The file with the last label of a mirror, in the state directory of the pool.
const LABEL_FILE: &str = "label";

/// The right to open a pool as the owner that the state directory names. One process has it.
#[derive(Debug)]
pub struct PoolOwner {
    /// The key, of which the upper half names the owner.
    pub key: NonZeroU64,
    /// Held while the pool is open: the same key in two processes would exclude neither.
    pub lock: StateLock,
    directory: Arc<StateDirectory>,
}

impl PoolOwner {
    /// Takes the right to open `pool`. Returns `None` for a pool that only this machine reaches,
    /// that is only read, or that has no state directory.
    ///
    /// # Errors
    /// Another process has it, or the state directory cannot be used.
    pub fn take(pool: &PoolConfig) -> Result<Option<Self>, Failure> {
        match &pool.state {
            Some(state) if is_shared(pool) => Self::take_in(state, pool).map(Some),
            _ => Ok(None),
        }
    }

    fn take_in(state: &Path, pool: &PoolConfig) -> Result<Self, Failure> {
        let name = &pool.name;
        let directory = identity::create_directory(&state.join(format!("pool-{name}")))?;
        let (owner, lock) = identity::load_and_lock(&directory)?;
        let lock = lock.ok_or_else(|| {
            let what = format!("the pool {name} is open in another process on this machine");
            Failure { kind: FailureKind::Unavailable, ..Failure::new(what) }
                .hint("use it through the server that serves it, or stop that server")
        })?;
        let (upper, _) = owner.as_u64_pair();
        // The lower half belongs to an acquisition. No UUID has a version of 0 in its upper half.
        let key = NonZeroU64::new(upper).unwrap_or(NonZeroU64::MIN);
        Ok(Self { key, lock, directory: Arc::new(directory) })
    }

    /// Returns the label that the members of the mirror had when it was served last. A file that
    /// cannot be read counts for nothing: then the labels of the members alone decide.
    pub fn recorded_label(&self) -> Option<Label> {
        match self.directory.read(LABEL_FILE, LABEL_BYTES as u64) {
            Ok(bytes) => match Label::decode(bytes?.as_slice().try_into().ok()?) {
                FoundLabel::Valid(label) => Some(label),
                FoundLabel::None | FoundLabel::Unusable(_) => None,
            },
            Err(error) => {
                tracing::warn!("{}: {error}", self.directory.path().join(LABEL_FILE).display());
                None
            }
        }
    }

    /// Records the labels of a mirror in a task, until the mirror is closed. A record that lags
    /// behind is one of an earlier generation, of which the members are descendants, too.
    pub fn record_labels(&self, pool: &Pool, runtime: &Handle) {
        let Some(mut labels) = pool.label() else { return };
        let directory = Arc::clone(&self.directory);
        runtime.spawn(async move {
            loop {
                let (label, directory) = (labels.borrow_and_update().encode(), directory.clone());
                let save = move || directory.save(LABEL_FILE, &label);
                if let Ok(Err(error)) = tokio::task::spawn_blocking(save).await {
                    tracing::warn!("the label of a pool cannot be recorded: {error}");
                }
                if labels.changed().await.is_err() {
                    return;
                }
            }
        });
    }
}

/// True if other machines reach a member or spare device, and the pool may be written to.
pub fn is_shared(pool: &PoolConfig) -> bool {
    let mut devices = pool.members.iter().chain(&pool.spares);
    devices.any(|device| device.device.portal().is_some() && !device.options.read_only)
}
