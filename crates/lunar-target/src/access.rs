//! Access rules: who may log in to a target, and which targets each initiator may see.

use crate::catalogue::{CurrentCatalogue, ServedTarget};
use crate::login_refusal::LoginRefusal;
use crate::options::{ChapEntry, TargetOptions};
use crate::portals::{ConnectionPath, Portals};
use lunar_iscsi::connection::target::TargetRecord;
use lunar_iscsi::login::target::LOGIN_SEGMENT_BYTES_MAX;
use lunar_iscsi::login::{Admission, AdmissionDecision, ChapRequirement, Claim, SessionType};
use lunar_iscsi::pdu::LoginStatus;
use lunar_iscsi::text::Offer;
use std::sync::Arc;

/// The rules of logins and of discovery: the targets that are served, at the portals of the server.
#[derive(Debug)]
pub(crate) struct AccessRules {
    pub(crate) catalogue: Arc<CurrentCatalogue>,
    pub(crate) portals: Portals,
    /// True if data is relayed: initiators then wait to be asked for data-out, so that none waits
    /// here for a storage.
    pub(crate) relays: bool,
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

impl AccessRules {
    /// Checks the first claim of a login. A target that the initiator may not use is reported as
    /// not found; the reason beside the status is for the log.
    pub(crate) fn identify(
        &self,
        claim: &Claim,
        path: ConnectionPath,
    ) -> Result<AdmissionDecision, (LoginStatus, LoginRefusal)> {
        const HIDDEN: LoginStatus = LoginStatus::NOT_FOUND;
        let entropy = entropy().ok_or((LoginStatus::TARGET_ERROR, LoginRefusal::NoEntropy))?;
        let admission = |tag, alias, chap, offer| {
            AdmissionDecision::Admit(Admission {
                portal_group_tag: tag,
                target_alias: alias,
                chap,
                offer,
                entropy,
            })
        };
        if claim.session_type == SessionType::Discovery {
            let requirement = self.catalogue.load().catalogue.discovery_chap.clone();
            return Ok(admission(
                self.portals.group(None, path),
                None,
                requirement,
                discovery_offer(),
            ));
        }
        let name = claim.target_name.as_deref().unwrap_or_default();
        let (initiator, address) = (&claim.initiator_name, path.peer.ip());
        let served = self.catalogue.load();
        let served = served.target(name).ok_or((HIDDEN, LoginRefusal::NoTarget))?;
        let target = served.options;
        if !target.access.allows(initiator, address) {
            return Err((HIDDEN, LoginRefusal::AccessList));
        }
        if !served.shows_something(initiator, address) {
            return Err((HIDDEN, LoginRefusal::NoLun));
        }
        if let Some(address) = &target.redirect {
            return Ok(AdmissionDecision::Redirect { address: address.clone(), permanent: false });
        }
        let requirement = chap_requirement(target, initiator)
            .map_err(|()| (HIDDEN, LoginRefusal::NoCredential))?;
        let tag = self.portals.group(Some(target), path);
        let initial_r2t = self.relays || target.offer.initial_r2t;
        Ok(admission(
            tag,
            target.alias.clone(),
            requirement,
            Offer { initial_r2t, ..target.offer.clone() },
        ))
    }

    /// True when the claimed target has a credential for exactly this initiator name.
    pub(crate) fn has_own_credential(&self, claim: &Claim) -> bool {
        let target = claim.target_name.as_deref().and_then(|name| self.catalogue.target(name));
        target.is_some_and(|target| named_credential(&target, &claim.initiator_name).is_some())
    }

    /// Returns the targets that a discovery session may see, with the addresses to reach them at,
    /// and whether more follow. The catalogue may change between two parts of a list: a target that
    /// is there all the time is listed once.
    pub(crate) fn visible_targets(
        &self,
        initiator: &str,
        path: ConnectionPath,
        query: &TargetsQuery,
    ) -> (Vec<TargetRecord>, bool) {
        let is_visible = |target: &ServedTarget<'_>| {
            lunar_net::count_moved(TARGET_BYTES);
            target.admits(initiator, path.peer.ip())
                && chap_requirement(target.options, initiator).is_ok()
        };
        let record = |target: ServedTarget<'_>| TargetRecord {
            name: target.options.name.clone(),
            addresses: self.portals.addresses_of(target.options, path),
        };
        let indexed = self.catalogue.load();
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
}

/// Offer for discovery sessions. The segment limit is that of a login, since discovery texts are
/// short.
fn discovery_offer() -> Offer {
    let max_recv_data_segment_bytes = LOGIN_SEGMENT_BYTES_MAX as u32;
    Offer { max_recv_data_segment_bytes, ..Offer::default() }
}

/// The credential for this initiator. An entry that names the initiator takes precedence over one
/// for all initiators.
fn chap_requirement(
    target: &TargetOptions,
    initiator: &str,
) -> Result<Option<ChapRequirement>, ()> {
    if target.chap.is_empty() {
        return Ok(None);
    }
    let named = named_credential(target, initiator);
    let entry = named.or_else(|| target.chap.iter().find(|entry| entry.initiator.is_none()));
    entry.map(|entry| Some(entry.requirement.clone())).ok_or(())
}

fn named_credential<'t>(target: &'t TargetOptions, initiator: &str) -> Option<&'t ChapEntry> {
    target.chap.iter().find(|entry| {
        entry.initiator.as_ref().is_some_and(|name| name.eq_ignore_ascii_case(initiator))
    })
}

/// True when an initiator that has proven the CHAP name `user` has thereby proven its own name. A
/// credential for several initiators only proves that the initiator is one of them.
pub(crate) fn proves_name(target: &TargetOptions, initiator: &str, user: Option<&str>) -> bool {
    let named = named_credential(target, initiator);
    named.is_some_and(|entry| user == Some(&entry.requirement.initiator.user))
}

fn entropy() -> Option<[u8; 33]> {
    let mut bytes = [0; 33];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes)
}
