//! ISIDs: the initiator's part of a session identifier. RFC 7143 §4.4.3, §11.12.5.

use alloc::collections::BTreeSet;
use alloc::string::String;

/// The six bytes of an ISID.
pub type Isid = [u8; 6];

/// Allocates ISIDs. No two sessions of this initiator with one target share an ISID (the ISID rule,
/// RFC 7143 §4.4.3), and a target sees the same few again (conservative reuse, §11.12.5), because
/// persistent reservations depend on them.
#[derive(Clone, Debug)]
pub struct IsidPool {
    random: [u8; 3],
    taken: BTreeSet<(String, u16)>,
}

impl IsidPool {
    /// T = 10b in the first byte: the naming authority is a random number.
    const RANDOM_FORMAT: u8 = 0x80;

    /// Creates a pool. `random` distinguishes this initiator's ISIDs from those of another one with
    /// the same name: fresh from the operating system, or stored if reservations must survive a
    /// restart.
    pub fn new(random: [u8; 3]) -> Self {
        Self { random, taken: BTreeSet::new() }
    }

    /// Takes the lowest ISID that no session with this target uses; `None` when all 65,536 are in
    /// use. Target names are compared byte by byte, so pass them in normal form.
    pub fn take(&mut self, target_name: &str) -> Option<Isid> {
        let free = |qualifier: &u16| !self.taken.contains(&(target_name.into(), *qualifier));
        let qualifier = (0..=u16::MAX).find(free)?;
        self.taken.insert((target_name.into(), qualifier));
        let [b, c, d] = self.random;
        let [high, low] = qualifier.to_be_bytes();
        Some([Self::RANDOM_FORMAT, b, c, d, high, low])
    }

    /// Returns the ISID of a session that has ended.
    pub fn release(&mut self, target_name: &str, isid: Isid) {
        let [_, _, _, _, high, low] = isid;
        self.taken.remove(&(target_name.into(), u16::from_be_bytes([high, low])));
    }

    /// Number of ISIDs in use, over all targets.
    pub fn in_use(&self) -> usize {
        self.taken.len()
    }
}
