//! `key=value\0` and its continuation over PDUs.

use crate::text::{
    Key, KeySet, PAIRS_MAX, Pair, Reassembler, Segmenter, TEXT_BYTES_MAX, TextBuilder, Violation,
    parse,
};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

fn pair<'a>(key: Option<Key>, name: &'a str, value: &'a str) -> Pair<'a> {
    Pair { key, name, value }
}

#[test]
fn pairs_are_taken_apart() {
    let text = b"SessionType=Normal\0X-com.example.a=b=c\0InitiatorAlias=\0";
    assert_eq!(
        parse(text).unwrap(),
        [
            pair(Some(Key::SessionType), "SessionType", "Normal"),
            pair(None, "X-com.example.a", "b=c"),
            pair(Some(Key::InitiatorAlias), "InitiatorAlias", ""),
        ]
    );
    assert_eq!(parse(b""), Ok(vec![]));
    assert_eq!(parse(b"\0\0\0"), Ok(vec![]));
    assert_eq!(parse(b"A=b\0\0\0").unwrap().len(), 1, "padding that was counted in");
    assert_eq!(parse(b"iSCSIProtocolLevel=1\0").unwrap()[0].key, Some(Key::ProtocolLevel));
}

#[test]
fn malformed_text_is_refused() {
    let long_key = format!("{}=x\0", "K".repeat(64));
    let long_value = format!("InitiatorAlias={}\0", "v".repeat(256));
    let many: String = (0..=PAIRS_MAX).map(|at| format!("K{at}=v\0")).collect();
    let cases: [(&[u8], Violation); 10] = [
        (b"InitiatorName=iqn.a", Violation::Unterminated),
        (b"=", Violation::Unterminated),
        (b"=value\0", Violation::KeyName),
        (b"lower=value\0", Violation::KeyName),
        (b"Sp ace=value\0", Violation::KeyName),
        (b"NoValue\0", Violation::NoValue),
        (b"A=b\0\0C=d\0", Violation::NoValue),
        (b"A=\xff\0", Violation::NotUtf8),
        (long_key.as_bytes(), Violation::KeyName),
        (long_value.as_bytes(), Violation::ValueTooLong("InitiatorAlias")),
    ];
    for (text, violation) in cases {
        assert_eq!(parse(text), Err(violation), "{}", String::from_utf8_lossy(text));
    }
    let longest = format!("{}=x\0InitiatorAlias={}\0", "K".repeat(63), "v".repeat(255));
    assert_eq!(parse(longest.as_bytes()).map(|pairs| pairs.len()), Ok(2));
    let too_many = Violation::TooManyPairs { pairs_max: PAIRS_MAX };
    assert_eq!(parse(many.as_bytes()), Err(too_many));
}

#[test]
fn a_repeated_key_is_refused() {
    let mut seen = KeySet::EMPTY;
    for known in [pair(Some(Key::ChapA), "CHAP_A", "5"), pair(None, "X-a", "1")] {
        assert_eq!(seen.record(&known), Ok(()));
        assert_eq!(seen.record(&known), Err(Violation::Repeated(known.name.into())));
    }
    let address = pair(Some(Key::TargetAddress), "TargetAddress", "a,1");
    assert_eq!((seen.record(&address), seen.record(&address)), (Ok(()), Ok(())));
}

/// Goal: text of every critical length is reassembled, and one byte too many is refused.
#[test]
fn lengths_around_the_limits() {
    for length in [0, 1, 8191, 8192, 8193, TEXT_BYTES_MAX - 1, TEXT_BYTES_MAX] {
        let mut reassembler = Reassembler::default();
        let text = vec![b'x'; length];
        let (head, tail) = text.split_at(length / 2);
        assert_eq!(reassembler.add(head, true), Ok(None));
        assert_eq!(reassembler.add(tail, false), Ok(Some(text)));
    }
    let mut reassembler = Reassembler::new(8192);
    assert_eq!(reassembler.add(&[0; 8192], true), Ok(None));
    let too_long = Violation::TextTooLong { text_bytes_max: 8192 };
    assert_eq!(reassembler.add(&[0], true), Err(too_long));
    assert_eq!(reassembler.add(b"y", false), Ok(Some(b"y".to_vec())), "nothing is left");
}

/// A name and a value.
fn any_pair() -> impl Strategy<Value = (String, String)> {
    ("[A-Z][A-Za-z0-9.@_+-]{0,62}", "[a-z0-9:/=,~ -]{0,99}")
}

proptest! {
    /// Goal: random bytes never cause a panic, and the parsed pairs are not longer than the input.
    #[test]
    fn random_text(text in proptest::collection::vec(any::<u8>(), 0..4096)) {
        if let Ok(pairs) = parse(&text) {
            let bytes: usize = pairs.iter().map(|pair| pair.name.len() + pair.value.len()).sum();
            prop_assert!(bytes <= text.len());
        }
    }

    /// Goal: written pairs are parsed unchanged.
    #[test]
    fn encoded_pairs_decode_unchanged(pairs in prop_oneof![
        9 => proptest::collection::vec(any_pair(), 0..16),
        1 => proptest::collection::vec(any_pair(), 0..PAIRS_MAX),
    ]) {
        let mut builder = TextBuilder::new();
        for (name, value) in &pairs {
            builder.pair(name, value);
        }
        let text = builder.into_bytes();
        let parsed = parse(&text).unwrap();
        let back: Vec<_> = parsed.iter().map(|pair| (pair.name, pair.value)).collect();
        let sent: Vec<_> = pairs.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        prop_assert_eq!(back, sent);
    }

    /// Goal: a text arrives completely, however it is split.
    #[test]
    fn emitter_and_reassembler(
        text in proptest::collection::vec(any::<u8>(), 0..5000), segment_max in 1usize..600,
    ) {
        let mut segmenter = Segmenter::new(text.clone());
        let mut reassembler = Reassembler::default();
        loop {
            let segment = segmenter.next(segment_max);
            prop_assert!(segment.len() <= segment_max);
            if let Some(whole) = reassembler.add(&segment, !segmenter.is_empty()).unwrap() {
                prop_assert_eq!(whole, text);
                break;
            }
        }
        prop_assert!(segmenter.is_empty() && !reassembler.is_waiting());
    }
}
