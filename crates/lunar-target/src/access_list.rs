//! Access lists of initiator names and networks, and their intersection.

use std::net::{IpAddr, Ipv4Addr};

/// List of initiators that may log in (or see a LUN). An empty list allows all; both the name and
/// the address must match.
///
/// A name is only what an initiator claims: without CHAP it is not proven.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Access {
    /// Initiator names, compared without case.
    pub initiators: Vec<String>,
    /// Networks the initiator's address must lie in.
    pub networks: Vec<Network>,
}

/// An address prefix. IPv4 addresses mapped into IPv6 (`::ffff:10.0.0.0/104`) count as IPv4.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Network {
    /// Any address in the network.
    pub address: IpAddr,
    /// Number of leading bits that count.
    pub prefix_bits: u8,
}

/// Leading bits of IPv4 addresses that are mapped into IPv6: `::ffff:0:0/96`.
const MAPPED_PREFIX_BITS: u8 = 96;

impl Network {
    /// Reads `10.1.0.0/16`, `2001:db8::/64`, or a single address.
    ///
    /// # Errors
    /// A text that says what is wrong with the input.
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
        Ok(Self { address, prefix_bits }.canonical())
    }

    /// The same network with IPv4 as IPv4, and no address bits behind the prefix.
    fn canonical(self) -> Self {
        match self.address {
            IpAddr::V4(address) => Self::v4(address, self.prefix_bits.min(32)),
            IpAddr::V6(address) => match (address.to_ipv4_mapped(), self.prefix_bits.min(128)) {
                (Some(mapped), bits @ MAPPED_PREFIX_BITS..) => {
                    Self::v4(mapped, bits - MAPPED_PREFIX_BITS)
                }
                (_, bits) => {
                    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                    let address = IpAddr::V6((address.to_bits() & mask).into());
                    Self { address, prefix_bits: bits }
                }
            },
        }
    }

    fn v4(address: Ipv4Addr, prefix_bits: u8) -> Self {
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix_bits)).unwrap_or(0);
        let address = IpAddr::V4((address.to_bits() & mask).into());
        Self { address, prefix_bits }
    }

    /// True when `address` lies in the network; IPv4 addresses mapped into IPv6 count as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let net = self.canonical();
        let host = Self { address: address.to_canonical(), prefix_bits: net.prefix_bits };
        net.address.is_ipv4() == host.address.is_ipv4() && net == host.canonical()
    }

    /// The intersection of two networks: either one contains the other, or they share no address.
    fn and(self, other: Self) -> Option<Self> {
        let (one, other) = (self.canonical(), other.canonical());
        let (outer, inner) =
            if one.prefix_bits <= other.prefix_bits { (one, other) } else { (other, one) };
        outer.contains(inner.address).then_some(inner)
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { address, prefix_bits } = self.canonical();
        write!(f, "{address}/{prefix_bits}")
    }
}

impl Access {
    /// True when an initiator of this name at this address is allowed.
    pub fn allows(&self, initiator: &str, address: IpAddr) -> bool {
        let name = self.initiators.is_empty()
            || self.initiators.iter().any(|allowed| allowed.eq_ignore_ascii_case(initiator));
        name && self.allows_address(address)
    }

    /// True when the networks of the list allow this address.
    pub(crate) fn allows_address(&self, address: IpAddr) -> bool {
        self.networks.is_empty() || self.networks.iter().any(|net| net.contains(address))
    }

    /// The intersection: the initiators that both lists allow. `None` if there are none.
    #[must_use]
    pub fn and(&self, other: &Self) -> Option<Self> {
        let same_name =
            |one: &String, other: &String| one.eq_ignore_ascii_case(other).then(|| one.clone());
        Some(Self {
            initiators: common(&self.initiators, &other.initiators, same_name)?,
            networks: common(&self.networks, &other.networks, |one, other| one.and(*other))?,
        })
    }

    /// True when one initiator could see two LUNs with these lists, in a target with this list.
    pub fn may_see_both(&self, one: &Self, other: &Self) -> bool {
        self.and(one).and_then(|one| one.and(other)).is_some()
    }
}

