//! `lunar ctl trace`: writes a session's PDUs to a file for tshark and Wireshark.

use crate::output::{self, Failure, Format};
use lunar_control::api::sessions::Session;
use lunar_control::api::traces::{TraceEnded, TraceOrder};
use lunar_control::client::{ApiClient, ApiPath, Method, ResponseStream};
use lunar_control::trace::reader::{BlockReader, TraceCounts};
use lunar_control::trace::{
    SNAP_BYTES_MAX, SNAP_BYTES_MIN, TRACE_SECONDS, TRACE_SECONDS_MAX, TRACE_SIZE,
};
use lunar_control::units::parse_size;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Mode of the file: only its owner may read it, as it contains user data.
const FILE_MODE: u32 = 0o600;

/// Write a session's PDUs to a file for tshark or Wireshark; it contains user data
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    lunar ctl sessions\n  \
    lunar ctl trace 1 --file trace.pcapng\n  \
    tshark -r trace.pcapng -d tcp.port==3260,iscsi\n\n\
    Only the full feature phase is traced, not the login.\n\
    Ctrl-C ends the trace; a second Ctrl-C aborts it.")]
pub struct TraceCommand {
    /// The session's handle, as listed by `lunar ctl sessions`
    tsih: u16,
    /// The file to create; only its owner may read it
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// Duration in seconds
    #[arg(long, default_value_t = TRACE_SECONDS, value_parser = clap::value_parser!(u32)
        .range(1..=i64::from(TRACE_SECONDS_MAX)))]
    seconds: u32,
    /// Keep only this number of bytes of each PDU: 48 is the header, without user data
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32)
        .range(i64::from(SNAP_BYTES_MIN)..=i64::from(SNAP_BYTES_MAX)))]
    snaplen: Option<u32>,
    /// End the trace when the file has this size
    #[arg(long, value_name = "SIZE", default_value = TRACE_SIZE, value_parser = parse_size)]
    max_size: u64,
}

/// Summary of a finished trace.
#[derive(Debug, Serialize)]
struct Summary {
    tsih: u16,
    file: PathBuf,
    bytes: u64,
    pdus: u64,
    dropped_pdus: u64,
}

/// Runs `lunar ctl trace`.
pub async fn trace(client: &ApiClient, args: &TraceCommand, format: Format) -> Result<(), Failure> {
    let tsih = args.tsih.to_string();
    let session: Session = client.get(&ApiPath::new(&["sessions", &tsih])).await?;
    let mut interrupts = signal(SignalKind::interrupt())
        .map_err(|error| Failure::new(format!("cannot wait for Ctrl-C: {error}")))?;
    let file = create(&args.file)?;
    let path = ApiPath::new(&["sessions", &tsih, "trace"]);
    let order =
        TraceOrder { seconds: args.seconds, snap_bytes: args.snaplen, max_bytes: args.max_size };
    let answer = match client.open(Method::POST, &path, &order).await {
        Ok(answer) => answer,
        Err(failure) => {
            let _ = std::fs::remove_file(&args.file); // the file is new and empty
            return Err(failure);
        }
    };
    if format == Format::Human {
        let seconds = args.seconds;
        eprintln!("tracing session {tsih} for {seconds} s; Ctrl-C ends it");
    }
    let mut download =
        TraceDownload { client, path, file, args, written: 0, blocks: BlockReader::default() };
    download.receive(answer, &mut interrupts).await?;
    let TraceCounts { pdus, dropped } = download.blocks.counts();
    let summary = Summary {
        tsih: args.tsih,
        file: args.file.clone(),
        bytes: download.written,
        pdus,
        dropped_pdus: dropped,
    };
    match format {
        Format::Json => output::print_json(&summary),
        Format::Human => output::print_text(&summary.text_lines(&ports(&session))),
    }
}

