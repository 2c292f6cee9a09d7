//! Servers of storages that are killed and return, with or without the data in their write caches,
//! beneath a pool or a switch that initiators use; all programs are the real binary.
//!
//! `LUNAR_MEMBER_ROUNDS` sets the number of rounds, `LUNAR_SEED` their seed.

mod load;
mod pool;
mod pool_rig;
mod storage;
mod switch;
mod switch_rig;

use anyhow::{Context, Result};
use lunar_lab::random::Random;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn number(variable: &str) -> Result<Option<u64>> {
    match std::env::var(variable) {
        Ok(text) => Ok(Some(text.parse().with_context(|| format!("{variable}={text}"))?)),
        Err(_) => Ok(None),
    }
}

fn seed() -> Result<u64> {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(number("LUNAR_SEED")?.unwrap_or(clock.as_nanos() as u64))
}

/// Sleeps for a random time: mostly a short one, sometimes longer than a mirror waits for a member.
fn pause(random: &mut Random) {
    let millis = if random.below(4) == 0 { random.below(1800) } else { random.below(150) };
    std::thread::sleep(Duration::from_millis(millis));
}
