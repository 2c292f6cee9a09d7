//! Decides which side of a split mirror is kept.
//!
//! 1. The current members of the kept side get labels of a new generation, in which no member of
//!    another side is current.
//! 2. Each device of another side gets a label of this generation, which makes it stale.
//!
//! The mirror is split until the last label is written, because each other side has a history of
//! its own. The kept side is recognized by the history of its labels at any step, so the decision
//! can be repeated after a power cut.

use crate::assembly::{FoundMember, newest_of_one_pool, read_labels};
use crate::create::random_id;
use crate::error::{MirrorSide, PoolError};
use crate::format::{Label, MemberSet, PoolKind};
use crate::mirror::MirrorOptions;
use lunar_block::{BlockDevice, BufferPool, Error, ErrorKind};
use std::sync::Arc;

/// Keeps one side of a split mirror, and makes the members of all others stale.
pub(crate) async fn resolve(
    devices: Vec<Arc<dyn BlockDevice>>,
    keep: &MirrorSide,
) -> Result<(), PoolError> {
    let buffers = BufferPool::default();
    let wait = MirrorOptions::default().member_wait;
    let (found, failures) = read_labels(devices, wait, &buffers).await?;
    if let Some(error) = failures.into_iter().next() {
        return Err(error.into());
    }
    check(&found)?;
    let is_kept =
        |member: &FoundMember| member.label.shares_history_with(keep.generation, &keep.history);
    let (kept, others): (Vec<_>, Vec<_>) = found.into_iter().partition(is_kept);
    if others.is_empty() {
        return Ok(());
    }
    let newest = kept.first().map(|first| newest_of_one_pool(&kept, first)).transpose()?;
    let newest = newest.map(|newest| newest.label.clone());
    let newest = newest.filter(|newest| newest.generation >= keep.generation);
    let newest = newest.ok_or(PoolError::NoSuchSide)?;
    refuse_same_slots(&kept, &others)?;
    let current: Vec<&FoundMember> = kept
        .iter()
        .filter(|one| one.label.generation == newest.generation && one.label.names_itself())
        .collect();
    if current.is_empty() {
        return Err(PoolError::NoneCurrent { generation: newest.generation });
    }
    let label = next_label(&newest, &others, &current)?;
    for member in current {
        member.device.write_label(&label.at(member.label.slot), &buffers).await?;
    }
    for other in &others {
        let slot = other.label.slot;
        if label.has_slot(slot) {
            other.device.write_label(&label.at(slot), &buffers).await?;
        } else {
            other.device.clear_labels().await?;
        }
    }
    Ok(())
}

fn check(found: &[FoundMember]) -> Result<(), PoolError> {
    let Some(first) = found.first() else { return Err(PoolError::MemberCount(0)) };
    newest_of_one_pool(found, first)?;
    for member in found {
        let (device, kind) = (member.device.name().to_owned(), member.label.kind);
        if kind != PoolKind::MIRROR {
            return Err(PoolError::NotAMirror { kind, operation: "be split" });
        }
        if member.device.device().is_read_only() {
            return Err(PoolError::ReadOnly { device });
        }
    }
    Ok(())
}

fn refuse_same_slots(kept: &[FoundMember], others: &[FoundMember]) -> Result<(), PoolError> {
    for other in others {
        if let Some(same) = kept.iter().find(|one| one.label.slot == other.label.slot) {
            return Err(PoolError::Cloned {
                slot: other.label.slot,
                device: same.device.name().to_owned(),
                generation: same.label.generation,
                other: other.device.name().to_owned(),
                other_generation: other.label.generation,
            });
        }
    }
    Ok(())
}

/// Returns the label of the next generation of the kept side, without the others.
fn next_label(
    newest: &Label,
    others: &[FoundMember],
    current: &[&FoundMember],
) -> Result<Label, PoolError> {
    let is_other = |slot: &u16| others.iter().any(|other| other.label.slot == *slot);
    let slots: MemberSet = newest.current.slots().filter(|slot| !is_other(slot)).collect();
    let id = random_id().map_err(|error| {
        let what = "there are no random numbers";
        Error::new(ErrorKind::Open, current[0].device.name(), what).because(error)
    })?;
    Ok(newest.next(slots, id))
}
