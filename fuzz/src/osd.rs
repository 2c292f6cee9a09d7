//! Commands of object stores: CDBs, lists in data-out and in data-in, sense data.

use lunar_scsi::osd::pages::decode_page;
use lunar_scsi::osd::{
    BufferSegments, CdbEncodeError, ContinuationSegment, ListResponse, MapResponse,
    MatchesResponse, OsdAction, OsdCdb, OsdVersion, QueryList, decode_get_list,
    decode_multi_object_list, decode_retrieved_list, decode_set_list, encode_get_list,
    encode_set_list,
};
use lunar_scsi::sense::Sense;

/// Runs an input. The first byte selects the decoder: 0 a CDB, 1 a CDB continuation segment (the
/// second byte selects the command), 2 lists of attributes, 3 parameter data (the second byte
/// selects the version), 4 a query list, 5 sense data.
pub fn run(input: &[u8]) {
    let Some((selector, rest)) = input.split_first() else { return };
    match selector % 6 {
        0 => cdb(rest),
        4 => query_list(rest),
        5 => sense(rest),
        selector => {
            let Some((choice, rest)) = rest.split_first() else { return };
            let version = OsdVersion::ALL[usize::from(*choice) % OsdVersion::ALL.len()];
            match selector {
                1 => continuation(usize::from(*choice), rest),
                2 => lists(version, rest),
                _ => parameter_data(version, rest),
            }
        }
    }
}

/// Checks that an accepted CDB can be built again, and that its segments do not overlap.
fn cdb(bytes: &[u8]) {
    let cdb = match OsdCdb::decode(bytes) {
        Ok(cdb) => cdb,
        Err(sense) => {
            let byte = sense.field.map_or(0, |field| usize::from(field.byte));
            assert!(byte < OsdVersion::Osd2.cdb_bytes(), "a pointer beyond the CDB: {sense}");
            return;
        }
    };
    match cdb.encode() {
        Ok(again) => assert_eq!(OsdCdb::decode(&again).as_ref(), Ok(&cdb)),
        Err(error) => assert_eq!(error, CdbEncodeError::Version),
    }
    for segments in [cdb.data_out_segments(), cdb.data_in_segments()] {
        match segments {
            Ok(segments) => check_segments(&segments),
            Err(error) => assert!(error.sense().field.is_some(), "{error}"),
        }
    }
}

fn check_segments(segments: &BufferSegments) {
    let mut end = 0;
    for range in segments.iter() {
        assert!(range.start >= end && range.bytes > 0, "{segments:?}");
        end = range.end();
    }
    assert_eq!(segments.bytes(), end);
}

fn continuation(choice: usize, segment: &[u8]) {
    let action = OsdAction::ALL[choice % OsdAction::ALL.len()];
    match ContinuationSegment::decode(segment, action) {
        Ok(decoded) => {
            let again = decoded.encode().expect("an accepted segment can be built");
            assert_eq!(ContinuationSegment::decode(&again, action), Ok(decoded));
        }
        Err(error) => {
            let byte = error.sense().field.map_or(0, |field| usize::from(field.byte));
            assert!(byte <= segment.len().max(40), "a pointer beyond the segment: {error}");
        }
    }
}

fn lists(version: OsdVersion, list: &[u8]) {
    if let Ok(names) = decode_get_list(version, list) {
        let again = encode_get_list(version, &names);
        assert_eq!(decode_get_list(version, &again), Ok(names));
    }
    if let Ok(values) = decode_set_list(version, list) {
        let again = encode_set_list(version, &values).expect("an accepted list can be built");
        assert_eq!(decode_set_list(version, &again).as_ref(), Ok(&values));
    }
    if let Ok(found) = decode_retrieved_list(version, list) {
        let bytes: usize = found.values.iter().map(|value| value.value.len()).sum();
        assert!(bytes <= list.len());
    }
    if let Ok(found) = decode_multi_object_list(version, list) {
        assert!(found.objects.len() <= list.len());
    }
}

fn parameter_data(version: OsdVersion, data: &[u8]) {
    if let Ok(list) = ListResponse::decode(version, data) {
        assert!(list.objects.len() <= data.len() / 8);
    }
    if let Ok(map) = MapResponse::decode(data) {
        assert!(map.entries.len() <= data.len() / 16);
    }
    if let Ok(matches) = MatchesResponse::decode(version, data) {
        assert!(matches.objects.len() <= data.len() / 8);
    }
    if let Some(page) = decode_page(data) {
        assert!(page.body.len() + 8 <= data.len());
    }
}

fn query_list(bytes: &[u8]) {
    if let Ok(list) = QueryList::decode(bytes) {
        assert_eq!(QueryList::decode(&list.encode()), Ok(list));
    }
}

fn sense(bytes: &[u8]) {
    let Some(sense) = Sense::decode(bytes) else { return };
    let names = sense.attributes();
    assert!(names.len() * 8 <= bytes.len());
    let _ = (sense.object_identification(), sense.command_specific_information());
    assert!(sense.response_integrity_value().is_none_or(|value| value.len() <= bytes.len()));
}
