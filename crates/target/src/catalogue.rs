//! What is served at this moment. It is replaced whole: whoever looks sees all of the old or all of
//! the new.

use crate::Error;
use crate::access;
use crate::options::TargetOptions;
use crate::unit::LogicalUnit;
use iscsi::login::ChapDemand;
use std::collections::HashMap;
use std::sync::Arc;

/// The targets of a server, and what discovery sessions must prove.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    /// The targets, in the order they are shown in.
    pub targets: Vec<Arc<TargetOptions>>,
    /// What a discovery session must prove; `None`: nothing, and it is shown the targets that its
    /// initiator may log in to.
    pub discovery_chap: Option<ChapDemand>,
}

/// A catalogue that contradicts itself nowhere, with an index.
#[derive(Debug)]
pub(crate) struct Indexed {
    pub(crate) catalogue: Catalogue,
    by_name: HashMap<String, usize>,
}

impl Indexed {
    pub(crate) fn new(catalogue: Catalogue) -> Result<Self, Error> {
        let mut by_name = HashMap::new();
        for (index, target) in catalogue.targets.iter().enumerate() {
            if target.portal_group == 0 {
                return Err(Error::Options("a portal group tag is 1 to 65535".to_owned()));
            }
            if by_name.insert(target.name.to_ascii_lowercase(), index).is_some() {
                return Err(Error::Options(format!("two targets are named {}", target.name)));
            }
            if let Some(id) = access::ambiguous_lun(target) {
                let what = format!("{}: an initiator could see two LUNs {id}", target.name);
                return Err(Error::Options(what));
            }
        }
        Ok(Self { catalogue, by_name })
    }

    /// The target of this name, compared without case.
    pub(crate) fn target(&self, name: &str) -> Option<&Arc<TargetOptions>> {
        let index = self.by_name.get(&name.to_ascii_lowercase())?;
        self.catalogue.targets.get(*index)
    }
}

impl Catalogue {
    /// Each unit once.
    pub fn units(&self) -> Vec<Arc<LogicalUnit>> {
        distinct(self.targets.iter().flat_map(|target| &target.luns).map(|lun| &lun.unit))
    }
}

/// Each unit once, in the order of their first places.
pub(crate) fn distinct<'a>(
    units: impl Iterator<Item = &'a Arc<LogicalUnit>>,
) -> Vec<Arc<LogicalUnit>> {
    let mut found: Vec<Arc<LogicalUnit>> = Vec::new();
    for unit in units {
        if !found.iter().any(|other| Arc::ptr_eq(other, unit)) {
            found.push(Arc::clone(unit));
        }
    }
    found
}
