//! Login, with CHAP if the target requires it. RFC 7143 §6, §12.1.3.

use super::connection::TcpConnection;
use anyhow::{Context, Result, ensure};
use lunar_testkit::raw::{RawPdu, opcode};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Login Request: stays in its stage, or moves to the next (T). RFC 7143 §11.12.
const TRANSIT: u8 = 0x80;
/// Login Request: the text continues in the next PDU (C).
pub const CONTINUES: u8 = 0x40;
const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// A CHAP user with its secret.
#[derive(Clone, Copy, Debug)]
pub struct ChapCredential {
    /// CHAP_N.
    pub user: &'static str,
    /// The secret that both sides share.
    pub secret: &'static str,
}

/// Names, keys and credentials of a login.
#[derive(Clone, Debug)]
pub struct LoginParameters {
    /// InitiatorName.
    pub initiator: String,
    /// Qualifier of a random ISID (type 80h).
    pub isid: u32,
    /// TargetName; `None`: a discovery session.
    pub target: Option<String>,
    /// Session to join, with a connection number; zeros: a new session.
    pub joins: (u16, u16),
    /// Credential for CHAP with SHA-256.
    pub credential: Option<ChapCredential>,
    /// True to propose CRC32C for headers and data.
    pub digests: bool,
    /// The longest data segment that the target may send (MaxRecvDataSegmentLength), in bytes.
    pub receive_bytes_max: u32,
    /// The longest burst that this side proposes (MaxBurstLength), in bytes.
    pub burst_bytes_max: u32,
    /// True to propose TaskReporting=FastAbort.
    pub fast_abort: bool,
    /// True to propose InitialR2T=No: data may follow a command without R2T.
    pub unsolicited_data: bool,
}

impl Default for LoginParameters {
    fn default() -> Self {
        Self {
            initiator: String::new(),
            isid: 0,
            target: None,
            joins: (0, 0),
            credential: None,
            digests: false,
            receive_bytes_max: 262_144,
            burst_bytes_max: 16_776_192,
            fast_abort: false,
            unsolicited_data: false,
        }
    }
}

/// Result of a login.
#[derive(Clone, Debug)]
pub struct LoginResult {
    /// The session's handle.
    pub tsih: u16,
    /// MaxRecvDataSegmentLength of the target.
    pub data_bytes_max: usize,
    /// First CmdSN to be used.
    pub exp_cmd_sn: u32,
    /// Last CmdSN that the target accepts.
    pub max_cmd_sn: u32,
    /// Next StatSN expected.
    pub exp_stat_sn: u32,
}

impl LoginParameters {
    /// Builds a Login Request of this stage with this text.
    pub fn request(&self, flags: u8, exp_stat_sn: u32, text: &[u8]) -> RawPdu {
        let isid = self.isid.to_be_bytes();
        RawPdu::new(0x40 | opcode::LOGIN, flags)
            .put(8, &[0x80, isid[0], isid[1], isid[2], 0, isid[3]])
            .put(14, &self.joins.0.to_be_bytes())
            .put_u32(16, 1)
            .put(20, &self.joins.1.to_be_bytes())
            .put_u32(24, 1)
            .put_u32(28, exp_stat_sn)
            .with_data(text)
    }

    /// Returns the text of InitiatorName, SessionType, TargetName.
    pub fn names(&self) -> String {
        let kind = if self.target.is_some() { "Normal" } else { "Discovery" };
        let target = self.target.iter().map(|name| format!("TargetName={name}\0"));
        let names = format!("InitiatorName={}\0SessionType={kind}\0", self.initiator);
        names + &target.collect::<String>()
    }

