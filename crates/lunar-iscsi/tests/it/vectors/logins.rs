//! `testdata/logins.txt`: whole logins of an initiator, byte by byte.

use crate::vectors::{bytes_of, lines};
use bytes::Bytes;
use lunar_iscsi::framing::Header;
use lunar_iscsi::login::initiator::{
    ChapAnswer, Established, InitiatorLogin, InitiatorLoginOptions, LoginFailure, Step,
};
use lunar_iscsi::login::{ChapAlgorithm, Credential, Secret, SessionType};
use lunar_iscsi::pdu::HEADER_BYTES;
use lunar_iscsi::text::{Digest, Offer, TaskReporting};
use lunar_wire::SerialNumber;
use std::collections::BTreeMap;

#[derive(Default)]
struct Transcript<'a> {
    name: &'a str,
    options: BTreeMap<&'a str, &'a str>,
    login: Option<InitiatorLogin>,
    steps: Vec<Step>,
}

fn optional(value: &str) -> Option<String> {
    (value != "-").then(|| value.to_string())
}

fn digest_list(value: &str) -> Vec<Digest> {
    let digest = |word| if word == "CRC32C" { Digest::Crc32c } else { Digest::None };
    value.split(',').map(digest).collect()
}

impl<'a> Transcript<'a> {
    fn option(&self, name: &str) -> &'a str {
        self.options.get(name).unwrap_or_else(|| panic!("{}: no {name}", self.name))
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> T {
        self.option(name).parse().ok().unwrap_or_else(|| panic!("{}: {name}", self.name))
    }

    fn credential(&self, user: &str, secret: &str) -> Option<Credential> {
        let user = optional(self.option(user))?;
        Some(Credential { user, secret: Secret::new(bytes_of(self.option(secret))) })
    }

    fn chap(&self) -> Option<ChapAnswer> {
        let credential = self.credential("chap_user", "chap_secret")?;
        let expect_target = self.credential("target_user", "target_secret");
        let numbers = self.option("chap_algorithms").split(',');
        let algorithm = |number: &str| ChapAlgorithm::numbered(number.parse().unwrap()).unwrap();
        Some(ChapAnswer { algorithms: numbers.map(algorithm).collect(), credential, expect_target })
    }

    fn options(&self) -> InitiatorLoginOptions {
        let offer = Offer {
            header_digest: digest_list(self.option("header_digest")),
            data_digest: digest_list(self.option("data_digest")),
            max_connections: self.number("max_connections"),
            ..Offer::initiator()
        };
        let discovery = self.option("session_type") == "Discovery";
        InitiatorLoginOptions {
            initiator_name: self.option("initiator_name").into(),
            alias: optional(self.option("alias")),
            target_name: optional(self.option("target_name")),
            session_type: if discovery { SessionType::Discovery } else { SessionType::Normal },
            isid: bytes_of(self.option("isid")).try_into().unwrap(),
            tsih: self.number("tsih"),
            cid: self.number("cid"),
            initiator_task_tag: self.number("initiator_task_tag"),
            cmd_sn: SerialNumber(self.number("cmd_sn")),
            offer,
            chap: self.chap(),
            entropy: bytes_of(self.option("entropy")).try_into().unwrap(),
        }
    }

    /// Starts the login at the first line that is not an option.
    fn start(&mut self) {
        if self.login.is_none() {
            let mut login = InitiatorLogin::new(self.options());
            login.start(&mut self.steps);
            self.login = Some(login);
        }
    }

    fn request(&mut self, header: &str, data: &str) {
        self.start();
        let steps = std::mem::take(&mut self.steps);
        let [Step::Send(pdu)] = &steps[..] else { panic!("{}: {steps:?}", self.name) };
        assert_eq!(pdu.data, bytes_of(data), "{}: data", self.name);
        assert_eq!(pdu.bhs[..], bytes_of(header), "{}: header", self.name);
    }

