//! A device of a pool: its labels, its intent pages, and its losses.

use crate::PoolError;
use crate::fenced_device::{FencedDevice, PoolFence};
use crate::format::{
    FoundLabel, INTENT_PAGE_BYTES, IntentPage, LABEL_BYTES, LABEL_COPIES, Label, MemberLayout,
    PoolId, Unusable,
};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BufferPool, Error, ErrorKind, OwnershipFence};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device of a pool.
#[derive(Debug)]
pub(crate) struct MemberDevice {
    device: Arc<dyn BlockDevice>,
    /// The device without the fence of the pool.
    given: Arc<dyn BlockDevice>,
    fence: Option<Arc<OwnershipFence>>,
    /// Number of flushes that failed.
    failed_flushes: AtomicU64,
    /// The label that the next writing of labels writes last, if it is known.
    last_label: Mutex<Option<u8>>,
}

impl MemberDevice {
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Self {
        let given = Arc::clone(&device);
        let (failed_flushes, last_label) = (AtomicU64::new(0), Mutex::default());
        Self { device, given, fence: None, failed_flushes, last_label }
    }

    /// Returns the member with the fence of its pool, which ends the use of the device.
    pub(crate) fn fenced(self, fence: &PoolFence) -> Self {
        let limits = fence.limits_of(&self.given);
        let fence = Some(Arc::clone(&limits.fence));
        let device = Arc::new(FencedDevice::new(Arc::clone(&self.given), limits));
        Self { device, fence, ..self }
    }

    /// Records whether the pool needs the device: the loss of its ownership fences the pool then.
    pub(crate) fn set_needed(&self, is_needed: bool) {
        if let Some(fence) = &self.fence {
            fence.set_needed(is_needed);
        }
    }

    /// Returns the device as it was given to the pool, for comparisons.
    pub(crate) fn given(&self) -> &Arc<dyn BlockDevice> {
        &self.given
    }

    pub(crate) fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    pub(crate) fn name(&self) -> &str {
        self.device.name()
    }

    pub(crate) fn layout(&self) -> MemberLayout {
        let geometry = self.device.geometry();
        MemberLayout { block_bytes: geometry.block_bytes, block_count: geometry.block_count }
    }

    /// Enlarges the device, if it can be enlarged, until it has room for `data_blocks` blocks of
    /// data. Its second label is not found from then on, until the labels are written again.
    pub(crate) async fn grow(&self, data_blocks: u64) -> Result<(), Error> {
        let layout = self.layout();
        let need = layout.member_blocks(data_blocks).filter(|need| *need > layout.block_count);
        match (need, self.device.resize()) {
            (Some(need), Some(resize)) => {
                resize.resize(need.saturating_mul(u64::from(layout.block_bytes))).await
            }
            _ => Ok(()),
        }
    }

    /// Flushes the device. A failure counts as a loss before it is returned, because a device may
    /// report a loss to one flush only.
    pub(crate) async fn flush(&self) -> Result<(), Error> {
        let flushed = self.device.flush().await;
        if flushed.is_err() {
            self.failed_flushes.fetch_add(1, SeqCst);
        }
        flushed
    }

    /// Returns the number of times that the device may have lost acknowledged writes: the losses
    /// that it counts, and the flushes that failed.
    pub(crate) fn losses(&self) -> u64 {
        self.device.cache_losses().unwrap_or(0) + self.failed_flushes.load(SeqCst)
    }

    /// Returns the better label: a valid one of the highest generation, else what was found.
    ///
    /// # Errors
    /// The device failed, other than by unreadable blocks.
    pub(crate) async fn read_label(&self, buffers: &BufferPool) -> Result<FoundLabel, Error> {
        if self.layout().data_blocks_max() == 0 {
            return Ok(FoundLabel::None);
        }
        let mut copies = self.read_copies(buffers).await?;
        let best = better_copy(&copies);
        Ok(copies.swap_remove(best))
    }

    async fn read_copies(&self, buffers: &BufferPool) -> Result<Vec<FoundLabel>, Error> {
        let mut copies = Vec::new();
        for copy in 0..LABEL_COPIES {
            copies.push(self.read_copy(copy, buffers).await?);
        }
        Ok(copies)
    }

    async fn read_copy(&self, copy: u8, buffers: &BufferPool) -> Result<FoundLabel, Error> {
        let layout = self.layout();
        let bytes = match self.read_page(layout.label(copy), buffers).await {
            Err(error) if error.kind == ErrorKind::Medium => {
                return Ok(FoundLabel::Unusable(Unusable::Unreadable(error.to_string())));
            }
            read => read?,
        };
        Ok(match Label::decode(&bytes) {
            FoundLabel::Valid(label) => match label.check(layout) {
                Ok(()) => FoundLabel::Valid(label),
                Err(why) => FoundLabel::Unusable(why),
            },
            other => other,
        })
    }

