//! The members of a pool as found: their labels read and compared, each at its slot.

mod recorded;

use crate::PoolError;
use crate::error::SplitMirror;
use crate::fenced_device::PoolFence;
use crate::format::{FoundLabel, Label, MEMBERS_MAX, MemberSet, PoolId, PoolKind};
use crate::member_device::MemberDevice;
use crate::ownership::LeftOutMember;
use crate::status::{UnusedDevice, UnusedState};
use futures_util::FutureExt;
use futures_util::future::{Either, join_all, select};
use lunar_block::{BlockDevice, BufferPool, Error, ErrorKind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// A member that was found.
#[derive(Debug)]
pub(crate) struct FoundMember {
    pub(crate) device: MemberDevice,
    pub(crate) label: Label,
}

/// The members of a pool, by their slots; all labels belong together.
#[derive(Debug)]
pub(crate) struct Assembly {
    pub(crate) members: Vec<Option<FoundMember>>,
    /// A label of the highest generation.
    pub(crate) newest: Label,
    /// Devices with labels of this pool that are no members.
    pub(crate) unused: Vec<UnusedDevice>,
    /// The spare devices, with the reason why one may not become a member now.
    pub(crate) spares: Vec<(Arc<dyn BlockDevice>, String)>,
    /// Members that the pool can do without and that could not be acquired.
    pub(crate) left_out: Vec<LeftOutMember>,
    /// Failures of devices whose labels could not be read.
    causes: Vec<String>,
}

impl Assembly {
    /// Reads the labels of devices, in any order, and puts the devices in their slots. Writes
    /// nothing. A spare device with a label of the pool is a member: it has replaced one. Of
    /// members that do not belong together, those that belong to the pool of `recorded` are used.
    ///
    /// # Errors
    /// The device that does not belong to the pool, and why.
    pub(crate) async fn find(
        devices: Vec<Arc<dyn BlockDevice>>,
        spares: Vec<Arc<dyn BlockDevice>>,
        recorded: Option<&Label>,
        (wait, buffers): (Duration, &BufferPool),
    ) -> Result<Self, PoolError> {
        let all: Vec<_> = devices.iter().chain(&spares).collect();
        refuse_twice(&all)?;
        let (mut found, failures) = read_labels(devices, wait, buffers).await?;
        let causes = failures.iter().map(ToString::to_string).collect();
        if found.is_empty()
            && let Some(first) = failures.into_iter().next()
        {
            return Err(PoolError::Device(first));
        }
        let pools = || found.iter().map(|member| member.label.pool);
        let recorded_pool = recorded.map(|label| label.pool);
        // A record of a former pool of this name decides nothing.
        let pool = recorded_pool.filter(|pool| pools().any(|one| one == *pool));
        let spares = match pool.or(pools().next()) {
            Some(pool) => find_spares(pool, spares, &mut found, (wait, buffers)).await,
            None => Vec::new(),
        };
        let (found, left_out) = recorded::leave_out_others(found, recorded);
        Ok(Self { left_out, ..Self::assemble(found, spares, causes)? })
    }

    fn assemble(
        found: Vec<FoundMember>,
        spares: Vec<(Arc<dyn BlockDevice>, String)>,
        causes: Vec<String>,
    ) -> Result<Self, PoolError> {
        let mut unused = Vec::new();
        let Some(first) = found.first() else { return Err(PoolError::MemberCount(0)) };
        let other = first.device.name().to_owned();
        let newest = newest_of_one_pool(&found, first)?;
        refuse_other_shapes(&found, newest)?;
        let newest = newest.label.clone();
        refuse_split(&found, &newest)?;
        let generations: Vec<(u16, u64)> =
            found.iter().map(|one| (one.label.slot, one.label.generation)).collect();
        let mut members: Vec<Option<FoundMember>> = Vec::new();
        members.resize_with(usize::from(newest.member_count), || None);
        for member in found {
            let at = usize::from(member.label.slot);
            if !newest.has_slot(member.label.slot) {
                let device = member.device.name();
                tracing::warn!("{device} is not used: it was removed from pool {}", newest.pool);
                unused.push(UnusedDevice::new(device, UnusedState::Removed, String::new()));
                continue;
            }
            if member.device.layout().data_blocks_max() < newest.data_blocks
                && newest.kind == PoolKind::MIRROR
            {
                let device = member.device.name();
                tracing::warn!("{device} is not used: pool {} has grown", newest.pool);
                unused.push(UnusedDevice::new(device, UnusedState::TooSmall, String::new()));
                continue;
            }
            let Some(same) = members[at].take() else {
                members[at] = Some(member);
                continue;
            };
            let others = generations.iter().filter(|(slot, _)| usize::from(*slot) != at);
            let witness = others.map(|(_, generation)| *generation).max();
            let (newer, older) = one_of_two(same, member, witness)?;
            unused.push(UnusedDevice::new(
                older.device.name(),
                UnusedState::Replaced,
                String::new(),
            ));
            members[at] = Some(newer);
        }
        let assembly = Self { members, newest, unused, spares, left_out: Vec::new(), causes };
        assembly.refuse_wrong_sum(other)?;
        Ok(assembly)
    }

    /// Members of a concatenation have together as many blocks as each label says.
    fn refuse_wrong_sum(&self, other: String) -> Result<(), PoolError> {
        let is_complete = self.members.iter().all(Option::is_some);
        let sum =
            self.present().try_fold(0u64, |sum, member| sum.checked_add(member.label.data_blocks));
        if self.newest.kind == PoolKind::CONCAT
            && is_complete
            && sum != Some(self.oldest().unit_blocks)
        {
            return Err(PoolError::Shape { device: "another member".into(), other });
        }
        Ok(())
    }

    /// Returns a label of the lowest generation. A resize of a stripe or a concatenation is
    /// complete when all labels have the new size, so this one counts.
    pub(crate) fn oldest(&self) -> &Label {
        let labels = self.present().map(|member| &member.label);
        labels.min_by_key(|label| label.generation).unwrap_or(&self.newest)
    }

    /// Puts a fence before the devices of all members.
    pub(crate) fn fence(&mut self, fence: &PoolFence) {
        for member in &mut self.members {
            *member = member.take().map(|FoundMember { device, label }| FoundMember {
                device: device.fenced(fence),
                label,
            });
        }
    }

    pub(crate) fn present(&self) -> impl Iterator<Item = &FoundMember> {
        self.members.iter().flatten()
    }

    /// Refuses the pool if one of these members is missing.
    pub(crate) fn require(&self, set: MemberSet) -> Result<(), PoolError> {
        let is_missing = |slot: &u16| self.members[usize::from(*slot)].is_none();
        let slots: Vec<u16> = set.slots().filter(is_missing).collect();
        if slots.is_empty() {
            return Ok(());
        }
        let (member_count, causes) = (self.newest.member_count, self.causes.clone());
        Err(PoolError::Missing { slots, member_count, causes })
    }

    /// True if a member is present and has all data, by the newest label.
    pub(crate) fn is_current(&self, slot: u16) -> bool {
        let member = self.members.get(usize::from(slot)).and_then(Option::as_ref);
        self.newest.current.contains(slot)
            && member.is_some_and(|member| member.label.generation == self.newest.generation)
    }
}

/// Returns the member with the label that is authoritative: that of the highest generation. Of
/// these, labels of stale members can have been written earlier than the others.
pub(crate) fn newest_of_one_pool<'a>(
    found: impl IntoIterator<Item = &'a FoundMember>,
    first: &'a FoundMember,
) -> Result<&'a FoundMember, PoolError> {
    let order = |member: &FoundMember| (member.label.generation, member.label.names_itself());
    let mut newest = first;
    for member in found {
        if member.label.pool != first.label.pool {
            return Err(PoolError::Foreign {
                device: member.device.name().to_owned(),
                pool: member.label.pool,
                other: first.device.name().to_owned(),
                other_pool: first.label.pool,
            });
        }
        if order(member) > order(newest) {
            newest = member;
        }
    }
    Ok(newest)
}

