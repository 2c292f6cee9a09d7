//! How many connections one address holds: nobody takes all the places.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The places that are taken, by address.
#[derive(Debug)]
pub(super) struct Places {
    each_max: usize,
    taken: Mutex<HashMap<IpAddr, usize>>,
}

/// A place, free again when dropped.
#[derive(Debug)]
pub(super) struct Place {
    of: Arc<Places>,
    address: IpAddr,
}

impl Places {
    pub(super) fn new(each_max: usize) -> Arc<Self> {
        Arc::new(Self { each_max, taken: Mutex::default() })
    }

    /// `None`: that address (IPv6: the same /64) has as many as one may have.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = network(address);
        let mut taken = self.taken();
        let count = taken.get(&address).copied().unwrap_or_default();
        if count >= self.each_max {
            return None;
        }
        taken.insert(address, count + 1);
        Some(Place { of: Arc::clone(self), address })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.of.taken();
        if let Some(count) = taken.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.address);
            }
        }
    }
}

/// Who has one IPv6 address has all of its /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: one address gets so many and no more, whichever it is in its network, others get
    /// theirs, and what is given back is free.
    #[test]
    fn each_address_has_its_places() {
        let places = Places::new(2);
        let take = |text: &str| places.take(text.parse().unwrap());
        let (one, two) = (take("2001:db8::1").unwrap(), take("2001:db8::2").unwrap());
        assert!(take("2001:db8::3").is_none());
        let others = (take("2001:db8:0:1::1"), take("192.0.2.1"), take("::ffff:192.0.2.1"));
        assert!(others.0.is_some() && others.1.is_some() && others.2.is_some());
        assert!(take("192.0.2.1").is_none());
        drop(one);
        assert!(take("2001:db8::3").is_some());
        drop((two, others));
        assert!(places.taken().is_empty());
    }
}
