//! Text requests in full feature phase: long responses, long requests, many requests. RFC 7143
//! §11.10.

use crate::adversary::attack::Attack;
use crate::adversary::attacker::{Attacker, Destination};
use crate::adversary::flood::Flood;
use crate::adversary::login::CONTINUES;
use crate::adversary::session::{RESERVED_TAG, RawSession};
use anyhow::Result;
use lunar_testkit::raw::{RawPdu, opcode};

/// The attacks of this file.
pub const ATTACKS: &[Attack] = &[
    Attack::new("send-targets-unread", 300, send_targets_all)
        .fault(4)
        .summary("300 discovery sessions endlessly send SendTargets=All and read nothing"),
    Attack::new("send-targets-in-session", 64, send_targets)
        .summary("64 sessions endlessly send SendTargets and read nothing"),
    Attack::new("text-continued", 64, continued)
        .summary("64 sessions with endless Text Requests with the C bit"),
    Attack::new("text-many-keys", 8, many_keys)
        .summary("Text Requests of 64 KiB with thousands of unknown keys, answers unread"),
    Attack::new("text-in-512-bytes", 8, short_segments)
        .summary("Text Requests of 10 KiB with unknown keys, answers in 512 bytes unread"),
    Attack::new("text-wrong-tags", 8, wrong_tags)
        .summary("Text Requests with unknown transfer tags, 2 at a time, answers unread"),
];

fn text(session: &mut RawSession, flags: u8, text: &[u8]) -> RawPdu {
    let request = session.request(opcode::TEXT, flags).put_u32(20, RESERVED_TAG);
    request.put(8, &[0; 8]).with_data(text)
}

fn send_targets_all(attacker: &Attacker) -> Result<()> {
    Flood::new(300, Destination::Shared)
        .with_small_buffers()
        .with_login(|login| login.target = None)
        .unread(attacker, |session| {
            let request = text(session, 0x80, b"SendTargets=All\0");
            session.queue(&request);
        })
}

fn send_targets(attacker: &Attacker) -> Result<()> {
    Flood::new(64, Destination::Shared).with_small_buffers().unread(attacker, |session| {
        let request = text(session, 0x80, b"SendTargets=\0");
        session.queue(&request);
    })
}

fn continued(attacker: &Attacker) -> Result<()> {
    let mut tags = std::collections::HashMap::new();
    let tags = std::cell::RefCell::new(&mut tags);
    Flood::new(64, Destination::Shared).reading(
        attacker,
        |session| {
            let tag = tags.borrow_mut().remove(&session.negotiated.tsih);
            let request = text(session, CONTINUES, &[b'A'; 8192]);
            let request = match tag {
                Some((tag, transfer_tag)) => request.put_u32(16, tag).put_u32(20, transfer_tag),
                None => request,
            };
            session.queue(&request);
        },
        |session, pdu| {
            if pdu.opcode() == opcode::TEXT_RESPONSE {
                let both = (pdu.u32_at(16), pdu.u32_at(20));
                tags.borrow_mut().insert(session.negotiated.tsih, both);
            }
        },
    )
}

fn many_keys(attacker: &Attacker) -> Result<()> {
    let keys: String = (0..3000).map(|number| format!("X-org.a{number}=1\0")).collect();
    Flood::new(8, Destination::Shared).with_small_buffers().unread(attacker, |session| {
        let request = text(session, 0x80, keys.as_bytes());
        session.queue(&request);
    })
}

fn short_segments(attacker: &Attacker) -> Result<()> {
    let keys: String = (0..150).map(|number| format!("X-org.{number:054}=1\0")).collect();
    let flood = Flood::new(8, Destination::Shared).with_small_buffers();
    flood.with_login(|login| login.receive_bytes_max = 512).unread(attacker, |session| {
        let request = text(session, 0x80, keys.as_bytes());
        session.queue(&request);
    })
}

fn wrong_tags(attacker: &Attacker) -> Result<()> {
    Flood::new(8, Destination::Shared).with_small_buffers().unread(attacker, |session| {
        let tag = session.random.next_u64() as u32;
        let request = text(session, 0x80, b"SendTargets=\0").put_u32(20, tag);
        session.queue(&request);
    })
}