/// Creates a new file; fails if anything exists at the path.
fn create(path: &Path) -> Result<File, Failure> {
    let created = File::options().write(true).create_new(true).mode(FILE_MODE).open(path);
    created.map_err(|error| {
        let failure = Failure::new(format!("cannot create {}: {error}", path.display()));
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                failure.hint("choose another file name, or remove the existing file")
            }
            _ => failure.hint("choose a file in a directory with write permission"),
        }
    })
}

struct TraceDownload<'a> {
    client: &'a ApiClient,
    path: ApiPath,
    file: File,
    args: &'a TraceCommand,
    written: u64,
    blocks: BlockReader,
}

impl TraceDownload<'_> {
    /// Writes whole blocks until the answer ends or a second interrupt arrives.
    async fn receive(
        &mut self,
        mut answer: ResponseStream,
        interrupts: &mut Signal,
    ) -> Result<(), Failure> {
        let mut ending = false;
        loop {
            let piece = tokio::select! {
                piece = answer.next() => piece?,
                _ = interrupts.recv() => {
                    if ending || self.end().await.is_err() {
                        return Ok(());
                    }
                    ending = true;
                    continue;
                }
            };
            let Some(piece) = piece else { return Ok(()) };
            let blocks = self.blocks.push(&piece).map_err(|_| {
                Failure::new("the server's response is not a trace")
                    .hint("check that the server has the same version as this program")
            })?;
            self.file.write_all(&blocks).map_err(|error| {
                Failure::new(format!("cannot write {}: {error}", self.args.file.display()))
                    .hint("the file contains a valid trace up to this point")
            })?;
            self.written += blocks.len() as u64;
        }
    }

    /// Requests the end of the trace; data already sent still arrives.
    async fn end(&self) -> Result<(), Failure> {
        self.client.delete::<TraceEnded>(&self.path).await.map(drop)
    }
}

impl Summary {
    fn text_lines(&self, ports: &[String]) -> String {
        let Self { pdus, dropped_pdus, .. } = self;
        let (file, size) = (self.file.display(), output::size(self.bytes));
        let decode: String =
            ports.iter().map(|port| format!(" -d tcp.port=={port},iscsi")).collect();
        format!(
            "{pdus} PDUs, {dropped_pdus} dropped, {size} in {file}\n\
             read it: tshark -r {file}{decode}\n"
        )
    }
}

/// The target's ports that the session uses, each once.
fn ports(session: &Session) -> Vec<String> {
    let addresses = session.connections.iter().map(|connection| &connection.portal_address);
    let mut ports: Vec<_> =
        addresses.filter_map(|address| Some(address.rsplit_once(':')?.1.to_owned())).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, lchown, symlink};

    /// Goal: a trace, which contains user data, is written to a new file of this user; existing
    /// files and links at the path are neither used nor followed.
    #[test]
    fn a_trace_is_a_new_file() {
        let folder = std::env::temp_dir().join(format!("lunar-trace-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let [file, linked_file, missing] =
            ["trace.pcapng", "linked_file", "missing"].map(|name| folder.join(name));
        std::fs::write(&linked_file, "precious").unwrap();
        let creations: [&dyn Fn(); 5] = [
            &|| symlink(&linked_file, &file).unwrap(),
            &|| symlink(&missing, &file).unwrap(),
            &|| std::fs::hard_link(&linked_file, &file).unwrap(),
            &|| {
                let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
                rustix::fs::mkfifoat(rustix::fs::CWD, &file, mode).unwrap();
            },
            &|| {
                std::fs::write(&file, "theirs").unwrap();
                let _ = lchown(&file, Some(65534), None); // fails without root
            },
        ];
        for create_entry in creations {
            create_entry();
            let failure = create(&file).unwrap_err();
            assert!(failure.what.contains("exists"), "{failure}");
            assert!(failure.hint.unwrap().contains("remove the existing file"));
            assert_eq!(std::fs::read(&linked_file).unwrap(), b"precious");
            assert!(!missing.exists());
            std::fs::remove_file(&file).unwrap();
        }
        assert_eq!(create(&file).unwrap().metadata().unwrap().mode() & 0o777, 0o600);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
