//! Responses to the keys of a login, chosen for the least work. RFC 7143 §6, §13.

use lunar_iscsi::text::{NOT_UNDERSTOOD, Pair, TextBuilder, parse};

/// Maximum data of a PDU that it accepts: writes with all their data up to this length need no R2T.
pub const SEGMENT_BYTES_MAX: u32 = 256 << 10;

/// Result of a negotiation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Agreed {
    /// Maximum data of a PDU that the initiator accepts. RFC 7143 §13.12 has the default.
    pub segment_bytes: u32,
    /// Maximum data of a sequence. RFC 7143 §13.13 has the default.
    pub burst_bytes: u32,
}

impl Default for Agreed {
    fn default() -> Self {
        Self { segment_bytes: 8192, burst_bytes: 262_144 }
    }
}

/// Answers the text of a login, and stores the values that reads need; `None`: the text is invalid.
pub fn answer(text: &[u8], agreed: &mut Agreed) -> Option<TextBuilder> {
    let mut answers = TextBuilder::new();
    for Pair { name, value, .. } in parse(text).ok()? {
        match name {
            // Declared keys need no response.
            "InitiatorName" | "InitiatorAlias" | "TargetName" => {}
            "SessionType" if value == "Normal" => {}
            "SessionType" => return None,
            "MaxRecvDataSegmentLength" => {
                agreed.segment_bytes = number(value)?;
                answers.pair(name, SEGMENT_BYTES_MAX);
            }
            "MaxBurstLength" => {
                agreed.burst_bytes = number(value)?;
                answers.pair(name, value);
            }
            "AuthMethod" | "HeaderDigest" | "DataDigest" => {
                // An initiator that insists on digests cannot use this target.
                value.split(',').find(|one| *one == "None")?;
                answers.pair(name, "None");
            }
            "MaxConnections" | "MaxOutstandingR2T" => answers.pair(name, 1),
            "ErrorRecoveryLevel" | "DefaultTime2Retain" => answers.pair(name, 0),
            // Data that does not come with its command is requested.
            "InitialR2T" => answers.pair(name, "Yes"),
            // The initiator's proposal is accepted.
            "ImmediateData"
            | "FirstBurstLength"
            | "DefaultTime2Wait"
            | "DataPDUInOrder"
            | "DataSequenceInOrder" => answers.pair(name, value),
            _ => answers.pair(name, NOT_UNDERSTOOD),
        }
    }
    Some(answers)
}

/// Parses a length, in the range of RFC 7143 §13.12 and §13.13.
fn number(value: &str) -> Option<u32> {
    let digits = value.strip_prefix("0x").or_else(|| value.strip_prefix("0X"));
    let number = match digits {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    };
    number.filter(|bytes| (512..1 << 24).contains(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the values that reads need are stored, other keys get a response, and digests are
    /// refused.
    #[test]
    fn keys() {
        let mut agreed = Agreed::default();
        let text = b"InitiatorName=a\0HeaderDigest=CRC32C,None\0MaxRecvDataSegmentLength=65536\0\
                     MaxBurstLength=0x40000\0InitialR2T=No\0X-org.example.y=1\0";
        let answered = String::from_utf8(answer(text, &mut agreed).unwrap().into_bytes()).unwrap();
        assert_eq!(
            answered,
            "HeaderDigest=None\0MaxRecvDataSegmentLength=262144\0MaxBurstLength=0x40000\0\
             InitialR2T=Yes\0X-org.example.y=NotUnderstood\0"
        );
        assert_eq!(agreed, Agreed { segment_bytes: 65_536, burst_bytes: 262_144 });
        assert!(answer(b"HeaderDigest=CRC32C\0", &mut agreed).is_none());
        assert!(answer(b"SessionType=Discovery\0", &mut agreed).is_none());
        assert!(answer(b"MaxBurstLength=1\0", &mut agreed).is_none());
    }
}
