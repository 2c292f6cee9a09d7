//! `testdata/pdus.txt`: headers of every kind, field by field.

use crate::vectors::{bytes_of, lines};
use lunar_iscsi::pdu::{
    AsyncMessage, BasicHeader, DataIn, DataOut, HEADER_BYTES, LoginRequest, LoginResponse,
    LogoutRequest, LogoutResponse, NopIn, NopOut, ReadyToTransfer, Reject, ScsiCommand,
    ScsiResponse, SnackRequest, TaskManagementRequest, TaskManagementResponse, TextRequest,
    TextResponse,
};
use lunar_wire::Field;
use std::collections::{BTreeMap, BTreeSet};

/// The fields of one line: the bytes of each, by name.
type Fields<'a> = BTreeMap<&'a str, Vec<u8>>;

fn take<T: Field>(fields: &mut Fields<'_>, name: &str) -> T {
    let bytes = fields.remove(name).unwrap_or_else(|| panic!("no field {name}"));
    assert_eq!(bytes.len(), T::SIZE, "{name}");
    T::get(&bytes)
}

/// Encodes and decodes one line as the PDU of that name.
macro_rules! kinds {
    ($name:expr, $fields:expr, $header:expr; $($pdu:ident { $($field:ident)+ })+) => {
        match $name {
            $(stringify!($pdu) => {
                let pdu = $pdu { $($field: take($fields, stringify!($field))),+ };
                assert_eq!(pdu.encode(), *$header, "{pdu:?}");
                assert_eq!($pdu::decode($header), pdu);
            })+
            other => panic!("no PDU {other}"),
        }
    };
}

#[rustfmt::skip]
fn check(name: &str, fields: &mut Fields<'_>, header: &[u8; HEADER_BYTES]) {
    kinds! { name, fields, header;
        NopOut { first flags total_ahs_words data_segment_length lun initiator_task_tag
            target_transfer_tag cmd_sn exp_stat_sn }
        ScsiCommand { first flags priority total_ahs_words data_segment_length lun
            initiator_task_tag expected_data_transfer_length cmd_sn exp_stat_sn cdb }
        TaskManagementRequest { first flags_and_function total_ahs_words data_segment_length lun
            initiator_task_tag referenced_task_tag cmd_sn exp_stat_sn ref_cmd_sn exp_data_sn }
        LoginRequest { first flags version_max version_min total_ahs_words data_segment_length isid
            tsih initiator_task_tag cid cmd_sn exp_stat_sn }
        TextRequest { first flags total_ahs_words data_segment_length lun initiator_task_tag
            target_transfer_tag cmd_sn exp_stat_sn }
        DataOut { first flags total_ahs_words data_segment_length lun initiator_task_tag
            target_transfer_tag exp_stat_sn data_sn buffer_offset_bytes }
        LogoutRequest { first flags_and_reason total_ahs_words data_segment_length
            initiator_task_tag cid cmd_sn exp_stat_sn }
        SnackRequest { first flags total_ahs_words data_segment_length lun initiator_task_tag
            target_transfer_tag exp_stat_sn first_missing run_length }
        NopIn { first flags total_ahs_words data_segment_length lun initiator_task_tag
            target_transfer_tag stat_sn exp_cmd_sn max_cmd_sn }
        ScsiResponse { first flags response status total_ahs_words data_segment_length
            status_qualifier initiator_task_tag snack_tag stat_sn exp_cmd_sn max_cmd_sn exp_data_sn
            bidi_read_residual_bytes residual_bytes }
        TaskManagementResponse { first flags response total_ahs_words data_segment_length
            information initiator_task_tag stat_sn exp_cmd_sn max_cmd_sn }
        LoginResponse { first flags version_max version_active total_ahs_words
            data_segment_length isid tsih initiator_task_tag stat_sn exp_cmd_sn max_cmd_sn status }
        TextResponse { first flags total_ahs_words data_segment_length lun initiator_task_tag
            target_transfer_tag stat_sn exp_cmd_sn max_cmd_sn }
        DataIn { first flags status total_ahs_words data_segment_length lun initiator_task_tag
            target_transfer_tag stat_sn exp_cmd_sn max_cmd_sn data_sn buffer_offset_bytes
            residual_bytes }
        LogoutResponse { first flags response total_ahs_words data_segment_length
            initiator_task_tag stat_sn exp_cmd_sn max_cmd_sn time_to_wait_seconds
            time_to_retain_seconds }
        ReadyToTransfer { first flags total_ahs_words data_segment_length lun initiator_task_tag
            target_transfer_tag stat_sn exp_cmd_sn max_cmd_sn r2t_sn buffer_offset_bytes
            desired_length_bytes }
        AsyncMessage { first flags total_ahs_words data_segment_length lun initiator_task_tag
            stat_sn exp_cmd_sn max_cmd_sn event vendor_code parameter_1 parameter_2 parameter_3 }
        Reject { first flags reason total_ahs_words data_segment_length initiator_task_tag stat_sn
            exp_cmd_sn max_cmd_sn data_sn }
    }
}

/// Goal: the crate encodes and decodes every PDU like the vectors.
/// Method: each line is built from its fields and parsed from its bytes.
#[test]
fn headers() {
    let text = include_str!("../../../../../testdata/pdus.txt");
    let mut kinds = BTreeSet::new();
    for line in lines(text) {
        let (text, hex) = line.split_once(" = ").unwrap();
        let (name, text) = text.split_once(' ').unwrap();
        let header = <[u8; HEADER_BYTES]>::try_from(bytes_of(hex)).unwrap();
        let pairs = text.split(' ').map(|field| field.split_once("=0x").unwrap());
        let mut fields: Fields<'_> = pairs.map(|(field, value)| (field, bytes_of(value))).collect();
        check(name, &mut fields, &header);
        assert!(fields.is_empty(), "{name} has no {:?}", fields.keys());
        kinds.insert((name, BasicHeader::decode(&header).first.opcode()));
    }
    assert_eq!(kinds.len(), 18, "every PDU, and each under one opcode");
}
