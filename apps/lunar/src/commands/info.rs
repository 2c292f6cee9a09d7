//! `lunar info`: describes a disk.

use super::session::{SessionArgs, runtime};
use crate::device_url::{self, OpenedDevice};
use crate::output::{self, Failure, Format};
use lunar_block::BlockDevice;
use lunar_control::device_url::DeviceUrl;
use lunar_initiator::{Initiator, RemoteDisk, Reservation, Unit};
use lunar_iscsi::text::TaskReporting;
use serde::Serialize;
use std::fmt::Write;

/// Describe a disk: identity, size, cache, provisioning, reservations, negotiated keys
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    lunar info iscsi://127.0.0.1/iqn.2026-11.org.lunarsan:disk/0\n  \
    lunar info disk.img --json")]
pub struct Info {
    /// The disk: iscsi://HOST:PORT/TARGET/LUN, a path, file:PATH, or mem:SIZE
    #[arg(value_name = "URL")]
    url: String,
    #[command(flatten)]
    session: SessionArgs,
}

#[derive(Debug, Serialize)]
struct Report {
    url: String,
    size_bytes: u64,
    block_count: u64,
    block_bytes: u32,
    physical_block_bytes: u32,
    optimal_transfer_bytes: u32,
    read_only: bool,
    thin: bool,
    io_tier: String,
    unit: Option<UnitReport>,
    session: Option<SessionReport>,
}

/// Properties reported by SCSI.
#[derive(Debug, Serialize)]
struct UnitReport {
    vendor: String,
    product: String,
    revision: String,
    serial_number: Option<String>,
    designators: Vec<DesignatorReport>,
    /// Write cache enabled (WCE).
    write_cache: bool,
    maximum_transfer_bytes: Option<u64>,
    maximum_unmap_bytes: Option<u64>,
    unmap_granularity_bytes: Option<u32>,
    reservation: Option<ReservationReport>,
}

#[derive(Debug, Serialize)]
struct DesignatorReport {
    #[serde(rename = "of")]
    association: &'static str,
    kind: &'static str,
    value: String,
}

#[derive(Debug, Serialize)]
struct ReservationReport {
    key: String,
    kind: &'static str,
}

/// Properties of the iSCSI session.
#[derive(Debug, Serialize)]
struct SessionReport {
    target: Option<String>,
    target_alias: Option<String>,
    portal: String,
    portal_group: Option<u16>,
    tsih: u16,
    header_digest: &'static str,
    data_digest: &'static str,
    max_connections: u16,
    error_recovery_level: u8,
    initial_r2t: bool,
    immediate_data: bool,
    max_burst_bytes: u32,
    first_burst_bytes: u32,
    max_outstanding_r2t: u16,
    max_send_data_segment_bytes: u32,
    max_receive_data_segment_bytes: u32,
    time_to_wait_seconds: u16,
    time_to_retain_seconds: u16,
    task_reporting: &'static str,
    protocol_level: u8,
}

/// Runs the command.
///
/// # Errors
/// Fails if the disk cannot be opened.
pub fn run(args: &Info, format: Format) -> Result<(), Failure> {
    let url = DeviceUrl::parse(&args.url)?;
    let options = args.session.options(url.portal())?;
    let report = runtime()?.block_on(async {
        let local = args.session.local_options(&url, false)?;
        let opened = device_url::open(&url, &local, &options).await?;
        let report = match &opened {
            OpenedDevice::Remote(disk) => describe_remote(&url, disk).await?,
            local => describe(&url, local.device()),
        };
        opened.close().await?;
        Ok::<_, Failure>(report)
    })?;
    match format {
        Format::Json => output::print_json(&report),
        Format::Human => output::print_text(&human(&report)),
    }
}

fn describe(url: &DeviceUrl, device: &dyn BlockDevice) -> Report {
    let geometry = device.geometry();
    Report {
        url: url.to_string(),
        size_bytes: geometry.size_bytes(),
        block_count: geometry.block_count,
        block_bytes: geometry.block_bytes,
        physical_block_bytes: geometry.physical_block_bytes,
        optimal_transfer_bytes: geometry.optimal_transfer_bytes,
        read_only: device.is_read_only(),
        thin: device.sparse().is_some(),
        io_tier: device.io_tier(),
        unit: None,
        session: None,
    }
}

async fn describe_remote(url: &DeviceUrl, disk: &RemoteDisk) -> Result<Report, Failure> {
    let unit = describe_unit(disk.unit(), disk).await?;
    let session = Some(describe_session(disk.unit().initiator()));
    let thin = disk.is_thin();
    Ok(Report { unit: Some(unit), session, thin, ..describe(url, disk) })
}