    /// Returns the keys of the operational stage.
    fn operational_keys(&self) -> String {
        let digest = if self.digests { "CRC32C" } else { "None" };
        let receive = self.receive_bytes_max;
        let mut keys = format!(
            "HeaderDigest={digest}\0DataDigest={digest}\0MaxRecvDataSegmentLength={receive}\0"
        );
        // A connection that joins a session may not negotiate keys of the session.
        if self.target.is_some() && self.joins.0 == 0 {
            let (burst, first) = (self.burst_bytes_max, self.burst_bytes_max.min(262_144));
            let initial_r2t = if self.unsolicited_data { "No" } else { "Yes" };
            keys += &format!(
                "InitialR2T={initial_r2t}\0ImmediateData=Yes\0MaxBurstLength={burst}\0\
                 FirstBurstLength={first}\0MaxOutstandingR2T=8\0MaxConnections=8\0"
            );
            if self.fast_abort {
                keys += "TaskReporting=FastAbort,ResponseFence,RFC3720\0";
            }
        }
        keys
    }

    /// Logs in on `connection`.
    ///
    /// # Errors
    /// The target refuses, closes the connection, or is silent for `limit`.
    pub fn run(&self, connection: &mut TcpConnection, limit: Duration) -> Result<LoginResult> {
        let mut exchange =
            Exchange { login: self, connection, exp_stat_sn: 0, until: Instant::now() + limit };
        let mut names = self.names();
        if let Some(credential) = &self.credential {
            exchange.prove(&names, credential)?;
            names.clear();
        }
        let flags = TRANSIT | (OPERATIONAL << 2) | FULL_FEATURE;
        let mut text = names + &self.operational_keys();
        let mut answers = String::new();
        loop {
            let answer = exchange.step(flags, &text)?;
            answers += &String::from_utf8_lossy(&answer.data);
            if answer.header[1] & TRANSIT != 0 {
                return self.negotiated(exchange.connection, &answer, &answers);
            }
            text.clear();
        }
    }

    /// Returns the request of this number, counted from 0, that follows this response; `None`: the
    /// login is complete.
    ///
    /// # Errors
    /// The login is refused.
    pub fn request_at(&self, number: usize, answer: Option<&RawPdu>) -> Result<Option<RawPdu>> {
        let exp_stat_sn = answer.map_or(0, |answer| answer.u32_at(24).wrapping_add(1));
        if let Some(answer) = answer {
            ensure!(answer.u32_at(36) >> 16 == 0, "login status {:02x?}", &answer.header[36..38]);
        }
        let security = SECURITY << 2;
        let operational = TRANSIT | (OPERATIONAL << 2) | FULL_FEATURE;
        let (flags, text) = match (&self.credential, number) {
            (None, 0) => (operational, self.names() + &self.operational_keys()),
            (Some(_), 0) => (security, format!("{}AuthMethod=CHAP\0", self.names())),
            (Some(_), 1) => (security, "CHAP_A=7\0".to_owned()),
            (Some(credential), 2) => {
                let answer = answer.context("the answer contains no CHAP challenge")?;
                let text = chap_answer(credential, &String::from_utf8_lossy(&answer.data))?;
                (TRANSIT | security | OPERATIONAL, text)
            }
            (Some(_), 3) => (operational, self.operational_keys()),
            _ => return Ok(None),
        };
        Ok(Some(self.request(flags, exp_stat_sn, text.as_bytes())))
    }

    /// Applies the last Login Response and returns the negotiated values.
    ///
    /// # Errors
    /// The login is not complete.
    pub fn take_answer(
        &self,
        connection: &mut TcpConnection,
        answer: &RawPdu,
    ) -> Result<LoginResult> {
        ensure!(answer.header[1] & TRANSIT != 0, "the login is not complete");
        self.negotiated(connection, answer, &String::from_utf8_lossy(&answer.data))
    }

    fn negotiated(
        &self,
        connection: &mut TcpConnection,
        last: &RawPdu,
        text: &str,
    ) -> Result<LoginResult> {
        (connection.header_digest, connection.data_digest) = (self.digests, self.digests);
        let declared = value(text, "MaxRecvDataSegmentLength").unwrap_or("8192");
        Ok(LoginResult {
            tsih: u16::from_be_bytes([last.header[14], last.header[15]]),
            data_bytes_max: declared.parse::<usize>()?.max(512),
            exp_cmd_sn: last.u32_at(28),
            max_cmd_sn: last.u32_at(32),
            exp_stat_sn: last.u32_at(24).wrapping_add(1),
        })
    }
}

