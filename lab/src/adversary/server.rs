//! The server under attack: `lunar target` in a control group with a memory limit, with the disks
//! of the well-behaved client and of the attacker.

use super::attack::{Attack, SlowExt4};
use super::login::ChapCredential;
use super::memory_group::MemoryGroup;
use crate::peers::lunar::Lunar;
use crate::powercut::{CallKind, Ext4, LoopDevice, PowerCutDisk, make_ext4};
use crate::system::process::ServerProcess;
use crate::system::scratch::Scratch;
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Memory limit of the server: an attack that makes it need more has won.
pub const MEMORY_BYTES_MAX: u64 = 512 << 20;

/// Maximum time from SIGTERM until the server has ended.
const STOP_MAX: Duration = Duration::from_secs(60);

/// The target of the well-behaved client; attackers may log in to it too.
pub const TARGET_SHARED: &str = "iqn.2026-11.org.lunarsan.test:shared";
/// The attacker's own target.
pub const TARGET_OWN: &str = "iqn.2026-11.org.lunarsan.test:own";
/// A target that demands CHAP.
pub const TARGET_CHAP: &str = "iqn.2026-11.org.lunarsan.test:chap";
/// A target of many LUNs, all small disks in memory.
pub const TARGET_MANY: &str = "iqn.2026-11.org.lunarsan.test:many";
/// A target of many LUNs, all files of [`DISK_BYTES`], if an attack needs it.
pub const TARGET_FILES: &str = "iqn.2026-11.org.lunarsan.test:files";
/// Number of LUNs of each of the two targets.
pub const MANY_LUNS: u16 = 256;
const MANY_BYTES: u64 = 64 << 10;
/// CHAP credential of the target that demands CHAP.
pub const CREDENTIAL: ChapCredential =
    ChapCredential { user: "adversary", secret: "adversary-secret-1" };

/// The well-behaved client's LUN.
pub const LUN_SHARED: u8 = 0;
/// A LUN of the same target that only attacks use.
pub const LUN_NEIGHBOUR: u8 = 1;
/// A LUN of the attacker's target on a slow disk.
pub const LUN_SLOW: u8 = 1;
/// Duration of each call that reads or writes on the slow disk.
const SLOW_CALL: Duration = Duration::from_millis(500);
/// The first LUN of the attacker's target on a slow file system.
pub const LUN_SLOW_EXT4: u8 = 2;
/// Number of LUNs on the slow file system.
pub const SLOW_LUNS: u8 = 16;
/// Duration of each call on the disk below the slow file system.
const SLOW_EXT4_CALL: Duration = Duration::from_millis(100);

/// Bytes of each disk. This process has written all of it to memory before, so it does not count as
/// the server's memory.
pub const DISK_BYTES: u64 = 64 << 20;
/// Blocks of each disk.
pub const DISK_BLOCKS: u32 = (DISK_BYTES / 512) as u32;
/// The first block of the shared LUN that belongs to the attacker; those before belong to the
/// well-behaved client.
pub const SHARED_LBA: u32 = DISK_BLOCKS / 2;

/// A running server.
pub struct AttackedServer {
    lunar: Lunar,
    group: Option<Arc<MemoryGroup>>,
    scratch: Scratch,
    /// Mounted file system, dropped before the disk that it lies on.
    _slow_ext4: Option<MountedExt4>,
    slow_disk: Option<PowerCutDisk>,
    memory_lun: bool,
}

/// An ext4 file system on a loop device; dropping it unmounts the file system and detaches the
/// device.
struct MountedExt4 {
    ext4: Ext4,
    _device: LoopDevice,
}

impl MountedExt4 {
    /// Creates the file system on `disk`.
    fn new(disk: &PowerCutDisk, slow: SlowExt4) -> Result<Self> {
        let lower = disk.path("ext4.img");
        // The disk also counts the data that it keeps for a power cut.
        disk.set_room(2 * (slow.room_mib << 20));
        std::fs::File::create(&lower)?.set_len(slow.room_mib << 20)?;
        let device = LoopDevice::attach(&lower, 512)?;
        make_ext4(&device)?;
        Ok(Self { ext4: Ext4::mount(&device)?, _device: device })
    }
}