/// Entries that two lists have in common. An empty list stands for everything; `None` if the lists
/// share nothing.
fn common<T: Clone>(one: &[T], other: &[T], both: impl Fn(&T, &T) -> Option<T>) -> Option<Vec<T>> {
    match (one, other) {
        ([], all) | (all, []) => Some(all.to_vec()),
        _ => {
            let pairs = one.iter().flat_map(|a| other.iter().filter_map(|b| both(a, b)));
            let shared: Vec<T> = pairs.collect();
            (!shared.is_empty()).then_some(shared)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv6Addr;

    fn net(text: &str) -> Network {
        Network::parse(text).unwrap()
    }

    #[test]
    fn networks_contain_their_addresses_only() {
        let sixteen = net("10.1.0.0/16");
        assert!(sixteen.contains("10.1.255.1".parse().unwrap()));
        assert!(sixteen.contains("::ffff:10.1.2.3".parse().unwrap()), "an IPv4 client on [::]");
        assert!(!sixteen.contains("10.2.0.1".parse().unwrap()));
        assert!(!sixteen.contains("2001:db8::1".parse().unwrap()));
        assert!(net("::/0").contains("2001:db8::1".parse().unwrap()));
        assert!(!net("::/0").contains("10.0.0.1".parse().unwrap()), "families are apart");
        assert!(!net("0.0.0.0/0").contains("2001:db8::1".parse().unwrap()));
        assert!(net("0.0.0.0/0").contains("::ffff:10.1.2.3".parse().unwrap()));
        assert!(!net("2001:db8::1").contains("2001:db8::2".parse().unwrap()));
        for wrong in ["10.0.0.0/33", "::/129", "here", "10.0.0.0/", "10.0.0.0/-1", "10.0.0/8", ""] {
            assert!(Network::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// Goal: an IPv4 network written in IPv6 is the whole network, not a single address of it.
    #[test]
    fn mapped_networks_are_ipv4_networks() {
        assert_eq!(net("::ffff:10.1.2.3/112"), net("10.1.0.0/16"));
        assert_eq!(net("::ffff:0:0/96"), net("0.0.0.0/0"));
        assert_eq!(net("::ffff:10.1.2.3").to_string(), "10.1.2.3/32");
        // Wider than all of IPv4: an IPv6 network that contains no host.
        assert!(!net("::ffff:0:0/95").contains("10.1.2.3".parse().unwrap()));
    }

    #[test]
    fn both_kinds_must_match() {
        let access = Access {
            initiators: vec!["iqn.2026-11.org.example:A".into()],
            networks: vec![net("127.0.0.0/8")],
        };
        let (home, away) = ("127.0.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap());
        assert!(access.allows("iqn.2026-11.org.example:a", home));
        assert!(!access.allows("iqn.2026-11.org.example:a", away));
        assert!(!access.allows("iqn.2026-11.org.example:b", home));
    }

    fn lists() -> impl Strategy<Value = Access> {
        let names = proptest::collection::vec("[abA]", 0..3);
        let v4 = (any::<[u8; 2]>(), 0..=32u8)
            .prop_map(|([a, b], bits)| (IpAddr::from([a & 1, b & 1, 0, 1]), bits));
        let v6 = (0..4u128, 0..=128u8)
            .prop_map(|(low, bits)| (IpAddr::V6(Ipv6Addr::from_bits(low << 64)), bits));
        let mapped = v4.clone().prop_map(|(address, bits)| match address {
            IpAddr::V4(v4) => (IpAddr::V6(v4.to_ipv6_mapped()), bits + 96),
            v6 => (v6, bits),
        });
        let network = prop_oneof![v4, v6, mapped]
            .prop_map(|(address, prefix_bits)| Network { address, prefix_bits });
        (names, proptest::collection::vec(network, 0..3))
            .prop_map(|(initiators, networks)| Access { initiators, networks })
    }

    proptest! {
        /// Goal: `and` allows exactly the initiators that both lists allow, and returns `None` when
        /// there are none.
        #[test]
        fn and_is_both(
            one in lists(),
            other in lists(),
            low in 0..4u128,
            bits in any::<[u8; 2]>(),
        ) {
            let both = one.and(&other);
            let [a, b] = bits;
            let hosts = [
                IpAddr::from([a & 1, b & 1, 0, 1]),
                IpAddr::V6(Ipv6Addr::from_bits(low << 64)),
            ];
            for host in hosts {
                for name in ["a", "b", "c"] {
                    let wanted = one.allows(name, host) && other.allows(name, host);
                    let got = both.as_ref().is_some_and(|both| both.allows(name, host));
                    prop_assert_eq!(got, wanted, "{:?} {} {}", &both, name, host);
                }
            }
        }

        /// Goal: the displayed form of a network parses to the same network.
        #[test]
        fn networks_are_shown_as_read(list in lists()) {
            for network in list.networks {
                let shown = network.to_string();
                prop_assert_eq!(Network::parse(&shown), Ok(network.canonical()), "{}", shown);
            }
        }
    }
}
