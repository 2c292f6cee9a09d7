//! The targets and LUNs that users name.

use super::LunSelector;
use crate::Failure;
use crate::config::model::{Configuration, LunConfig, TargetConfig};

/// Returns the target with this name.
///
/// # Errors
/// There is none.
pub(super) fn find<'c>(
    configuration: &'c mut Configuration,
    name: &str,
) -> Result<&'c mut TargetConfig, Failure> {
    let mut targets = configuration.targets.iter_mut();
    targets.find(|target| target.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
        Failure::not_found(format!("there is no target {name}"))
            .hint("see `lunar ctl targets` for the current targets")
    })
}

/// The index of a LUN.
pub(super) fn lun_index(luns: &[LunConfig], at: &LunSelector<'_>) -> Result<usize, Failure> {
    let named = |lun: &LunConfig| at.device.is_none_or(|name| lun.unit.device.is_named(name));
    let found = luns.iter().enumerate().filter(|(_, lun)| lun.id == at.id && named(lun));
    let found: Vec<_> = found.collect();
    match found[..] {
        [(index, _)] => Ok(index),
        [] => Err(Failure::not_found(format!("{} has no LUN {}", at.target, at.id))
            .hint("see `lunar ctl luns` for the current LUNs")),
        _ => {
            let devices: Vec<_> = found.iter().map(|(_, l)| l.unit.device.to_string()).collect();
            let what = format!("{} has several LUNs with number {}", at.target, at.id);
            Err(Failure::conflict(what)
                .hint(format!("select one with --device: {}", devices.join(", "))))
        }
    }
}