fn refuse_other_shapes<'a>(
    found: impl IntoIterator<Item = &'a FoundMember>,
    newest: &FoundMember,
) -> Result<(), PoolError> {
    match found.into_iter().find(|member| !member.label.is_same_pool(&newest.label)) {
        None => Ok(()),
        Some(member) => Err(PoolError::Shape {
            device: member.device.name().to_owned(),
            other: newest.device.name().to_owned(),
        }),
    }
}

/// Both sides of a mirror that were written apart have data that the other has not.
fn refuse_split<'a>(
    found: impl IntoIterator<Item = &'a FoundMember> + Clone,
    newest: &Label,
) -> Result<(), PoolError> {
    let belongs = |member: &&FoundMember| newest.descends_from(&member.label);
    let other = found.clone().into_iter().find(|member| !belongs(member));
    let Some(other) = other else { return Ok(()) };
    let names = |is_newer: bool| -> Vec<String> {
        let side = found.clone().into_iter().filter(|member| belongs(member) == is_newer);
        side.map(|member| member.device.name().to_owned()).collect()
    };
    let split = SplitMirror::new((newest, names(true)), (&other.label, names(false)));
    Err(PoolError::Split(Box::new(split)))
}

/// Returns first that one of two devices with the label of one member which has replaced the
/// other.
fn one_of_two(
    one: FoundMember,
    other: FoundMember,
    witness: Option<u64>,
) -> Result<(FoundMember, FoundMember), PoolError> {
    let is_newer = one.label.generation > other.label.generation;
    let (newer, older) = if is_newer { (one, other) } else { (other, one) };
    refuse_clone(&newer, &older, witness)?;
    tracing::warn!(
        "{} is not used: {} has its slot {} in pool {}",
        older.device.name(),
        newer.device.name(),
        newer.label.slot,
        newer.label.pool
    );
    Ok((newer, older))
}

