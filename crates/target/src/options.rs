//! What a server is to serve: plain values, made from a command line or a configuration file.

use crate::LogicalUnit;
use iscsi::login::ChapDemand;
use iscsi::text::Offer;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Everything one server process serves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it listens.
    pub portals: Vec<Portal>,
    /// The targets.
    pub targets: Vec<TargetOptions>,
    /// What a discovery session must prove; `None`: nothing, and it is shown the targets that its
    /// initiator may log in to.
    pub discovery_chap: Option<ChapDemand>,
    /// How many data-plane threads; 0: one a core.
    pub cores: usize,
    /// Named limits.
    pub limits: Limits,
}

/// An address to listen on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Portal {
    /// Where; port 0 takes a free one.
    pub listen: SocketAddr,
    /// What discovery names instead (`host:port`), for NAT and containers.
    pub advertise: Option<String>,
    /// Portal group tag, from 1, of every target here; `None`: each target's own.
    pub portal_group: Option<u16>,
}

impl Portal {
    /// Listens on `listen` and is what it seems.
    pub fn new(listen: SocketAddr) -> Self {
        Self { listen, advertise: None, portal_group: None }
    }
}

/// Named limits of a server, all of which a configuration may set.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Connections at once, logged in or not; more are closed when accepted.
    pub connections: usize,
    /// Seconds until a login must be through.
    pub login_seconds: u16,
    /// Commands an initiator may have in flight in one session (MaxCmdSN window).
    pub window_commands: u32,
    /// Bytes of data-out buffers one connection may hold; commands beyond get TASK SET FULL.
    pub data_out_bytes: usize,
    /// Bytes of read data one connection may have in flight; further reads wait.
    pub data_in_bytes: usize,
    /// The longest single transfer in bytes (VPD B0 MAXIMUM TRANSFER LENGTH).
    pub transfer_bytes: u32,
    /// Seconds of silence before the target pings.
    pub ping_after_seconds: u16,
    /// Seconds an initiator has to answer a ping.
    pub ping_timeout_seconds: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            login_seconds: 15,
            window_commands: 128,
            data_out_bytes: 64 << 20,
            data_in_bytes: 64 << 20,
            transfer_bytes: 8 << 20,
            ping_after_seconds: 30,
            ping_timeout_seconds: 15,
        }
    }
}

/// One iSCSI target.
#[derive(Clone, Debug)]
pub struct TargetOptions {
    /// iSCSI name.
    pub name: String,
    /// TargetAlias.
    pub alias: Option<String>,
    /// Portal group tag, from 1, at the portals that have none of their own.
    pub portal_group: u16,
    /// Who may log in.
    pub access: Access,
    /// What initiators must prove; the first entry that fits the initiator's name counts.
    /// Empty: nothing.
    pub chap: Vec<ChapEntry>,
    /// What is negotiated.
    pub offer: Offer,
    /// Send logins elsewhere: `host:port[,tpgt]`.
    pub redirect: Option<String>,
    /// Its units.
    pub luns: Vec<LunOptions>,
}

/// Who may log in (or see a LUN). An empty list allows all; both lists must match.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Access {
    /// Initiator names, compared without case.
    pub initiators: Vec<String>,
    /// Networks the initiator's address must lie in.
    pub networks: Vec<Network>,
}

/// An address prefix.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Network {
    /// Any address in it.
    pub address: IpAddr,
    /// How many leading bits count.
    pub prefix_bits: u8,
}

/// A CHAP credential for one initiator, or for all that no other entry names.
#[derive(Clone, Debug)]
pub struct ChapEntry {
    /// Only for this initiator name.
    pub initiator: Option<String>,
    /// What it must prove.
    pub demand: ChapDemand,
}

/// One LUN of a target.
#[derive(Clone, Debug)]
pub struct LunOptions {
    /// Its number, 0 to 16,383.
    pub id: u16,
    /// The unit behind it; the same `Arc` under several numbers is one unit.
    pub unit: Arc<LogicalUnit>,
    /// Seen by these initiators only; empty: by all that may log in.
    pub initiators: Vec<String>,
}

impl TargetOptions {
    /// Tag of the group that `portal` is in for this target. The sessions of one portal group meet
    /// one SCSI target port: its name is the target's name and this tag (RFC 7143 §4.4.1).
    pub fn portal_group_at(&self, portal: &Portal) -> u16 {
        portal.portal_group.unwrap_or(self.portal_group)
    }
}

impl Network {
    /// Reads `10.1.0.0/16`, `2001:db8::/64`, or a single address.
    ///
    /// # Errors
    /// A text that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr =
            address.parse().map_err(|_| format!("{text}: not an IP address or network"))?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match prefix {
            None => bits_max,
            Some(prefix) => match prefix.parse() {
                Ok(bits) if bits <= bits_max => bits,
                _ => return Err(format!("{text}: the prefix length must be 0 to {bits_max}")),
            },
        };
        Ok(Self { address, prefix_bits })
    }

    /// Whether `address` lies in it; IPv4 addresses mapped into IPv6 count as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address.to_canonical(), address.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(host)) => {
                let bits = self.prefix_bits.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                net.to_bits() & mask == host.to_bits() & mask
            }
            (IpAddr::V6(net), IpAddr::V6(host)) => {
                let bits = self.prefix_bits.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                net.to_bits() & mask == host.to_bits() & mask
            }
            _ => false,
        }
    }
}

impl Access {
    /// Whether an initiator of this name at this address may pass.
    pub fn allows(&self, initiator: &str, address: IpAddr) -> bool {
        let name = self.initiators.is_empty()
            || self.initiators.iter().any(|allowed| allowed.eq_ignore_ascii_case(initiator));
        let network =
            self.networks.is_empty() || self.networks.iter().any(|net| net.contains(address));
        name && network
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_addresses_only() {
        let net = Network::parse("10.1.0.0/16").unwrap();
        assert!(net.contains("10.1.255.1".parse().unwrap()));
        assert!(net.contains("::ffff:10.1.2.3".parse().unwrap()), "an IPv4 client on [::]");
        assert!(!net.contains("10.2.0.1".parse().unwrap()));
        assert!(!net.contains("2001:db8::1".parse().unwrap()));
        let all = Network::parse("::/0").unwrap();
        assert!(all.contains("2001:db8::1".parse().unwrap()));
        let one = Network::parse("2001:db8::1").unwrap();
        assert!(!one.contains("2001:db8::2".parse().unwrap()));
        assert!(Network::parse("10.0.0.0/33").is_err());
        assert!(Network::parse("here").is_err());
    }

    #[test]
    fn both_kinds_must_match() {
        let access = Access {
            initiators: vec!["iqn.2026-11.org.example:A".into()],
            networks: vec![Network::parse("127.0.0.0/8").unwrap()],
        };
        let (home, away) = ("127.0.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap());
        assert!(access.allows("iqn.2026-11.org.example:a", home));
        assert!(!access.allows("iqn.2026-11.org.example:a", away));
        assert!(!access.allows("iqn.2026-11.org.example:b", home));
    }
}
