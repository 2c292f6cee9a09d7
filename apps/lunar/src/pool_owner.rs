//! The owner of a pool whose members other machines reach (decision 111).

use crate::output::{Failure, FailureKind};
use lunar_block::StateLock;
use lunar_control::config::model::PoolConfig;
use lunar_control::identity;
use std::num::NonZeroU64;
use std::path::Path;

/// The right to open a pool as the owner that the state directory names. One process has it.
#[derive(Debug)]
pub struct PoolOwner {
    /// The key, of which the upper half names the owner.
    pub key: NonZeroU64,
    /// Held while the pool is open: the same key in two processes would exclude neither.
    pub lock: StateLock,
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
            Failure { kind: FailureKind::Away, ..Failure::new(what) }
                .hint("use it through the server that serves it, or stop that server")
        })?;
        let (upper, _) = owner.as_u64_pair();
        // The lower half belongs to an acquisition. No UUID has a version of 0 in its upper half.
        let key = NonZeroU64::new(upper).unwrap_or(NonZeroU64::MIN);
        Ok(Self { key, lock })
    }
}

/// True if other machines reach a member or spare device, and the pool may be written to.
pub fn is_shared(pool: &PoolConfig) -> bool {
    let mut devices = pool.members.iter().chain(&pool.spares);
    devices.any(|device| device.device.portal().is_some() && !device.options.read_only)
}
