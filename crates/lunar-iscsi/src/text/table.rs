//! Every key of RFC 7143 §12 and §13 (and iSCSIProtocolLevel of RFC 7144 §7.1.1) in one table,
//! which parsing, negotiation and the conformance report use.

use super::value::boolean_text;
use alloc::string::{String, ToString};

/// The sides that may send a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Senders {
    /// Only the initiator.
    Initiator,
    /// Only the target.
    Target,
    /// Initiator and target.
    Both,
}

/// The phase in which a key may be sent: the "Use" of RFC 7143 §13.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Use {
    /// LO: on the leading connection's login only.
    LeadingOnly,
    /// IO: in any login, never after.
    InitializeOnly,
    /// FFPO: in full feature phase only.
    FullFeatureOnly,
    /// ALL: in login and after.
    All,
}

/// The stage of the login for a key. RFC 7143 §12, §13.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeyStage {
    /// SecurityNegotiation.
    Security,
    /// LoginOperationalNegotiation.
    Operational,
    /// Any-Stage.
    Any,
}

/// The scope of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scope {
    /// SW: session-wide.
    Session,
    /// CO: one connection only.
    Connection,
}

/// The rule for the result: the "Result function" of RFC 7143 §13.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rule {
    /// The lower number.
    Minimum,
    /// The higher number.
    Maximum,
    /// Yes if both sides propose Yes.
    And,
    /// Yes if at least one side proposes Yes.
    Or,
    /// The first value of the proposer's list that the acceptor supports. RFC 7143 §6.2.1.
    FirstSupported,
    /// One side declares a value, without an answer.
    Declare,
    /// A query in full feature phase: SendTargets.
    Query,
    /// A step of an authentication method.
    Authentication,
    /// Obsolete, always refused: with `Reject`, or by a target with `No` if that is a valid value.
    /// RFC 7143 §13.25.
    Obsolete,
}

/// The type of a value. RFC 7143 §6.1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ValueKind {
    /// A numerical-value in this range.
    Number {
        /// Minimum.
        min: u32,
        /// Maximum.
        max: u32,
    },
    /// `Yes` or `No`.
    Boolean,
    /// A list-of-values; the known values, in the order of their numbers.
    List(&'static [&'static str]),
    /// Exactly one of these words.
    Word(&'static [&'static str]),
    /// An iSCSI-name-value, at most 223 bytes (RFC 7143 §4.2.7.1).
    Name,
    /// Any text.
    Text,
    /// A binary-value.
    Binary {
        /// Maximum decoded length.
        bytes_max: usize,
    },
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct KeyInfo {
    /// The key.
    pub key: Key,
    /// Name on the wire.
    pub name: &'static str,
    /// Phase in which the key may be sent.
    pub used: Use,
    /// Stage of the login.
    pub stage: KeyStage,
    /// Sides that may send the key.
    pub senders: Senders,
    /// Scope of the key.
    pub scope: Scope,
    /// Rule for the result.
    pub rule: Rule,
    /// Type of the value.
    pub kind: ValueKind,
    /// Default without negotiation: a number, 0/1 for No/Yes, or an index into the list.
    pub default: Option<u32>,
    /// True if the key is irrelevant when SessionType=Discovery.
    pub normal_only: bool,
    /// Specification of the key.
    pub source: &'static str,
}

/// Maximum length of an iSCSI name in bytes. RFC 7143 §4.2.7.1.
pub const NAME_BYTES_MAX: usize = 223;

/// Maximum length of a simple value in bytes unless its key has another limit. RFC 7143 §6.1.
pub const VALUE_BYTES_MAX: usize = 255;

/// Maximum length of a CHAP challenge or response in bytes, decoded. RFC 7143 §12.1.3.
pub const CHAP_BYTES_MAX: usize = 1024;

const DIGESTS: ValueKind = ValueKind::List(&["None", "CRC32C"]);
const BURST: ValueKind = ValueKind::Number { min: 512, max: 0xff_ffff };
const COUNT: ValueKind = ValueKind::Number { min: 1, max: 65_535 };
const SECONDS: ValueKind = ValueKind::Number { min: 0, max: 3600 };
const CHAP_BINARY: ValueKind = ValueKind::Binary { bytes_max: CHAP_BYTES_MAX };