/// A login under way.
struct Exchange<'a> {
    login: &'a LoginParameters,
    connection: &'a mut TcpConnection,
    exp_stat_sn: u32,
    until: Instant,
}

impl Exchange<'_> {
    /// Sends one request and returns its response, which must not be a refusal.
    fn step(&mut self, flags: u8, text: &str) -> Result<RawPdu> {
        let request = self.login.request(flags, self.exp_stat_sn, text.as_bytes());
        self.connection.queue(&request);
        let answer = loop {
            self.connection.send();
            if let Some(pdu) = self.connection.receive() {
                break pdu;
            }
            let left = self.until.saturating_duration_since(Instant::now());
            ensure!(
                !self.connection.is_closed(),
                "the server closed the connection during the login"
            );
            ensure!(!left.is_zero(), "the server did not answer the login in time");
            self.connection.wait_readable(left);
        };
        ensure!(answer.opcode() == opcode::LOGIN_RESPONSE, "{:02x?}", answer.header);
        let status = &answer.header[36..38];
        ensure!(status == [0, 0], "login status {status:02x?}");
        self.exp_stat_sn = answer.u32_at(24).wrapping_add(1);
        Ok(answer)
    }

    /// Runs the security stage: CHAP with SHA-256 (algorithm 7).
    fn prove(&mut self, names: &str, credential: &ChapCredential) -> Result<()> {
        self.step(SECURITY << 2, &format!("{names}AuthMethod=CHAP\0"))?;
        let answer = self.step(SECURITY << 2, "CHAP_A=7\0")?;
        let text = chap_answer(credential, &String::from_utf8_lossy(&answer.data))?;
        let mut answer = self.step(TRANSIT | (SECURITY << 2) | OPERATIONAL, &text)?;
        while answer.header[1] & TRANSIT == 0 {
            answer = self.step(TRANSIT | (SECURITY << 2) | OPERATIONAL, "")?;
        }
        Ok(())
    }
}

/// Returns the value of a key in text.
pub fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.split('\0').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
}

/// Returns the response to the challenge in `text`.
fn chap_answer(credential: &ChapCredential, text: &str) -> Result<String> {
    let identifier = value(text, "CHAP_I").context("no CHAP_I")?.parse()?;
    let challenge = value(text, "CHAP_C").context("no CHAP_C")?;
    let response = chap_response(identifier, credential.secret, challenge)?;
    Ok(format!("CHAP_N={}\0CHAP_R={response}\0", credential.user))
}

/// Returns `0x…` of SHA-256 over identifier, secret and challenge (hexadecimal or base64).
fn chap_response(identifier: u8, secret: &str, challenge: &str) -> Result<String> {
    let digits = challenge.strip_prefix("0x").context("the CHAP challenge is not hexadecimal")?;
    let mut hash = Sha256::new();
    hash.update([identifier]);
    hash.update(secret);
    for at in (0..digits.len()).step_by(2) {
        hash.update([u8::from_str_radix(
            digits.get(at..at + 2).context("the CHAP challenge has an odd number of digits")?,
            16,
        )?]);
    }
    let mut response = String::from("0x");
    for byte in hash.finalize() {
        write!(response, "{byte:02x}")?;
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: responses are those of testdata/chap.txt, which another program computed.
    #[test]
    fn chap_responses_are_those_of_the_vectors() -> Result<()> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/chap.txt");
        let mut compared = 0;
        for line in std::fs::read_to_string(path)?.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let ["7", identifier, secret, challenge, response] = fields[..] else { continue };
            let bytes: Option<Vec<u8>> = (0..secret.len() / 2)
                .map(|at| u8::from_str_radix(&secret[at * 2..at * 2 + 2], 16).ok())
                .collect();
            let Ok(secret) = String::from_utf8(bytes.unwrap_or_default()) else { continue };
            let ours = chap_response(identifier.parse()?, &secret, &format!("0x{challenge}"))?;
            assert_eq!(ours, format!("0x{response}"), "{line}");
            compared += 1;
        }
        ensure!(compared >= 3, "only {compared} vectors of SHA-256");
        Ok(())
    }
}
