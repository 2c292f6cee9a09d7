//! Access rules: who may log in to a target, and which LUNs each initiator may see.

use crate::access_list::Access;
use crate::catalogue::ServedTarget;
use crate::login_refusal::LoginRefusal;
use crate::options::{ChapEntry, LunOptions, Portal, TargetOptions};
use crate::server::Shared;
use crate::unit::LogicalUnit;
use lunar_iscsi::connection::target::TargetRecord;
use lunar_iscsi::login::target::LOGIN_SEGMENT_BYTES_MAX;
use lunar_iscsi::login::{Admission, ChapDemand, Claim, Identified, SessionType};
use lunar_iscsi::pdu::LoginStatus;
use lunar_iscsi::text::Offer;
use lunar_scsi::rights::Rights;
use lunar_scsi::unit::TargetPort;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Peer address of a connection, and the local address and portal that it reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionPath {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) portal: usize,
}

/// Portal group of discovery sessions, which belong to no target, at portals without a group.
const DISCOVERY_PORTAL_GROUP: u16 = 1;

/// Tag of the portal group that this connection reached: that of `target`, or the default for
/// discovery if `target` is `None`.
pub(crate) fn portal_group(
    shared: &Shared,
    target: Option<&TargetOptions>,
    path: ConnectionPath,
) -> u16 {
    let default = target.map_or(DISCOVERY_PORTAL_GROUP, |target| target.portal_group);
    let portal = shared.portals.get(path.portal);
    portal.and_then(|portal| portal.portal_group).unwrap_or(default)
}

/// The SCSI target port of a portal group. The tag is also the relative identifier: neither a
/// restart nor the order of portals changes it, and no two ports of a target share one.
pub(crate) fn target_port(target: &TargetOptions, portal_group_tag: u16) -> TargetPort {
    TargetPort { name: target.name.clone(), portal_group_tag, relative_id: portal_group_tag }
}

/// All ports of a target, ordered by their relative identifiers.
pub(crate) fn target_ports(target: &TargetOptions, portals: &[Portal]) -> Vec<TargetPort> {
    let tags: BTreeSet<u16> = portals.iter().map(|p| target.portal_group_at(p)).collect();
    tags.into_iter().map(|tag| target_port(target, tag)).collect()
}

/// Judges the first claim of a login. A target that the initiator may not use is reported as not
/// found; the reason beside the status is for the log.
pub(crate) fn identify(
    shared: &Shared,
    claim: &Claim,
    path: ConnectionPath,
) -> Result<Identified, (LoginStatus, LoginRefusal)> {
    const HIDDEN: LoginStatus = LoginStatus::NOT_FOUND;
    let entropy = entropy().ok_or((LoginStatus::TARGET_ERROR, LoginRefusal::NoEntropy))?;
    if shared.is_stopping() {
        return Err((LoginStatus::SERVICE_UNAVAILABLE, LoginRefusal::Stopping));
    }
    let admission = |tag, alias, chap, offer| {
        Identified::Admit(Admission {
            portal_group_tag: tag,
            target_alias: alias,
            chap,
            offer,
            entropy,
        })
    };
    if claim.session_type == SessionType::Discovery {
        let demand = shared.catalogue().catalogue.discovery_chap.clone();
        return Ok(admission(portal_group(shared, None, path), None, demand, discovery_offer()));
    }
    let name = claim.target_name.as_deref().unwrap_or_default();
    let (initiator, address) = (&claim.initiator_name, path.peer.ip());
    let served = shared.catalogue();
    let served = served.target(name).ok_or((HIDDEN, LoginRefusal::NoTarget))?;
    let target = served.options;
    if !target.access.allows(initiator, address) {
        return Err((HIDDEN, LoginRefusal::AccessList));
    }
    if !served.shows_something(initiator, address) {
        return Err((HIDDEN, LoginRefusal::NoLun));
    }
    if let Some(address) = &target.redirect {
        return Ok(Identified::Redirect { address: address.clone(), permanent: false });
    }
    let demand =
        chap_demand(target, initiator).map_err(|()| (HIDDEN, LoginRefusal::NoCredential))?;
    let tag = portal_group(shared, Some(target), path);
    Ok(admission(tag, target.alias.clone(), demand, target.offer.clone()))
}

/// Offer for discovery sessions. The segment limit is that of a login, since discovery texts are
/// short.
fn discovery_offer() -> Offer {
    let max_recv_data_segment_bytes = LOGIN_SEGMENT_BYTES_MAX as u32;
    Offer { max_recv_data_segment_bytes, ..Offer::default() }
}

/// The credential for this initiator. An entry that names the initiator takes precedence over one
/// for all initiators.
fn chap_demand(target: &TargetOptions, initiator: &str) -> Result<Option<ChapDemand>, ()> {
    if target.chap.is_empty() {
        return Ok(None);
    }
    let named = named_credential(target, initiator);
    let entry = named.or_else(|| target.chap.iter().find(|entry| entry.initiator.is_none()));
    entry.map(|entry| Some(entry.demand.clone())).ok_or(())
}

