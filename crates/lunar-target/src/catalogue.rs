//! The targets served at this moment. The catalogue is replaced as a whole: a reader sees all of
//! the old one or all of the new one.

use crate::Error;
use crate::access_list::Access;
use crate::disk_unit::DiskUnit;
use crate::lun_index::LunIndex;
use crate::lun_table::{LunTable, distinct};
use crate::options::TargetOptions;
use crate::quota::TargetQuotas;
use crate::unit::Unit;
use arc_swap::ArcSwap;
use lunar_iscsi::login::ChapRequirement;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

/// The targets of a server, and the credentials for discovery sessions.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    /// The targets, in the order of their listing.
    pub targets: Vec<Arc<TargetOptions>>,
    /// CHAP requirement for discovery sessions. If `None`, a discovery session needs no proof, and
    /// sees the targets that its initiator may log in to.
    pub discovery_chap: Option<ChapRequirement>,
}

/// A consistent catalogue with an index.
#[derive(Debug)]
pub(crate) struct IndexedCatalogue {
    pub(crate) catalogue: Catalogue,
    /// Index of each target by name in lower case: the order in which discovery lists them.
    by_name: BTreeMap<String, usize>,
    /// LUN index of each target.
    luns: Vec<LunIndex>,
    requires_proof: bool,
}

/// The catalogue that a server serves now, and the limiters of its targets.
#[derive(Debug)]
pub(crate) struct CurrentCatalogue {
    indexed: ArcSwap<IndexedCatalogue>,
    pub(crate) quotas: TargetQuotas,
}

/// A target, and the index of which initiators see which of its LUNs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServedTarget<'a> {
    pub(crate) options: &'a Arc<TargetOptions>,
    luns: &'a LunIndex,
}

impl ServedTarget<'_> {
    /// True when an initiator of this name may use the target from this address.
    pub(crate) fn admits(&self, initiator: &str, address: IpAddr) -> bool {
        self.options.access.allows(initiator, address) && self.shows_something(initiator, address)
    }

    /// True when the target shows the initiator a LUN, has no LUNs, or redirects. A target that
    /// would show an initiator nothing does not exist for that initiator (decision 050).
    pub(crate) fn shows_something(&self, initiator: &str, address: IpAddr) -> bool {
        self.options.redirect.is_some()
            || self.options.luns.is_empty()
            || self.luns.has_visible_lun(initiator, address)
    }

    /// The LUNs that an initiator of this name sees from this address.
    pub(crate) fn visible_luns(&self, initiator: &str, address: IpAddr) -> Arc<LunTable> {
        self.luns.table(&self.options.luns, initiator, address)
    }
}

impl IndexedCatalogue {
    pub(crate) fn new(catalogue: Catalogue) -> Result<Self, Error> {
        let mut by_name = BTreeMap::new();
        for (index, target) in catalogue.targets.iter().enumerate() {
            if target.portal_group == 0 {
                return Err(Error::Options("a portal group tag must be 1 to 65535".to_owned()));
            }
            if by_name.insert(target.name.to_ascii_lowercase(), index).is_some() {
                return Err(Error::Options(format!("two targets are named {}", target.name)));
            }
            if let Some(id) = ambiguous_lun(target) {
                let what = format!("{}: an initiator could see two LUNs {id}", target.name);
                return Err(Error::Options(what));
            }
        }
        let has_chap = |target: &Arc<TargetOptions>| !target.chap.is_empty();
        let requires_proof = catalogue.targets.iter().any(has_chap);
        let luns = catalogue.targets.iter().map(|target| LunIndex::new(&target.luns)).collect();
        Ok(Self { catalogue, by_name, luns, requires_proof })
    }

    /// The target of this name, compared without case.
    pub(crate) fn target(&self, name: &str) -> Option<ServedTarget<'_>> {
        self.at(*self.by_name.get(&name.to_ascii_lowercase())?)
    }

    fn at(&self, index: usize) -> Option<ServedTarget<'_>> {
        let (options, luns) = (self.catalogue.targets.get(index)?, self.luns.get(index)?);
        Some(ServedTarget { options, luns })
    }

    /// The targets behind the given name, in the order of names; `None` starts with the first. No
    /// target of that name need exist.
    pub(crate) fn targets_after(
        &self,
        name: Option<&str>,
    ) -> impl Iterator<Item = ServedTarget<'_>> {
        let start =
            name.map_or(Bound::Unbounded, |name| Bound::Excluded(name.to_ascii_lowercase()));
        let indexes = self.by_name.range((start, Bound::Unbounded)).map(|(_, index)| *index);
        indexes.filter_map(|index| self.at(index))
    }

    /// True when some target requires proof of identity at login.
    pub(crate) fn requires_proof(&self) -> bool {
        self.requires_proof
    }
}

impl CurrentCatalogue {
    /// Serves `catalogue` at first.
    pub(crate) fn new(catalogue: Catalogue) -> Result<Self, Error> {
        let indexed = IndexedCatalogue::new(catalogue)?;
        let quotas = TargetQuotas::default();
        quotas.replace(&[], &indexed.catalogue.targets);
        Ok(Self { indexed: ArcSwap::from_pointee(indexed), quotas })
    }

    /// The current catalogue.
    pub(crate) fn load(&self) -> Arc<IndexedCatalogue> {
        self.indexed.load_full()
    }

    /// Serves `new` from now on; returns the old catalogue.
    pub(crate) fn swap(&self, new: Arc<IndexedCatalogue>) -> Arc<IndexedCatalogue> {
        let old = self.indexed.swap(Arc::clone(&new));
        self.quotas.replace(&old.catalogue.targets, &new.catalogue.targets);
        old
    }

    /// The target of this name, compared without case.
    pub(crate) fn target(&self, name: &str) -> Option<Arc<TargetOptions>> {
        self.indexed.load().target(name).map(|target| Arc::clone(target.options))
    }

    /// The units of the catalogue, each once.
    pub(crate) fn units(&self) -> Vec<Arc<dyn Unit>> {
        self.load().catalogue.units()
    }

    /// The disks of the catalogue, each once.
    pub(crate) fn disks(&self) -> Vec<Arc<DiskUnit>> {
        self.load().catalogue.disks()
    }
}

impl Catalogue {
    /// The logical units of all targets, each once.
    pub fn units(&self) -> Vec<Arc<dyn Unit>> {
        distinct(self.targets.iter().flat_map(|target| &target.luns).map(|lun| &lun.unit))
    }

    /// The disks among the units, each once.
    pub fn disks(&self) -> Vec<Arc<DiskUnit>> {
        self.units().iter().filter_map(DiskUnit::of).collect()
    }
}

/// Returns the number of two LUNs that one initiator could both see, if there are any.
fn ambiguous_lun(target: &TargetOptions) -> Option<u16> {
    let mut by_id: BTreeMap<u16, Vec<&Access>> = BTreeMap::new();
    for lun in &target.luns {
        let others = by_id.entry(lun.id).or_default();
        if others.iter().any(|other| target.access.may_see_both(&lun.access, other)) {
            return Some(lun.id);
        }
        others.push(&lun.access);
    }
    None
}
