//! `lunar read`: copies bytes of a disk to stdout.

use super::pipes::StdoutWriter;
use super::session::{SessionArgs, runtime};
use super::transfer::{ByteSpan, span};
use crate::device_url;
use crate::output::{Failure, Format};
use lunar_block::{BlockDevice, BufferPool};
use lunar_control::device_url::DeviceUrl;
use lunar_control::units::parse_size;

/// Copy bytes of a disk to stdout
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    lunar read iscsi://127.0.0.1/iqn.2026-11.org.lunarsan:disk/0 --offset 1M --length 4K \
    > block\n\n\
    Stdout contains the data. --json applies only to errors, which are printed on stderr.")]
pub struct ReadCommand {
    /// The disk: iscsi://HOST:PORT/TARGET/LUN, a path, file:PATH, or pool:NAME
    #[arg(value_name = "URL")]
    url: String,
    /// Offset of the first byte
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    offset: u64,
    /// Number of bytes [default: to the end of the disk]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    length: Option<u64>,
    #[command(flatten)]
    session: SessionArgs,
}

/// Runs the command.
///
/// # Errors
/// Fails if the disk cannot be opened or read, or stdout cannot be written.
pub fn run(args: &ReadCommand, _format: Format) -> Result<(), Failure> {
    let url = DeviceUrl::parse(&args.url)?;
    let options = args.session.options(url.portal())?;
    runtime()?.block_on(async {
        let local = args.session.local_options(&url, false)?;
        let opened = device_url::open(&url, &local, &options).await?;
        let device = opened.device();
        let span = span(device, args.offset, args.length)?;
        copy(device, span).await?;
        opened.close().await
    })
}

async fn copy(device: &dyn BlockDevice, span: ByteSpan) -> Result<(), Failure> {
    let pool = BufferPool::default();
    let output = StdoutWriter::open()?;
    let block_bytes = u64::from(device.geometry().block_bytes);
    for piece in span.pieces() {
        let range = piece.blocks(block_bytes);
        let buffer = pool.take((range.count * block_bytes) as usize);
        let buffer = device.read(range, buffer).await?;
        let skip = (piece.start - range.lba * block_bytes) as usize;
        let bytes = (piece.end - piece.start) as usize;
        if !output.put(buffer.freeze().slice(skip..skip + bytes)).await {
            break;
        }
    }
    output.close().await
}
