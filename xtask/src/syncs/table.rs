//! The syncs of the product, and the replacement of each when it is removed.

/// A call that makes something durable, or looks like one.
#[derive(Debug)]
pub struct Call {
    /// File of the call.
    pub file: &'static str,
    /// Text that occurs once in the file: the call, or a longer text that contains «the call».
    pub text: &'static str,
    /// Treatment of the call when the syncs are tested.
    pub treatment: Treatment,
}

/// Treatment of a call when the syncs are tested.
#[derive(Clone, Copy, Debug)]
pub enum Treatment {
    /// The call is removed, and a test must fail.
    Removed {
        /// Replacement of the call, an expression like the call.
        replacement: &'static str,
        /// Part of the name of the power-cut test that runs first.
        detected_by: &'static str,
    },
    /// The call stays.
    Kept {
        /// Reason why nothing is lost without it, or the test that covers it.
        why: &'static str,
    },
}

const fn removed(
    file: &'static str,
    text: &'static str,
    replacement: &'static str,
    detected_by: &'static str,
) -> Call {
    Call { file, text, treatment: Treatment::Removed { replacement, detected_by } }
}

const fn kept(file: &'static str, text: &'static str, why: &'static str) -> Call {
    Call { file, text, treatment: Treatment::Kept { why } }
}

const DURABLE: &str = "crates/lunar-block/src/durable.rs";
const FOLDER: &str = "crates/lunar-block/src/state_directory.rs";
const FILE: &str = "crates/lunar-block/src/file.rs";
const DISK: &str = "crates/lunar-block/src/file/disk.rs";
const COMMIT: &str = "crates/lunar-block/src/file/commit.rs";
const OPEN: &str = "crates/lunar-block/src/file/open.rs";
const IDENTITY: &str = "crates/lunar-control/src/identity.rs";
const EXECUTE: &str = "crates/lunar-target/src/execute.rs";
const VERIFY: &str = "crates/lunar-target/src/execute/verify.rs";
const EXECUTE_LONG: &str = "crates/lunar-target/src/execute/long_operation.rs";
const LONG: &str = "crates/lunar-target/src/long_operation.rs";
const STATE: &str = "crates/lunar-target/src/state_file.rs";
const DISK_COMMANDS: &str = "crates/lunar-target/src/disk_unit/as_unit.rs";
const POISON: &str = "crates/lunar-target/src/poison.rs";
const PROVISIONING: &str = "crates/lunar-scsi/src/plan/provisioning.rs";
const EXCLUSIVE: &str = "crates/lunar-scsi/src/plan/exclusive.rs";

const POOL_MEMBER: &str = "crates/lunar-pool/src/member_device.rs";
const REMOTE: &str = "crates/lunar-initiator/src/remote_disk.rs";

// Names of power-cut tests, or parts of them.
const THROUGH: &str = "on_the_disk_that_writes_through_directly";
const BACK: &str = "on_the_disk_that_writes_back_directly";
const NEW: &str = "a_new_disk_is_kept";
const KILLED: &str = "files_of_a_killed_start";
const RESERVED: &str = "reservations_are_kept";
const ERASED: &str = "erased_data_stays";
const AT_ONCE: &str = "a_sync_that_is_answered_at_once";
const POISONED: &str = "a_poisoned_disk_refuses_writes_after_a_restart";
// Reasons to keep calls.
const UNSERVED: &str = "no program executes OSD commands yet";
const RECORDED: &str = "covered by the tests of lunar-osd over disks that are cut at each write";
const VOLATILE: &str = "covered by the tests of lunar-pool over members with volatile caches";
const MOVES: &str =
    "covered by the tests of lunar-switch that crash and cut power at any step of a move";
const BLOCK_SIZE: &str = "a lost file is refused with a hint; the tests `disk_changes` of the \
                          program restart the server";
const TARGETS: &str = "the tests `targets` of the program restart the server; the syncs of \
                       StateDirectory::save have rows of their own";
const MOVES_KILLED: &str = "covered by the test of lunar that kills a switch while an extent moves";
const NO_DISK: &str = "standard output, not a disk";