/// Refuses two devices with the label of one member, unless one has replaced the other: it has the
/// higher generation. Its predecessor was left out before it got its label, so a member of another
/// slot has a higher generation than the predecessor, too. Otherwise one may be a copy of the
/// other that was written alone, and nobody knows which one counts.
fn refuse_clone(
    newer: &FoundMember,
    older: &FoundMember,
    witness: Option<u64>,
) -> Result<(), PoolError> {
    let is_replaced =
        newer.label.generation > older.label.generation && witness > Some(older.label.generation);
    if newer.label.kind == PoolKind::MIRROR && is_replaced {
        return Ok(());
    }
    Err(PoolError::Cloned {
        slot: newer.label.slot,
        device: newer.device.name().to_owned(),
        generation: newer.label.generation,
        other: older.device.name().to_owned(),
        other_generation: older.label.generation,
    })
}

/// Reads the labels of spare devices. Those with a label of the pool are added to the members.
async fn find_spares(
    pool: PoolId,
    spares: Vec<Arc<dyn BlockDevice>>,
    found: &mut Vec<FoundMember>,
    (wait, buffers): (Duration, &BufferPool),
) -> Vec<(Arc<dyn BlockDevice>, String)> {
    let mut rest = Vec::new();
    let read = async |spare: Arc<dyn BlockDevice>| {
        let device = MemberDevice::new(Arc::clone(&spare));
        let read = tokio::time::timeout(wait, device.read_label(buffers)).await;
        let label = read.unwrap_or_else(|_| Err(label_is_late(&device)));
        (spare, device, label)
    };
    for (spare, device, label) in join_all(spares.into_iter().map(read)).await {
        let failure = match label {
            Ok(FoundLabel::Valid(label)) if label.pool == pool => {
                found.push(FoundMember { device, label });
                continue;
            }
            Ok(FoundLabel::None) => String::new(),
            Ok(FoundLabel::Valid(label)) => {
                PoolError::InUse { device: spare.name().to_owned(), pool: label.pool }.to_string()
            }
            Ok(FoundLabel::Unusable(why)) => {
                PoolError::InUnknownUse { device: spare.name().to_owned(), why }.to_string()
            }
            Err(error) => error.to_string(),
        };
        rest.push((spare, failure));
    }
    rest
}

/// Reads the labels of devices. Returns the members, and the failures of devices that did not
/// answer, or not within `wait` after a member of a mirror.
pub(crate) async fn read_labels(
    devices: Vec<Arc<dyn BlockDevice>>,
    wait: Duration,
    buffers: &BufferPool,
) -> Result<(Vec<FoundMember>, Vec<Error>), PoolError> {
    if devices.is_empty() || devices.len() > usize::from(MEMBERS_MAX) {
        return Err(PoolError::MemberCount(devices.len()));
    }
    refuse_twice(&devices.iter().collect::<Vec<_>>())?;
    let answered = Notify::new();
    let members: Vec<MemberDevice> = devices.into_iter().map(MemberDevice::new).collect();
    let read = async |member: &MemberDevice| {
        let label = member.read_label(buffers).await;
        if let Ok(FoundLabel::Valid(label)) = &label
            && label.kind == PoolKind::MIRROR
        {
            answered.notify_one();
        }
        label
    };
    let late = async {
        answered.notified().await;
        tokio::time::sleep(wait).await;
    };
    let late = late.shared();
    let read = async |member: MemberDevice| {
        let label = match select(pin!(read(&member)), late.clone()).await {
            Either::Left((label, _)) => label,
            Either::Right(_) => Err(label_is_late(&member)),
        };
        (member, label)
    };
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    for (device, label) in join_all(members.into_iter().map(read)).await {
        let name = || device.name().to_owned();
        match label {
            Err(error) => failures.push(error),
            Ok(FoundLabel::None) => return Err(PoolError::NotAMember { device: name() }),
            Ok(FoundLabel::Unusable(why)) => {
                return Err(PoolError::Unusable { device: name(), why });
            }
            Ok(FoundLabel::Valid(label)) => found.push(FoundMember { device, label }),
        }
    }
    Ok((found, failures))
}

fn label_is_late(device: &MemberDevice) -> Error {
    Error::new(ErrorKind::Medium, device.name(), "its label was not read in time")
}

fn refuse_twice(devices: &[&Arc<dyn BlockDevice>]) -> Result<(), PoolError> {
    for (index, device) in devices.iter().enumerate() {
        if devices[..index].iter().any(|other| Arc::ptr_eq(other, device)) {
            return Err(PoolError::NamedTwice { device: device.name().to_owned() });
        }
    }
    Ok(())
}