    fn response(&mut self, header: &str, data: &str) {
        let bhs = <[u8; HEADER_BYTES]>::try_from(bytes_of(header)).unwrap();
        let Some(login) = &mut self.login else { panic!("{}: not started", self.name) };
        if login.on_header(&Header::new(bhs), &mut self.steps) {
            login.on_payload(Bytes::from(bytes_of(data)), &mut self.steps);
        }
    }

    fn result(&mut self) -> String {
        self.start();
        let steps = std::mem::take(&mut self.steps);
        match &steps[..] {
            [Step::Complete(established)] => complete(established),
            [Step::Failed(failure)] => failed(failure),
            _ => panic!("{}: {steps:?}", self.name),
        }
    }
}

fn yes(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

fn complete(established: &Established) -> String {
    let (session, connection) = (&established.session, &established.connection);
    let digest = |on| if on { "CRC32C" } else { "None" };
    let reporting = match session.task_reporting {
        TaskReporting::Rfc3720 => "RFC3720",
        TaskReporting::ResponseFence => "ResponseFence",
        TaskReporting::FastAbort => "FastAbort",
    };
    let group = established.portal_group_tag.map_or("-".into(), |tag| tag.to_string());
    let pairs = [
        ("max_connections", session.max_connections.to_string()),
        ("initial_r2t", yes(session.initial_r2t).into()),
        ("immediate_data", yes(session.immediate_data).into()),
        ("max_burst_bytes", session.max_burst_bytes.to_string()),
        ("first_burst_bytes", session.first_burst_bytes.to_string()),
        ("time_to_wait_seconds", session.time_to_wait_seconds.to_string()),
        ("time_to_retain_seconds", session.time_to_retain_seconds.to_string()),
        ("max_outstanding_r2t", session.max_outstanding_r2t.to_string()),
        ("data_pdu_in_order", yes(session.data_pdu_in_order).into()),
        ("data_sequence_in_order", yes(session.data_sequence_in_order).into()),
        ("error_recovery_level", session.error_recovery_level.to_string()),
        ("task_reporting", reporting.into()),
        ("protocol_level", session.protocol_level.to_string()),
        ("header_digest", digest(connection.digests.header).into()),
        ("data_digest", digest(connection.digests.data).into()),
        ("send_data_segment_bytes_max", connection.send_data_segment_bytes_max.to_string()),
        ("receive_data_segment_bytes_max", connection.receive_data_segment_bytes_max.to_string()),
        ("portal_group_tag", group),
        ("target_alias", established.target_alias.clone().unwrap_or("-".into())),
        ("tsih", established.tsih.to_string()),
        ("exp_stat_sn", established.exp_stat_sn.0.to_string()),
        ("exp_cmd_sn", established.exp_cmd_sn.0.to_string()),
        ("max_cmd_sn", established.max_cmd_sn.0.to_string()),
    ];
    let fields: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("complete {}", fields.join(" "))
}

fn failed(failure: &LoginFailure) -> String {
    let status = failure.status.map_or(0, |status| status.0);
    let (address, permanent) = match &failure.redirect {
        Some((address, permanent)) => (address.as_str(), yes(*permanent)),
        None => ("-", "-"),
    };
    let proven = failure.proven_by.map_or("-".into(), |hash| hash.number().to_string());
    format!(
        "failed status=0x{status:04x} address={address} permanent={permanent} proven_by={proven}"
    )
}

/// Goal: an initiator of this crate sends the requests of the vectors, and handles the answers as
/// they specify.
#[test]
fn transcripts() {
    let mut transcript = Transcript::default();
    let mut ended = 0;
    for line in lines(include_str!("../../../../../testdata/logins.txt")) {
        let (word, rest) = line.split_once(' ').unwrap();
        let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            "login" => transcript = Transcript { name: rest, ..Transcript::default() },
            "set" => {
                transcript.options.insert(first, second);
            }
            ">" => transcript.request(first, second),
            "<" => transcript.response(first, second),
            _ => {
                assert_eq!(transcript.result(), line, "{}", transcript.name);
                ended += 1;
            }
        }
    }
    assert!(ended > 70, "{ended} logins");
}
