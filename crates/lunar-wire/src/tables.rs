//! `wire_struct!` and `wire_enum!`: a layout is declared once, as a table that can be compared with
//! the standard.

/// Declares a fixed layout as a table of byte offsets.
///
/// Generates a struct with one public field per row, its length `LEN`, `decode` (never fails: any
/// bytes decode, their meaning is checked later) and `encode` (bytes the table does not name are
/// zero, as standards require for reserved fields). Offsets are checked at compile time: ascending,
/// no overlap, inside the layout.
///
/// ```
/// lunar_wire::wire_struct! {
///     /// An example.
///     pub struct Example [8] {
///         0 => kind: u8,
///         4 => length: u32,
///     }
/// }
/// let bytes = [7, 0, 0, 0, 0, 0, 1, 0];
/// assert_eq!(Example::decode(&bytes), Example { kind: 7, length: 256 });
/// assert_eq!(Example { kind: 7, length: 256 }.encode(), bytes);
/// assert_eq!(Example::LEN, 8);
/// ```
#[macro_export]
macro_rules! wire_struct {
    ($(#[$doc:meta])* pub struct $name:ident [$len:literal] {
        $($(#[$field_doc:meta])* $at:literal => $field:ident : $ty:ty),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        #[allow(missing_docs)]
        pub struct $name { $($(#[$field_doc])* pub $field: $ty),+ }

        impl $name {
            /// Length of the layout in bytes.
            pub const LEN: usize = $len;

            /// Decodes any bytes of the right length; their meaning is checked later.
            #[inline]
            pub fn decode(bytes: &[u8; $len]) -> Self {
                Self { $($field: <$ty as $crate::Field>::get(
                    &bytes[$at..$at + <$ty as $crate::Field>::SIZE])),+ }
            }

            /// Encodes the layout; bytes that the table does not name are zero.
            #[inline]
            pub fn encode(&self) -> [u8; $len] {
                let mut bytes = [0; $len];
                $(<$ty as $crate::Field>::put(
                    self.$field, &mut bytes[$at..$at + <$ty as $crate::Field>::SIZE]);)+
                bytes
            }
        }

        // Checked at compile time.
        const _: () = {
            let mut end = 0;
            $(assert!($at >= end); end = $at + <$ty as $crate::Field>::SIZE;)+
            assert!(end <= $len);
        };
    };
}

/// Declares a code of a protocol that may have unknown values: a newtype over the integer with
/// named constants, so that decoding never fails and `Debug` prints the name or the number in hex.
///
/// ```
/// lunar_wire::wire_enum! {
///     /// An example.
///     pub struct Colour(u8) { RED = 0x01, BLUE = 0x02 }
/// }
/// assert_eq!(format!("{:?}", Colour(2)), "BLUE");
/// assert_eq!(format!("{:?}", Colour(9)), "Colour(0x9)");
/// ```
#[macro_export]
macro_rules! wire_enum {
    ($(#[$doc:meta])* pub struct $name:ident($ty:ty) {
        $($(#[$item_doc:meta])* $item:ident = $value:expr),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Eq, PartialEq, Ord, PartialOrd, Hash)]
        pub struct $name(pub $ty);

        #[allow(missing_docs)]
        impl $name {
            $($(#[$item_doc])* pub const $item: Self = Self($value);)+

            /// The name in the standard, if the number has one.
            pub fn name(self) -> Option<&'static str> {
                match self { $(Self::$item => Some(stringify!($item)),)+ _ => None }
            }
        }

        impl ::core::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => ::core::write!(f, "{}({:#x})", stringify!($name), self.0),
                }
            }
        }

        impl $crate::Field for $name {
            const SIZE: usize = <$ty as $crate::Field>::SIZE;
            fn get(bytes: &[u8]) -> Self { Self(<$ty as $crate::Field>::get(bytes)) }
            fn put(self, bytes: &mut [u8]) { <$ty as $crate::Field>::put(self.0, bytes); }
        }
    };
}

/// Declares a set of bits in one byte or number, so that code that tests and sets named bits or
/// multi-bit fields stays readable.
///
/// ```
/// lunar_wire::wire_flags! {
///     /// An example.
///     pub struct Flags(u8) { FINAL = 0x80, CONTINUE = 0x40 }
/// }
/// assert!((Flags::FINAL | Flags::CONTINUE).has(Flags::CONTINUE));
/// assert!(!Flags::NONE.with(Flags::FINAL).has(Flags::CONTINUE));
/// ```
#[macro_export]
macro_rules! wire_flags {
    ($(#[$doc:meta])* pub struct $name:ident($ty:ty) {
        $($(#[$item_doc:meta])* $item:ident = $value:expr),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        pub struct $name(pub $ty);

        #[allow(missing_docs)]
        impl $name {
            /// No bit set.
            pub const NONE: Self = Self(0);
            $($(#[$item_doc])* pub const $item: Self = Self($value);)+

            /// True if every bit of `bits` is set.
            pub const fn has(self, bits: Self) -> bool { self.0 & bits.0 == bits.0 }
            /// Returns the flags with `bits` set as well.
            #[must_use]
            pub const fn with(self, bits: Self) -> Self { Self(self.0 | bits.0) }
            /// Returns the flags with `bits` set as well if `when`.
            #[must_use]
            pub const fn with_if(self, when: bool, bits: Self) -> Self {
                if when { self.with(bits) } else { self }
            }
        }

        impl ::core::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self { self.with(other) }
        }

        impl $crate::Field for $name {
            const SIZE: usize = <$ty as $crate::Field>::SIZE;
            fn get(bytes: &[u8]) -> Self { Self(<$ty as $crate::Field>::get(bytes)) }
            fn put(self, bytes: &mut [u8]) { <$ty as $crate::Field>::put(self.0, bytes); }
        }
    };
}
