//! Replacement of members while the mirror is in use.
//!
//! State after a power cut, in the order of the steps:
//! 1. Both label copies on the new device are cleared. The mirror opens with the old device.
//! 2. If the old member is current, it is left out: the labels of the others have a new generation.
//! 3. The new device gets a label of the slot, which is newer than that of the old device and in
//!    no set of members with all data. The mirror opens with either device, or with both.
//! 4. The device gets the slot, and a copy as any other stale member.

use super::Mirror;
use super::bounded::{MemberFailure, MemberWork, run_one};
use super::member::MirrorMember;
use super::slots::{FormerMembers, MemberSlot};
use crate::PoolError;
use crate::format::Label;
use crate::member_device::MemberDevice;
use crate::member_io::member_failed;
use lunar_block::{BlockDevice, Error, ErrorKind};
use std::sync::Arc;

impl Mirror {
    /// Gives the slot of a member to a new device. Returns when the device has the slot; the copy
    /// to it runs in a task.
    pub(super) async fn replace(
        self: Arc<Self>,
        slot: u16,
        device: Arc<dyn BlockDevice>,
    ) -> Result<(), PoolError> {
        self.replace_if(slot, device, |_| true).await
    }

    /// Replaces a member if its slot is in a wanted state.
    pub(super) async fn replace_if(
        self: &Arc<Self>,
        slot: u16,
        device: Arc<dyn BlockDevice>,
        is_wanted: impl Fn(&MemberSlot) -> bool,
    ) -> Result<(), PoolError> {
        let mut former = self.reshaping.lock().await;
        let all = self.slots.all();
        let Some(taken) = all.get(usize::from(slot)).filter(|taken| is_wanted(taken)) else {
            return Err(PoolError::NoSuchMember { slot });
        };
        let old = match taken {
            MemberSlot::Taken(member) => Some(Arc::clone(member)),
            MemberSlot::Missing => None,
            MemberSlot::Vacant => return Err(PoolError::NoSuchMember { slot }),
        };
        let new = self.new_member(slot, device, &mut former).await?;
        if let Some(old) = &old {
            self.leave_out_for_good(old, "another device replaces it").await?;
        }
        let taken = self.take_slot(&new).await;
        match (&taken, old) {
            (Ok(()), Some(old)) => {
                self.spares.add_replaced(old.device.name(), old.last_failure());
                former.add(old);
            }
            (Ok(()), None) => {}
            (Err(_), old) => {
                former.add(new);
                old.inspect(|old| _ = old.retired.send_replace(false));
            }
        }
        self.recover_stale();
        taken
    }

    /// Checks that a device has no label and fits, acquires it, and clears both label copies.
    pub(super) async fn new_member(
        &self,
        slot: u16,
        device: Arc<dyn BlockDevice>,
        former: &mut FormerMembers,
    ) -> Result<Arc<MirrorMember>, PoolError> {
        let label = self.roster.read().await.label.clone();
        let device = MemberDevice::new(device).fenced(self.ownership.fence());
        self.check_fits(&device, &label)?;
        if former.has_open_changes(device.given()) {
            return Err(PoolError::Unsettled { device: device.name().to_owned() });
        }
        let buffers = self.buffers();
        self.in_time(&device, device.refuse_labelled(&buffers)).await?;
        if self.acquire_member(&device).await?
            && let Err(error) = self.in_time(&device, device.refuse_labelled(&buffers)).await
        {
            // Its former owner has labelled it.
            self.ownership.give_back(device.given()).await;
            return Err(error);
        }
        device.device().set_buffers(&buffers);
        let wait = self.options.member_wait;
        let new = Arc::new(MirrorMember::new(slot, device, false, label.regions(), wait));
        let cloned = Arc::clone(&new);
        let clear = new.tracked(async move { cloned.device.clear_labels().await });
        if let Err(error) = self.run_on_new(&new, clear).await {
            self.ownership.give_back(new.device.given()).await;
            former.add(new);
            return Err(error.into());
        }
        Ok(new)
    }

    /// Acquires a device that is to become a member. Returns true if it was not owned before.
    pub(super) async fn acquire_member(&self, device: &MemberDevice) -> Result<bool, PoolError> {
        self.in_time(device, self.ownership.acquire(device.given())).await
    }

