//! Opens a backing file or block device, or creates it; checks and locks it.

use super::backing::Backing;
use super::clear::ClearCoordinator;
use super::direct::DirectAlignment;
use super::disk::{Disk, InlineRead};
use super::inline_writes::FileSystems;
use super::lock::{FileIdentity, lock};
use super::ranges::RangeLock;
use super::ring;
use crate::path_lookup::{CreatedFile, PathEntry, is_among_devices};
use crate::resize::ResizableGeometry;
use crate::{BufferPool, Error, ErrorKind, Geometry, PAGE_BYTES};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxFlags, openat};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::{File, Metadata};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Mode of a new file: only the owner may read the data of initiators.
const NEW_FILE_MODE: u32 = 0o600;

/// Greatest granularity of deallocation that is advertised; parts of a coarser unit are zeroed.
const GRANULARITY_BYTES_MAX: u32 = 1 << 20;

/// Number of attempts to claim a block device: programs that set up or examine devices claim them
/// briefly, too.
const CLAIM_TRIES_MAX: u32 = 10;
const CLAIM_PAUSE: Duration = Duration::from_millis(20);

/// `f_type` of tmpfs, a file system in memory; statfs(2).
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// `f_type` of ramfs, a file system in memory without a size limit.
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// `f_type` of file systems whose I/O may wait for another machine or another process: 9p, AFS,
/// Ceph, CIFS, FUSE, GFS2, Lustre, NFS, OCFS2, SMB 2; statfs(2) and their own headers.
const REMOTE_FILE_SYSTEM_MAGICS: [i64; 10] = [
    0x0102_1997,
    0x6b41_4653,
    0x00c3_6400,
    0xff53_4d42,
    0x6573_5546,
    0x0116_1970,
    0x0bd0_0bd0,
    0x6969,
    0x7461_636f,
    0xfe53_4d42,
];

const NOT_OPENED: &str = "it cannot be opened";
const NO_DEVICE: &str = "it does not exist, and files are not created in /dev: check the device \
                         name (see lsblk), or use a file in another directory";
const DANGLING: &str = "it is a symbolic link to a file that does not exist, and files are not \
                        created through links; remove the link, or create its target";

/// Options for opening a file or block device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileOptions {
    /// Path of the file or block device. Symbolic links, also those to folders on the way, are
    /// followed if this user or root made them.
    pub path: PathBuf,
    /// Size of a file that does not exist or is empty. An existing file keeps its own size.
    pub create_size_bytes: Option<u64>,
    /// Logical block length in bytes: 512, 1024, 2048 or 4096.
    pub block_bytes: u32,
    /// Physical block length in bytes; a power-of-two multiple of the logical one.
    pub physical_block_bytes: u32,
    /// True to bypass the page cache (O_DIRECT).
    pub direct: bool,
    /// True to do direct I/O and reads of uncached data with io_uring, on threads that have a ring
    /// ([`with_ring`](crate::with_ring)), if the system permits it and the file system can start
    /// them without blocking. Otherwise worker threads do these transfers.
    pub io_uring: bool,
    /// True to refuse writes; the file is then opened for reading only.
    pub read_only: bool,
    /// True for thin provisioning: space is allocated when blocks are written, and deallocated by
    /// unmapping. Otherwise all space of a new file is allocated when the file is created.
    pub thin: bool,
}

/// Returns the identity of the file or block device at a path; two paths to one file have one
/// identity.
///
/// # Errors
/// `Open` when the file does not exist or cannot be examined.
pub fn file_identity(path: &Path) -> Result<FileIdentity, Error> {
    let refuse = |error: io::Error| {
        Error::new(ErrorKind::Open, path.display().to_string(), "it cannot be opened")
            .because(error)
    };
    std::fs::metadata(path).map(|metadata| FileIdentity::of(&metadata)).map_err(refuse)
}

/// An opened and locked file.
pub(super) struct Opened {
    file: File,
    /// The handle that can remove the file again, if this opening created it.
    created: Option<CreatedFile>,
    /// True when a sync of the existing data has failed: a write of a former run may be lost.
    sync_failed: bool,
}

/// Opens or creates, checks and locks the file. The `bool` is true when a sync of the existing data
/// has failed.
pub(super) fn open(
    options: &FileOptions,
    file_systems: &FileSystems,
) -> Result<(Disk, bool, Option<CreatedFile>), Error> {
    let opening = Opening::new(options);
    // An impossible geometry is refused before a file is created.
    let size = options.create_size_bytes.unwrap_or(u64::from(options.block_bytes));
    opening.geometry(size)?;
    let entry = PathEntry::find(&options.path).map_err(|error| {
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        let no_folder = "neither it nor its directory exists";
        opening.refused(if is_missing { no_folder } else { NOT_OPENED }).because(error)
    })?;
    let opened = match &entry.found {
        Some(_) => opening.existing(&entry)?,
        None => opening.new_file(&entry)?,
    };
    Ok((opening.disk(opened.file, file_systems)?, opened.sync_failed, opened.created))
}

