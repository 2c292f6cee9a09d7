//! Device URLs, which name disks. An [`Opener`] decides which of them it opens.

use crate::config::model::{ChapConfig, PoolConfig, PoolMemberConfig};
use crate::config::virtual_lun::{ExtentConfig, VirtualDiskConfig};
use crate::units::{parse_size, size_text};
use crate::{Failure, OpenPool};
use lunar_block::{BlockDevice, is_among_devices};
use lunar_initiator::{ReportedIdentity, Url};
use lunar_switch::{Migration, MigrationOptions};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The disk that a device URL names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DeviceUrl {
    /// A path, or `file:PATH`: a file or a block device.
    File(PathBuf),
    /// `mem:SIZE`: memory, lost when the process ends.
    Memory {
        /// Size of the memory.
        size_bytes: u64,
    },
    /// `iscsi://…/target/lun`: a LUN of a target.
    Iscsi(Url),
    /// `pool:NAME`: a pool of the configuration.
    Pool(String),
    /// `virtual:NAME`, only in messages: the blocks of a virtual LUN.
    Virtual(String),
    /// `extent:STORAGE:START+LENGTH`, only in messages: blocks of a storage.
    Extent(ExtentConfig),
}

/// Maximum length of the name of a pool.
const POOL_NAME_BYTES_MAX: usize = 64;

/// True for a valid name of a pool.
pub fn is_pool_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=POOL_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// Options for opening a device. The block lengths of a remote LUN are those of its target.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DeviceOptions {
    /// The size a missing file is created with, and an existing one must have.
    pub size_bytes: Option<u64>,
    /// Bypasses the page cache.
    pub direct: bool,
    /// Uses io_uring on the threads that have a ring: those that serve.
    pub io_uring: bool,
    /// Logical block length in bytes.
    pub block_bytes: u32,
    /// Physical block length in bytes.
    pub physical_block_bytes: u32,
    /// Refuses writes.
    pub read_only: bool,
    /// Offers deallocation.
    pub thin: bool,
    /// Credentials for the login to the target of a remote LUN.
    pub chap: Option<ChapConfig>,
    /// The configuration of a pool.
    pub pool: Option<Arc<PoolConfig>>,
    /// The extents of a virtual disk.
    pub virtual_disk: Option<Arc<VirtualDiskConfig>>,
}

/// Opens the disk of a device URL.
pub trait Opener: fmt::Debug + Send + Sync {
    /// Opens a disk that is to be served. May block.
    ///
    /// # Errors
    /// Returns the errors of the device; fails if the device cannot be served.
    fn open(
        &self,
        url: &DeviceUrl,
        options: &DeviceOptions,
    ) -> Result<Arc<dyn BlockDevice>, Failure>;

    /// Opens a remote LUN that is to be served. May block, but not longer than requested.
    ///
    /// # Errors
    /// Same as [`open`](Self::open), with
    /// [`FailureKind::Unavailable`](crate::FailureKind::Unavailable) if the storage is unreachable;
    /// fails if an identity is requested and the LUN reports none.
    fn open_remote(
        &self,
        url: &Url,
        options: &DeviceOptions,
        opening: RemoteOpening,
    ) -> Result<RemoteDevice, Failure> {
        match opening.identity {
            IdentitySource::Own => {
                let device = self.open(&DeviceUrl::Iscsi(url.clone()), options)?;
                Ok(RemoteDevice { device, identity: None })
            }
            IdentitySource::Device => {
                let what = format!("{url} has no identity that can be passed on");
                Err(Failure::new(what).hint(NO_IDENTITY))
            }
        }
    }

    /// Opens a pool that is to be served. May block; waits for each remote member at most for
    /// `member_time_max`.
    ///
    /// # Errors
    /// The members that are missing or do not belong to the pool, and the errors of devices; with
    /// [`FailureKind::Unavailable`](crate::FailureKind::Unavailable) if the storages of missing
    /// members are unreachable.
    fn open_pool(
        &self,
        config: &PoolConfig,
        member_time_max: Duration,
    ) -> Result<OpenPool, Failure> {
        let _ = member_time_max;
        Err(Failure::new(format!("the pool {} cannot be opened here", config.name)))
    }

    /// Opens a virtual disk that is to be served. May block; waits for each storage at most for
    /// `time_max`.
    ///
    /// # Errors
    /// The storages that cannot be opened, with
    /// [`FailureKind::Unavailable`](crate::FailureKind::Unavailable) if they are unreachable;
    /// extents that the storages do not have.
    fn open_virtual(
        &self,
        name: &str,
        config: &VirtualDiskConfig,
        time_max: Duration,
    ) -> Result<Arc<dyn BlockDevice>, Failure> {
        let _ = (config, time_max);
        Err(Failure::new(format!("the virtual disk {name} cannot be opened here")))
    }