    /// Runs work on a device that is not a member yet, with the time limit of a member.
    pub(super) async fn in_time<T>(
        &self,
        device: &MemberDevice,
        work: impl Future<Output = Result<T, PoolError>>,
    ) -> Result<T, PoolError> {
        let limit = self.options.member_wait;
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
            let what = MemberFailure::Late(limit).to_string();
            Err(Error::new(ErrorKind::Medium, device.name(), what).into())
        })
    }

    pub(super) fn check_writable(&self) -> Result<(), Error> {
        if self.is_read_only {
            let what = "a member is read-only, so nothing is written to any member";
            return Err(Error::new(ErrorKind::ReadOnly, &*self.name, what));
        }
        Ok(())
    }

    pub(super) fn check_fits(&self, new: &MemberDevice, label: &Label) -> Result<(), PoolError> {
        let device = || new.name().to_owned();
        self.check_writable()?;
        if new.device().is_read_only() {
            return Err(PoolError::ReadOnly { device: device() });
        }
        if self.present().any(|member| Arc::ptr_eq(member.device.given(), new.given())) {
            return Err(PoolError::NamedTwice { device: device() });
        }
        let layout = new.layout();
        if layout.block_bytes != label.block_bytes {
            let (block_bytes, other_bytes) = (layout.block_bytes, label.block_bytes);
            return Err(PoolError::BlockLength { device: device(), block_bytes, other_bytes });
        }
        if layout.data_blocks_max() < label.data_blocks {
            let need_blocks = layout.member_blocks(label.data_blocks);
            return Err(PoolError::TooSmall { device: device(), need_blocks });
        }
        // A mirror that supports deallocation must not lose this while it is in use.
        let is_sparse = self.present().all(|member| member.device.device().sparse().is_some());
        if is_sparse && new.device().sparse().is_none() {
            return Err(PoolError::NotSparse { device: device() });
        }
        Ok(())
    }

    /// Leaves a member out that will not return. Another current member has everything.
    pub(super) async fn leave_out_for_good(
        &self,
        old: &Arc<MirrorMember>,
        why: &str,
    ) -> Result<(), PoolError> {
        let mut roster = self.recorded().await?;
        let last =
            || PoolError::LastCurrent { slot: old.slot, device: old.device.name().to_owned() };
        if old.is_current() && !self.is_dispensable(old) {
            return Err(last());
        }
        if old.receives_changes() {
            old.fail(why);
            self.leave_out_alone(&mut roster, std::slice::from_ref(old)).await?;
            if old.is_current() {
                return Err(last());
            }
        }
        old.retired.send_replace(true);
        Ok(())
    }

    /// True if another current member has everything.
    pub(super) fn is_dispensable(&self, old: &Arc<MirrorMember>) -> bool {
        self.present().any(|one| !Arc::ptr_eq(&one, old) && one.is_complete())
    }

    /// Gives a new device the label of its slot, and the slot.
    async fn take_slot(&self, new: &Arc<MirrorMember>) -> Result<(), PoolError> {
        let label = self.recorded().await?.label.at(new.slot);
        self.label_new(new, label).await?;
        let roster = self.roster.write().await;
        self.refuse_closed(roster.is_closed)?;
        self.slots.set(new.slot, MemberSlot::Taken(Arc::clone(new)));
        drop(roster);
        let name = new.device.name();
        tracing::info!(
            "{}: {name} is member {} now; all data is being copied to it",
            self.name,
            new.slot
        );
        Ok(())
    }

    /// Writes the label of a new device, which is stale.
    pub(super) async fn label_new(
        &self,
        new: &Arc<MirrorMember>,
        label: Label,
    ) -> Result<(), Error> {
        debug_assert!(!label.names_itself(), "{label:?}");
        let (cloned, buffers) = (Arc::clone(new), self.buffers());
        let written = new.tracked(async move { cloned.device.write_label(&label, &buffers).await });
        self.run_on_new(new, written).await
    }

    async fn run_on_new(&self, new: &Arc<MirrorMember>, work: MemberWork) -> Result<(), Error> {
        let done = run_one(self.options.member_wait, new, work).await;
        done.map_err(|failure| match failure {
            MemberFailure::Device(error) => member_failed(&self.name, None, error),
            other => Error::new(ErrorKind::Medium, new.device.name(), other.to_string()),
        })
    }
}
