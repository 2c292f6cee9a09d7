//! A unit of another type than a disk, built from the public parts: what every type shares works
//! for it, and nothing of block devices shows.

use lunar_scsi::attention::Attention;
use lunar_scsi::cdb::variable;
use lunar_scsi::commands::{
    CommandEntry, CommandRow, CommandTable, Features, ListKind, Medium, Offered, Request,
    ReservationConflict, usage,
};
use lunar_scsi::log::LogPage;
use lunar_scsi::mode::{ControlParameters, ModePage, ModeParameters};
use lunar_scsi::plan::{AwaitingParameterList, NexusId, PrimaryPlan, Refusal};
use lunar_scsi::primary::{DeviceServer, DeviceType, PrimaryUnit, UnitIdentity};
use lunar_scsi::reservations::ReservationAccess;
use lunar_scsi::sense::{SENSE_BYTES_MAX, Sense};
use lunar_scsi::unit::{Context, InitiatorPort, TargetPort};
use lunar_scsi::vpd::{VpdPage, naa};
use lunar_wire::Lun;
use proptest::prelude::*;

const A: NexusId = NexusId(1);
const B: NexusId = NexusId(2);
const UUID: [u8; 16] = [9; 16];

/// A unit of type 11h with a command of 200 bytes.
struct ObjectUnit {
    primary: PrimaryUnit,
    modes: ObjectModes,
    /// The data-out of the last command.
    written: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct ObjectModes(ControlParameters);

/// The action for a command.
#[derive(Debug, PartialEq)]
enum ObjectPlan {
    Primary(PrimaryPlan),
    /// Read so many bytes of an object.
    Read(u64),
}

impl From<PrimaryPlan> for ObjectPlan {
    fn from(plan: PrimaryPlan) -> Self {
        Self::Primary(plan)
    }
}

const READ_OBJECT: u16 = 0x8805;
const WRITE_OBJECT: u16 = 0x8806;
const OBJECT_CDB_BYTES: usize = 200;
const OBJECT_USAGE: [u8; OBJECT_CDB_BYTES] = usage::variable_length();

const fn fixed(
    access: ReservationAccess,
    medium: Medium,
) -> (ReservationConflict, Medium, Offered) {
    (ReservationConflict::Fixed(access), medium, Offered::Always)
}

static OBJECT_COMMANDS: [CommandEntry<ObjectUnit>; 32] = CommandTable::merge::<30, 2, 32>(
    CommandTable::PRIMARY,
    [
        CommandEntry::new(
            variable::OPCODE,
            Some(READ_OBJECT),
            "READ OBJECT",
            "OSD §6.18",
            fixed(ReservationAccess::Read, Medium::Ready),
            (&OBJECT_USAGE, 30),
            read_object,
        ),
        CommandEntry::new(
            variable::OPCODE,
            Some(WRITE_OBJECT),
            "WRITE OBJECT",
            "OSD §6.27",
            fixed(ReservationAccess::Write, Medium::Writable),
            (&OBJECT_USAGE, 30),
            write_object,
        )
        .with_list(ListKind::Plain, write_object_list),
    ],
);

static TABLE: CommandTable<ObjectUnit> = CommandTable::new(&OBJECT_COMMANDS);

fn read_object(_: &mut ObjectUnit, request: &Request<'_>) -> Result<ObjectPlan, Refusal> {
    let length = request.cdb.get(36..44).unwrap();
    match u64::from_be_bytes(length.try_into().unwrap()) {
        0 => Err(Sense::invalid_field_in_cdb(36, None).into()),
        bytes => Ok(ObjectPlan::Read(bytes)),
    }
}

fn write_object(_: &mut ObjectUnit, request: &Request<'_>) -> Result<ObjectPlan, Refusal> {
    Ok(PrimaryPlan::Parameters { bytes: 3, awaiting: request.awaiting() }.into())
}

fn write_object_list(
    unit: &mut ObjectUnit,
    request: &Request<'_>,
    list: &[u8],
) -> Result<ObjectPlan, Refusal> {
    assert_eq!(request.cdb.len(), OBJECT_CDB_BYTES, "the whole CDB is kept");
    unit.written = list.to_vec();
    Ok(PrimaryPlan::Reply(vec![request.cdb[199]]).into())
}

/// B0h of this type.
fn information(_: &ObjectUnit, _: &Context<'_>) -> Vec<u8> {
    vec![1, 2, 3]
}

impl ModeParameters for ObjectModes {
    type Options = ();