    /// Prepares an open virtual disk for a larger size, with which it gets these extents; `None`:
    /// it is not to grow. May block, as [`open_virtual`](Self::open_virtual).
    ///
    /// # Errors
    /// Same as of `open_virtual`; fails for a device that is no open virtual disk.
    fn prepare_growth(
        &self,
        device: &Arc<dyn BlockDevice>,
        config: Option<&VirtualDiskConfig>,
    ) -> Result<(), Failure> {
        let _ = config;
        Err(Failure::new(format!("{} cannot grow here", device.name())))
    }

    /// Prepares the move of an extent of an open virtual disk. May block, as
    /// [`open_virtual`](Self::open_virtual).
    ///
    /// # Errors
    /// Same as of `open_virtual`; fails if the blocks do not fit, and for a device that is no open
    /// virtual disk.
    fn open_migration(
        &self,
        device: &Arc<dyn BlockDevice>,
        extent_index: usize,
        to: &ExtentConfig,
        options: MigrationOptions,
        time_max: Duration,
    ) -> Result<Migration, Failure> {
        let _ = (extent_index, to, options, time_max);
        Err(Failure::new(format!("extents of {} cannot be moved here", device.name())))
    }

    /// Opens a device that is a member of a pool, or becomes one. May block; waits for a remote LUN
    /// at most for `time_max`.
    ///
    /// # Errors
    /// Same as [`open_remote`](Self::open_remote).
    fn open_member(
        &self,
        member: &PoolMemberConfig,
        time_max: Duration,
    ) -> Result<Arc<dyn BlockDevice>, Failure> {
        let _ = time_max;
        self.open(&member.device, &member.options)
    }

    /// Opens a member of a pool, which may be a pool itself: then its handle is returned as well.
    ///
    /// # Errors
    /// Same as [`open_member`](Self::open_member) or [`open_pool`](Self::open_pool).
    fn open_any_member(
        &self,
        member: &PoolMemberConfig,
        time_max: Duration,
    ) -> Result<(Arc<dyn BlockDevice>, Option<OpenPool>), Failure> {
        let Some(inner) = &member.options.pool else {
            return Ok((self.open_member(member, time_max)?, None));
        };
        let inner = self.open_pool(inner, time_max)?;
        let device = inner.pool().cloned().ok_or_else(Failure::stopping)?;
        Ok((device, Some(inner)))
    }
}

/// Options for opening a remote LUN.
#[derive(Clone, Copy, Debug)]
pub struct RemoteOpening {
    /// The identity that its unit has for initiators.
    pub identity: IdentitySource,
    /// Time after which its storage counts as unreachable.
    pub time_max: Duration,
}

/// Time to open a remote LUN.
pub const REMOTE_OPEN_TIME_MAX: Duration = Duration::from_secs(30);

/// An open remote LUN.
#[derive(Clone, Debug)]
pub struct RemoteDevice {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// The identity that it reports, if requested.
    pub identity: Option<ReportedIdentity>,
}

/// Hint for a device without an identity.
pub const NO_IDENTITY: &str = "omit the identity: only a remote LUN (a device iscsi://…) has one";

/// The identity that the unit of a device has for initiators.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum IdentitySource {
    /// An identity of its own.
    #[default]
    Own,
    /// The identity that the device reports: that of the remote LUN.
    Device,
}

impl IdentitySource {
    /// Returns the name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Device => "device",
        }
    }
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            size_bytes: None,
            direct: false,
            io_uring: false,
            block_bytes: 512,
            physical_block_bytes: 4096,
            read_only: false,
            thin: true,
            chap: None,
            pool: None,
            virtual_disk: None,
        }
    }
}

