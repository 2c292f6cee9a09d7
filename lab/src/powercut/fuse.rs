//! Connects the kernel's requests to the volume.
//!
//! The kernel caches nothing: each write and each lookup reaches the volume. The kernel handles
//! locks itself.

use super::disk::{Shared, State};
use super::faults::{CallKind, Refusal};
use super::image::SECTOR_BYTES;
use super::volume::{CallAnswer, FileStatus, InodeKind};
use fuser::{
    BsdFileFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    Request, TimeOrNow, WriteFlags,
};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The longest write in one request.
const WRITE_BYTES_MAX: u32 = 1 << 20;

/// Block size that stat(2) reports, which direct I/O uses.
const BLOCK_BYTES: u32 = 4096;

const NAME_BYTES_MAX: u32 = 255;

/// lseek(2): SEEK_DATA and SEEK_HOLE.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// mknod(2): mask of the file type in a mode, and the types of a file and a socket.
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFSOCK: u32 = 0o140_000;

/// Cache time of zero: the kernel asks each time.
const ASK_AGAIN: Duration = Duration::ZERO;

const GENERATION: Generation = Generation(0);

/// The file system in the form that the kernel uses.
pub(super) struct FuseAdapter {
    shared: Arc<Shared>,
}

impl FuseAdapter {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared) }
    }

    /// Executes a call of this kind unless it is to fail; passes its result to `reply`.
    fn run<T>(
        &self,
        operation: CallKind,
        call: impl FnOnce(&mut State) -> CallAnswer<T> + Send + 'static,
        reply: impl FnOnce(Result<T, fuser::Errno>) + Send + 'static,
    ) {
        self.shared.run(operation, move |state, verdict| {
            let answer = verdict.map_err(Errno::from).and_then(|()| call(state));
            reply(answer.map_err(errno));
        });
    }

    /// Executes such a call on an open file.
    fn run_open<T>(
        &self,
        operation: CallKind,
        handle: FileHandle,
        call: impl FnOnce(&mut State) -> CallAnswer<T> + Send + 'static,
        reply: impl FnOnce(Result<T, fuser::Errno>) + Send + 'static,
    ) {
        let call = move |state: &mut State| {
            if handle.0 == state.epoch { call(state) } else { Err(Errno::IO) }
        };
        self.run(operation, call, reply);
    }

    /// Makes the data durable that was written before the request, then replies.
    fn sync(&self, operation: CallKind, inode: INodeNo, handle: FileHandle, reply: ReplyEmpty) {
        let begun = self.shared.lock().volume.begin_sync(inode.0);
        self.shared.run(operation, move |state, verdict| {
            let done = match (begun, verdict) {
                _ if handle.0 != state.epoch => Err(Errno::IO),
                (Ok(_), Ok(())) if state.faults.ignores_syncs() => Ok(()),
                (Ok(sync), Ok(())) => state.volume.end_sync(sync),
                (Ok(sync), Err(Refusal::Failed(errno))) => {
                    state.volume.fail_sync(sync, &mut state.random);
                    Err(errno)
                }
                (Err(errno), _) => Err(errno),
                (_, Err(refusal)) => Err(refusal.into()),
            };
            empty(reply)(done.map_err(errno));
        });
    }

    fn make(&self, parent: INodeNo, name: &OsStr, mode: u32, kind: InodeKind, reply: ReplyEntry) {
        let name = name.to_owned();
        let call = move |state: &mut State| {
            let inode = state.volume.make(parent.0, &name, mode as u16, kind)?;
            state.volume.status(inode)
        };
        self.run(CallKind::Name, call, entry(reply));
    }
}

fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

fn empty(reply: ReplyEmpty) -> impl FnOnce(Result<(), fuser::Errno>) + Send + 'static {
    |answer| match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn entry(reply: ReplyEntry) -> impl FnOnce(Result<FileStatus, fuser::Errno>) + Send + 'static {
    |answer| match answer {
        Ok(status) => reply.entry(&ASK_AGAIN, &attributes(&status), GENERATION),
        Err(errno) => reply.error(errno),
    }
}

fn attributes_of(
    reply: ReplyAttr,
) -> impl FnOnce(Result<FileStatus, fuser::Errno>) + Send + 'static {
    |answer| match answer {
        Ok(status) => reply.attr(&ASK_AGAIN, &attributes(&status)),
        Err(errno) => reply.error(errno),
    }
}