    const PAGES: &'static [ModePage<Self>] =
        &[ModePage::CONTROL, ModePage::INFORMATIONAL_EXCEPTIONS];

    fn features(&(): &()) -> Features {
        Features::NONE
    }

    fn control(&self) -> &ControlParameters {
        &self.0
    }

    fn control_mut(&mut self) -> &mut ControlParameters {
        &mut self.0
    }

    fn device_specific(&self, &(): &()) -> u8 {
        0
    }

    fn block_descriptor(&(): &(), _: bool) -> Vec<u8> {
        Vec::new()
    }
}

impl DeviceServer for ObjectUnit {
    type Plan = ObjectPlan;
    type Modes = ObjectModes;

    const VPD_PAGES: &'static [VpdPage<Self>] = &[
        VpdPage::SUPPORTED_PAGES,
        VpdPage::UNIT_SERIAL_NUMBER,
        VpdPage::DEVICE_IDENTIFICATION,
        VpdPage::EXTENDED_INQUIRY,
        VpdPage::SCSI_PORTS,
        VpdPage::new(0xb0, "OSD Information", "OSD §7.5", Offered::Always, information),
    ];
    const LOG_PAGES: &'static [LogPage] =
        &[LogPage::SUPPORTED_PAGES, LogPage::SUPPORTED_SUBPAGES, LogPage::PROTOCOL_SPECIFIC_PORT];

    fn commands() -> &'static CommandTable<Self> {
        &TABLE
    }

    fn primary(&self) -> &PrimaryUnit {
        &self.primary
    }

    fn primary_mut(&mut self) -> &mut PrimaryUnit {
        &mut self.primary
    }

    fn check_medium(&self, row: &CommandRow) -> Result<(), Sense> {
        let protected = self.modes.0.software_write_protect && row.medium == Medium::Writable;
        if protected { Err(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED) } else { Ok(()) }
    }

    fn not_ready(&self) -> Option<Sense> {
        None
    }

    fn modes(&self) -> (&ObjectModes, &()) {
        (&self.modes, &())
    }

    fn set_modes(&mut self, modes: ObjectModes) {
        self.modes = modes;
    }
}

fn port() -> TargetPort {
    TargetPort { name: "iqn.2026-11.org.lunarsan:o".into(), portal_group_tag: 1, relative_id: 1 }
}

/// A unit whose nexuses `A` and `B` have received the power-on.
fn unit() -> ObjectUnit {
    let primary = PrimaryUnit::new(UnitIdentity {
        device_type: DeviceType::OBJECT,
        command_set: 0x0340,
        uuid: UUID,
        reported: None,
        product: "OBJECTS".into(),
        features: Features::NONE,
        volatile_cache: false,
        sense_bytes_max: SENSE_BYTES_MAX as u8,
    });
    let mut unit = ObjectUnit { primary, modes: ObjectModes::default(), written: Vec::new() };
    for nexus in [A, B] {
        let isid = [0x80, 0, 0, 0, 0, nexus.0 as u8];
        let initiator = InitiatorPort { name: "iqn.2026-11.org.lunarsan:i".into(), isid };
        unit.primary.attach(nexus, initiator, port());
        assert_eq!(run(&mut unit, nexus, &[0; 6]), Err(Sense::POWER_ON_RESET.into()));
    }
    unit
}

fn run(unit: &mut ObjectUnit, nexus: NexusId, cdb: &[u8]) -> Result<ObjectPlan, Refusal> {
    let (luns, port) = ([Lun::new(0), Lun::new(7)], port());
    unit.plan(nexus, &Context::new(&luns, &port), cdb)
}

fn reply(unit: &mut ObjectUnit, cdb: &[u8]) -> Vec<u8> {
    match run(unit, A, cdb) {
        Ok(ObjectPlan::Primary(PrimaryPlan::Reply(reply))) => reply,
        other => panic!("{cdb:02x?} gave {other:x?}"),
    }
}