impl AttackedServer {
    /// Starts the server as the attack requires it, with its disks in `parent`.
    ///
    /// # Errors
    /// It does not listen in time.
    pub fn start(attack: &Attack, parent: &str) -> Result<Self> {
        let scratch = Scratch::inside(parent, "adversary")?;
        let slow_disk = match attack.slow_disk || attack.slow_ext4.is_some() {
            true => Some(PowerCutDisk::mount("adversary")?),
            false => None,
        };
        let slow_ext4 = match (&slow_disk, attack.slow_ext4) {
            (Some(disk), Some(slow)) => Some(MountedExt4::new(disk, slow)?),
            _ => None,
        };
        scratch.secret("secret", CREDENTIAL.secret)?;
        let folders = SlowFolders {
            disk: slow_disk.as_ref().filter(|_| attack.slow_disk).map(|disk| disk.path("")),
            ext4: slow_ext4.as_ref().map(|mounted| mounted.ext4.path("")),
        };
        let configuration = configuration(&scratch, &folders, attack)?;
        let path = scratch.path("lunar.toml");
        std::fs::write(&path, configuration)?;
        let group = MemoryGroup::new(MEMORY_BYTES_MAX).map(Arc::new);
        let enter = group.as_ref().map(|group| format!("echo $$ > {} &&", group.procs_file()));
        let limit =
            (attack.descriptors > 0).then(|| format!("ulimit -n {} &&", attack.descriptors));
        // The shell enters the group before it becomes the server, so that all of the server's
        // memory counts.
        let before = format!("{} {}", enter.unwrap_or_default(), limit.unwrap_or_default());
        let lunar = Lunar::start_after(&before, &["target", "--config", &path])?;
        if let Some(disk) = &slow_disk {
            let time = if attack.slow_ext4.is_some() { SLOW_EXT4_CALL } else { SLOW_CALL };
            disk.slow(CallKind::Write, time);
            disk.slow(CallKind::Read, time);
        }
        let (memory_lun, _slow_ext4) = (attack.memory_lun, slow_ext4);
        Ok(Self { lunar, group, scratch, _slow_ext4, slow_disk, memory_lun })
    }

    /// Returns the address that the server listens on.
    ///
    /// # Errors
    /// The server reported no address.
    pub fn address(&self) -> Result<SocketAddr> {
        self.lunar.address().parse().with_context(|| self.lunar.address().to_owned())
    }

    /// Returns its control group, if there is one.
    pub fn group(&self) -> Option<Arc<MemoryGroup>> {
        self.group.clone()
    }

    /// Returns the process.
    pub fn server(&mut self) -> &mut ServerProcess {
        self.lunar.server()
    }

    /// Reads the disk of the well-behaved client from its file; `None`: the disk was in memory.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn shared_disk(&self) -> Result<Option<Vec<u8>>> {
        if self.memory_lun {
            return Ok(None);
        }
        let path = self.scratch.path("shared.img");
        std::fs::read(&path).context(path).map(Some)
    }

    /// Stops the server as an administrator does.
    ///
    /// # Errors
    /// The server ends with another status than 0, not in time, or panicked before.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(disk) = &self.slow_disk {
            disk.heal();
        }
        let server = self.lunar.server();
        server.signal(Signal::TERM)?;
        let end = server.wait(STOP_MAX)?;
        let log = server.log();
        let panic = log.lines().find(|line| line.contains("panicked"));
        ensure!(panic.is_none(), "{}", panic.unwrap_or_default());
        let stopped =
            matches!(end, crate::system::process::End::Exited(status) if status.success());
        ensure!(stopped, "the server did not stop cleanly after SIGTERM: {end:?}");
        Ok(())
    }
}

/// Returns the default folder for disks: in memory if the system has such a folder, so that another
/// program's disk traffic is not mistaken for an attack's effect.
pub fn default_parent() -> String {
    let memory = std::path::Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    folder.display().to_string()
}

