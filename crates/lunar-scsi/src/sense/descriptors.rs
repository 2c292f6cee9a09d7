//! Sense data descriptors of other command sets than SBC, as bytes. SPC-4 §4.5.2.1.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// Length of type and additional length, which the additional length does not count.
pub(super) const HEADER_BYTES: usize = 2;

/// Sense data descriptors in their order, in addition to those that [`Sense`](super::Sense) has
/// fields for. They are encoded in descriptor format only.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct SenseDescriptors(Option<Box<Encoded>>);

#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Encoded {
    /// At most [`DESCRIPTORS_BYTES_MAX`] bytes: whole descriptors.
    bytes: Vec<u8>,
    /// True if a further descriptor did not fit.
    is_cut: bool,
}

/// Maximum length of all descriptors: ADDITIONAL SENSE LENGTH is at most 244. SPC-4 §4.5.2.1.
pub const DESCRIPTORS_BYTES_MAX: usize = 244;

impl SenseDescriptors {
    /// No descriptors.
    pub const NONE: Self = Self(None);

    /// Adds a descriptor of this type, whose bytes after the additional length are `body`. If it
    /// does not fit, it and all later ones are left out.
    pub fn add(&mut self, kind: u8, body: &[u8]) {
        let Encoded { bytes, is_cut } = &mut **self.0.get_or_insert_default();
        let length = u8::try_from(body.len()).ok();
        let fits = bytes.len() + HEADER_BYTES + body.len() <= DESCRIPTORS_BYTES_MAX;
        match length.filter(|_| fits && !*is_cut) {
            Some(length) => {
                bytes.extend_from_slice(&[kind, length]);
                bytes.extend_from_slice(body);
            }
            None => *is_cut = true,
        }
    }

    /// Records that descriptors were left out.
    pub(super) fn set_cut(&mut self) {
        self.0.get_or_insert_default().is_cut = true;
    }

    /// True if descriptors were left out because the sense data had no room for them.
    pub fn is_cut(&self) -> bool {
        self.0.as_ref().is_some_and(|encoded| encoded.is_cut)
    }

    /// The type and the body of each descriptor.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        self.encoded().map(|descriptor| (descriptor[0], &descriptor[HEADER_BYTES..]))
    }

    /// The body of the first descriptor of this type.
    pub fn get(&self, kind: u8) -> Option<&[u8]> {
        self.iter().find(|(found, _)| *found == kind).map(|(_, body)| body)
    }

    /// Each descriptor with its header.
    pub(super) fn encoded(&self) -> impl Iterator<Item = &[u8]> {
        Split { rest: self.0.as_ref().map_or(&[], |encoded| &encoded.bytes) }
    }
}

impl fmt::Debug for SenseDescriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.encoded()).finish()
    }
}

/// Splits descriptors; ends before one that is incomplete.
pub(super) struct Split<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> Iterator for Split<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let length = *self.rest.get(1)?;
        let (descriptor, rest) = self.rest.split_at_checked(HEADER_BYTES + usize::from(length))?;
        self.rest = rest;
        Some(descriptor)
    }
}
