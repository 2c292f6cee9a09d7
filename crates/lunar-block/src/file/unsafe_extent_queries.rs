//! Queries of the extents and cached pages of a file (`FS_IOC_FIEMAP` of the kernel's fiemap
//! documentation, `cachestat(2)`), for which none of our dependencies has a safe wrapper.

use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Maximum number of extents of one query, which bounds its time.
const EXTENTS_MAX: usize = 64;

/// `FIEMAP_EXTENT_UNWRITTEN`: the extent is allocated, and reads as zeroes except where newer data
/// is cached.
const UNWRITTEN: u32 = 0x800;

/// `struct fiemap`.
#[repr(C)]
struct ExtentQuery {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [FoundExtent; EXTENTS_MAX],
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FoundExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_flags: [u32; 3],
}

/// `FS_IOC_FIEMAP`: `_IOWR('f', 11, struct fiemap)`; its size is that without extents.
const FIEMAP: libc::Ioctl = 0xc020_660b_u32 as libc::Ioctl;

/// The number of `cachestat(2)`, which is the same on all architectures; libc has no name for it.
const CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range`, then `struct cachestat`.
#[repr(C)]
struct CacheRange {
    offset: u64,
    length: u64,
}

#[repr(C)]
#[derive(Default)]
struct CachedPages {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Returns the end of the extents that hold written data from the start of `bytes` without a gap;
/// this start if there is none. At most [`EXTENTS_MAX`] extents are examined.
///
/// # Errors
/// `OPNOTSUPP` (or another error) if the file system has no such query.
pub(super) fn written_extents_end(file: &File, bytes: &Range<u64>) -> Result<u64, Errno> {
    let mut query = ExtentQuery {
        start: bytes.start,
        length: bytes.end - bytes.start,
        flags: 0,
        mapped_extents: 0,
        extent_count: EXTENTS_MAX as u32,
        reserved: 0,
        extents: [FoundExtent::default(); EXTENTS_MAX],
    };
    // SAFETY: `file` is open for the whole call. The kernel reads the header and writes it and at
    // most `extent_count` extents, all of them inside `query`, which is borrowed exclusively.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FIEMAP, std::ptr::from_mut(&mut query)) };
    if result == -1 {
        return Err(last_error());
    }
    let mut end = bytes.start;
    for extent in query.extents.iter().take(query.mapped_extents as usize) {
        if extent.logical > end || extent.flags & UNWRITTEN != 0 {
            break;
        }
        end = end.max(extent.logical.saturating_add(extent.length));
    }
    Ok(end)
}

/// Returns the number of pages of `bytes` that are in the page cache, or were evicted from it: in a
/// file system in memory, to the swap area.
///
/// # Errors
/// `NOSYS` before Linux 6.5; `OPNOTSUPP` if the file has no cache.
pub(super) fn cached_or_evicted_pages(file: &File, bytes: &Range<u64>) -> Result<u64, Errno> {
    let range = CacheRange { offset: bytes.start, length: bytes.end - bytes.start };
    let mut pages = CachedPages::default();
    // SAFETY: `file` is open for the whole call; the kernel reads `range` and writes `pages`, which
    // have the layout of its structures and are borrowed for the whole call.
    let result = unsafe {
        libc::syscall(
            CACHESTAT,
            file.as_raw_fd(),
            std::ptr::from_ref(&range),
            std::ptr::from_mut(&mut pages),
            0_u32,
        )
    };
    if result == -1 { Err(last_error()) } else { Ok(pages.cached.saturating_add(pages.evicted)) }
}

fn last_error() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const MIB: u64 = 1 << 20;

    /// Goal: the queries have the kernel's layout: each query that the file system supports finds
    /// data and holes at the right offsets.
    #[test]
    fn queries_find_data_and_holes() {
        for directory in [std::env::temp_dir(), "/dev/shm".into()] {
            let name = format!("lunar-extents-{}", std::process::id());
            let path = directory.join(name);
            let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            file.set_len(8 * MIB).unwrap();
            file.write_all_at(&[1; 2 << 20], MIB).unwrap();
            match written_extents_end(&file, &(MIB..8 * MIB)) {
                Ok(end) => {
                    assert_eq!(end, 3 * MIB, "{path:?}");
                    assert_eq!(written_extents_end(&file, &(0..MIB)), Ok(0));
                    assert_eq!(written_extents_end(&file, &(3 * MIB..8 * MIB)), Ok(3 * MIB));
                }
                Err(error) => assert!(matches!(error, Errno::OPNOTSUPP | Errno::NOTTY), "{error}"),
            }
            let pages = MIB / rustix::param::page_size() as u64;
            match cached_or_evicted_pages(&file, &(2 * MIB..4 * MIB)) {
                Ok(known) => assert_eq!(known, pages, "{path:?}"),
                Err(error) => assert!(matches!(error, Errno::NOSYS | Errno::OPNOTSUPP), "{error}"),
            }
        }
    }
}