impl DeviceUrl {
    /// Reads a path or a URL.
    ///
    /// # Errors
    /// Returns what is wrong and what is valid; never repeats a secret in the text.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        if Url::has_scheme(text) {
            let url: Url = text
                .parse()
                .map_err(|e: lunar_initiator::UrlError| Failure::usage(e.what).hint(e.hint))?;
            if url.unit.is_none() {
                return Err(Failure::usage("the URL contains a portal, but no target and LUN")
                    .hint(
                        "write iscsi://HOST[:PORT]/TARGET/LUN; see `lunar discover` for targets",
                    ));
            }
            return Ok(Self::Iscsi(url));
        }
        match scheme(text) {
            None if text.is_empty() => Err(Failure::usage("the name of a device is empty")),
            None => Ok(Self::File(PathBuf::from(text))),
            Some(("file", "")) => Err(Failure::usage("file: requires a path")),
            Some(("file", path)) => Ok(Self::File(PathBuf::from(path))),
            Some(("mem", size)) => match parse_size(size) {
                Ok(0) | Err(_) => Err(Failure::usage(format!("`{text}` has no valid memory size"))
                    .hint("write mem:SIZE, for example mem:1G")),
                Ok(size_bytes) => Ok(Self::Memory { size_bytes }),
            },
            Some(("pool", name)) if is_pool_name(name) => Ok(Self::Pool(name.to_owned())),
            Some(("pool", _)) => {
                Err(Failure::usage(format!("`{text}` has no valid name of a pool"))
                    .hint("write pool:NAME, where NAME is that of a [[pool]] of the configuration"))
            }
            Some(("rbd", _)) => {
                Err(Failure::usage(format!("`{text}` is not supported in this version"))
                    .hint("use a path, file:PATH, mem:SIZE, pool:NAME or an iscsi:// URL"))
            }
            Some((scheme, _)) => Err(Failure::usage(format!("unknown scheme `{scheme}:`")).hint(
                "write PATH, file:PATH, mem:SIZE, pool:NAME or iscsi://…; write ./NAME for a file \
                 with a colon in its name",
            )),
        }
    }

    /// Whether `text` names this device, as a URL or as a path; a relative path starts at the
    /// working directory of this process.
    pub fn is_named(&self, text: &str) -> bool {
        if let Self::Virtual(_) | Self::Extent(_) = self {
            return self.to_string() == text;
        }
        Self::parse(text).is_ok_and(|url| match (url.path(), self.path()) {
            (Some(asked), Some(own)) => whole(asked) == whole(own),
            _ => url == *self,
        })
    }

    /// Whether an open device with this name is the one that the URL names.
    pub fn is_device(&self, name: &str) -> bool {
        match self {
            Self::Pool(pool) => pool == name,
            _ => self.to_string() == name || self.is_named(name),
        }
    }

    /// The portal and LUN, if the device is behind a session.
    pub fn portal(&self) -> Option<&Url> {
        match self {
            Self::Iscsi(url) => Some(url),
            _ => None,
        }
    }

    /// True if the device is behind a session.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Iscsi(_) | Self::Extent(_))
    }

    /// The path, if the device is a file.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            _ => None,
        }
    }
}

/// Hint for a path that leads to nothing; `create` is the hint where a file could be created.
pub fn missing_hint(path: &Path, create: &str) -> String {
    match is_among_devices(path) {
        true => "check the device name (see lsblk); files are not created in /dev, use another \
                 directory"
            .to_owned(),
        false => create.to_owned(),
    }
}

/// The absolute path, or the path itself if there is none.
fn whole(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// `scheme:rest`, if `text` has that form. A path with a slash before its first colon does not.
fn scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-".contains(&b);
    (!scheme.is_empty() && scheme.bytes().all(plain)).then_some((scheme, rest))
}

impl fmt::Display for DeviceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Memory { size_bytes } => match size_text(*size_bytes) {
                Some(size) => write!(f, "mem:{size}"),
                None => write!(f, "mem:{size_bytes}"),
            },
            Self::Iscsi(url) => url.fmt(f),
            Self::Pool(name) => write!(f, "pool:{name}"),
            Self::Virtual(name) => write!(f, "virtual:{name}"),
            Self::Extent(extent) => write!(f, "extent:{extent}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an absolute path from a client names the disk that the server has by a relative path.
    #[test]
    fn relative_and_absolute_paths_are_one_device() {
        let whole = std::path::absolute("disk.img").unwrap();
        let device = DeviceUrl::parse("disk.img").unwrap();
        for (text, named) in [
            ("disk.img".to_owned(), true),
            ("./disk.img".to_owned(), true),
            (format!("file:{}", whole.display()), true),
            ("/disk.img".to_owned(), false),
            ("mem:1G".to_owned(), false),
        ] {
            assert_eq!(device.is_named(&text), named, "{text}");
        }
        assert!(DeviceUrl::parse("mem:1G").unwrap().is_named("mem:1024M"));
    }

    #[test]
    fn schemes() {
        for (text, url) in [
            ("disk.img", DeviceUrl::File("disk.img".into())),
            ("/srv/a:b.img", DeviceUrl::File("/srv/a:b.img".into())),
            ("./mem:1G", DeviceUrl::File("./mem:1G".into())),
            ("file:/srv/disk.img", DeviceUrl::File("/srv/disk.img".into())),
            ("mem:1G", DeviceUrl::Memory { size_bytes: 1 << 30 }),
            ("pool:safe-1", DeviceUrl::Pool("safe-1".to_owned())),
        ] {
            assert_eq!(DeviceUrl::parse(text).unwrap(), url, "{text}");
        }
        for text in [
            "",
            "file:",
            "mem:",
            "mem:0",
            "mem:x",
            "pool:",
            "pool:a b",
            "rbd:p/i",
            "http://x",
            "iscsi://host",
            "iscsi://u%s@host/t/0",
        ] {
            let failure = DeviceUrl::parse(text).unwrap_err();
            assert_eq!(failure.kind, crate::FailureKind::Usage, "{text}");
        }
    }
}