macro_rules! keys {
    ($($key:ident $name:literal $used:ident $stage:ident $senders:ident $scope:ident $rule:ident
       ($kind:expr) $default:expr, $normal_only:literal, $source:literal;)+) => {
        /// A key that this implementation understands.
        #[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
        #[allow(missing_docs)] // the table below describes each key
        pub enum Key { $($key),+ }

        /// The table of keys, in the order of [`Key`].
        pub const KEYS: &[KeyInfo] = &[$(KeyInfo {
            key: Key::$key, name: $name, used: Use::$used, stage: KeyStage::$stage,
            senders: Senders::$senders, scope: Scope::$scope, rule: Rule::$rule, kind: $kind,
            default: $default, normal_only: $normal_only, source: $source,
        }),+];
    };
}

#[rustfmt::skip]
keys! {
    AuthMethod "AuthMethod" InitializeOnly Security Both Connection FirstSupported
        (ValueKind::List(&["None", "CHAP"])) None, false, "RFC 7143 §12.1";
    ChapA "CHAP_A" InitializeOnly Security Both Connection Authentication
        (ValueKind::List(&["5", "6", "7", "8"])) None, false, "RFC 7143 §12.1.3";
    ChapI "CHAP_I" InitializeOnly Security Both Connection Authentication
        (ValueKind::Number { min: 0, max: 255 }) None, false, "RFC 7143 §12.1.3";
    ChapC "CHAP_C" InitializeOnly Security Both Connection Authentication
        (CHAP_BINARY) None, false, "RFC 7143 §12.1.3";
    ChapN "CHAP_N" InitializeOnly Security Both Connection Authentication
        (ValueKind::Text) None, false, "RFC 7143 §12.1.3";
    ChapR "CHAP_R" InitializeOnly Security Both Connection Authentication
        (CHAP_BINARY) None, false, "RFC 7143 §12.1.3";
    HeaderDigest "HeaderDigest" InitializeOnly Operational Both Connection FirstSupported
        (DIGESTS) Some(0), false, "RFC 7143 §13.1";
    DataDigest "DataDigest" InitializeOnly Operational Both Connection FirstSupported
        (DIGESTS) Some(0), false, "RFC 7143 §13.1";
    MaxConnections "MaxConnections" LeadingOnly Operational Both Session Minimum
        (COUNT) Some(1), true, "RFC 7143 §13.2";
    SendTargets "SendTargets" FullFeatureOnly Operational Initiator Session Query
        (ValueKind::Text) None, false, "RFC 7143 §13.3";
    TargetName "TargetName" InitializeOnly Any Both Session Declare
        (ValueKind::Name) None, false, "RFC 7143 §13.4";
    InitiatorName "InitiatorName" InitializeOnly Any Initiator Session Declare
        (ValueKind::Name) None, false, "RFC 7143 §13.5";
    TargetAlias "TargetAlias" All Any Target Session Declare
        (ValueKind::Text) None, false, "RFC 7143 §13.6";
    InitiatorAlias "InitiatorAlias" All Any Initiator Session Declare
        (ValueKind::Text) None, false, "RFC 7143 §13.7";
    TargetAddress "TargetAddress" All Any Target Session Declare
        (ValueKind::Text) None, false, "RFC 7143 §13.8";
    TargetPortalGroupTag "TargetPortalGroupTag" InitializeOnly Any Target Session Declare
        (ValueKind::Number { min: 0, max: 65_535 }) None, false, "RFC 7143 §13.9";
    InitialR2t "InitialR2T" LeadingOnly Operational Both Session Or
        (ValueKind::Boolean) Some(1), true, "RFC 7143 §13.10";
    ImmediateData "ImmediateData" LeadingOnly Operational Both Session And
        (ValueKind::Boolean) Some(1), true, "RFC 7143 §13.11";
    MaxRecvDataSegmentLength "MaxRecvDataSegmentLength" All Operational Both Connection Declare
        (BURST) Some(8192), false, "RFC 7143 §13.12";
    MaxBurstLength "MaxBurstLength" LeadingOnly Operational Both Session Minimum
        (BURST) Some(262_144), true, "RFC 7143 §13.13";
    FirstBurstLength "FirstBurstLength" LeadingOnly Operational Both Session Minimum
        (BURST) Some(65_536), true, "RFC 7143 §13.14";
    DefaultTime2Wait "DefaultTime2Wait" LeadingOnly Operational Both Session Maximum
        (SECONDS) Some(2), false, "RFC 7143 §13.15";
    DefaultTime2Retain "DefaultTime2Retain" LeadingOnly Operational Both Session Minimum
        (SECONDS) Some(20), false, "RFC 7143 §13.16";
    MaxOutstandingR2t "MaxOutstandingR2T" LeadingOnly Operational Both Session Minimum
        (COUNT) Some(1), true, "RFC 7143 §13.17";
    DataPduInOrder "DataPDUInOrder" LeadingOnly Operational Both Session Or
        (ValueKind::Boolean) Some(1), true, "RFC 7143 §13.18";
    DataSequenceInOrder "DataSequenceInOrder" LeadingOnly Operational Both Session Or
        (ValueKind::Boolean) Some(1), true, "RFC 7143 §13.19";
    ErrorRecoveryLevel "ErrorRecoveryLevel" LeadingOnly Operational Both Session Minimum
        (ValueKind::Number { min: 0, max: 2 }) Some(0), false, "RFC 7143 §13.20";
    SessionType "SessionType" LeadingOnly Any Initiator Session Declare
        (ValueKind::Word(&["Normal", "Discovery"])) Some(0), false, "RFC 7143 §13.21";
    TaskReporting "TaskReporting" LeadingOnly Operational Both Session FirstSupported
        (ValueKind::List(&["RFC3720", "ResponseFence", "FastAbort"])) Some(0), true,
        "RFC 7143 §13.23";
    ProtocolLevel "iSCSIProtocolLevel" LeadingOnly Operational Both Session Minimum
        (ValueKind::Number { min: 0, max: 31 }) Some(1), true, "RFC 7144 §7.1.1";
    IfMarker "IFMarker" InitializeOnly Operational Both Connection Obsolete
        (ValueKind::Boolean) Some(0), false, "RFC 7143 §13.25";
    OfMarker "OFMarker" InitializeOnly Operational Both Connection Obsolete
        (ValueKind::Boolean) Some(0), false, "RFC 7143 §13.25";
    IfMarkInt "IFMarkInt" InitializeOnly Operational Both Connection Obsolete
        (ValueKind::Text) None, false, "RFC 7143 §13.25";
    OfMarkInt "OFMarkInt" InitializeOnly Operational Both Connection Obsolete
        (ValueKind::Text) None, false, "RFC 7143 §13.25";
    NodeArchitecture "X#NodeArchitecture" LeadingOnly Operational Both Session Declare
        (ValueKind::Text) None, false, "RFC 7143 §13.26";
}

