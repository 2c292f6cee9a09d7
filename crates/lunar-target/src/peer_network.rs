//! The networks of peers, for limits that apply to all hosts of one site.

use lunar_scsi::share::Origin;
use std::net::{IpAddr, Ipv6Addr};

/// Bits of an IPv6 address that identify one site, whose hosts share a /64 and can choose the other
/// bits at will.
const IPV6_NETWORK_BITS: u32 = 64;

/// Network of a peer, as the unit to which delays apply.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub(crate) struct PeerNetwork(IpAddr);

impl PeerNetwork {
    /// An IPv4 address, also if mapped into IPv6, or the /64 of an IPv6 address.
    pub(crate) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let mask = u128::MAX << (128 - IPV6_NETWORK_BITS);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
            v4 => v4,
        })
    }

    /// The network as an opaque number.
    pub(crate) fn origin(self) -> Origin {
        Origin(match self.0 {
            IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
            IpAddr::V6(address) => address.to_bits(),
        })
    }
}