async fn describe_unit(unit: &Unit, disk: &RemoteDisk) -> Result<UnitReport, Failure> {
    let identity = unit.identity().await?;
    let limits = unit.block_limits().await?;
    let block_bytes = disk.geometry().block_bytes;
    let bytes = |blocks: u32| (blocks != 0).then(|| u64::from(blocks) * u64::from(block_bytes));
    let designators = unit.designators().await?.into_iter().map(|designator| DesignatorReport {
        association: match designator.association {
            0 => "unit",
            1 => "port",
            _ => "target",
        },
        kind: match designator.kind {
            1 => "t10",
            2 => "eui-64",
            3 => "naa",
            4 => "relative-port",
            5 => "port-group",
            8 => "name",
            10 => "uuid",
            _ => "other",
        },
        value: designator.text,
    });
    Ok(UnitReport {
        vendor: identity.vendor,
        product: identity.product,
        revision: identity.revision,
        serial_number: unit.serial_number().await?,
        designators: designators.collect(),
        write_cache: disk.has_write_cache(),
        maximum_transfer_bytes: limits.and_then(|limits| bytes(limits.transfer_blocks_max)),
        maximum_unmap_bytes: limits.and_then(|limits| bytes(limits.unmap_blocks_max)),
        unmap_granularity_bytes: limits
            .and_then(|limits| limits.unmap_granularity_blocks.checked_mul(block_bytes))
            .filter(|bytes| *bytes != 0),
        reservation: unit.reservation().await?.map(describe_reservation),
    })
}

fn describe_reservation(reservation: Reservation) -> ReservationReport {
    let kind = match reservation.kind {
        1 => "write-exclusive",
        3 => "exclusive-access",
        5 => "write-exclusive-registrants-only",
        6 => "exclusive-access-registrants-only",
        7 => "write-exclusive-all-registrants",
        8 => "exclusive-access-all-registrants",
        _ => "other",
    };
    ReservationReport { key: format!("{:#018x}", reservation.key), kind }
}

fn describe_session(initiator: &Initiator) -> SessionReport {
    let established = initiator.established();
    let (session, connection) = (&established.session, &established.connection);
    let digest = |is_enabled| if is_enabled { "crc32c" } else { "none" };
    SessionReport {
        target: initiator.target_name().map(str::to_owned),
        target_alias: established.target_alias.clone(),
        portal: initiator.portal(),
        portal_group: established.portal_group_tag,
        tsih: established.tsih,
        header_digest: digest(connection.digests.header),
        data_digest: digest(connection.digests.data),
        max_connections: session.max_connections,
        error_recovery_level: session.error_recovery_level,
        initial_r2t: session.initial_r2t,
        immediate_data: session.immediate_data,
        max_burst_bytes: session.max_burst_bytes,
        first_burst_bytes: session.first_burst_bytes,
        max_outstanding_r2t: session.max_outstanding_r2t,
        max_send_data_segment_bytes: connection.send_data_segment_bytes_max,
        max_receive_data_segment_bytes: connection.receive_data_segment_bytes_max,
        time_to_wait_seconds: session.time_to_wait_seconds,
        time_to_retain_seconds: session.time_to_retain_seconds,
        task_reporting: match session.task_reporting {
            TaskReporting::Rfc3720 => "RFC3720",
            TaskReporting::ResponseFence => "ResponseFence",
            TaskReporting::FastAbort => "FastAbort",
        },
        protocol_level: session.protocol_level,
    }
}

fn human(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<20}{value}");
    };
    let yes = |is: bool| if is { "yes" } else { "no" };
    line("url", &report.url);
    line("size", &output::size(report.size_bytes));
    let blocks = format!(
        "{} of {} bytes (physical {})",
        report.block_count, report.block_bytes, report.physical_block_bytes
    );
    line("blocks", &blocks);
    line("read-only", yes(report.read_only));
    line("thin", yes(report.thin));
    line("I/O", &report.io_tier);
    if let Some(unit) = &report.unit {
        let product = format!("{} {} {}", unit.vendor, unit.product, unit.revision);
        line("product", &product);
        line("serial number", unit.serial_number.as_deref().unwrap_or("none"));
        for designator in &unit.designators {
            let name = format!("{} {}", designator.association, designator.kind);
            line(&name, &designator.value);
        }
        line("write cache", yes(unit.write_cache));
        let transfer = unit.maximum_transfer_bytes.map(output::size);
        line("maximum transfer", transfer.as_deref().unwrap_or("not reported"));
        match &unit.reservation {
            Some(reservation) => {
                line("reservation", &format!("{} {}", reservation.kind, reservation.key));
            }
            None => line("reservation", "none"),
        }
    }
    if let Some(session) = &report.session {
        line("target", session.target.as_deref().unwrap_or_default());
        line("portal", &session.portal);
        let digests = format!("header {}, data {}", session.header_digest, session.data_digest);
        line("digests", &digests);
        let bursts = format!(
            "MaxBurstLength {}, FirstBurstLength {}, MaxOutstandingR2T {}",
            session.max_burst_bytes, session.first_burst_bytes, session.max_outstanding_r2t
        );
        line("bursts", &bursts);
        let flow = format!(
            "InitialR2T {}, ImmediateData {}, ErrorRecoveryLevel {}",
            yes(session.initial_r2t),
            yes(session.immediate_data),
            session.error_recovery_level
        );
        line("flow", &flow);
    }
    text
}
