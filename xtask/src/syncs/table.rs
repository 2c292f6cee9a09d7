//! The syncs of the product, and what becomes of each when it is removed.

/// A call that makes something durable, or looks like one.
#[derive(Debug)]
pub struct Call {
    /// The file that it is in.
    pub file: &'static str,
    /// Text that is there once, with the call in it.
    pub text: &'static str,
    /// What the rounds do with it.
    pub fate: Fate,
}

/// What the rounds do with a call.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// It is removed, and a test must fail.
    Removed {
        /// What stands in place of the text then.
        becomes: &'static str,
        /// Part of the name of the power-cut test that is tried first.
        noticed_by: &'static str,
    },
    /// It stays.
    Kept {
        /// Why nothing is lost without it, or what looks after it.
        why: &'static str,
    },
}

const fn removed(
    file: &'static str,
    text: &'static str,
    becomes: &'static str,
    noticed_by: &'static str,
) -> Call {
    Call { file, text, fate: Fate::Removed { becomes, noticed_by } }
}

const fn kept(file: &'static str, text: &'static str, why: &'static str) -> Call {
    Call { file, text, fate: Fate::Kept { why } }
}

const DURABLE: &str = "crates/block/src/durable.rs";
const FILE: &str = "crates/block/src/file.rs";
const OPEN: &str = "crates/block/src/file/open.rs";
const IDENTITY: &str = "crates/control/src/identity.rs";
const EXECUTE: &str = "crates/target/src/execute.rs";
const EXECUTE_LONG: &str = "crates/target/src/execute/long_operation.rs";
const LONG: &str = "crates/target/src/long_operation.rs";
const STATE: &str = "crates/target/src/state_file.rs";
const PROVISIONING: &str = "crates/scsi/src/plan/provisioning.rs";
const EXCLUSIVE: &str = "crates/scsi/src/plan/exclusive.rs";

const REMOTE: &str = "crates/initiator/src/remote_disk.rs";

const EACH: &str = "acknowledged_is_on_the_disk";
const NEW: &str = "a_new_disk_is_kept";
const KILLED: &str = "what_a_killed_start_left";
const RESERVED: &str = "reservations_are_kept";
const ERASED: &str = "what_was_erased";
const AT_ONCE: &str = "a_sync_that_is_answered_at_once";
const NO_DISK: &str = "standard output, no disk";

