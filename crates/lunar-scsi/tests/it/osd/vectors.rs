//! Tests with the vectors in `testdata/osd.txt`. `testdata/make_osd.py` writes them and shares no
//! code with the crate.

mod commands;

use lunar_scsi::osd::{
    AttributeName, AttributeValue, CommandFunctions, ContinuationDescriptor, ContinuationSegment,
    CopySource, CopySourceFlags, ListCompletion, ListResponse, ListResponseBuilder, ListedKind,
    MapEntry, MapResponse, MapResponseBuilder, MapType, MatchesResponse, MatchesResponseBuilder,
    ObjectAddress, ObjectIdentification, ObjectRange, ObjectType, OsdAction, OsdCdb, OsdOffset,
    OsdVersion, QueryCriterion, QueryList, QueryMatch, RetrievedListBuilder, decode_get_list,
    decode_multi_object_list, decode_retrieved_list, decode_set_list, encode_get_list,
    encode_set_list,
};
use lunar_scsi::sense::{Sense, SenseFormat};
use std::process::Command;

const VECTORS: &str = include_str!("../../../../../testdata/osd.txt");

/// Goal: the vectors match the script, so that nobody adapts them to an implementation.
#[test]
fn the_vectors_match_the_script() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/make_osd.py");
    let status = Command::new("python3").args([script, "--check"]).status().unwrap();
    assert!(status.success(), "run testdata/make_osd.py");
}

/// The fields and the bytes of every vector of a kind; there are at least `min`.
fn vectors(kind: &str, min: usize) -> Vec<(Vec<&'static str>, Vec<u8>)> {
    let lines = VECTORS.lines().filter_map(|line| {
        let (fields, bytes) = line.split_once(" = ")?;
        let fields = fields.strip_prefix(kind)?.strip_prefix(' ')?;
        Some((fields.split(' ').collect(), bytes))
    });
    let found: Vec<_> = lines.map(|(fields, bytes)| (fields, bytes_of(bytes))).collect();
    assert!(found.len() >= min, "{} vectors of {kind}", found.len());
    found
}

/// Parses hexadecimal digits; `-` stands for no bytes.
fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = if hex == "-" { "" } else { hex };
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn version_of(name: &str) -> OsdVersion {
    match name {
        "osd1" => OsdVersion::Osd1,
        "r03" => OsdVersion::Osd2R03,
        "osd2" => OsdVersion::Osd2,
        _ => panic!("{name}"),
    }
}

/// The parts of a field that colons separate, as numbers.
fn numbers(field: &str) -> Vec<u64> {
    field.split(':').map(|number| number.parse().unwrap()).collect()
}

fn number<T: TryFrom<u64, Error: std::fmt::Debug>>(text: &str) -> T {
    T::try_from(text.parse().unwrap()).unwrap()
}

/// Attributes with values: `page:number:value`.
fn attributes(fields: &[&str]) -> Vec<(AttributeName, Vec<u8>)> {
    let attribute = |field: &&str| {
        let parts: Vec<_> = field.split(':').collect();
        let name = AttributeName::new(number(parts[0]), number(parts[1]));
        (name, bytes_of(parts[2]))
    };
    fields.iter().filter(|field| !field.is_empty()).map(attribute).collect()
}

fn borrowed(values: &[(AttributeName, Vec<u8>)]) -> Vec<AttributeValue<'_>> {
    values.iter().map(|(name, value)| AttributeValue { name: *name, value }).collect()
}

/// Goal: CDBs of every command and version are built and decoded as the script has them.
#[test]
fn cdbs() {
    for (fields, bytes) in vectors("cdb", 130) {
        let cdb = commands::cdb(&fields);
        assert_eq!(OsdCdb::decode(&bytes).as_ref(), Ok(&cdb), "{fields:?}");
        if cdb.version != OsdVersion::Osd2R03 {
            assert_eq!(cdb.encode().unwrap(), bytes, "{fields:?}");
        }
    }
}

/// Goal: offsets have the codes of the script.
#[test]
fn offsets() {
    let lines = VECTORS.lines().filter_map(|line| line.strip_prefix("offset "));
    let mut count = 0;
    for (line, code) in lines.map(|line| line.split_once(" = ").unwrap()) {
        let (version, byte) = line.split_once(' ').unwrap();
        let (version, byte) = (version_of(version), byte.parse().unwrap());
        let code = code.parse().ok().map(OsdOffset);
        assert_eq!(OsdOffset::encode(version, byte), code, "{line}");
        assert!(code.is_none_or(|code| code.decode(version) == Some(byte)), "{line}");
        count += 1;
    }
    assert!(count > 20);
}

