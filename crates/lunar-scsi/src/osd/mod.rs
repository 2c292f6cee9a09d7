//! Commands of object-based storage devices (OSD) of T10: CDBs, lists and data formats of OSD-1 and
//! OSD-2 as types. Nothing is executed here.
//!
//! [`OsdCdb`] is a CDB of any [version](OsdVersion); both roles use it.
//!
//! # Interpretations
//!
//! Sources disagree on some details of the standard, or show none. Each choice is one line or one
//! constant in the code, with a comment that begins with "Interpretation":
//!
//! | topic | choice |
//! |---|---|
//! | SERVICE ACTIONs of OSD-2 in CDBs of 200 bytes (revisions 0 to 2) | refused |
//! | exponent of offsets in revision 3 | signed, as in later revisions |
//! | lowest id | 2^16 |
//! | FLUSH SCOPE | byte 10; if 0 there, byte 11; these commands have no isolation |
//! | IMMED_TR | QUERY, CREATE USER TRACKING COLLECTION, and SET and REMOVE of all members |
//! | TIMESTAMPS CONTROL, vendor specific values | refused |
//! | set one attribute in the CDB, page 0 | sets nothing |
//! | REMOVE SCOPE of REMOVE PARTITION | byte 11, values 0 and 1, from revision 4 |
//! | MAP TYPE of READ MAP | bytes 48 and 49 in all revisions |
//! | READ MAPS AND COMPARE | as READ MAP of all types; the other object in the continuation |
//! | source of snapshots and clones | bytes 40 to 47 |
//! | time of duplication of snapshots and clones | byte 15 |
//! | length in the header of a list in data-out | ignored; built as 0 |
//! | value that is not defined | FFFFh in results of OSD-1, length 0 in OSD-2 |
//! | list length of an object in a list of several | bytes 12 to 15; the drafts have 14 and 15 |
//! | descriptor type of user objects | 0100h; 0003h is accepted |
//! | user objects in the continuation | partition id and object id of each |
//! | flags of the source of a copy | byte 16: attributes 01h, freeze 02h; byte 17: the time |
//! | length of an entry of a query list | the bytes after it; that of all bytes is accepted |
//! | comparison in QUERY | byte strings; no bytes are no limit |
//! | ids in the parameter data of QUERY | from byte 13 in revision 3, from byte 12 later |
//! | attributes in sense data | from byte 4 of the descriptor |
//! | attributes that can be set | the column of `pages::ATTRIBUTES` |
//! | names of pages | those that sources show, and analogous ones |
//! | Policy/Security pages | root: flags after the nonces; partition: tags before the keys |
//! | extension capabilities | of the format of OSD-2, one after the other |
//! | SET MASTER KEY, PERFORM … in OSD-1 | the fields of OSD-2 revision 3 |

mod action;
mod attributes;
mod capability;
mod cdb;
mod codes;
mod command;
mod continuation;
mod layout;
mod lists;
mod offset;
pub mod pages;
mod responses;
mod segments;
mod sense;
mod version;

pub use action::OsdAction;
pub use attributes::{
    ATTRIBUTE_VALUE_BYTES_MAX, AttributeName, AttributeParameters, AttributeToSet, BufferRange,
    INLINE_VALUE_BYTES_MAX, InlineAttribute, ListToGet, PageToGet,
};
pub use capability::{CapabilityDescriptor, OsdCapability, OsdSecurityParameters, RequestNonce};
pub use cdb::{CONTINUATION_BYTES_MAX, CONTINUATION_BYTES_MIN, CdbEncodeError, OsdCdb, OsdOptions};
pub use codes::{
    CapabilityFormat, IsolationMethod, MapType, ObjectDescriptorType, ObjectType, Permissions,
    SecurityMethod, TaskManagementCode, TimestampsControl,
};
pub use command::{
    ContainerFlushScope, DuplicationMethod, FlushScope, KeyToSet, ListRequest, MasterKeyStep,
    OSD_FIRST_ID, ObjectAddress, ObjectRange, OsdCommand, PartitionCopyMethods, RemoveScope,
};
pub use continuation::{
    CONTINUATION_DESCRIPTORS_MAX, CONTINUATION_OBJECTS_MAX, ContinuationDescriptor,
    ContinuationDescriptorType, ContinuationError, ContinuationSegment, CopySource,
    CopySourceFlags, EXTENSION_CAPABILITIES_MAX, QUERY_CRITERIA_MAX, QueryCriterion, QueryList,
    QueryListError, QueryMatch, SCATTER_GATHER_ENTRIES_MAX,
};
pub use layout::at as field_at;
pub use lists::{
    ATTRIBUTE_ENTRIES_MAX, AttributeListError, AttributeListType, AttributeValue,
    MultiObjectAttributes, ObjectAttributes, RetrievedAttributes, RetrievedListBuilder,
    decode_get_list, decode_multi_object_list, decode_retrieved_list, decode_set_list,
    encode_get_list, encode_set_list,
};
pub use offset::OsdOffset;
pub use responses::{
    ListCompletion, ListResponse, ListResponseBuilder, ListedKind, MapEntry, MapResponse,
    MapResponseBuilder, MatchesResponse, MatchesResponseBuilder, OsdResponseError,
    TaskManagementResponseCode, TaskManagementResult,
};
pub use segments::{BufferSegment, BufferSegments, SegmentError, SegmentRange};
pub use sense::{
    CommandFunctions, OSD_SENSES, ObjectIdentification, OsdSenseEntry, SENSE_ATTRIBUTES_MAX,
};
pub use version::{OsdTime, OsdVersion};
