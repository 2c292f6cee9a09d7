//! CHAP: challenges, responses, and checks against attacks. RFC 1994, RFC 7143 §9.2.1, §12.1.3.

use super::{ChapAlgorithm, Secret};
use crate::text::value;
use alloc::string::String;
use alloc::vec::Vec;
use sha2::Digest;
use subtle::ConstantTimeEq;

impl ChapAlgorithm {
    /// All algorithms, strongest first.
    pub const ALL: [Self; 4] = [Self::Sha3_256, Self::Sha256, Self::Sha1, Self::Md5];

    /// The number in CHAP_A, assigned by IANA.
    pub const fn number(self) -> u8 {
        match self {
            Self::Md5 => 5,
            Self::Sha1 => 6,
            Self::Sha256 => 7,
            Self::Sha3_256 => 8,
        }
    }

    /// Returns the algorithm with this number.
    pub fn numbered(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| u64::from(algorithm.number()) == number)
    }

    /// Length of a response in bytes.
    pub const fn hash_bytes(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 | Self::Sha3_256 => 32,
        }
    }
}

/// Chooses the first entry of a CHAP_A list that `allowed` contains. Words that are not a known
/// number are skipped (RFC 7143 §6.2.1).
pub fn choose(list: &str, allowed: &[ChapAlgorithm]) -> Option<ChapAlgorithm> {
    list.split(',')
        .filter_map(|word| ChapAlgorithm::numbered(value::number(word)?))
        .find(|algorithm| allowed.contains(algorithm))
}

/// Formats a list for CHAP_A.
pub fn list(algorithms: &[ChapAlgorithm]) -> String {
    let numbers: Vec<String> =
        algorithms.iter().map(|algorithm| alloc::format!("{}", algorithm.number())).collect();
    numbers.join(",")
}

/// A challenge, our own or that of the peer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Challenge {
    /// The hash in use.
    pub algorithm: ChapAlgorithm,
    /// CHAP_I.
    pub identifier: u8,
    /// CHAP_C, 1 to 1,024 bytes.
    pub bytes: Vec<u8>,
}

impl Challenge {
    /// Creates our own challenge from fresh random bytes, with the length of the hash, which every
    /// peer accepts.
    pub fn fresh(algorithm: ChapAlgorithm, entropy: &[u8; 33]) -> Self {
        let [identifier, random @ ..] = entropy;
        let bytes = random.iter().copied().take(algorithm.hash_bytes()).collect();
        Self { algorithm, identifier: *identifier, bytes }
    }

    /// Creates the peer's challenge from its CHAP_I and CHAP_C; `None` if they are not valid.
    pub fn received(algorithm: ChapAlgorithm, chap_i: &str, chap_c: &str) -> Option<Self> {
        let identifier = u8::try_from(value::number(chap_i)?).ok()?;
        let bytes = value::binary(chap_c, crate::text::CHAP_BYTES_MAX)?;
        Some(Self { algorithm, identifier, bytes })
    }

    /// Calculates the response that proves knowledge of `secret`: hash(identifier, secret,
    /// challenge).
    pub fn response(&self, secret: &Secret) -> Vec<u8> {
        let parts = [&[self.identifier], secret.expose(), &self.bytes];
        match self.algorithm {
            ChapAlgorithm::Md5 => hash::<md5::Md5>(&parts),
            ChapAlgorithm::Sha1 => hash::<sha1::Sha1>(&parts),
            ChapAlgorithm::Sha256 => hash::<sha2::Sha256>(&parts),
            ChapAlgorithm::Sha3_256 => hash::<sha3::Sha3_256>(&parts),
        }
    }

    /// True if `chap_r` is the correct response for `secret`. Takes the same time wherever they
    /// differ.
    pub fn is_answered_by(&self, chap_r: &str, secret: &Secret) -> bool {
        let expected = self.response(secret);
        match value::binary(chap_r, self.algorithm.hash_bytes()) {
            Some(response) => bool::from(expected.as_slice().ct_eq(&response)),
            None => false,
        }
    }

    /// True if the peer sends our own challenge back to us. RFC 7143 §9.2.1.
    pub fn is_reflection_of(&self, ours: &Self) -> bool {
        self.bytes == ours.bytes
    }
}

/// Compares two secrets in a time that reveals only their lengths.
pub fn same_secret(one: &Secret, other: &Secret) -> bool {
    bool::from(one.expose().ct_eq(other.expose()))
}

/// Compares two names in a time that reveals only their lengths.
pub fn same_name(one: &str, other: &str) -> bool {
    bool::from(one.as_bytes().ct_eq(other.as_bytes()))
}

fn hash<D: Digest>(parts: &[&[u8]]) -> Vec<u8> {
    let mut state = D::new();
    for part in parts {
        state.update(part);
    }
    state.finalize().to_vec()
}