/// All of them.
pub const CALLS: &[Call] = &[
    // The device: data.
    removed(FILE, "rustix::fs::fdatasync(&synced.file)", "Ok::<(), rustix::io::Errno>(())", EACH),
    removed(
        FILE,
        "match self.commit.commit(&self.workers).await {",
        "match Ok::<(), SyncError>(()) {",
        EACH,
    ),
    removed(
        FILE,
        "self.write_bytes(range, bytes, from).await?;
            }
            if durable { self.commit().await } else { Ok(()) }",
        "self.write_bytes(range, bytes, from).await?;
            }
            { let _ = durable; Ok(()) }",
        EACH,
    ),
    removed(
        FILE,
        ".await?;
        }
        if durable { self.commit().await } else { Ok(()) }",
        ".await?;
        }
        { let _ = durable; Ok(()) }",
        EACH,
    ),
    removed(FILE, "if self.disk.read_only { Ok(()) } else { self.commit().await }", "Ok(())", EACH),
    kept(
        FILE,
        "commit.try_again()?;",
        "after a failed sync: lets out no disk whose syncs still fail; block's own test of recover",
    ),
    // The device: its size and its name.
    removed(
        OPEN,
        r#"file.sync_all().map_err(|e| failed("its size cannot be made durable", e))?;"#,
        "",
        NEW,
    ),
    removed(
        OPEN,
        "let directory = crate::durable::keep_name(&self.options.path);",
        "let directory = Ok::<(), io::Error>(());",
        NEW,
    ),
    removed(
        OPEN,
        "if size { file.sync_all() } else { Ok(()) }",
        "{ let _ = (size, file); Ok::<(), io::Error>(()) }",
        KILLED,
    ),
    removed(
        OPEN,
        "size.and_then(|()| crate::durable::keep_name(&self.options.path))",
        "size",
        KILLED,
    ),
    removed(DURABLE, "sync_directory(&directory)?;", "", KILLED),
    removed(DURABLE, "match sync_directory(above) {", "match Ok::<(), io::Error>(()) {", NEW),
    removed(
        DURABLE,
        "sync_directory(parent.unwrap_or(Path::new(\".\")))",
        "{ let _ = parent; Ok(()) }",
        NEW,
    ),
    removed(DURABLE, "File::open(directory)?.sync_all()", "File::open(directory).map(drop)", NEW),
    kept(
        "crates/block/src/file/resize.rs",
        "self.blocking(all, move |disk| disk.resize(new)).await?;
            self.commit().await",
        "not yet covered: no power-cut test resizes a unit of a running server",
    ),
    // Who a unit is.
    removed(
        IDENTITY,
        "create_directory(directory)?;\n    let path",
        "fs::create_dir_all(directory).map_err(|e| cannot_keep(directory, &e))?;\n    let path",
        NEW,
    ),
    removed(
        IDENTITY,
        "block::durable::make_directory(directory)",
        "fs::create_dir_all(directory)",
        NEW,
    ),
    removed(
        IDENTITY,
        "File::open(directory).and_then(|d| d.sync_all())",
        "File::open(directory).map(drop)",
        NEW,
    ),
    removed(
        IDENTITY,
        "file.write_all(text.as_bytes())?;\n    file.sync_all()",
        "file.write_all(text.as_bytes())",
        NEW,
    ),
    removed(
        "crates/control/src/daemon/units.rs",
        "identity::create_directory(&directory).map(|()| uuid)",
        "Ok(std::fs::create_dir_all(&directory).map_or(uuid, |()| uuid))",
        "a_unit_with_a_uuid_keeps_its_state",
    ),
    // Reservations and what is to be erased.
    removed(STATE, "file.sync_all()?;", "", RESERVED),
    removed(
        STATE,
        "fs::rename(&new, path)?;\n        directory.sync_all()",
        "let _ = directory;\n        fs::rename(&new, path)",
        RESERVED,
    ),
    removed(
        STATE,
        "block::durable::make_directory(&self.directory)?;",
        "fs::create_dir_all(&self.directory)?;",
        "a_state_directory_that_was_removed",
    ),
    removed(
        "crates/target/src/execute/save.rs",
        "let saved = unit.save_state().await;",
        "let saved = Ok::<(), crate::Error>(());",
        RESERVED,
    ),
    removed(LONG, "if unit.save().await {", "if true {", ERASED),
    removed(
        LONG,
        "let saved = self.save_state().await;",
        "let saved = Ok::<(), crate::Error>(());",
        ERASED,
    ),
    removed(LONG, "self.device().flush().await?;", "", ERASED),
    kept(
        LONG,
        "unit.scsi().withdraw_operation();
                // Should it be on the medium after all, the next start must not take it up.
                unit.save().await;",
        "a second try after a save that failed: the disk is broken",
    ),
    kept(LONG, "if self.save().await {", "without it the next start erases once more"),
    kept(
        LONG,
        "// Not saved, the next start tries once more: as good.
        self.save().await;",
        "without it the next start erases once more",
    ),
    removed(
        EXECUTE_LONG,
        "let saved = unit.save_state().await;",
        "let saved = Ok::<(), crate::Error>(());",
        "a_failure_that_was_left_stays_left",
    ),
    kept(
        EXECUTE_LONG,
        "let _ = unit.save_state().await;",
        "a second try after a save that failed: the disk is broken",
    ),
    // Commands: what makes durable.
    removed(
        EXECUTE,
        "Plan::Flush { immediate } => self.flush(immediate).await?,",
        "Plan::Flush { immediate } => { let _ = immediate; }",
        EACH,
    ),
    removed(
        EXECUTE,
        "if from_medium && self.unit.scsi().write_cache_enabled() {
            self.flush(false).await?;",
        "if from_medium {",
        EACH,
    ),
    removed(
        EXECUTE,
        "if durable { self.flush(false).await } else { Ok(()) }",
        "{ let _ = durable; Ok(()) }",
        EACH,
    ),
    removed(EXECUTE, "self.unit.flush_later();", "", AT_ONCE),
    removed(
        "crates/target/src/unit.rs",
        "if let Err(error) = unit.device().flush().await {",
        "if let Err(error) = Ok::<(), crate::Error>(()) {",
        AT_ONCE,
    ),
    removed(
        EXECUTE,
        "Ok(self.abort.unless(self.device().flush()).await?.map_err(write_failed)?)",
        "Ok(())",
        EACH,
    ),
    removed(
        EXECUTE,
        "self.put(guard, range, data.clone(), true).await?;",
        "self.put(guard, range, data.clone(), false).await?;",
        EACH,
    ),
    removed(
        "crates/target/src/execute/copy.rs",
        "let flushed = job.destination.flush(false).await;",
        "let flushed: Step<()> = Ok(());",
        EACH,
    ),
    // Commands: what is to be durable.
    removed("crates/scsi/src/plan/read_write.rs", "unit.is_durable(blocks.fua())", "false", EACH),
    removed(EXCLUSIVE, "unit.is_durable(raw.flags & FUA != 0)", "false", EACH),
    removed(EXCLUSIVE, "unit.is_durable(blocks.fua())", "false", EACH),
    removed(
        PROVISIONING,
        "Plan::Unmap { ranges, durable: unit.is_durable(false) }",
        "{ let _ = unit; Plan::Unmap { ranges, durable: false } }",
        EACH,
    ),
    removed(
        PROVISIONING,
        "may_unmap, durable: unit.is_durable(false) }",
        "may_unmap, durable: false }",
        EACH,
    ),
    kept(
        "crates/scsi/src/plan/atomic.rs",
        "unit.is_durable(raw.flags & FUA != 0)",
        "files offer no atomic writes; target/tests/durable.rs looks after memory",
    ),
    // The end of a unit, and of the server.
    removed(
        "crates/target/src/final_sync.rs",
        "let flushed = unit.device().flush().await;",
        "let flushed = Ok::<(), block::Error>(());",
        "an_orderly_end_syncs",
    ),
    removed(
        "crates/target/src/server.rs",
        "final_sync::sync_all(self.shared.units(), progress)",
        "{ let _ = progress; Vec::new() }",
        "an_orderly_end_syncs",
    ),
    kept(
        "crates/target/src/replace.rs",
        "tokio::time::timeout(RETIRE_SYNC_MAX, unit.device().flush()).await",
        "not yet covered: no power-cut test takes a unit away from a running server",
    ),
    // The tools.
    removed("apps/lunar/src/commands/write.rs", "device.flush().await?;", "", "lunar_write_syncs"),
    removed(
        REMOTE,
        "self.send_flush().await.map_err(|error| self.failed(None, error))",
        "Ok(())",
        "lunar_write_syncs",
    ),
    removed(REMOTE, "self.flush_all().boxed()", "async { Ok(()) }.boxed()", "lunar_write_syncs"),
    kept(
        REMOTE,
        "if wanted { self.flush_all().await } else { Ok(()) }",
        "for durable writes to a unit without FUA, which no command of this version makes",
    ),
    kept("apps/lunar/src/output.rs", ".and_then(|()| stdout.flush())", NO_DISK),
    kept("apps/lunar/src/commands/pipes.rs", "result.and_then(|()| stdout.flush())", NO_DISK),
    // Not of the product.
    kept(
        "crates/block/src/device.rs",
        "self.flush()",
        "what a disk that is not poisoned does: no promise",
    ),
    kept("crates/block/src/fault.rs", "self.inner.flush().await", "a decorator for tests"),
];
