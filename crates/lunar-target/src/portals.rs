//! The portals of a server: where targets are reached, and which SCSI ports these are.

use crate::Error;
use crate::options::{Portal, TargetOptions};
use lunar_scsi::unit::TargetPort;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// Peer address of a connection, and the local address and portal that it reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionPath {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) portal: usize,
}

/// Portal group of discovery sessions, which belong to no target, at portals without a group.
const DISCOVERY_PORTAL_GROUP: u16 = 1;

/// The portals of a server, and the addresses that they listen on.
#[derive(Debug)]
pub(crate) struct Portals {
    options: Vec<Portal>,
    addresses: Vec<SocketAddr>,
}

impl Portals {
    pub(crate) fn new(options: Vec<Portal>, addresses: Vec<SocketAddr>) -> Result<Self, Error> {
        if options.iter().any(|portal| portal.portal_group == Some(0)) {
            return Err(Error::Options("a portal group tag must be 1 to 65535".to_owned()));
        }
        Ok(Self { options, addresses })
    }

    /// The listening addresses, in the order of the portals, with the actual ports.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Tag of the portal group that this connection reached: that of `target`, or the default for
    /// discovery if `target` is `None`.
    pub(crate) fn group(&self, target: Option<&TargetOptions>, path: ConnectionPath) -> u16 {
        let default = target.map_or(DISCOVERY_PORTAL_GROUP, |target| target.portal_group);
        let portal = self.options.get(path.portal);
        portal.and_then(|portal| portal.portal_group).unwrap_or(default)
    }

    /// All ports of a target, ordered by their relative identifiers.
    pub(crate) fn ports_of(&self, target: &TargetOptions) -> Vec<TargetPort> {
        let tags: BTreeSet<u16> = self.options.iter().map(|p| target.portal_group_at(p)).collect();
        tags.into_iter().map(|tag| target_port(target, tag)).collect()
    }

    /// Addresses of every portal that an initiator can reach: the advertised address, or the one
    /// listened on. A wildcard is replaced with the local address that this connection reached.
    pub(crate) fn addresses_of(
        &self,
        target: &TargetOptions,
        path: ConnectionPath,
    ) -> Vec<(String, u16)> {
        let mut found = Vec::new();
        for (index, (portal, listening)) in self.options.iter().zip(&self.addresses).enumerate() {
            let address = match &portal.advertise {
                Some(advertised) => advertised.clone(),
                None if listening.ip().is_unspecified() => {
                    let ip = if index == path.portal || same_family(listening.ip(), path.local.ip())
                    {
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
}

/// The SCSI target port of a portal group. The tag is also the relative identifier: neither a
/// restart nor the order of portals changes it, and no two ports of a target share one.
pub(crate) fn target_port(target: &TargetOptions, portal_group_tag: u16) -> TargetPort {
    TargetPort { name: target.name.clone(), portal_group_tag, relative_id: portal_group_tag }
}

fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.to_canonical().is_ipv4()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: &str = "iqn.2026-11.org.example:a";

    fn portal(portal_group: Option<u16>) -> Portal {
        Portal { portal_group, ..Portal::new("127.0.0.1:0".parse().unwrap()) }
    }

    /// Goal: there is one port for each portal group, in order, whatever the order and number of
    /// portals.
    #[test]
    fn ports_are_portal_groups_in_order() {
        let options = [Some(7), None, Some(1), Some(7), None].map(portal);
        let portals = Portals::new(options.into(), Vec::new()).unwrap();
        let tags = |group| {
            let ports = portals.ports_of(&TargetOptions::for_test(TARGET, group));
            assert!(ports.iter().all(|port| port.relative_id == port.portal_group_tag));
            ports.into_iter().map(|port| port.portal_group_tag).collect::<Vec<_>>()
        };
        assert_eq!(tags(3), [1, 3, 7]);
        assert_eq!(tags(1), [1, 7], "a group that is its default and a portal's own is one");
        assert_eq!(tags(65_535), [1, 7, 65_535]);
    }
}
