//! Members whose labels contradict the label that the server has recorded.
//!
//! A device can show any label: that of another pool, or of a history of its own. Such a member
//! must not keep the pool closed that the server has served before, with members that still belong
//! to it.

use super::{FoundMember, newest_of_one_pool, refuse_clone, refuse_other_shapes, refuse_split};
use crate::PoolError;
use crate::format::{Label, PoolKind};
use crate::ownership::LeftOutMember;

/// Returns the members that belong to the pool of `recorded`, and the others. If the members belong
/// together, or none to `recorded`, these are all of them and none.
pub(super) fn leave_out_others(
    found: Vec<FoundMember>,
    recorded: Option<&Label>,
) -> (Vec<FoundMember>, Vec<LeftOutMember>) {
    let Some(recorded) = recorded.filter(|label| label.kind == PoolKind::MIRROR) else {
        return (found, Vec::new());
    };
    let belongs = |member: &FoundMember| is_of_history(&member.label, recorded);
    if contradiction(found.iter()).is_none() || !found.iter().any(belongs) {
        return (found, Vec::new());
    }
    let (mut kept, mut others): (Vec<_>, Vec<_>) = found.into_iter().partition(belongs);
    while let Some(at) = kept.iter().position(|one| is_predecessor(one, &kept, recorded)) {
        others.push(kept.swap_remove(at));
    }
    let left_out = others.into_iter().map(|other| {
        let error = kept.iter().find_map(|one| contradiction([one, &other]));
        let device = other.device.name().to_owned();
        LeftOutMember::by_label(&other, error.unwrap_or(PoolError::NotAMember { device }))
    });
    let left_out = left_out.collect();
    (kept, left_out)
}

/// True if a label is that of an earlier or later generation of the recorded one.
fn is_of_history(label: &Label, recorded: &Label) -> bool {
    label.is_same_pool(recorded)
        && label.shares_history_with(recorded.generation, &recorded.history)
}

/// True if another member has the slot in the recorded generation or a later one.
fn is_predecessor(one: &FoundMember, all: &[FoundMember], recorded: &Label) -> bool {
    one.label.generation < recorded.generation
        && all.iter().any(|other| {
            other.label.slot == one.label.slot && other.label.generation >= recorded.generation
        })
}

/// Returns the reason why members do not belong together, if there is one.
fn contradiction<'a>(
    found: impl IntoIterator<Item = &'a FoundMember> + Clone,
) -> Option<PoolError> {
    let first = found.clone().into_iter().next()?;
    let newest = match newest_of_one_pool(found.clone(), first) {
        Ok(newest) => newest,
        Err(error) => return Some(error),
    };
    let refused = refuse_other_shapes(found.clone(), newest)
        .and_then(|()| refuse_split(found.clone(), &newest.label))
        .and_then(|()| refuse_clones(found));
    refused.err()
}

fn refuse_clones<'a>(
    found: impl IntoIterator<Item = &'a FoundMember> + Clone,
) -> Result<(), PoolError> {
    for (at, one) in found.clone().into_iter().enumerate() {
        let slot = one.label.slot;
        let behind = found.clone().into_iter().skip(at + 1);
        for other in behind.filter(|other| other.label.slot == slot) {
            let others = found.clone().into_iter().map(|member| &member.label);
            let others = others.filter(|label| label.slot != slot);
            let witness = others.map(|label| label.generation).max();
            let is_newer = one.label.generation > other.label.generation;
            let (newer, older) = if is_newer { (one, other) } else { (other, one) };
            refuse_clone(newer, older, witness)?;
        }
    }
    Ok(())
}