fn named_credential<'t>(target: &'t TargetOptions, initiator: &str) -> Option<&'t ChapEntry> {
    target.chap.iter().find(|entry| {
        entry.initiator.as_ref().is_some_and(|name| name.eq_ignore_ascii_case(initiator))
    })
}

/// True when the claimed target has a credential for exactly this initiator name.
pub(crate) fn has_own_credential(shared: &Shared, claim: &Claim) -> bool {
    let target = claim.target_name.as_deref().and_then(|name| shared.target(name));
    target.is_some_and(|target| named_credential(&target, &claim.initiator_name).is_some())
}

/// True when an initiator that has proven the CHAP name `user` has thereby proven its own name. A
/// credential for several initiators only proves that the initiator is one of them.
pub(crate) fn proves_name(target: &TargetOptions, initiator: &str, user: Option<&str>) -> bool {
    let named = named_credential(target, initiator);
    named.is_some_and(|entry| user == Some(&entry.demand.initiator.user))
}

fn entropy() -> Option<[u8; 33]> {
    let mut bytes = [0; 33];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes)
}

/// Query of a discovery session for a part of the list of targets.
#[derive(Debug)]
pub(crate) struct TargetsQuery {
    /// Restricts the list to one name; `None` lists all targets.
    pub(crate) only: Option<String>,
    /// Lists only targets behind this name in the order of names.
    pub(crate) after: Option<String>,
    /// Bytes of text after which the list is cut.
    pub(crate) text_bytes: usize,
}

/// Bytes of moved data that the check whether a target is visible counts for in a turn: 2,000
/// checks take some 50 us.
const TARGET_BYTES: usize = 512;

/// Returns the targets that a discovery session may see, with the addresses to reach them at, and
/// whether more follow. The catalogue may change between two parts of a list: a target that is
/// there all the time is listed once.
pub(crate) fn visible_targets(
    shared: &Shared,
    initiator: &str,
    path: ConnectionPath,
    query: &TargetsQuery,
) -> (Vec<TargetRecord>, bool) {
    let is_visible = |target: &ServedTarget<'_>| {
        lunar_net::count_moved(TARGET_BYTES);
        target.admits(initiator, path.peer.ip()) && chap_demand(target.options, initiator).is_ok()
    };
    let record = |target: ServedTarget<'_>| TargetRecord {
        name: target.options.name.clone(),
        addresses: addresses(shared, target.options, path),
    };
    let indexed = shared.catalogue();
    if let Some(name) = &query.only {
        let target = indexed.target(name).filter(is_visible);
        return (target.map(record).into_iter().collect(), false);
    }
    let (mut records, mut text_bytes) = (Vec::new(), 0);
    for target in indexed.targets_after(query.after.as_deref()).filter(is_visible) {
        if text_bytes >= query.text_bytes {
            return (records, true);
        }
        let record = record(target);
        text_bytes += record.text_bytes();
        records.push(record);
    }
    (records, false)
}

/// Addresses of every portal that an initiator can reach: the advertised address, or the one
/// listened on. A wildcard is replaced with the local address that this connection reached.
fn addresses(shared: &Shared, target: &TargetOptions, path: ConnectionPath) -> Vec<(String, u16)> {
    let mut found = Vec::new();
    for (index, (portal, listening)) in shared.portals.iter().zip(&shared.addresses).enumerate() {
        let address = match &portal.advertise {
            Some(advertised) => advertised.clone(),
            None if listening.ip().is_unspecified() => {
                let ip = if index == path.portal || same_family(listening.ip(), path.local.ip()) {
                    path.local.ip().to_canonical()
                } else {
                    continue;
                };
                SocketAddr::new(ip, listening.port()).to_string()
            }
            None => listening.to_string(),
        };
        let record = (address, target.portal_group_at(portal));
        if !found.contains(&record) {
            found.push(record);
        }
    }
    found
}

fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.to_canonical().is_ipv4()
}

/// Rights of an initiator to operations that affect all users of the units of a target.
#[derive(Debug)]
pub(crate) struct UnitRights {
    administers_target: bool,
    /// Addresses of the units that the initiator does not administer.
    others: HashSet<usize>,
}

impl UnitRights {
    /// The rights of the initiator with this name at this address. A LUN's own list of
    /// administrators replaces the target's list. A unit with several LUNs is administered by
    /// initiators that may administer it through each of the LUNs that they see.
    pub(crate) fn new(target: &TargetOptions, initiator: &str, address: IpAddr) -> Self {
        let administers_target = may_administer(target.administer.as_ref(), initiator);
        let may = |lun: &LunOptions| match &lun.administer {
            None => administers_target,
            list => may_administer(list.as_ref(), initiator),
        };
        let is_seen = |lun: &LunOptions| lun.access.allows(initiator, address);
        let others = target.luns.iter().filter(|lun| !may(lun) && is_seen(lun));
        Self {
            administers_target,
            others: others.map(|lun| Arc::as_ptr(&lun.unit).addr()).collect(),
        }
    }

