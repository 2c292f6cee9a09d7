//! Opens a mirror of the members that were found.

use super::change_queue::ChangeQueue;
use super::clears::ClearLengths;
use super::intent_log::IntentLog;
use super::member::MirrorMember;
use super::membership::Roster;
use super::read::REPAIRS_MAX;
use super::rewrites::Rewrites;
use super::slots::{MemberSlot, MemberSlots};
use super::spares::Spares;
use super::{Mirror, MirrorDevice, MirrorOptions};
use crate::PoolError;
use crate::assembly::Assembly;
use crate::create::NEW_SEQUENCE_MAX;
use crate::format::{Label, MemberSet, RegionSet};
use crate::losses::LossLatch;
use crate::ownership::PoolOwnership;
use lunar_block::{
    BufferPool, Error, ErrorKind, Geometry, OPTIMAL_TRANSFER_BYTES, PHYSICAL_BLOCK_BYTES_MAX,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Duration;
use tokio::sync::{RwLock, Semaphore, watch};

/// The intent pages of the current members.
struct FoundIntents {
    /// Regions that a current member has marked.
    marked: RegionSet,
    /// Regions that were marked for changes; not those of a new mirror.
    changed: RegionSet,
    sequence: u64,
}

impl MirrorDevice {
    /// Opens a mirror. With `is_degraded` members that have all data may be missing; they are stale
    /// from then on.
    pub(crate) async fn open(
        name: &str,
        found: Assembly,
        is_degraded: bool,
        options: MirrorOptions,
        ownership: Arc<PoolOwnership>,
    ) -> Result<Self, PoolError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|error| {
            Error::new(ErrorKind::Open, name, "a mirror needs a tokio runtime").because(error)
        })?;
        let label = found.newest.clone();
        let spares = Spares::new(found.spares.clone(), found.unused.clone());
        if !is_degraded {
            found.require(label.current)?;
        }
        let slots = slots(found, options.member_wait);
        let present = || slots.iter().filter_map(MemberSlot::member);
        if !present().any(|member| member.is_current()) {
            return Err(PoolError::NoneCurrent { generation: label.generation });
        }
        let is_read_only = present().any(|member| member.device.device().is_read_only());
        let intents = read_intents(&label, present()).await?;
        let geometry = geometry(name, &label, present())?;
        let roster = Roster { label: label.clone(), is_unrecorded: false, is_closed: false };
        let log = IntentLog::new(&label, intents.marked.clone(), intents.sequence, &options);
        let mirror = Arc::new(Mirror {
            name: name.into(),
            first_geometry: geometry,
            block_count: AtomicU64::new(geometry.block_count),
            options,
            ownership,
            is_read_only,
            roster: RwLock::new(roster),
            is_unrecorded: AtomicBool::new(false),
            generation: AtomicU64::new(label.generation),
            durable_label: watch::Sender::new(label.clone()),
            closing: AtomicBool::new(false),
            closed: watch::Sender::new(false),
            queue: Arc::new(ChangeQueue::default()),
            source_exchanged: std::sync::Mutex::default(),
            intents: log,
            clears: ClearLengths::default(),
            flushes: Default::default(),
            spares,
            scrub: std::sync::Mutex::default(),
            rewrites: Rewrites::new(intents.changed.clone()),
            failures_pending: AtomicUsize::new(0),
            losses: AtomicU64::new(0),
            latch: LossLatch::new(0),
            foreground: AtomicU64::new(0),
            repairs: AtomicU64::new(0),
            repair_permits: Semaphore::new(REPAIRS_MAX),
            copied_blocks: AtomicU64::new(0),
            buffers: std::sync::RwLock::default(),
            runtime,
            slots: MemberSlots::new(slots),
            reshaping: tokio::sync::Mutex::default(),
        });
        mirror.begin(&label, &intents).await?;
        Ok(Self(mirror))
    }
}

