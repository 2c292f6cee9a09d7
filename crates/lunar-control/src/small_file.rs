//! Reads small files completely, up to a limit, without blocking on special files.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Kinds of files that may be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Readable {
    /// Any file, including pipes and terminals: a command waits for the input that its user has
    /// named.
    Any,
    /// Regular files only: a server must not wait for the writer of a pipe.
    Regular,
}

/// Returns the first `bytes_max` bytes of a file and its metadata.
///
/// # Errors
/// Fails if the file cannot be opened or read or is not `readable`, or if a pipe has no data.
pub(crate) fn read(path: &Path, bytes_max: u64, readable: Readable) -> Result<(Vec<u8>, Metadata)> {
    // Without these flags, opening a pipe would wait for a writer, and a terminal could become the
    // controlling terminal.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() && readable == Readable::Regular {
        let what = format!("it is {}, not a regular file", kind(&metadata));
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    wait_from_now_on(&file)?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    if bytes.is_empty() && metadata.file_type().is_fifo() {
        return Err(Error::new(ErrorKind::UnexpectedEof, "it is a pipe without a writer"));
    }
    Ok((bytes, metadata))
}

/// Makes reads of a pipe wait for its writer.
fn wait_from_now_on(file: &File) -> Result<()> {
    let flags = fcntl_getfl(file)?;
    Ok(fcntl_setfl(file, flags - OFlags::NONBLOCK)?)
}

fn kind(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a pipe"
    } else {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::path::PathBuf;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("lunar-small-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    fn pipe(name: &str) -> PathBuf {
        let path = scratch(name);
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        path
    }

    /// Goal: a pipe without a writer blocks neither a command nor a server; a server reads no
    /// pipes, devices or directories, and the error names the kind of file.
    #[test]
    fn a_pipe_without_a_writer_does_not_block() {
        let path = pipe("silent");
        let silent = read(&path, 10, Readable::Any).unwrap_err();
        assert!(silent.to_string().contains("without a writer"), "{silent}");
        for (path, kind) in [
            (path.as_path(), "a pipe"),
            (Path::new("/dev/zero"), "a device"),
            (Path::new("/"), "a directory"),
        ] {
            let refused = read(path, 10, Readable::Regular).unwrap_err().to_string();
            assert_eq!(refused, format!("it is {kind}, not a regular file"));
        }
        std::fs::remove_file(path).unwrap();
    }

    /// Goal: a command reads what a process writes to a pipe (`<(…)` of a shell), however slowly.
    #[test]
    fn a_command_waits_for_a_pipe_that_is_written_to() {
        let path = pipe("written");
        let name = path.clone();
        let (open, is_open) = std::sync::mpsc::channel();
        let writer = std::thread::spawn(move || {
            // Opening for reading and writing does not wait for a reader.
            let mut pipe = OpenOptions::new().read(true).write(true).open(name).unwrap();
            open.send(()).unwrap();
            for byte in b"slow" {
                std::thread::sleep(std::time::Duration::from_millis(50));
                pipe.write_all(&[*byte]).unwrap();
            }
        });
        is_open.recv().unwrap();
        let (bytes, metadata) = read(&path, 4, Readable::Any).unwrap();
        assert_eq!((&bytes[..], metadata.is_file()), (&b"slow"[..], false));
        writer.join().unwrap();
        std::fs::remove_file(path).unwrap();
    }

    /// Goal: a file is read up to the limit; an empty file is no error.
    #[test]
    fn files_are_read_up_to_the_limit() {
        let path = scratch("file");
        for (content, start) in [("", ""), ("abc", "abc"), ("abcdef", "abcd")] {
            std::fs::write(&path, content).unwrap();
            for readable in [Readable::Any, Readable::Regular] {
                assert_eq!(read(&path, 4, readable).unwrap().0, start.as_bytes());
            }
        }
        std::fs::remove_file(&path).unwrap();
        let missing = read(&path, 4, Readable::Regular).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}
