//! Builds the catalogue of a server from its configuration.

use super::plan::Layout;
use crate::config::model::{ChapConfig, Configuration, TargetConfig};
use lunar_target::{Catalogue, DiskUnit, LunOptions, TargetOptions, Unit};
use std::sync::Arc;

/// Returns the targets and LUNs of the server: those of `configuration`, with the unit of each LUN.
/// A LUN without a unit is left out.
pub(super) fn catalogue(
    configuration: &Configuration,
    layout: &Layout,
    unit: &dyn Fn(usize) -> Option<Arc<DiskUnit>>,
) -> Catalogue {
    let target = |(target, unit_indices): (&TargetConfig, &Vec<Option<usize>>)| {
        let luns = target.luns.iter().zip(unit_indices).filter_map(|(lun, index)| {
            let unit: Arc<dyn Unit> = unit((*index)?)?;
            let (access, administer) = (lun.access.clone(), lun.administer.clone());
            Some(LunOptions { id: lun.id, unit, access, administer })
        });
        Arc::new(TargetOptions {
            name: target.name.clone(),
            alias: target.alias.clone(),
            portal_group: target.portal_group,
            access: target.access.clone(),
            administer: target.administer.clone(),
            chap: target.chap.iter().map(ChapConfig::entry).collect(),
            offer: target.offer.clone(),
            redirect: target.redirect.clone(),
            initiator_limits: target.initiator_limits.clone(),
            luns: luns.collect(),
        })
    };
    let discovery_chap = configuration.discovery_chap.as_ref();
    Catalogue {
        targets: configuration.targets.iter().zip(&layout.0).map(target).collect(),
        discovery_chap: discovery_chap.map(|chap| chap.requirement.clone()),
    }
}