/// Goal: lists of attributes are built and decoded as the script has them.
#[test]
fn lists() {
    for (fields, bytes) in vectors("get_list", 6) {
        let (version, values) = (version_of(fields[0]), attributes(&fields[1..]));
        let names: Vec<_> = values.iter().map(|(name, _)| *name).collect();
        assert_eq!(encode_get_list(version, &names), bytes);
        assert_eq!(decode_get_list(version, &bytes), Ok(names));
    }
    for (fields, bytes) in vectors("set_list", 6) {
        let (version, values) = (version_of(fields[0]), attributes(&fields[1..]));
        let values = borrowed(&values);
        assert_eq!(encode_set_list(version, &values).as_ref(), Ok(&bytes));
        assert_eq!(decode_set_list(version, &bytes).unwrap(), values);
    }
    for (fields, bytes) in vectors("retrieved", 6) {
        let (version, values) = (version_of(fields[0]), attributes(&fields[1..]));
        let values = borrowed(&values);
        let mut builder = RetrievedListBuilder::new(version, usize::MAX);
        values.iter().for_each(|value| builder.push(value));
        assert_eq!(builder.finish(), bytes);
        assert_eq!(decode_retrieved_list(version, &bytes).unwrap().values, values);
    }
    for (fields, bytes) in vectors("objects", 6) {
        let (version, values) = (version_of(fields[0]), attributes(&fields[1..]));
        let values = borrowed(&values);
        let mut builder = RetrievedListBuilder::for_objects(version, usize::MAX);
        builder.push_object(0x1_0007, ObjectType::USER, &values);
        assert_eq!(builder.finish(), bytes);
        let decoded = decode_multi_object_list(version, &bytes).unwrap();
        let found: Vec<_> = decoded.objects.iter().flat_map(|object| &object.values).collect();
        assert_eq!(found, values.iter().collect::<Vec<_>>());
        assert!(decoded.objects.iter().all(|object| object.object == 0x1_0007));
    }
}

/// Goal: CDB continuation segments are built and decoded as the script has them.
#[test]
fn continuation_segments() {
    for (fields, bytes) in vectors("continuation", 5) {
        let (action, descriptor) = descriptor(fields[0], &fields[1..]);
        let integrity_value = std::array::from_fn(|at| at as u8);
        let segment =
            ContinuationSegment { action, integrity_value, descriptors: vec![descriptor] };
        assert_eq!(segment.encode().as_ref(), Some(&bytes), "{fields:?}");
        assert_eq!(ContinuationSegment::decode(&bytes, action), Ok(segment));
    }
}

fn descriptor(kind: &str, fields: &[&str]) -> (OsdAction, ContinuationDescriptor) {
    let pairs = || fields.iter().map(|field| numbers(field));
    match kind {
        "scatter_gather" => {
            let range = |pair: Vec<u64>| ObjectRange { start: pair[0], length: pair[1] };
            let list = pairs().map(range).collect();
            (OsdAction::Write, ContinuationDescriptor::ScatterGather(list))
        }
        "query" => {
            let criterion = |field: &&str| {
                let parts: Vec<_> = field.split(':').collect();
                QueryCriterion {
                    name: AttributeName::new(number(parts[0]), number(parts[1])),
                    minimum: bytes_of(parts[2]),
                    maximum: bytes_of(parts[3]),
                }
            };
            let criteria = fields.iter().map(criterion).collect();
            let list = QueryList { query_match: QueryMatch::All, criteria };
            (OsdAction::Query, ContinuationDescriptor::Query(list))
        }
        "user_objects" => {
            let object = |pair: Vec<u64>| ObjectAddress::new(pair[0], pair[1]);
            let list = pairs().map(object).collect();
            (OsdAction::ReadMapsAndCompare, ContinuationDescriptor::UserObjects(list))
        }
        "copy_source" => {
            let parts = numbers(fields[0]);
            let source = CopySource {
                partition: parts[0],
                object: parts[1],
                flags: CopySourceFlags(parts[2] as u8),
                time_of_duplication: parts[3] as u8,
            };
            (OsdAction::CopyUserObjects, ContinuationDescriptor::CopySource(source))
        }
        "capabilities" => {
            let list = vec![commands::capability(fields[0])];
            (OsdAction::CreateClone, ContinuationDescriptor::ExtensionCapabilities(list))
        }
        _ => panic!("{kind}"),
    }
}