impl Mirror {
    /// Resolves the marked regions, records missing members, and starts the copies.
    async fn begin(
        self: &Arc<Self>,
        label: &Label,
        intents: &FoundIntents,
    ) -> Result<(), PoolError> {
        let current = self.current();
        // The content of the first current member counts; the regions are copied to the others.
        for member in &current[1..] {
            member.add_missing(&intents.marked);
        }
        if self.is_read_only {
            return Ok(());
        }
        if !intents.marked.is_empty() {
            for member in &current {
                let copied = self.intents.copy_to(member).await;
                copied.map_err(|failure| {
                    let what = format!("its marks cannot be written: {failure}");
                    Error::new(ErrorKind::Medium, member.device.name(), what)
                })?;
            }
        }
        let slots: MemberSet = current.iter().map(|member| member.slot).collect();
        if slots != label.current {
            // The labels record the missing members before any change that these do not receive.
            let mut roster = self.roster.write().await;
            self.set_current(&mut roster, current, false).await?;
        }
        self.recover_stale();
        self.start_spares();
        self.complete_partial();
        Ok(())
    }
}

fn slots(found: Assembly, wait: Duration) -> Vec<MemberSlot> {
    let (regions, vacant) = (found.newest.regions(), found.newest.vacant);
    let is_current: Vec<bool> =
        (0..found.newest.member_count).map(|slot| found.is_current(slot)).collect();
    let member = |(slot, member): (u16, Option<crate::assembly::FoundMember>)| {
        let Some(member) = member else {
            return if vacant.contains(slot) { MemberSlot::Vacant } else { MemberSlot::Missing };
        };
        let is_current = is_current[usize::from(slot)];
        MemberSlot::Taken(Arc::new(MirrorMember::new(
            slot,
            member.device,
            is_current,
            regions,
            wait,
        )))
    };
    (0..).zip(found.members).map(member).collect()
}

/// Returns the regions that any current member has marked; all, if one has no valid page.
async fn read_intents<'a>(
    label: &Label,
    members: impl Iterator<Item = &'a Arc<MirrorMember>>,
) -> Result<FoundIntents, PoolError> {
    let regions = label.regions();
    let buffers = BufferPool::default();
    let (marked, changed) = (RegionSet::new(regions), RegionSet::new(regions));
    let mut found = FoundIntents { marked, changed, sequence: 0 };
    for member in members.filter(|member| member.is_current()) {
        match member.device.read_intent(label.pool, regions, &buffers).await? {
            Some(page) => {
                found.marked.insert_all(&page.marked);
                if page.sequence > NEW_SEQUENCE_MAX {
                    found.changed.insert_all(&page.marked);
                }
                found.sequence = found.sequence.max(page.sequence);
            }
            None => found.marked = RegionSet::full(regions),
        }
    }
    Ok(found)
}

/// Returns the geometry: the longest physical block of the members, and their optimal transfer if
/// it is the same for all.
fn geometry<'a>(
    name: &str,
    label: &Label,
    members: impl Iterator<Item = &'a Arc<MirrorMember>> + Clone,
) -> Result<Geometry, PoolError> {
    let all = members.map(|member| member.device.device().geometry());
    let longest = all.clone().map(|geometry| geometry.physical_block_bytes).max();
    let physical = longest.unwrap_or(label.block_bytes).min(PHYSICAL_BLOCK_BYTES_MAX);
    let size_bytes = label.data_blocks * u64::from(label.block_bytes);
    let mut geometry = Geometry::new(name, size_bytes, label.block_bytes, physical)?;
    let mut optimal = all.map(|geometry| geometry.optimal_transfer_bytes);
    let first = optimal.next().unwrap_or(OPTIMAL_TRANSFER_BYTES);
    if optimal.all(|other| other == first) && first.is_multiple_of(physical) {
        geometry.optimal_transfer_bytes = first;
    }
    Ok(geometry)
}