    /// Writes both labels, durably. One of both is intact at any power cut or failure: an earlier
    /// failure may have damaged one of them, so the better one is written last.
    pub(crate) async fn write_label(
        &self,
        label: &Label,
        buffers: &BufferPool,
    ) -> Result<(), Error> {
        let prepared = self.last_label().take();
        let last = match prepared {
            Some(last) => last,
            None => better_copy(&self.read_copies(buffers).await?) as u8,
        };
        let bytes = Bytes::copy_from_slice(&label.encode());
        for copy in [LABEL_COPIES - 1 - last, last] {
            self.write_page(self.layout().label(copy), bytes.clone()).await?;
            self.flush().await?;
        }
        Ok(())
    }

    /// Reads the labels for [`write_label`](Self::write_label), which does not read them while the
    /// returned value exists.
    pub(crate) async fn prepare_label(
        &self,
        buffers: &BufferPool,
    ) -> Result<PreparedLabel<'_>, Error> {
        let last = better_copy(&self.read_copies(buffers).await?) as u8;
        *self.last_label() = Some(last);
        Ok(PreparedLabel(self))
    }

    fn last_label(&self) -> MutexGuard<'_, Option<u8>> {
        self.last_label.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error if the device has a label, or no room for one.
    pub(crate) async fn refuse_labelled(&self, buffers: &BufferPool) -> Result<(), PoolError> {
        let device = || self.name().to_owned();
        if self.layout().data_blocks_max() == 0 {
            return Err(PoolError::TooSmall { device: device(), need_blocks: None });
        }
        match self.read_label(buffers).await? {
            FoundLabel::None => Ok(()),
            FoundLabel::Unusable(why) => Err(PoolError::InUnknownUse { device: device(), why }),
            FoundLabel::Valid(label) => {
                Err(PoolError::InUse { device: device(), pool: label.pool })
            }
        }
    }

    /// Clears both labels, durably. The first block of each is cleared before the others, so that a
    /// power cut leaves no damaged label.
    pub(crate) async fn clear_labels(&self) -> Result<(), Error> {
        let zeroes = Bytes::from(vec![0; LABEL_BYTES]);
        for copy in 0..LABEL_COPIES {
            let first = zeroes.slice(..self.layout().block_bytes as usize);
            let range = BlockRange::new(self.layout().label(copy), 1);
            self.device.write(range, first, false).await?;
        }
        self.flush().await?;
        for copy in 0..LABEL_COPIES {
            self.write_page(self.layout().label(copy), zeroes.clone()).await?;
        }
        self.flush().await
    }

    /// Returns the newest intent page; `None` if none is valid, or if an unreadable one may have
    /// been newer.
    pub(crate) async fn read_intent(
        &self,
        pool: PoolId,
        regions: u32,
        buffers: &BufferPool,
    ) -> Result<Option<IntentPage>, Error> {
        let mut newest: Option<IntentPage> = None;
        for number in 0..u64::from(LABEL_COPIES) {
            let bytes = match self.read_page(self.layout().intent_page(number), buffers).await {
                Err(error) if error.kind == ErrorKind::Medium => return Ok(None),
                read => read?,
            };
            if let Some(page) = IntentPage::decode(&bytes, pool, regions)
                && newest.as_ref().is_none_or(|newest| newest.sequence < page.sequence)
            {
                newest = Some(page);
            }
        }
        Ok(newest)
    }

    /// Writes an encoded intent page to the position of its sequence number, durably.
    pub(crate) async fn write_intent(&self, sequence: u64, page: Bytes) -> Result<(), Error> {
        self.write_page(self.layout().intent_page(sequence), page).await?;
        self.flush().await
    }

    async fn read_page(&self, lba: u64, buffers: &BufferPool) -> Result<[u8; LABEL_BYTES], Error> {
        let range = BlockRange::new(lba, self.layout().page_blocks());
        let buffer = self.device.read(range, buffers.take(LABEL_BYTES)).await?;
        let mut bytes = [0; LABEL_BYTES];
        bytes.copy_from_slice(&buffer[..LABEL_BYTES]);
        Ok(bytes)
    }

    async fn write_page(&self, lba: u64, bytes: Bytes) -> Result<(), Error> {
        let range = BlockRange::new(lba, self.layout().page_blocks());
        self.device.write(range, bytes, false).await
    }
}

/// Labels that were read before they are written.
#[derive(Debug)]
pub(crate) struct PreparedLabel<'a>(&'a MemberDevice);

impl Drop for PreparedLabel<'_> {
    fn drop(&mut self) {
        *self.0.last_label() = None;
    }
}

const _: () = assert!(LABEL_BYTES == INTENT_PAGE_BYTES);

/// Returns the last of the copies than which no other is better.
fn better_copy(copies: &[FoundLabel]) -> usize {
    (1..copies.len()).fold(
        0,
        |best, copy| {
            if is_better(&copies[best], &copies[copy]) { best } else { copy }
        },
    )
}

fn is_better(found: &FoundLabel, than: &FoundLabel) -> bool {
    match (found, than) {
        (FoundLabel::Valid(label), FoundLabel::Valid(other)) => label.generation > other.generation,
        (FoundLabel::Valid(_), _) => true,
        (FoundLabel::Unusable(_), FoundLabel::None) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