/// Runs a command with a parameter list.
fn send(unit: &mut ObjectUnit, cdb: &[u8], list: &[u8]) -> Result<ObjectPlan, Refusal> {
    match run(unit, A, cdb)? {
        ObjectPlan::Primary(PrimaryPlan::Parameters { bytes, awaiting }) => {
            assert_eq!(bytes as usize, list.len());
            resume(unit, awaiting, list)
        }
        other => panic!("{cdb:02x?} wants no list: {other:x?}"),
    }
}

fn resume(
    unit: &mut ObjectUnit,
    awaiting: AwaitingParameterList,
    list: &[u8],
) -> Result<ObjectPlan, Refusal> {
    let (luns, port) = ([Lun::new(0)], port());
    unit.resume(A, &Context::new(&luns, &port), awaiting, list)
}

fn object_cdb(action: u16, length: u64) -> Vec<u8> {
    let mut cdb = vec![0; OBJECT_CDB_BYTES];
    cdb[0] = variable::OPCODE;
    cdb[7] = 0xc0;
    cdb[8..10].copy_from_slice(&action.to_be_bytes());
    cdb[36..44].copy_from_slice(&length.to_be_bytes());
    cdb
}

const INQUIRY: [u8; 6] = [0x12, 0, 0, 1, 0, 0];
const DONE: Result<ObjectPlan, Refusal> = Ok(ObjectPlan::Primary(PrimaryPlan::Reply(Vec::new())));

/// Goal: INQUIRY shows the type and the command set of the unit; EXTENDED COPY and a removable
/// medium do not show, because it has none.
#[test]
fn inquiry_shows_the_type() {
    let data = reply(&mut unit(), &INQUIRY);
    assert_eq!(data[..8], [0x11, 0, 6, 0x12, 91, 0x30, 0, 2]);
    assert_eq!(&data[8..23], b"LUNAR   OBJECTS");
    assert_eq!(data[58..66], [0x00, 0xa0, 0x04, 0x60, 0x03, 0x40, 0x09, 0x61]);
}

/// Goal: page 00h lists exactly the pages of the type, and each page begins with the type. Method:
/// request all 256 pages.
#[test]
fn pages_of_the_type() {
    let mut unit = unit();
    let listed = reply(&mut unit, &[0x12, 1, 0, 1, 0, 0]);
    assert_eq!(listed, [0x11, 0, 0, 6, 0, 0x80, 0x83, 0x86, 0x88, 0xb0]);
    for page in 0..=255 {
        match run(&mut unit, A, &[0x12, 1, page, 1, 0, 0]) {
            Ok(ObjectPlan::Primary(PrimaryPlan::Reply(data))) => {
                assert!(listed[4..].contains(&page), "{page:02x}");
                assert_eq!(data[..2], [0x11, page]);
            }
            refused => {
                assert!(!listed[4..].contains(&page), "{page:02x}");
                assert_eq!(refused, Err(Sense::invalid_field_in_cdb(2, None).into()));
            }
        }
    }
    assert_eq!(reply(&mut unit, &[0x12, 1, 0xb0, 1, 0, 0])[4..], [1, 2, 3]);
    let designators = reply(&mut unit, &[0x12, 1, 0x83, 1, 0, 0]);
    assert_eq!(designators[8..16], naa(&UUID).to_be_bytes());
    let extended = reply(&mut unit, &[0x12, 1, 0x86, 1, 0, 0]);
    assert_eq!(extended[13], 252, "MAXIMUM SUPPORTED SENSE DATA LENGTH");
}