fn attributes(status: &FileStatus) -> FileAttr {
    let time = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(status.inode),
        size: status.len,
        blocks: status.room_bytes / SECTOR_BYTES,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind: file_type(status.kind),
        perm: status.mode,
        nlink: status.links,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

fn file_type(kind: InodeKind) -> FileType {
    match kind {
        InodeKind::File => FileType::RegularFile,
        InodeKind::Directory => FileType::Directory,
        InodeKind::Socket => FileType::Socket,
    }
}

impl Filesystem for FuseAdapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // The nearest possible value serves as well.
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        let call = move |state: &mut State| {
            let inode = state.volume.look_up(parent.0, &name)?;
            state.volume.status(inode)
        };
        self.run(CallKind::Look, call, entry(reply));
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let call = move |state: &mut State| state.volume.status(inode.0);
        self.run(CallKind::Look, call, attributes_of(reply));
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let call = move |state: &mut State| {
            if handle.is_some_and(|handle| handle.0 != state.epoch) {
                return Err(Errno::IO);
            }
            if let Some(mode) = mode {
                state.volume.set_mode(inode.0, mode as u16)?;
            }
            if let Some(size) = size {
                state.volume.set_len(inode.0, size)?;
            }
            state.volume.status(inode.0)
        };
        let operation = if size.is_some() { CallKind::SetLength } else { CallKind::Look };
        self.run(operation, call, attributes_of(reply));
    }

    fn mknod(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        match mode & S_IFMT {
            S_IFREG => self.make(parent, name, mode, InodeKind::File, reply),
            S_IFSOCK => self.make(parent, name, mode, InodeKind::Socket, reply),
            _ => reply.error(errno(Errno::PERM)),
        }
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.make(parent, name, mode, InodeKind::Directory, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        let call = move |state: &mut State| state.volume.remove(parent.0, &name, false);
        self.run(CallKind::Name, call, empty(reply));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        let call = move |state: &mut State| state.volume.remove(parent.0, &name, true);
        self.run(CallKind::Name, call, empty(reply));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let keep = flags == RenameFlags::RENAME_NOREPLACE;
        if !keep && !flags.is_empty() {
            return reply.error(errno(Errno::INVAL));
        }
        let (from, to) = (name.to_owned(), new_name.to_owned());
        let call = move |state: &mut State| {
            state.volume.rename((parent.0, &from), (new_parent.0, &to), keep)
        };
        self.run(CallKind::Name, call, empty(reply));
    }

    fn link(&self, _: &Request, inode: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        let call = move |state: &mut State| {
            state.volume.link(inode.0, parent.0, &name)?;
            state.volume.status(inode.0)
        };
        self.run(CallKind::Name, call, entry(reply));
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let call = move |state: &mut State| {
            state.volume.status(inode.0)?;
            Ok(state.epoch)
        };
        self.run(CallKind::Look, call, |answer| match answer {
            Ok(epoch) => reply.opened(FileHandle(epoch), FopenFlags::FOPEN_DIRECT_IO),
            Err(errno) => reply.error(errno),
        });
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let name = name.to_owned();
        let call = move |state: &mut State| {
            let inode = state.volume.make(parent.0, &name, mode as u16, InodeKind::File)?;
            Ok((state.epoch, state.volume.status(inode)?))
        };
        self.run(CallKind::Name, call, |answer| match answer {
            Ok((epoch, status)) => {
                let (handle, how) = (FileHandle(epoch), FopenFlags::FOPEN_DIRECT_IO);
                reply.created(&ASK_AGAIN, &attributes(&status), GENERATION, handle, how);
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let call = move |state: &mut State| {
            let range = offset..offset.saturating_add(size.into());
            if state.faults.is_bad(inode.0, &range) {
                return Err(Errno::IO);
            }
            state.volume.read(inode.0, range)
        };
        self.run_open(CallKind::Read, handle, call, |answer| match answer {
            Ok(data) => reply.data(&data),
            Err(errno) => reply.error(errno),
        });
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = data.to_vec();
        let call = move |state: &mut State| {
            state.volume.write(inode.0, offset, &data)?;
            Ok(data.len() as u32)
        };
        self.run_open(CallKind::Write, handle, call, |answer| match answer {
            Ok(count) => reply.written(count),
            Err(errno) => reply.error(errno),
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // close(2) promises nothing.
        reply.ok();
    }

    fn fsync(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        // The length of a file is needed to find its data, so fdatasync(2) keeps it, too.
        self.sync(CallKind::Sync, inode, handle, reply);
    }

    fn opendir(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let call = move |state: &mut State| {
            state.volume.status(inode.0)?;
            Ok(state.epoch)
        };
        self.run(CallKind::Look, call, |answer| match answer {
            Ok(epoch) => reply.opened(FileHandle(epoch), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        });
    }

    fn readdir(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let call = move |state: &mut State| {
            let all = state.volume.list(inode.0).skip(offset as usize);
            let all = all.map(|(name, of)| Ok((name.to_owned(), state.volume.status(of)?)));
            all.collect::<CallAnswer<Vec<_>>>()
        };
        self.run_open(CallKind::Look, handle, call, move |answer| match answer {
            Ok(entries) => {
                for (number, (name, status)) in (offset + 1..).zip(entries) {
                    let kind = file_type(status.kind);
                    if reply.add(INodeNo(status.inode), number, kind, &name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn fsyncdir(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.sync(CallKind::SyncDirectory, inode, handle, reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let call = |state: &mut State| Ok(state.volume.room());
        self.run(CallKind::Look, call, |answer| match answer {
            Ok((all, free)) => {
                let [all, free] = [all, free].map(|bytes| bytes / u64::from(BLOCK_BYTES));
                reply.statfs(all, free, free, 0, 0, BLOCK_BYTES, NAME_BYTES_MAX, BLOCK_BYTES);
            }
            Err(errno) => reply.error(errno),
        });
    }

    fn fallocate(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let clears = mode.intersects(FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE);
        let call = move |state: &mut State| {
            let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
            if clears {
                state.volume.clear(inode.0, offset..end)?;
            }
            let longer = state.volume.status(inode.0)?.len < end;
            if longer && !mode.contains(FallocateFlags::KEEP_SIZE) {
                state.volume.set_len(inode.0, end)?;
            }
            Ok(())
        };
        self.run_open(CallKind::Clear, handle, call, empty(reply));
    }

    fn lseek(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let call = move |state: &mut State| {
            let offset = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
            match whence {
                SEEK_DATA => state.volume.seek(inode.0, offset, false),
                SEEK_HOLE => state.volume.seek(inode.0, offset, true),
                _ => Err(Errno::INVAL),
            }
        };
        self.run_open(CallKind::Look, handle, call, |answer| match answer {
            Ok(offset) => reply.offset(offset as i64),
            Err(errno) => reply.error(errno),
        });
    }
}
