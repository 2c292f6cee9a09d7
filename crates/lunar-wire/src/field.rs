//! Values with a fixed size and network byte order.

/// A value in a wire layout: fixed size, big-endian, every bit pattern valid.
pub trait Field: Copy {
    /// Length in bytes.
    const SIZE: usize;
    /// Reads from exactly [`SIZE`](Self::SIZE) bytes (the table macro slices them).
    fn get(bytes: &[u8]) -> Self;
    /// Writes to exactly [`SIZE`](Self::SIZE) bytes.
    fn put(self, bytes: &mut [u8]);
}

macro_rules! unsigned_field {
    ($($ty:ty),+) => { $(
        impl Field for $ty {
            const SIZE: usize = size_of::<$ty>();
            #[inline]
            fn get(bytes: &[u8]) -> Self {
                let mut value = [0; Self::SIZE];
                value.copy_from_slice(bytes);
                Self::from_be_bytes(value)
            }
            #[inline]
            fn put(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_be_bytes());
            }
        }
    )+ };
}

unsigned_field!(u8, u16, u32, u64);

impl<const N: usize> Field for [u8; N] {
    const SIZE: usize = N;
    #[inline]
    fn get(bytes: &[u8]) -> Self {
        let mut value = [0; N];
        value.copy_from_slice(bytes);
        value
    }
    #[inline]
    fn put(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self);
    }
}

/// A 24-bit unsigned number, such as DataSegmentLength (RFC 7143 §11.2.1.6).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd)]
pub struct U24(u32);

impl U24 {
    /// The largest value, 2^24 − 1.
    pub const MAX: u32 = 0xff_ffff;

    /// Creates a number; `None` if `value` needs more than 24 bits.
    pub const fn new(value: u32) -> Option<Self> {
        if value <= Self::MAX { Some(Self(value)) } else { None }
    }

    /// The low 24 bits of `value`; for lengths that a named limit already restricts.
    pub const fn truncate(value: u32) -> Self {
        Self(value & Self::MAX)
    }

    /// The number.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl Field for U24 {
    const SIZE: usize = 3;
    #[inline]
    fn get(bytes: &[u8]) -> Self {
        Self(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
    }
    #[inline]
    fn put(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0.to_be_bytes()[1..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_big_endian() {
        assert_eq!(u32::get(&[1, 2, 3, 4]), 0x0102_0304);
        let mut bytes = [0; 8];
        0x0102_0304_0506_0708_u64.put(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn u24_refuses_more_than_24_bits() {
        assert_eq!(U24::new(0x0100_0000), None);
        let mut bytes = [0; 3];
        U24::truncate(0x0102_0304).put(&mut bytes);
        assert_eq!(bytes, [2, 3, 4]);
        assert_eq!(U24::get(&bytes).value(), 0x02_0304);
    }
}