impl Key {
    /// Number of keys.
    pub const COUNT: usize = KEYS.len();

    /// The key's row of the table.
    pub const fn info(self) -> &'static KeyInfo {
        &KEYS[self as usize]
    }

    /// Name on the wire.
    pub const fn name(self) -> &'static str {
        self.info().name
    }

    /// Returns the key with this name; names are case sensitive (RFC 7143 §6.1).
    pub fn named(name: &str) -> Option<Self> {
        KEYS.iter().find(|info| info.name == name).map(|info| info.key)
    }
}

impl KeyInfo {
    /// Formats a value of this key (a number, 0/1 for No/Yes, or an index into the list) for the
    /// wire.
    pub fn value_text(&self, value: u32) -> String {
        match self.kind {
            ValueKind::Boolean => boolean_text(value == 1).to_string(),
            ValueKind::List(words) | ValueKind::Word(words) => {
                words.get(value as usize).copied().unwrap_or_default().to_string()
            }
            _ => value.to_string(),
        }
    }

    /// Maximum length of a value in bytes on the wire, or `None` for lists, which only the length
    /// of the whole text limits.
    pub const fn value_bytes_max(&self) -> Option<usize> {
        match self.kind {
            ValueKind::Name => Some(NAME_BYTES_MAX),
            ValueKind::List(_) => None,
            ValueKind::Binary { bytes_max } => Some(2 + 2 * bytes_max),
            _ => Some(VALUE_BYTES_MAX),
        }
    }
}

// `Key::info` indexes by the order of the enumeration.
const _: () = {
    let mut at = 0;
    while at < KEYS.len() {
        assert!(KEYS[at].key as usize == at);
        at += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: names are unique, found, and not longer than allowed; defaults are valid.
    #[test]
    fn the_table_is_consistent() {
        for info in KEYS {
            assert_eq!(Key::named(info.name), Some(info.key));
            assert!(info.name.len() <= 63);
            match (info.kind, info.default) {
                (ValueKind::Number { min, max }, Some(value)) => {
                    assert!((min..=max).contains(&value));
                }
                (ValueKind::Boolean, Some(value)) => assert!(value <= 1),
                (ValueKind::List(words) | ValueKind::Word(words), Some(at)) => {
                    assert!((at as usize) < words.len());
                }
                _ => {}
            }
        }
        assert_eq!(Key::named("headerdigest"), None);
    }
}