/// Removes the leftovers of killed runs of the adversary: disks in `parent`, and groups.
pub fn remove_leftovers(parent: &str) {
    let groups = MemoryGroup::mounts().map(|(mount, _)| mount.to_owned());
    for folder in groups.into_iter().chain([parent.to_owned()]) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let number =
                name.strip_prefix("lunar-adversary-").and_then(|end| end.split('-').next());
            let is_gone = |pid: &str| !std::path::Path::new("/proc").join(pid).exists();
            if number.is_some_and(is_gone) {
                // A control group is removed as a folder; its files need not be removed.
                drop(std::fs::remove_dir(entry.path()));
                drop(std::fs::remove_dir_all(entry.path()));
            }
        }
    }
}

/// Folders with the files of slow LUNs.
struct SlowFolders {
    disk: Option<String>,
    ext4: Option<String>,
}

fn configuration(scratch: &Scratch, slow: &SlowFolders, attack: &Attack) -> Result<String> {
    let state = scratch.path("state");
    let secret = scratch.path("secret");
    let chap = format!("chap = {{ user = \"{}\", secret_file = \"{secret}\" }}", CREDENTIAL.user);
    let mut text = format!(
        "state = \"{state}\"\n[listen]\nportals = [\"127.0.0.1:0\"]\n[api]\nlisten = \"none\"\n\
         [limits]\n{}\n",
        attack.limits
    );
    let targets = [
        (TARGET_SHARED, "", &["shared", "neighbour"][..]),
        (TARGET_OWN, "", &["own"]),
        (TARGET_CHAP, &chap, &["chap"]),
    ];
    for (name, line, disks) in targets {
        writeln!(text, "[[target]]\nname = \"{name}\"\nmax_connections = 8")?;
        writeln!(text, "header_digest = [\"none\", \"crc32c\"]")?;
        writeln!(text, "data_digest = [\"none\", \"crc32c\"]\n{line}")?;
        for (id, disk) in disks.iter().enumerate() {
            let is_shared = (name, id) == (TARGET_SHARED, usize::from(LUN_SHARED));
            if is_shared && attack.memory_lun {
                writeln!(text, "[[target.lun]]\nid = {id}\ndevice = \"mem:{DISK_BYTES}\"")?;
            } else {
                let path = scratch.path(&format!("{disk}.img"));
                std::fs::write(&path, vec![0; DISK_BYTES as usize])?;
                writeln!(text, "[[target.lun]]\nid = {id}\ndevice = \"file:{path}\"")?;
                writeln!(text, "cache = \"write-back\"")?;
            }
            if is_shared {
                writeln!(text, "{}", attack.shared_lun)?;
            }
        }
        if name == TARGET_OWN {
            slow_luns(&mut text, slow, attack)?;
        }
    }
    writeln!(text, "[[target]]\nname = \"{TARGET_MANY}\"")?;
    for id in 0..MANY_LUNS {
        writeln!(text, "[[target.lun]]\nid = {id}\ndevice = \"mem:{MANY_BYTES}\"")?;
    }
    if attack.many_files {
        writeln!(text, "[[target]]\nname = \"{TARGET_FILES}\"\nmax_connections = 8")?;
        for id in 0..MANY_LUNS {
            let path = scratch.path(&format!("file-{id}.img"));
            writeln!(text, "[[target.lun]]\nid = {id}\ndevice = \"file:{path}\"")?;
            writeln!(text, "size = {DISK_BYTES}\ncache = \"write-back\"")?;
        }
    }
    Ok(text)
}

fn slow_luns(text: &mut String, slow: &SlowFolders, attack: &Attack) -> Result<()> {
    if let Some(folder) = &slow.disk {
        writeln!(text, "[[target.lun]]\nid = {LUN_SLOW}\ndevice = \"file:{folder}/slow.img\"")?;
        writeln!(text, "size = {DISK_BYTES}")?;
    }
    if let (Some(folder), Some(ext4)) = (&slow.ext4, attack.slow_ext4) {
        for id in LUN_SLOW_EXT4..LUN_SLOW_EXT4 + SLOW_LUNS {
            writeln!(text, "[[target.lun]]\nid = {id}\ndevice = \"file:{folder}/{id}.img\"")?;
            writeln!(text, "size = {}\ncache = \"write-back\"", ext4.lun_mib << 20)?;
        }
    }
    Ok(())
}