/// All calls that make something durable, or look like one.
pub const CALLS: &[Call] = &[
    // The device: data.
    removed(DISK, "rustix::fs::fdatasync(&self.file)", "Ok::<(), rustix::io::Errno>(())", BACK),
    removed(
        FILE,
        "self.commit.commit(period, &self.workers).await",
        "Ok::<(), SyncError>(())",
        BACK,
    ),
    removed(
        FILE,
        "self.write_bytes(range, bytes, from).await?;
            }
            if durable { «self.commit(period).await» } else { Ok(()) }",
        "Ok(())",
        BACK,
    ),
    removed(
        FILE,
        ".await?;
            }
        }
        if durable { «self.commit(period).await» } else { Ok(()) }",
        "Ok(())",
        THROUGH,
    ),
    removed(
        FILE,
        "if self.disk.read_only { Ok(()) } else { «self.commit(period).await» }",
        "Ok(())",
        BACK,
    ),
    kept(
        FILE,
        "return self.flush().await;",
        "recovery of a disk that is not poisoned: promises no durability",
    ),
    removed(
        COMMIT,
        "self.sync_locked().map_err(|error| SyncError::Failed(Arc::new(error)))",
        "Ok(())",
        BACK,
    ),
    kept(
        COMMIT,
        "self.sync_locked()?;",
        "keeps a disk poisoned whose syncs still fail; covered by block's own test of recover",
    ),
    // The device: its size and its name.
    removed(
        OPEN,
        r#"file.sync_all().map_err(|e| failed("its size cannot be made durable", e))?"#,
        "()",
        NEW,
    ),
    removed(
        OPEN,
        "let directory = «crate::durable::sync_folder(folder)»;",
        "Ok::<(), io::Error>(())",
        NEW,
    ),
    removed(OPEN, "if size { «file.sync_all()» } else { Ok(()) }", "Ok(())", KILLED),
    removed(OPEN, "let name = «crate::durable::sync_folder(folder)»;", "Ok(())", KILLED),
    removed(DURABLE, "«folder.sync_all()?»;\n    let mut below", "()", KILLED),
    removed(DURABLE, "«folder.sync_all()?»;\n        above", "()", NEW),
    removed(
        DURABLE,
        "File::from(openat(folder, \".\", flags, Mode::empty())?).sync_all()",
        "openat(folder, \".\", flags, Mode::empty()).map(drop).map_err(io::Error::from)",
        NEW,
    ),
    removed(
        "crates/lunar-block/src/file/resize.rs",
        "self.commit(period).await",
        "Ok(())",
        "a_resize_reported_as_done",
    ),
    // State directories: the folder, and its files.
    removed(
        FOLDER,
        "«durable::sync_folder_and_parents(&there.folder)?»;",
        "()",
        "a_restored_state_directory",
    ),
    removed(
        FOLDER,
        "match «durable::sync_folder_and_parents(&made.folder)» {",
        "Ok::<(), io::Error>(())",
        NEW,
    ),
    removed(FOLDER, "file.write_all(bytes)?;\n    «file.sync_all()»", "Ok(())", RESERVED),
    removed(
        FOLDER,
        "renameat(&self.folder, &next, &self.folder, name)?;\n        «self.folder.sync_all()»",
        "Ok(())",
        RESERVED,
    ),
    removed(FOLDER, "=> Err(error),\n            _ => «self.folder.sync_all()»,", "Ok(())", NEW),
    removed(
        FOLDER,
        "created => created?.write_all(bytes)?,
        }
        «self.folder.sync_all()»",
        "Ok(())",
        POISONED,
    ),
    removed(FOLDER, "Err(Errno::NOENT) => «self.folder.sync_all()»,", "Ok(())", POISONED),
    // Identity of a unit.
    kept(
        IDENTITY,
        "StateDirectory::create(directory)",
        "also opens the directory; the calls that make it durable are above",
    ),
    removed(
        IDENTITY,
        "directory.save_first(UUID_FILE, &aside, format!(\"{uuid}\\n\").as_bytes())",
        "std::fs::write(directory.path().join(UUID_FILE), format!(\"{uuid}\\n\"))",
        NEW,
    ),
    kept(
        "crates/lunar-control/src/daemon/units.rs",
        "identity::create_directory(&directory)?",
        "also opens the directory; the calls that make it durable are above",
    ),
    kept(
        "crates/lunar-control/src/daemon/units.rs",
        "identity::create_directory(&path)?",
        "opens the directory of a remote LUN or pool; the calls that make it durable are above",
    ),
    kept(
        "apps/lunar/src/pool_owner.rs",
        "identity::create_directory(&state.join(format!(\"pool-{name}\")))?",
        "opens the directory of a pool; the calls that make it durable are above",
    ),
    kept(
        "apps/lunar/src/pool_owner.rs",
        "directory.save(LABEL_FILE, &label)",
        "a record that is lost, or that lags behind, only makes an opening more careful",
    ),
    // Reservations, and pending erasures.
    kept(
        STATE,
        "StateDirectory::create(&self.directory)",
        "also opens the directory; the calls that make it durable are above",
    ),
    removed(STATE, "directory.save(NAME, state)", "Ok(drop(directory))", RESERVED),
    removed(
        "crates/lunar-target/src/save_queue.rs",
        "let saved = «unit.save_state().await»;",
        "Ok::<(), crate::Error>(())",
        RESERVED,
    ),
    removed(
        "crates/lunar-target/src/save_queue.rs",
        "let _ = «unit.save_state().await»;",
        "Ok::<(), crate::Error>(())",
        "a_refused_registration",
    ),
    removed("crates/lunar-target/src/disk_unit.rs", "file.save(&state)", "Ok(())", RESERVED),
    removed(
        "crates/lunar-scsi/src/reservations/out.rs",
        "outcome.save = «self.differs_in_state(&before)»;",
        "false",
        RESERVED,
    ),
    removed(DISK_COMMANDS, "plan = if «save» {", "false", RESERVED),
    removed(
        DISK_COMMANDS,
        "change.saved(&abort).await",
        "PlanResult::Good(Bytes::new())",
        RESERVED,
    ),
    removed(LONG, "if «unit.save().await» {", "true", ERASED),
    removed(LONG, "self.save_state().await", "Ok::<(), crate::Error>(())", ERASED),
    removed(LONG, "self.device().flush().await?", "()", ERASED),
    removed(LONG, "«unit.save().await»;", "true", "a_refused_erasure"),
    removed(LONG, "if «self.save().await» {", "true", "data_written_after_an_erasure"),
    kept(
        LONG,
        "// If the failure is not saved, the next start tries once more, which is just as good.
        self.save().await;",
        "the operation has failed: without this save the next start repeats it",
    ),
    removed(
        EXECUTE_LONG,
        "let saved = «unit.save_state().await»;",
        "Ok::<(), crate::Error>(())",
        "exit_failure_mode_survives_a_power_cut",
    ),
    removed(
        EXECUTE_LONG,
        "let _ = «unit.save_state().await»;",
        "Ok::<(), crate::Error>(())",
        "a_refused_exit",
    ),
    // The mark of a disk that takes no writes.
    removed(
        POISON,
        "StateDirectory::create(&self.directory)?.save_name(MARK_NAME, MARK)",
        "Ok(())",
        POISONED,
    ),
    // Commands: calls that make data durable.
    removed(EXECUTE, "let flushed = «self.flush().await»;", "Ok::<(), Stop>(())", BACK),
    removed(
        EXECUTE,
        "if self.unit.flushes_before_read(from_medium) {
            «self.flush().await?»;",
        "()",
        BACK,
    ),
    removed(EXECUTE, "if durable { «self.flush().await» } else { Ok(()) }", "Ok(())", THROUGH),
    removed(EXECUTE, "self.unit.flush_later()", "()", AT_ONCE),
    removed(
        "crates/lunar-target/src/disk_unit.rs",
        "if let Err(error) = «unit.device().flush().await» {",
        "Ok(())",
        AT_ONCE,
    ),
    removed(
        EXECUTE,
        "let flush = «context.scope(self.device().flush())»;",
        "std::future::ready(Ok::<(), lunar_block::Error>(()))",
        BACK,
    ),
    removed(
        VERIFY,
        "let guard = self.write_blocks(range, data.clone(), «true»).await?;",
        "false",
        BACK,
    ),
    removed(
        "crates/lunar-target/src/execute/copy.rs",
        "job.destination.flush().await",
        "Ok(())",
        THROUGH,
    ),
    removed(
        "crates/lunar-target/src/execute/copy.rs",
        "let durable = «self.make_durable(&jobs).await»;",
        "Ok(())",
        THROUGH,
    ),
    // Commands: decisions whether data must be durable.
    removed(
        "crates/lunar-scsi/src/plan/read_write.rs",
        "unit.is_durable(blocks.fua())",
        "false",
        BACK,
    ),
    removed(EXCLUSIVE, "unit.is_durable(raw.flags & FUA != 0)", "false", BACK),
    removed(EXCLUSIVE, "unit.is_durable(blocks.fua())", "false", BACK),
    removed(
        PROVISIONING,
        "Plan::Unmap { ranges, durable: «unit.is_durable(false)» }",
        "false",
        THROUGH,
    ),
    removed(PROVISIONING, "may_unmap, durable: «unit.is_durable(false)» }", "false", THROUGH),
    kept(
        "crates/lunar-scsi/src/plan/atomic.rs",
        "unit.is_durable(raw.flags & FUA != 0)",
        "no file offers atomic writes; target/tests/durable.rs covers it with a disk that does",
    ),
    // The end of a unit, and of the server.
    kept(
        DISK_COMMANDS,
        "self.device().flush()",
        "the end of a unit; the calls for which it is made are below",
    ),
    removed(
        "crates/lunar-target/src/final_sync.rs",
        "unit.flush().await",
        "Ok::<(), lunar_block::Error>(())",
        "an_orderly_end_syncs",
    ),
    removed(
        "crates/lunar-target/src/server.rs",
        "final_sync::sync_all(self.catalogue.units(), progress)",
        "Vec::new()",
        "an_orderly_end_syncs",
    ),
    removed(
        "crates/lunar-target/src/replace.rs",
        "tokio::time::timeout(RETIRE_SYNC_MAX, unit.flush()).await",
        "Ok::<_, tokio::time::error::Elapsed>(Ok::<(), lunar_block::Error>(()))",
        "a_removed_unit_is_synced",
    ),
    removed(
        "crates/lunar-target/src/replace.rs",
        "if let Err(why) = «retire(unit).await» {",
        "Ok(())",
        "a_removed_unit_is_synced",
    ),
    // The tools.
    removed("apps/lunar/src/commands/write.rs", "device.flush().await?", "()", "lunar_write_syncs"),
    removed(
        "apps/lunar/src/commands/copy/engine.rs",
        "self.destination.flush().await?",
        "()",
        "lunar_copy_syncs",
    ),
    removed(
        REMOTE,
        "self.send_flush(since).await.map_err(|error| self.failed(None, error))",
        "Ok(())",
        "lunar_write_syncs",
    ),
    removed(
        REMOTE,
        "async { self.flush_all(self.mark()).await }.boxed()",
        "async { Ok(()) }.boxed()",
        "lunar_write_syncs",
    ),
    kept(
        "crates/lunar-initiator/src/blocking.rs",
        "self.run(async move { disk.flush().await })?",
        "no program of this project calls it; it forwards to the flush below",
    ),
    kept(
        REMOTE,
        "if wanted { Box::pin(self.flush_all(since)).await } else { Ok(()) }",
        "for durable writes to a unit without FUA; no command of this version sends them",
    ),
    kept("apps/lunar/src/output.rs", ".and_then(|()| stdout.flush())", NO_DISK),
    kept("apps/lunar/src/commands/pipes.rs", "result.and_then(|()| stdout.flush())", NO_DISK),
    kept("crates/lunar-load/src/probe/server.rs", "to.flush()?", NO_DISK),
    kept("crates/lunar-load/src/probe/server.rs", "return to.flush()", NO_DISK),
    // Pools. Their own tests cut the power of members with volatile caches.
    kept(POOL_MEMBER, "self.device.flush().await", VOLATILE),
    kept(POOL_MEMBER, "bytes.clone()).await?;\n            «self.flush().await?»", VOLATILE),
    kept(POOL_MEMBER, "first, false).await?;\n        }\n        «self.flush().await?»", VOLATILE),
    kept("crates/lunar-target/src/osd/commands.rs", "self.store.flush()", UNSERVED),
    kept("crates/lunar-osd/src/block_io.rs", "self.device.flush()", RECORDED),
    kept("crates/lunar-osd/src/index.rs", "transaction.commit()", RECORDED),
    kept("crates/lunar-osd/src/store/checkpoint.rs", "true => self.flush()", RECORDED),
    kept("crates/lunar-osd/src/store/commit.rs", "reply(done, self.flush())", RECORDED),
    kept("crates/lunar-osd/src/store/commit.rs", "            self.flush()?;", RECORDED),
    kept("crates/lunar-pool/src/joined/resize.rs", "member.device.flush().await?", VOLATILE),
    kept(POOL_MEMBER, "zeroes.clone()).await?;\n        }\n        «self.flush().await»", VOLATILE),
    kept(POOL_MEMBER, "page).await?;\n        «self.flush().await»", VOLATILE),
    kept("crates/lunar-pool/src/create.rs", "member.flush().await?", VOLATILE),
    kept("crates/lunar-pool/src/fenced_device.rs", "self.guard(|inner| inner.flush())", VOLATILE),
    kept("crates/lunar-pool/src/pool.rs", "device.0.joined().flush().await", VOLATILE),
    kept("crates/lunar-pool/src/pool.rs", "self.device().flush()", VOLATILE),
    kept("crates/lunar-pool/src/joined.rs", "in_own_context(device.flush())", VOLATILE),
    kept("crates/lunar-pool/src/joined.rs", "Box::pin(self.flush_all())", VOLATILE),
    kept(
        "crates/lunar-switch/src/virtual_disk.rs",
        "routing.joined.flush().await?",
        "covered by the tests of lunar-switch over storages that count flushes",
    ),
    // Moves of extents: crashes and losses at each step.
    kept("crates/lunar-switch/src/migration.rs", "self.to.device.flush().await", MOVES),
    kept("crates/lunar-switch/src/migration/copy.rs", "device.flush().await", MOVES),
    kept("crates/lunar-switch/src/migration/copy.rs", "self.commit(record, joined)", MOVES),
    kept("crates/lunar-switch/src/migration/copy.rs", "record.commit()", MOVES),
    kept("crates/lunar-control/src/daemon/migrations.rs", "next.save(state)?", MOVES_KILLED),
    kept("crates/lunar-control/src/daemon/migrations.rs", "moved.commit(&job.lun", MOVES_KILLED),
    kept("crates/lunar-control/src/identity.rs", "directory.save(BLOCK_SIZE_FILE", BLOCK_SIZE),
    kept("crates/lunar-control/src/config/persisted_targets.rs", "?.save(&file_name", TARGETS),
    kept("crates/lunar-control/src/config/moved_extents.rs", ".save(FILE, &text)", MOVES_KILLED),
    kept(
        "crates/lunar-pool/src/mirror/resync.rs",
        "self.within(self.target.flush()).await",
        VOLATILE,
    ),
    kept("crates/lunar-pool/src/mirror/flush.rs", "let work = member.flush();", VOLATILE),
    kept("crates/lunar-pool/src/mirror/close.rs", "(Arc::clone(member), member.flush())", VOLATILE),
    kept("crates/lunar-pool/src/mirror/member.rs", "member.device.flush().await?", VOLATILE),
    kept(
        "crates/lunar-pool/src/mirror/member.rs",
        "return Box::pin(std::future::ready(Ok(())));\n        }\n        «self.flush()»",
        VOLATILE,
    ),
    // Not part of the product.
    kept(
        "crates/lunar-block/src/device.rs",
        "self.flush()",
        "recovery of a disk that is not poisoned: promises no durability",
    ),
    kept("crates/lunar-block/src/fault.rs", "return self.flush().await;", "a decorator for tests"),
    kept("crates/lunar-block/src/fault.rs", "self.inner.flush().await", "a decorator for tests"),
    kept(
        "crates/lunar-block/src/fair.rs",
        "inner.flush().await?;",
        "a decorator of LUNs of other targets, which no power-cut test serves",
    ),
];