pub(super) struct Opening<'a> {
    options: &'a FileOptions,
    name: Arc<str>,
}

impl<'a> Opening<'a> {
    pub(super) fn new(options: &'a FileOptions) -> Self {
        Self { options, name: options.path.display().to_string().into() }
    }

    fn refused(&self, what: impl Into<String>) -> Error {
        Error::new(ErrorKind::Open, Arc::clone(&self.name), what)
    }

    fn geometry(&self, size_bytes: u64) -> Result<Geometry, Error> {
        let options = self.options;
        Geometry::new(&self.name, size_bytes, options.block_bytes, options.physical_block_bytes)
    }

    pub(super) fn existing(&self, entry: &PathEntry) -> Result<Opened, Error> {
        let (metadata, follow) =
            self.target(entry).map_err(|error| self.refused(NOT_OPENED).because(error))?;
        let kind = metadata.file_type();
        let device = kind.is_block_device();
        if !device && !kind.is_file() {
            return Err(self.refused("it is neither a file nor a block device"));
        }
        // The kernel's own claim is refused when the device is mounted or part of another device.
        let claim = if device { OFlags::EXCL } else { OFlags::empty() };
        let file = self.open_file(entry, follow | claim)?;
        // The file may have been replaced since the first check.
        let opened = file.metadata().map_err(|e| self.refused("it cannot be read").because(e))?;
        if FileIdentity::of(&opened) != FileIdentity::of(&metadata) {
            return Err(self.refused("it was replaced while it was being opened"));
        }
        lock(&file, !self.options.read_only).map_err(|e| self.not_locked(e))?;
        let mut sync_failed = false;
        match self.options.create_size_bytes {
            // An empty file holds no data that could be lost; a crash after its creation may have
            // left it empty.
            Some(size) if !device && opened.len() == 0 && !self.options.read_only => {
                self.allocate_size(&file, &entry.folder, size)?;
            }
            // The creator of the file may have been killed before the file was durable.
            create_size if !device && !self.options.read_only => {
                sync_failed =
                    self.make_existing_durable(&file, &entry.folder, create_size.is_some());
            }
            _ => {}
        }
        Ok(Opened { file, created: None, sync_failed })
    }

    /// Returns the metadata of the file to be opened, and the flags that decide whether a link in
    /// /proc is followed.
    fn target(&self, entry: &PathEntry) -> io::Result<(Metadata, OFlags)> {
        match &entry.found {
            Some((_, found)) if !found.is_symlink() => Ok((found.clone(), OFlags::NOFOLLOW)),
            _ => {
                let flags = OFlags::PATH | OFlags::CLOEXEC;
                let found = openat(&entry.folder, &entry.name, flags, Mode::empty())?;
                Ok((File::from(found).metadata()?, OFlags::empty()))
            }
        }
    }

    fn new_file(&self, entry: &PathEntry) -> Result<Opened, Error> {
        if is_among_devices(&self.options.path) {
            return Err(self.refused(NO_DEVICE));
        }
        let Some(size) = self.options.create_size_bytes else {
            return Err(self.refused("it does not exist"));
        };
        if self.options.read_only {
            return Err(self.refused("it does not exist, and a read-only disk is not created"));
        }
        if entry.by_link {
            return Err(self.refused(DANGLING).because(io::Error::from(Errno::EXIST)));
        }
        let (file, created) = self.create(entry)?;
        // Another process may lock the empty file first; it then uses the file as its own disk.
        lock(&file, true).map_err(|e| self.not_locked(e))?;
        let created = self.initialize(&file, entry, created, size)?;
        Ok(Opened { file, created: Some(created), sync_failed: false })
    }

    /// Gives a new file its size, or removes the file on failure.
    pub(super) fn initialize(
        &self,
        file: &File,
        entry: &PathEntry,
        created: CreatedFile,
        size: u64,
    ) -> Result<CreatedFile, Error> {
        match self.allocate_size(file, &entry.folder, size) {
            Ok(()) => Ok(created),
            Err(error) => {
                // A failure to remove the file must not hide the first error.
                let _ = created.remove();
                Err(error)
            }
        }
    }

    /// Creates an empty file.
    pub(super) fn create(&self, entry: &PathEntry) -> Result<(File, CreatedFile), Error> {
        // O_EXCL: another user who may write to the directory may have put a link to another file
        // there.
        let file = self.open_file(entry, OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW)?;
        let created = entry.folder.try_clone();
        let created =
            created.and_then(|folder| CreatedFile::new(folder, entry.name.clone(), &file));
        Ok((file, created.map_err(|error| self.refused(NOT_OPENED).because(error))?))
    }