/// Goal: mode data have no block descriptor and no page of block devices, in each form; MODE SELECT
/// accepts them, and refuses a block descriptor.
#[test]
fn mode_pages_of_the_type() {
    let mut unit = unit();
    let six = reply(&mut unit, &[0x1a, 0, 0x3f, 0, 255, 0]);
    assert_eq!(six[..4], [27, 0, 0, 0]);
    assert_eq!(six[4..6], [0x0a, 10]);
    assert_eq!(six[16..18], [0x1c, 10]);
    assert_eq!(six.len(), 28);
    let ten = reply(&mut unit, &[0x5a, 0x10, 0x3f, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(ten[..8], [0, 30, 0, 0, 0, 0, 0, 0], "LLBAA has no effect");
    assert_eq!(ten[8..], six[4..]);
    for page in [0x01, 0x08] {
        let refused = run(&mut unit, A, &[0x1a, 0, page, 0, 255, 0]);
        assert_eq!(refused, Err(Sense::invalid_field_in_cdb(2, Some(5)).into()));
    }
    assert_eq!(send(&mut unit, &[0x15, 0x10, 0, 0, 28, 0], &six), DONE);
    let mut with_descriptor = vec![0, 0, 0, 8];
    with_descriptor.extend_from_slice(&[0; 8]);
    let refused = send(&mut unit, &[0x15, 0x10, 0, 0, 12, 0], &with_descriptor);
    assert_eq!(refused, Err(Sense::invalid_field_in_parameter_list(3, None).into()));
}

#[test]
fn log_pages_of_the_type() {
    let mut unit = unit();
    let pages = reply(&mut unit, &[0x4d, 0, 0x40, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(pages, [0, 0, 0, 2, 0, 0x18]);
    let refused = run(&mut unit, A, &[0x4d, 0, 0x4c, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(refused, Err(Sense::invalid_field_in_cdb(2, Some(5)).into()));
}

/// Goal: the commands of SPC-4 that change nothing work for each type. REPORT LUNS contains no
/// type.
#[test]
fn shared_commands() {
    let mut unit = unit();
    assert_eq!(reply(&mut unit, &[0; 6]), []);
    let luns = reply(&mut unit, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(luns[..8], [0, 0, 0, 16, 0, 0, 0, 0]);
    assert_eq!(luns[8..], [Lun::new(0).0, Lun::new(7).0].concat());
    let sense = reply(&mut unit, &[0x03, 0, 0, 0, 252, 0]);
    assert_eq!(Sense::decode(&sense), Some(Sense::NO_ADDITIONAL_SENSE));
    let groups = reply(&mut unit, &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(groups[..6], [0, 0, 0, 12, 0, 0x0f]);
    let codes = reply(&mut unit, &[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0]);
    assert_eq!(codes.len(), 4 + 8 * OBJECT_COMMANDS.len());
    assert!(codes[4..].chunks(8).any(|code| code == [0x7f, 0, 0x88, 5, 0, 1, 0, 200]));
    for block in [&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0][..], &[0x25; 10], &[0x83; 16]] {
        assert_eq!(run(&mut unit, A, block), Err(Sense::INVALID_OPERATION_CODE.into()));
    }
}

/// Goal: a CDB of 200 bytes is checked as any other, in the usual order: attention, service action
/// and length, CONTROL, reservation, port, medium, fields.
#[test]
fn a_long_command_is_checked() {
    let mut unit = unit();
    let read = object_cdb(READ_OBJECT, 77);
    assert_eq!(run(&mut unit, A, &read), Ok(ObjectPlan::Read(77)));
    let refused = |unit: &mut ObjectUnit, cdb: &[u8]| match run(unit, B, cdb) {
        Err(Refusal::Check(sense)) => sense,
        other => panic!("{other:?}"),
    };
    let at = |byte| Sense::invalid_field_in_cdb(byte, None);
    assert_eq!(refused(&mut unit, &object_cdb(READ_OBJECT, 0)), at(36));
    assert_eq!(refused(&mut unit, &object_cdb(0x8804, 1)), at(8));
    assert_eq!(refused(&mut unit, &read[..199]), at(7));
    assert_eq!(refused(&mut unit, &read[..16]), at(7), "a CDB that was cut is never planned");
    let mut naca = object_cdb(READ_OBJECT, 0);
    naca[1] = 0x04;
    assert_eq!(refused(&mut unit, &naca), Sense::invalid_field_in_cdb(1, Some(2)));
    unit.primary.raise(Attention::MODE_PARAMETERS_CHANGED.0, None);
    assert_eq!(refused(&mut unit, &naca), Sense::MODE_PARAMETERS_CHANGED);
    reply(&mut unit, &[0x03, 0, 0, 0, 252, 0]);
    // B reserves: A may still read with nobody else's data, B may do all.
    assert_eq!(run(&mut unit, B, &[0x16, 0, 0, 0, 0, 0]), DONE);
    assert_eq!(run(&mut unit, A, &read), Err(Refusal::ReservationConflict));
    assert_eq!(run(&mut unit, B, &read), Ok(ObjectPlan::Read(77)));
    assert_eq!(run(&mut unit, B, &[0x17, 0, 0, 0, 0, 0]), DONE);
    let standby = [0, 0, 0, 0, 2, 0, 0, 1];
    let refused = send(&mut unit, &[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0], &standby);
    assert!(matches!(refused, Err(Refusal::Check(_))), "one group must stay active");
}

/// Goal: a command with a list keeps its whole CDB, and conditions that changed while the data came
/// are checked again.
#[test]
fn a_long_command_with_data_out() {
    let mut unit = unit();
    let mut write = object_cdb(WRITE_OBJECT, 3);
    write[199] = 0xab;
    let done = send(&mut unit, &write, b"abc");
    assert_eq!(done, Ok(ObjectPlan::Primary(PrimaryPlan::Reply(vec![0xab]))));
    assert_eq!(unit.written, b"abc");
    let Ok(ObjectPlan::Primary(PrimaryPlan::Parameters { awaiting, .. })) =
        run(&mut unit, A, &write)
    else {
        panic!("the command waits for its list");
    };
    unit.modes.0.software_write_protect = true;
    let refused = resume(&mut unit, awaiting.clone(), b"xyz");
    assert_eq!(refused, Err(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED.into()));
    assert_eq!(unit.written, b"abc");
    let cut = AwaitingParameterList { cdb: awaiting.cdb[..16].to_vec(), ..awaiting };
    let refused = resume(&mut unit, cut, b"xyz");
    assert_eq!(refused, Err(Sense::invalid_field_in_cdb(7, None).into()));
}

/// Goal: persistent reservations of the unit survive, and D_SENSE selects descriptors.
#[test]
fn shared_state() {
    let mut unit = unit();
    unit.primary.keep_state();
    let mut register = vec![0; 24];
    register[15] = 0xa;
    register[20] = 0x01; // APTPL
    let done = send(&mut unit, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &register);
    assert_eq!(done, Ok(ObjectPlan::Primary(PrimaryPlan::SaveState)));
    assert_eq!(unit.primary.registration_origins().count(), 1);
    let state = unit.primary.encode_reservations();
    let restored = unit.primary.decode_reservations(Some(&state)).unwrap();
    unit.primary.restore_reservations(restored);
    assert_eq!(unit.primary.registration_origins().count(), 1);
    let sense = Sense::invalid_field_in_cdb(24, None).with_descriptor(0x06, &[0; 0x1e]);
    assert_eq!(unit.encode_sense(&sense).len(), 18);
    unit.modes.0.descriptor_sense = true;
    let bytes = unit.encode_sense(&sense);
    assert_eq!((bytes[0], bytes.len()), (0x72, 8 + 8 + 32));
}

proptest! {
    /// Goal: hostile CDBs of every length do no harm. Method: random bytes, most of them with the
    /// codes of a command of the table.
    #[test]
    fn any_cdb_is_handled(
        cdbs in prop::collection::vec(
            (
                prop::option::of(0..OBJECT_COMMANDS.len()),
                prop::collection::vec(any::<u8>(), 0..=260),
            ),
            1..20,
        ),
        list in prop::collection::vec(any::<u8>(), 0..=64),
    ) {
        let mut unit = unit();
        for (command, mut cdb) in cdbs {
            if let Some(row) = command.map(|at| OBJECT_COMMANDS[at].row) {
                cdb.resize(row.cdb_bytes(), 0);
                cdb[1] = 0;
                if row.opcode == variable::OPCODE {
                    cdb[7] = 0xc0;
                }
                row.write_codes(&mut cdb);
            }
            let planned = run(&mut unit, A, &cdb);
            if let Ok(ObjectPlan::Primary(PrimaryPlan::Parameters { awaiting, .. })) = planned {
                let _ = resume(&mut unit, awaiting, &list);
            } else if let Err(Refusal::Check(sense)) = planned {
                prop_assert!(unit.encode_sense(&sense).len() <= SENSE_BYTES_MAX);
            }
        }
    }
}