    pub(crate) fn of(&self, unit: &Arc<LogicalUnit>) -> Rights {
        Rights {
            administers_unit: !self.others.contains(&Arc::as_ptr(unit).addr()),
            administers_target: self.administers_target,
        }
    }
}

/// True when the rights of initiators at a target may have changed: the lists of administrators
/// differ, or apply to other units or initiators.
pub(crate) fn may_change_rights(old: &TargetOptions, new: &TargetOptions) -> bool {
    if old.administer != new.administer {
        return true;
    }
    let has_lists = |target: &TargetOptions| target.luns.iter().any(|lun| lun.administer.is_some());
    if !has_lists(old) && !has_lists(new) {
        return false;
    }
    // A unit is administered through all its LUNs: a LUN without a list counts when the target has
    // one.
    let counts = |lun: &&LunOptions| lun.administer.is_some() || new.administer.is_some();
    let key = |lun: &LunOptions| Arc::as_ptr(&lun.unit);
    let (before, after) = (old.luns.iter().filter(counts), new.luns.iter().filter(counts));
    let before = before.map(|lun| (key(lun), &lun.administer, &lun.access));
    !before.eq(after.map(|lun| (key(lun), &lun.administer, &lun.access)))
}

/// True when a list of administrators names the initiator. Without a list all initiators are
/// administrators.
pub(crate) fn may_administer(list: Option<&Vec<String>>, initiator: &str) -> bool {
    list.is_none_or(|names| names.iter().any(|name| name.eq_ignore_ascii_case(initiator)))
}

/// Returns the number of two LUNs that one initiator could both see, if there are any.
pub(crate) fn ambiguous_lun(target: &TargetOptions) -> Option<u16> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn target(portal_group: u16) -> TargetOptions {
        TargetOptions {
            name: "iqn.2026-11.org.example:a".into(),
            alias: None,
            portal_group,
            access: Access::default(),
            administer: None,
            chap: Vec::new(),
            offer: Offer::default(),
            redirect: None,
            initiator_limits: Vec::new(),
            luns: Vec::new(),
        }
    }

    /// Goal: a change of the catalogue counts as a change of rights only if a list of
    /// administrators differs, or applies to another unit or to other initiators.
    #[test]
    fn rights_may_change_with_the_lists_alone() {
        let unit = |number| {
            let device = Arc::new(lunar_block::MemoryDevice::new(64 << 10, 512, 4096).unwrap());
            let uuid = uuid::Uuid::from_u128(number);
            LogicalUnit::open(crate::LogicalUnitOptions::new(uuid, device)).unwrap()
        };
        let [one, two] = [1, 2].map(unit);
        let name = || Some(vec!["iqn.2026-11.org.example:admin".to_owned()]);
        let lun = |id, unit: &Arc<LogicalUnit>, administer| LunOptions {
            administer,
            ..LunOptions::new(id, Arc::clone(unit))
        };
        let with = |administer, luns| TargetOptions { administer, luns, ..target(1) };
        let plain = with(None, vec![lun(0, &one, None)]);
        let grown = with(None, vec![lun(0, &one, None), lun(1, &two, None)]);
        assert!(!may_change_rights(&plain, &grown) && !may_change_rights(&grown, &plain));
        let listed = with(name(), plain.luns.clone());
        assert!(may_change_rights(&plain, &listed));
        assert!(!may_change_rights(&listed, &with(name(), grown.luns.clone())));
        let own = with(None, vec![lun(0, &one, name()), lun(1, &two, None)]);
        assert!(may_change_rights(&grown, &own));
        assert!(!may_change_rights(&own, &with(None, vec![lun(5, &one, name())])));
        assert!(may_change_rights(&own, &with(None, vec![lun(0, &two, name())])));
        assert!(may_change_rights(&own, &with(None, vec![lun(0, &one, Some(Vec::new()))])));
        let mut narrowed = own.clone();
        narrowed.luns[0].access.initiators = vec!["iqn.2026-11.org.example:a".to_owned()];
        assert!(may_change_rights(&own, &narrowed));
        // A second LUN of the unit, to which the target's list applies.
        let both = with(Some(Vec::new()), vec![lun(0, &one, name()), lun(1, &one, None)]);
        assert!(may_change_rights(&with(Some(Vec::new()), vec![lun(0, &one, name())]), &both));
    }

    fn portal(portal_group: Option<u16>) -> Portal {
        Portal { portal_group, ..Portal::new("127.0.0.1:0".parse().unwrap()) }
    }

    /// Goal: there is one port for each portal group, in order, whatever the order and number of
    /// portals.
    #[test]
    fn ports_are_portal_groups_in_order() {
        let portals = [Some(7), None, Some(1), Some(7), None].map(portal);
        let tags = |group| {
            let ports = target_ports(&target(group), &portals);
            assert!(ports.iter().all(|port| port.relative_id == port.portal_group_tag));
            ports.into_iter().map(|port| port.portal_group_tag).collect::<Vec<_>>()
        };
        assert_eq!(tags(3), [1, 3, 7]);
        assert_eq!(tags(1), [1, 7], "a group that is its default and a portal's own is one");
        assert_eq!(tags(65_535), [1, 7, 65_535]);
    }
}