fn kind_of(name: &str) -> ListedKind {
    match name {
        "partitions" => ListedKind::Partitions,
        "collections" => ListedKind::Collections,
        "user" => ListedKind::UserObjects,
        _ => panic!("{name}"),
    }
}

/// Goal: lists of objects are built and decoded as the script has them.
#[test]
fn lists_of_objects() {
    let completion =
        ListCompletion { continuation: Some(0x1_0099), list_identifier: 77, is_changed: true };
    let check = |version, kind, ids: &[u64], values: &[AttributeValue<'_>], bytes: &[u8]| {
        let with_attributes = !values.is_empty();
        let mut builder = ListResponseBuilder::new(version, kind, with_attributes, usize::MAX);
        ids.iter().for_each(|id| builder.push(*id, values));
        assert_eq!(builder.finish(completion), bytes, "{version:?} {kind:?}");
        let decoded = ListResponse::decode(version, bytes).unwrap();
        assert_eq!((decoded.kind, decoded.completion), (kind, completion));
        let found: Vec<_> = decoded.objects.iter().map(|object| object.object).collect();
        assert_eq!(found, ids);
        assert!(decoded.objects.iter().all(|object| object.values == values));
    };
    for (fields, bytes) in vectors("list", 6) {
        let ids: Vec<u64> = fields[2..].iter().map(|id| number(id)).collect();
        check(version_of(fields[0]), kind_of(fields[1]), &ids, &[], &bytes);
    }
    for (fields, bytes) in vectors("attribute_list", 3) {
        let ids: Vec<u64> = fields[1..5].iter().map(|id| number(id)).collect();
        let values = attributes(&fields[5..]);
        check(OsdVersion::Osd2, kind_of(fields[0]), &ids, &borrowed(&values), &bytes);
    }
}

/// Goal: maps, matches and sense data are built and decoded as the script has them.
#[test]
fn other_responses() {
    for (fields, bytes) in vectors("map", 1) {
        let entry = |field: &&str| {
            let parts = numbers(field);
            let range = ObjectRange { start: parts[1], length: parts[2] };
            MapEntry { map_type: MapType(parts[0] as u16), range }
        };
        let entries: Vec<_> = fields.iter().map(entry).collect();
        let mut builder = MapResponseBuilder::new(usize::MAX);
        entries.iter().for_each(|entry| builder.push(entry));
        assert_eq!(builder.finish(), bytes);
        assert_eq!(MapResponse::decode(&bytes).unwrap().entries, entries);
    }
    for (fields, bytes) in vectors("matches", 2) {
        let version = version_of(fields[0]);
        let ids: Vec<u64> = fields[1..].iter().map(|id| number(id)).collect();
        let mut builder = MatchesResponseBuilder::new(version, usize::MAX);
        ids.iter().for_each(|id| builder.push(*id));
        assert_eq!(builder.finish(), bytes);
        assert_eq!(MatchesResponse::decode(version, &bytes).unwrap().objects, ids);
    }
    for (fields, bytes) in vectors("sense", 1) {
        let ids = numbers(fields[0]);
        let not_initiated = CommandFunctions::SET_ATTRIBUTES | CommandFunctions::GET_ATTRIBUTES;
        let completed = CommandFunctions::VALIDATION
            | CommandFunctions::COMMAND_CAPABILITY
            | CommandFunctions::COMMAND;
        let object = ObjectAddress::new(ids[0], ids[1]);
        let identification = ObjectIdentification { not_initiated, completed, object };
        let integrity_value = std::array::from_fn(|at| at as u8);
        let names = [AttributeName::new(2, 1), AttributeName::new(5, 6)];
        let sense = Sense::invalid_field_in_cdb(24, None)
            .with_object_identification(&identification)
            .with_response_integrity_value(OsdVersion::Osd2, &integrity_value)
            .with_attributes(&names)
            .with_command_specific_information(99);
        assert_eq!(sense.encode(SenseFormat::Descriptor), bytes);
        let decoded = Sense::decode(&bytes).unwrap();
        assert_eq!(decoded.object_identification(), Some(identification));
        assert_eq!(decoded.attributes(), names);
        assert_eq!(decoded.response_integrity_value(), Some(&integrity_value[..]));
        assert_eq!(decoded.command_specific_information(), Some(99));
    }
}
