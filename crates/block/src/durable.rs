//! Names that outlive a power cut.
//!
//! A file's sync keeps what is in it; its name is kept by a sync of the directory it is in, and
//! the name of that directory by one of the directory above (fsync(2)).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Makes a directory, and all above it that are missing; durable when this returns, as is every
/// name that was in it.
///
/// That it exists already does not make it durable: whoever made it may have been killed before
/// that, or promises nothing (a socket needs a directory, too). So the way up is synced each time.
///
/// # Errors
/// It cannot be made, or synced.
pub fn make_directory(directory: &Path) -> io::Result<()> {
    // Whatever the umask: who may write there may put other things in the place of ours.
    fs::DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    let directory = fs::canonicalize(directory)?;
    sync_directory(&directory)?;
    let system = fs::metadata(&directory)?.dev();
    for above in directory.ancestors().skip(1) {
        // Where another file system is mounted, no name was made.
        if fs::metadata(above)?.dev() != system {
            break;
        }
        match sync_directory(above) {
            // Where we may not read, somebody else made the names.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
            synced => synced?,
        }
    }
    Ok(())
}

/// Makes the name of a file durable.
///
/// # Errors
/// The directory it is in cannot be opened or synced.
pub fn keep_name(file: &Path) -> io::Result<()> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync_directory(parent.unwrap_or(Path::new(".")))
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: missing levels are made, and one that is there is none the worse for it. That they
    /// outlive a power cut is tested with a disk that forgets: interop, `power_cut`.
    #[test]
    fn levels_are_made() {
        let base = std::env::temp_dir().join(format!("lunar-durable-{}", std::process::id()));
        let deep = base.join("a/b/c");
        make_directory(&deep).unwrap();
        fs::write(deep.join("file"), "text").unwrap();
        make_directory(&deep).unwrap();
        keep_name(&deep.join("file")).unwrap();
        assert_eq!(fs::read_to_string(deep.join("file")).unwrap(), "text");
        assert!(make_directory(&deep.join("file/d")).is_err());
        assert!(keep_name(&deep.join("d/file")).is_err());
        fs::remove_dir_all(base).unwrap();
    }
}
