//! `lunar write`: copies stdin to a disk.

use super::pipes::StdinReader;
use super::session::{SessionArgs, runtime};
use super::transfer::{ByteSpan, span};
use crate::device_url;
use crate::output::{self, Failure, Format};
use lunar_block::{BlockDevice, BufferPool};
use lunar_control::device_url::DeviceUrl;
use lunar_control::units::parse_size;

/// Copy stdin to a disk, and make it durable
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    lunar write iscsi://127.0.0.1/iqn.2026-11.org.lunarsan:disk/0 --offset 1M < block\n\n\
    If the range starts or ends within a block, the rest of the block is written back as read.")]
pub struct Write {
    /// The disk: iscsi://HOST:PORT/TARGET/LUN, a path, file:PATH, or pool:NAME
    #[arg(value_name = "URL")]
    url: String,
    /// Offset of the first byte
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    offset: u64,
    /// Number of bytes [default: all of stdin]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    length: Option<u64>,
    #[command(flatten)]
    session: SessionArgs,
}

/// Runs the command.
///
/// # Errors
/// Fails if the disk cannot be opened or written, or stdin ends before `--length` or does not fit.
pub fn run(args: &Write, format: Format) -> Result<(), Failure> {
    let url = DeviceUrl::parse(&args.url)?;
    let options = args.session.options(url.portal())?;
    let written = runtime()?.block_on(async {
        let opened =
            device_url::open(&url, &args.session.local_options(&url, true)?, &options).await?;
        let device = opened.device();
        let span = span(device, args.offset, args.length)?;
        let written = copy(device, span, args.length.is_some()).await?;
        device.flush().await?;
        opened.close().await?;
        Ok::<_, Failure>(written)
    })?;
    let offset = args.offset;
    match format {
        Format::Json => output::print_json(
            &serde_json::json!({ "offset_bytes": offset, "written_bytes": written }),
        ),
        Format::Human => Ok(()),
    }
}

/// Returns the number of bytes written.
async fn copy(device: &dyn BlockDevice, span: ByteSpan, exact: bool) -> Result<u64, Failure> {
    let pool = BufferPool::default();
    let mut input = StdinReader::open(span, pool.clone())?;
    let mut end = span.start;
    while let Some(piece) = input.next().await? {
        end = piece.span.end;
        write_span(device, piece.span, piece.data, &pool).await?;
    }
    if exact && end < span.end {
        return Err(Failure::new(format!("stdin ended after {} bytes", end - span.start)).hint(
            "the received data was written; use --length with the number of bytes on stdin",
        ));
    }
    if !exact && end == span.end && input.has_more_data().await? {
        let size = output::size(device.geometry().size_bytes());
        return Err(Failure::new(format!(
            "the data on stdin is longer than {} ({size})",
            device.name()
        ))
        .hint("the data that fits was written; use --length to write fewer bytes"));
    }
    Ok(end - span.start)
}

/// Writes the bytes of `span`; other bytes of the first and the last block are kept.
async fn write_span(
    device: &dyn BlockDevice,
    span: ByteSpan,
    data: lunar_block::Buffer,
    pool: &BufferPool,
) -> Result<(), Failure> {
    let block_bytes = u64::from(device.geometry().block_bytes);
    if span.start == span.end {
        return Ok(());
    }
    let range = span.blocks(block_bytes);
    if span.is_aligned(block_bytes) {
        return Ok(device.write(range, data.freeze(), false).await?);
    }
    let buffer = pool.take((range.count * block_bytes) as usize);
    let mut whole = device.read(range, buffer).await?;
    let skip = (span.start - range.lba * block_bytes) as usize;
    whole[skip..skip + data.len()].copy_from_slice(&data);
    Ok(device.write(range, whole.freeze(), false).await?)
}
