//! Faults of backing files, each with a remedy.

use lunar_target::{BackingFault, DiskUnit};
use std::path::{Path, PathBuf};

/// Errors and hints for the backing file of a unit; `recover` is the command that recovers it.
pub(super) fn troubles(unit: &DiskUnit, recover: &str) -> Vec<(String, String)> {
    let device = unit.options().device.name();
    unit.backing_faults().iter().map(|fault| trouble(device, fault, recover)).collect()
}

fn trouble(device: &str, fault: &BackingFault, recover: &str) -> (String, String) {
    match fault {
        BackingFault::Deleted { open_path, path } => (
            format!(
                "the file of {device} was deleted: its data will be lost when the server closes it"
            ),
            format!(
                "stop the writes of all initiators, then save the data: {}. Then serve the saved \
                 file instead",
                save_command(open_path, path)
            ),
        ),
        BackingFault::Renamed { path, new_path, is_replaced } => {
            let now = match is_replaced {
                true => "is now a different file",
                false => "no longer exists",
            };
            let what = format!(
                "the file of {device} was renamed: it is still served, but {} {now}, so the next \
                 start will not find it",
                path.display()
            );
            let hint = match (new_path, is_replaced) {
                (Some(new_path), false) => {
                    format!("move it back: mv -n {} {}", quoted(new_path), quoted(path))
                }
                (Some(new_path), true) => format!(
                    "it is now {}. Move both files back to their paths, or serve the new file \
                     with lunar apply, or with lunar ctl remove-lun and add-lun",
                    new_path.display()
                ),
                (None, _) => "move it back to its original path".to_owned(),
            };
            (what, hint)
        }
        BackingFault::Truncated { file_bytes, disk_bytes } => (
            format!(
                "the file of {device} was truncated by another program, to {file_bytes} of \
                 {disk_bytes} bytes: the data beyond is lost"
            ),
            format!("notify the users of the disk, restore the lost data, then run: {recover}"),
        ),
        BackingFault::Lost { error } => (
            format!("the file of {device} is lost: its file system reports it as stale ({error})"),
            "repair the file system, then serve the disk again".to_owned(),
        ),
        BackingFault::NoAnswer { seconds } => (
            format!("the file system of {device} has not answered for {seconds} s"),
            "check the file system, or the server that provides it".to_owned(),
        ),
    }
}

/// Returns a command that copies a file whose name was removed to a file beside the old name. That
/// file must not exist: `dd` with `excl` reports an error if it does, where `cp -n` would report
/// nothing.
fn save_command(open_path: &Path, path: &Path) -> String {
    let mut saved = path.to_owned().into_os_string();
    saved.push(".saved");
    let saved = quoted(&PathBuf::from(saved));
    format!("dd bs=1M conv=excl,sparse,fsync if={} of={saved}", open_path.display())
}

/// The path, quoted as one word of a shell command.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=@:,%".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a path that a shell would split stays one word of the suggested commands.
    #[test]
    fn paths_are_quoted_as_one_word() {
        for (path, word) in
            [("/srv/a.img", "/srv/a.img"), ("/srv/my disk", "'/srv/my disk'"), ("a'b", r"'a'\''b'")]
        {
            assert_eq!(quoted(Path::new(path)), word);
        }
        let saved = save_command(Path::new("/proc/7/fd/9"), Path::new("/srv/my disk.img"));
        let words = "dd bs=1M conv=excl,sparse,fsync if=/proc/7/fd/9 of='/srv/my disk.img.saved'";
        assert_eq!(saved, words);
    }
}
