//! Changes the size of a file while it is in use.

use super::{Disk, FileDevice, JobLimits};
use crate::{BlockRange, BoxFuture, Error, ErrorKind, Geometry, Resize};
use rustix::fs::{FallocateFlags, SeekFrom};
use std::io;
use std::os::unix::fs::FileTypeExt;

impl Resize for FileDevice {
    fn resize(&self, size_bytes: u64) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let period = self.check_writable()?;
            let new = self.disk.geometry.with_size(&self.disk.name, size_bytes)?;
            let all = BlockRange::new(0, new.block_count);
            self.blocking(all, JobLimits::default(), move |disk| disk.resize(new)).await?;
            self.commit(period).await
        })
    }
}

impl Disk {
    fn resize(&self, new: Geometry) -> Result<(), Error> {
        // A check of the backing file between the change of the file and that of the disk would
        // find a wrong size.
        let mut disk_bytes = self.backing.lock_size();
        let resized = self.resize_file(new);
        *disk_bytes = self.geometry.get().size_bytes();
        resized
    }

    fn resize_file(&self, new: Geometry) -> Result<(), Error> {
        let refuse = |what: String| Error::new(ErrorKind::Open, self.name.clone(), what);
        if let Some(direct) = self.direct
            && !new.size_bytes().is_multiple_of(u64::from(direct.offset_bytes))
        {
            let unit = direct.offset_bytes;
            return Err(refuse(format!(
                "with direct I/O its size must be a multiple of {unit} bytes"
            )));
        }
        let failed = |error: io::Error| {
            let kind = super::disk::kind_of(&error);
            Error::new(kind, self.name.clone(), "its size cannot be changed").because(error)
        };
        let kind = self.file.metadata().map_err(failed)?.file_type();
        if kind.is_block_device() {
            let size = rustix::fs::seek(&self.file, SeekFrom::End(0)).map_err(io::Error::from);
            let size = size.map_err(failed)?;
            if size != new.size_bytes() {
                return Err(refuse(format!(
                    "the block device has {size} bytes: resize the device first, then use its new \
                     size"
                )));
            }
            self.geometry.set(new);
            return Ok(());
        }
        let old = self.geometry.get();
        if new.block_count > old.block_count {
            self.grow(old, new).map_err(failed)
        } else {
            self.shrink(old, new).map_err(failed)
        }
    }

    fn grow(&self, old: Geometry, new: Geometry) -> io::Result<()> {
        let (from, to) = (old.size_bytes(), new.size_bytes());
        let grown = self.file.set_len(to).and_then(|()| match self.thin {
            true => Ok(()),
            false => {
                let allocated =
                    rustix::fs::fallocate(&self.file, FallocateFlags::empty(), from, to - from);
                Ok(allocated?)
            }
        });
        match grown {
            Ok(()) => self.geometry.set(new),
            // The added part has not been used yet.
            Err(_) => self.file.set_len(from)?,
        }
        grown
    }

    fn shrink(&self, old: Geometry, new: Geometry) -> io::Result<()> {
        self.geometry.set(new);
        let _guard = self.ranges.lock(&(new.size_bytes()..old.size_bytes()), true);
        let shrunk = self.file.set_len(new.size_bytes());
        if shrunk.is_err() {
            self.geometry.set(old);
        }
        shrunk
    }

    /// Checks again, after the range was locked, that `bytes` lie within the disk: it may have
    /// become shorter since the first check.
    pub(super) fn check_still_within(&self, bytes: &std::ops::Range<u64>) -> io::Result<()> {
        if bytes.end <= self.geometry.get().size_bytes() {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "the disk has shrunk"))
    }
}
