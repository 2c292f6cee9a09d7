//! `lunar ctl limit`.

use super::change::{Common, of_device, print_change, target};
use crate::output::{Failure, Format};
use lunar_control::client::{ApiClient, ApiPath, Method};
use lunar_control::daemon::LimitSettings;

/// Limit a LUN or an initiator; commands over the limit wait
///
/// The new limit replaces the old one as a whole: to set both values, give --iops and --bandwidth.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    lunar ctl limit 0 --iops 1000 --bandwidth 200Mbit\n  \
    lunar ctl limit --initiator iqn.1993-08.org.debian:01:noisy --iops 500\n  \
    lunar ctl limit 0 --each-initiator --iops 300\n  \
    lunar ctl limit 0 --none")]
#[command(group = clap::ArgGroup::new("subject").required(true).multiple(true))]
#[command(group = clap::ArgGroup::new("values").required(true).multiple(true))]
pub struct LimitCommand {
    /// The LUN's number; limits all initiators together there, or one with --initiator
    #[arg(group = "subject")]
    lun: Option<u16>,
    /// Limit this initiator, in all its sessions together: at the LUN, or without a LUN at all LUNs
    /// of the target together
    #[arg(long, value_name = "IQN", group = "subject")]
    initiator: Option<String>,
    /// Limit each initiator that has no limit of its own there
    #[arg(long, group = "subject", conflicts_with = "initiator")]
    each_initiator: bool,
    /// Maximum number of reads and writes per second, at least 10
    #[arg(long, value_name = "N", group = "values")]
    iops: Option<u64>,
    /// Maximum data rate, like 200Mbit, at least 10Mbit
    #[arg(long, value_name = "RATE", group = "values")]
    bandwidth: Option<String>,
    /// Remove the limit
    #[arg(long, group = "values", conflicts_with_all = ["iops", "bandwidth"])]
    none: bool,
    /// The LUN's device, where several LUNs have this number
    #[arg(long, value_name = "DEVICE", requires = "lun")]
    device: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Runs `lunar ctl limit`.
pub async fn limit(client: &ApiClient, args: &LimitCommand, format: Format) -> Result<(), Failure> {
    let target = target(client, &args.common).await?;
    let by_initiator = args.initiator.is_some() || args.each_initiator;
    let key = if args.lun.is_some() && by_initiator { "initiator-limit" } else { "limit" };
    let path = match args.lun {
        Some(lun) => {
            let path = ApiPath::new(&["targets", &target, "luns", &lun.to_string(), key]);
            of_device(path, args.device.as_deref())
        }
        None => ApiPath::new(&["targets", &target, key]),
    };
    let path = match &args.initiator {
        Some(name) => path.query("initiator", name),
        None => path,
    };
    let body = LimitSettings { iops: args.iops, bandwidth: args.bandwidth.clone() };
    print_change(&client.send(Method::PUT, &path, &body).await?, &args.common, format)
}