    fn open_file(&self, entry: &PathEntry, more: OFlags) -> Result<File, Error> {
        let access = if self.options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        // The file may have become a pipe since the check, and opening a pipe may block.
        let mut flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | more;
        if self.options.direct {
            flags |= OFlags::DIRECT;
        }
        let mode = Mode::from_raw_mode(NEW_FILE_MODE);
        let open = || openat(&entry.folder, &entry.name, flags, mode);
        let mut opened = open();
        for _ in 1..CLAIM_TRIES_MAX {
            if opened.as_ref().err() != Some(&Errno::BUSY) {
                break;
            }
            std::thread::sleep(CLAIM_PAUSE);
            opened = open();
        }
        let opened = opened.map(File::from).map_err(io::Error::from);
        opened.inspect(set_flags).map_err(|error| {
            let what = match Errno::from_io_error(&error) {
                Some(Errno::INVAL) if self.options.direct => {
                    "direct I/O is not possible on this file system; use buffered I/O"
                }
                Some(Errno::BUSY) => "it is in use: mounted, or part of another device",
                Some(Errno::EXIST) => "another file was created at this path; try again",
                Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) if !self.options.read_only => {
                    "it cannot be opened for writing; serve it read-only, or change its permissions"
                }
                _ => NOT_OPENED,
            };
            self.refused(what).because(error)
        })
    }

    fn not_locked(&self, error: super::lock::LockError) -> Error {
        match &error {
            super::lock::LockError::InUse(_) => self.refused(error.to_string()),
            super::lock::LockError::System(_) => {
                self.refused("it cannot be locked against other users").because(error)
            }
        }
    }

    /// Sets the size, allocates the space if the disk is not thin, and makes both durable, together
    /// with the name of the file.
    fn allocate_size(&self, file: &File, folder: &File, size: u64) -> Result<(), Error> {
        let failed = |what: &str, error: io::Error| self.refused(what).because(error);
        file.set_len(size).map_err(|e| failed("its size cannot be set", e))?;
        if !self.options.thin {
            rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size)
                .map_err(|e| failed("its space cannot be allocated", e.into()))?;
        }
        file.sync_all().map_err(|e| failed("its size cannot be made durable", e))?;
        let directory = crate::durable::sync_folder(folder);
        directory.map_err(|e| failed("its directory cannot be made durable", e))
    }

    /// Makes the name of an existing file durable, and its size if this program may have created
    /// it. A file whose file system has no sync is served nevertheless, as if another program had
    /// created it. Returns `true` when the sync has failed; the kernel does not report that failure
    /// again.
    fn make_existing_durable(&self, file: &File, folder: &File, size: bool) -> bool {
        let device = &self.name;
        let size = if size { file.sync_all() } else { Ok(()) };
        // The name is synced even if the sync of the file failed: a later recovery syncs only the
        // file.
        let name = crate::durable::sync_folder(folder);
        if let Err(error) = &size
            && !is_without_sync(error)
        {
            tracing::error!(
                %device,
                %error,
                "sync failed: the disk refuses writes until it is recovered"
            );
            return true;
        }
        if let Err(error) = size.and(name) {
            tracing::warn!(%device, %error, "the file cannot be synced: a power cut may remove it");
        }
        false
    }

    fn disk(&self, file: File, file_systems: &FileSystems) -> Result<Disk, Error> {
        let unreadable =
            |error: io::Error| self.refused("its metadata cannot be read").because(error);
        let metadata = file.metadata().map_err(unreadable)?;
        let is_device = metadata.file_type().is_block_device();
        let size = if is_device {
            rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(io::Error::from)
        } else {
            Ok(metadata.len())
        };
        let geometry = self.geometry(size.map_err(unreadable)?)?;
        let (path, is_thin) = (&self.options.path, self.options.thin);
        let backing = Backing::new(&file, path, geometry.size_bytes(), is_thin);
        let backing = Arc::new(backing.map_err(unreadable)?);
        let direct = if self.options.direct {
            Some(self.direct_alignment(&file, is_device, geometry)?)
        } else {
            None
        };
        // The node of a block device usually lies on devtmpfs, whose type says nothing about the
        // device.
        let magic = if is_device { None } else { magic(&file) };
        let inline_read = inline_read(&file, magic);
        let inline_write = !magic.is_some_and(|magic| REMOTE_FILE_SYSTEM_MAGICS.contains(&magic));
        let nowait = match direct {
            Some(alignment) => is_nowait(&file, geometry.size_bytes(), alignment),
            None => inline_read == InlineRead::NoWait,
        };
        let granularity = u32::try_from(metadata.blksize()).unwrap_or(PAGE_BYTES as u32);
        let sector = |file: &File| rustix::fs::ioctl_blksszget(file).unwrap_or(PAGE_BYTES as u32);
        let in_memory = matches!(magic, Some(TMPFS_MAGIC | RAMFS_MAGIC));
        let writes = file_systems.disk(FileIdentity::of(&metadata).device, in_memory);
        let disk = Disk {
            name: Arc::clone(&self.name),
            inline_read,
            inline_write,
            by_ring: self.options.io_uring && inline_write && nowait && ring::is_permitted(),
            geometry: ResizableGeometry::new(geometry),
            read_only: self.options.read_only,
            thin: self.options.thin,
            direct,
            granularity_bytes: granularity
                .checked_next_power_of_two()
                .unwrap_or(GRANULARITY_BYTES_MAX)
                .clamp(geometry.block_bytes, GRANULARITY_BYTES_MAX),
            sector_bytes: if is_device { sector(&file) } else { 1 },
            ranges: RangeLock::default(),
            bounce: OnceLock::new(),
            writes,
            clears: ClearCoordinator::default(),
            backing,
            file,
        };
        disk.update_free_space_limit();
        Ok(disk)
    }

    /// Returns the alignment that the kernel requires for direct I/O; a page if the kernel does not
    /// report it.
    fn direct_alignment(
        &self,
        file: &File,
        is_device: bool,
        geometry: Geometry,
    ) -> Result<DirectAlignment, Error> {
        let page = PAGE_BYTES as u32;
        let mut alignment = DirectAlignment { memory_bytes: page, offset_bytes: page };
        match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
            Ok(stat) if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
                if stat.stx_dio_offset_align == 0 {
                    return Err(self.refused("direct I/O is not possible; use buffered I/O"));
                }
                alignment.memory_bytes = stat.stx_dio_mem_align.max(1);
                alignment.offset_bytes = stat.stx_dio_offset_align;
            }
            _ if is_device => {
                let sector = rustix::fs::ioctl_blksszget(file).unwrap_or(page);
                alignment = DirectAlignment { memory_bytes: sector, offset_bytes: sector };
            }
            _ => {}
        }
        let unit = alignment.offset_bytes;
        if !geometry.size_bytes().is_multiple_of(u64::from(unit)) || !unit.is_power_of_two() {
            return Err(self.refused(format!(
                "direct I/O requires a multiple of {unit} bytes here, and the size is {} bytes; \
                 use buffered I/O",
                geometry.size_bytes()
            )));
        }
        Ok(alignment)
    }
}

