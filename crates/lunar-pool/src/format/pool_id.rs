//! The identity of a pool.

use lunar_wire::Field;
use std::fmt;

/// The random UUID of a pool.
#[derive(Clone, Copy, Eq, PartialEq, Hash, Ord, PartialOrd)]
pub struct PoolId(pub [u8; 16]);

impl PoolId {
    /// Creates an id of version 4 (RFC 9562) from random bytes.
    pub const fn from_random(mut random: [u8; 16]) -> Self {
        random[6] = random[6] & 0x0f | 0x40;
        random[8] = random[8] & 0x3f | 0x80;
        Self(random)
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolId({self})")
    }
}

impl Field for PoolId {
    const SIZE: usize = 16;

    fn get(bytes: &[u8]) -> Self {
        Self(Field::get(bytes))
    }

    fn put(self, bytes: &mut [u8]) {
        self.0.put(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an id is shown as in RFC 9562.
    #[test]
    fn shown_with_hyphens() {
        let id = PoolId::from_random([0xff; 16]);
        assert_eq!(id.to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