/// Returns true when the file system has no sync, which differs from a sync that fails.
fn is_without_sync(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::INVAL | Errno::ROFS | Errno::OPNOTSUPP | Errno::NOSYS))
}

/// Returns the type of the file system.
fn magic(file: &File) -> Option<i64> {
    // The width and sign of this field differ between processors.
    #[allow(clippy::unnecessary_cast)]
    rustix::fs::fstatfs(file).ok().map(|fs| fs.f_type as i64 & 0xffff_ffff)
}

/// Tests how cached data of this file can be read without blocking.
fn inline_read(file: &File, magic: Option<i64>) -> InlineRead {
    if magic == Some(TMPFS_MAGIC) {
        return InlineRead::Always;
    }
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    match rustix::io::preadv2(file, &mut into, 0, ReadWriteFlags::NOWAIT) {
        Ok(_) | Err(Errno::AGAIN) => InlineRead::NoWait,
        Err(_) => InlineRead::Never,
    }
}

/// Tests whether direct I/O can be started without blocking, by a read at the end of the file,
/// where there is no data. If it cannot, io_uring passes every transfer to a kernel thread.
fn is_nowait(file: &File, size_bytes: u64, alignment: DirectAlignment) -> bool {
    let mut unit = BufferPool::new(0).take(alignment.offset_bytes as usize);
    let mut into = [IoSliceMut::new(&mut unit)];
    rustix::io::preadv2(file, &mut into, size_bytes, ReadWriteFlags::NOWAIT).is_ok()
}

/// Clears O_NONBLOCK, which only the open needs, and sets O_NOATIME, because nobody uses the access
/// times of a disk and reads are cheaper without them. Only the owner of a file may set O_NOATIME
/// (open(2)); for other users the kernel keeps updating access times.
fn set_flags(file: &File) {
    if let Ok(flags) = rustix::fs::fcntl_getfl(file) {
        let flags = flags - OFlags::NONBLOCK;
        if rustix::fs::fcntl_setfl(file, flags | OFlags::NOATIME).is_err() {
            let _ = rustix::fs::fcntl_setfl(file, flags);
        }
    }
}
