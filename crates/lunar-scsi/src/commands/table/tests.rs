//! Tests of a second table, with CDBs of up to 260 bytes, beside that of block units.

use super::*;
use crate::commands::{
    BLOCK_COMMANDS, CommandConditions, Medium, Offered, QuotaClass, Request, usage,
};
use crate::commands::{ReservationConflict, row};
use crate::log::LogPage;
use crate::mode::BlockModes;
use crate::plan::{NexusId, Plan, Refusal, report};
use crate::primary::{Context, PrimaryUnit};
use crate::reservations::ReservationAccess;
use crate::unit::UnitOptions;
use crate::vpd::VpdPage;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

/// A unit with variable-length commands that does nothing.
struct LongUnit(PrimaryUnit);

const CONDITIONS: CommandConditions =
    (ReservationConflict::Fixed(ReservationAccess::Read), Medium::Unneeded, Offered::Always);
const THIN: CommandConditions = (CONDITIONS.0, CONDITIONS.1, Offered::Thin);

fn nothing(_: &mut LongUnit, _: &Request<'_>) -> Result<Plan, Refusal> {
    Ok(Plan::SaveState)
}

/// Usage data of a CDB with reserved bytes behind its service action.
const RESERVED_12: [u8; 200] = {
    let mut usage = usage::variable_length();
    usage[12] = 0;
    usage
};

static LONG_COMMANDS: [CommandEntry<LongUnit>; 6] = [
    CommandEntry::new(
        0x28,
        None,
        "READ",
        "§1",
        CONDITIONS,
        (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 4], 1),
        nothing,
    )
    .counted_as(OperationClass::Read),
    CommandEntry::new(
        0x7f,
        Some(0x0005),
        "SHORT",
        "§2",
        CONDITIONS,
        (&usage::variable_length::<12>(), 2),
        nothing,
    )
    .counted_as(OperationClass::Flush),
    CommandEntry::new(0x7f, Some(0x8805), "LONG", "§3", CONDITIONS, (&RESERVED_12, 3), nothing)
        .counted_as(OperationClass::Write)
        .charged(QuotaClass::BytesTwice),
    CommandEntry::new(
        0x7f,
        Some(0x8806),
        "THIN",
        "§4",
        THIN,
        (&usage::variable_length::<236>(), 4),
        nothing,
    ),
    CommandEntry::new(
        0x7f,
        Some(0xffff),
        "LONGEST",
        "§5",
        CONDITIONS,
        (&usage::variable_length::<260>(), 5),
        nothing,
    )
    .fenced(),
    CommandEntry::new(
        0xa3,
        Some(0x0c),
        "REPORT SUPPORTED OPERATION CODES",
        "SPC-4 §6.35",
        CONDITIONS,
        (usage::CODES_12, 6),
        report::operation_codes::<LongUnit>,
    ),
];

static LONG: CommandTable<LongUnit> = CommandTable::new(&LONG_COMMANDS);

impl DeviceServer for LongUnit {
    type Plan = Plan;
    type Modes = BlockModes;

    const VPD_PAGES: &'static [VpdPage<Self>] = &[];
    const LOG_PAGES: &'static [LogPage] = &[];

    fn commands() -> &'static CommandTable<Self> {
        &LONG
    }

    fn primary(&self) -> &PrimaryUnit {
        &self.0
    }

    fn primary_mut(&mut self) -> &mut PrimaryUnit {
        &mut self.0
    }

    fn check_medium(&self, _: &CommandRow) -> Result<(), Sense> {
        Ok(())
    }

    fn not_ready(&self) -> Option<Sense> {
        None
    }

    fn modes(&self) -> (&BlockModes, &UnitOptions) {
        unreachable!("it has no mode pages")
    }

    fn set_modes(&mut self, _: BlockModes) {}
}

/// A whole CDB of the command with this name.
fn cdb(name: &str) -> Vec<u8> {
    let row = LONG.named(name);
    let mut cdb = vec![0; row.cdb_bytes()];
    if let Some(additional) = cdb.get_mut(variable::ADDITIONAL_BYTES_AT) {
        *additional = (row.cdb_bytes() - variable::HEADER_BYTES) as u8;
    }
    row.write_codes(&mut cdb);
    cdb
}

fn found(cdb: &[u8]) -> Result<&'static str, CdbError> {
    LONG.find(Features::NONE, cdb).map(|command| command.name)
}

const UNKNOWN_ACTION: CdbError = CdbError::ServiceAction { at: (8, None) };

/// Goal: a variable-length CDB is found by its 16-bit service action, and only in its own length.
/// Method: each command, with every announced and every received length.
#[test]
fn variable_length_cdbs() {
    for name in ["SHORT", "LONG", "LONGEST"] {
        let whole = cdb(name);
        let longer = [&whole[..], &[0xff; 9]].concat();
        for received in 0..=longer.len() {
            let expected = match received {
                0 => Err(CdbError::Opcode),
                short if short < whole.len() => Err(CdbError::AdditionalLength),
                _ => Ok(name), // bytes behind the announced length have no meaning
            };
            assert_eq!(found(&longer[..received]), expected, "{name}: {received} bytes");
        }
        for additional in 0..=255 {
            let mut other = vec![0; 8 + 255];
            other[..whole.len()].copy_from_slice(&whole);
            other[7] = additional;
            let fits = usize::from(additional) + 8 == whole.len();
            let expected = if fits { Ok(name) } else { Err(CdbError::AdditionalLength) };
            assert_eq!(found(&other), expected, "{name}: {additional} announced");
        }
    }
}

/// Goal: each error has the sense that the standard requires.
#[test]
fn errors_of_a_lookup() {
    for (high, low) in [(0, 0), (0x05, 0x00), (0x88, 0x04), (0x88, 0x06), (0xff, 0xfe)] {
        let mut unknown = cdb("LONG");
        unknown[8..10].copy_from_slice(&[high, low]);
        assert_eq!(found(&unknown), Err(UNKNOWN_ACTION), "{high:02x}{low:02x}");
    }
    let thin = Features::NONE.with(Offered::Thin, true);
    assert!(LONG.find(thin, &cdb("THIN")).is_ok());
    assert_eq!(Sense::from(UNKNOWN_ACTION), Sense::invalid_field_in_cdb(8, None));
    assert_eq!(Sense::from(CdbError::AdditionalLength), Sense::invalid_field_in_cdb(7, None));
    assert_eq!(Sense::from(CdbError::Opcode), Sense::INVALID_OPERATION_CODE);
    assert_eq!(found(&[0x7e; 32]), Err(CdbError::Opcode));
    assert!(
        BLOCK_COMMANDS
            .find(Features::NONE, &cdb("LONG"))
            .is_err_and(|error| error == CdbError::Opcode)
    );
    assert!(row(&cdb("LONG")).is_none());
}

/// Goal: CONTROL is read where the format has it: the second byte of a variable-length CDB, not the
/// last one.
#[test]
fn control_of_each_format() {
    for name in ["SHORT", "LONG", "LONGEST"] {
        let row = LONG.named(name);
        let mut cdb = cdb(name);
        *cdb.last_mut().unwrap() = 0xff;
        assert_eq!(row.check_control(&cdb), Ok(()), "{name}");
        cdb[1] = 0xfb;
        assert_eq!(row.check_control(&cdb), Ok(()), "{name}");
        cdb[1] = 0x04;
        assert_eq!(row.check_control(&cdb), Err(Sense::invalid_field_in_cdb(1, Some(2))));
    }
    let read = LONG.named("READ");
    let naca = [0x28, 4, 0, 0, 0, 0, 0, 0, 0, 4];
    assert_eq!(read.check_control(&naca[..9]), Err(Sense::invalid_field_in_cdb(9, Some(2))));
    assert_eq!(read.check_control(&naca), Err(Sense::invalid_field_in_cdb(9, Some(2))));
    for (opcode, at) in [(0, Some(5)), (0x28, Some(9)), (0x88, Some(15)), (0xa0, Some(11))] {
        assert_eq!(cdb::control_at(opcode), at);
    }
    assert_eq!([0x7f, 0x7e, 0xc0, 0xff].map(cdb::control_at), [Some(1), None, None, None]);
}

/// Goal: properties and classes come from the row of the service action.
#[test]
fn properties_of_the_row() {
    for (name, class) in [
        ("READ", OperationClass::Read),
        ("SHORT", OperationClass::Flush),
        ("LONG", OperationClass::Write),
        ("LONGEST", OperationClass::Other),
    ] {
        let found = LONG.row(&cdb(name)).unwrap();
        assert_eq!((found.name, LONG.class_of(&cdb(name))), (name, class));
    }
    assert_eq!(LONG.row(&cdb("LONG")).unwrap().quota_class, QuotaClass::BytesTwice);
    assert!(LONG.row(&cdb("LONGEST")).unwrap().fenced);
    assert_eq!(LONG.class_of(&[0x7f, 0, 0, 0, 0, 0, 0, 4, 1, 1]), OperationClass::Other);
    assert_eq!(LONG.class_of(&[0x28]), OperationClass::Read);
    assert_eq!(LONG.class_of(&[0x2a]), OperationClass::Other);
}

/// REPORT SUPPORTED OPERATION CODES of the unit.
fn codes(options: u8, opcode: u8, action: u16) -> Result<Vec<u8>, Refusal> {
    let [high, low] = action.to_be_bytes();
    let cdb = [0xa3, 0x0c, options, opcode, high, low, 0, 0, 4, 0, 0, 0];
    let port = crate::vpd::tests::port();
    let context = Context::new(&[], &port);
    let command = LONG.find(Features::NONE, &cdb).unwrap();
    let request = Request { nexus: NexusId(1), context: &context, row: &command.row, cdb: &cdb };
    let mut unit = LongUnit(PrimaryUnit::new(UnitOptions::default().identity()));
    match command.plan(&mut unit, &request)? {
        Plan::Reply(reply) => Ok(reply),
        other => panic!("{other:?}"),
    }
}

/// Goal: the report has 16-bit service actions and the usage data of long CDBs. SPC-4 §6.35.
#[test]
fn reported_operation_codes() {
    let all = codes(0, 0, 0).unwrap();
    let listed = [
        [0x28, 0, 0, 0, 0, 0, 0, 10],
        [0x7f, 0, 0x00, 0x05, 0, 1, 0, 12],
        [0x7f, 0, 0x88, 0x05, 0, 1, 0, 200],
        [0x7f, 0, 0xff, 0xff, 0, 1, 1, 4],
        [0xa3, 0, 0, 0x0c, 0, 1, 0, 12],
    ];
    assert_eq!(all[4..], listed.concat(), "without a command that the unit does not offer");
    for options in [2, 3] {
        let one = codes(options, 0x7f, 0x8805).unwrap();
        assert_eq!(one[..4], [0, 3, 0, 200]);
        assert_eq!(one[4..20], [0x7f, 4, 0, 0, 0, 0, 0, 255, 0x88, 5, 255, 255, 0, 255, 255, 255]);
        assert_eq!(one.len(), 4 + 200);
        assert_eq!(codes(options, 0x7f, 0xffff).unwrap()[..4], [0, 3, 1, 4]);
        for unknown in [0x0005 << 8, 0x8806, 0] {
            assert_eq!(codes(options, 0x7f, unknown).unwrap(), [0, 1, 0, 0]);
        }
    }
    let refused = Sense::invalid_field_in_cdb(3, None);
    assert_eq!(codes(1, 0x7f, 0x8805), Err(refused.into()), "it has service actions");
    let timed = codes(0x82, 0x7f, 0x8805).unwrap();
    assert_eq!((timed[1], timed.len()), (0x83, 4 + 200 + 12));
}

/// Goal: the table as text has wide service actions.
#[test]
fn wide_service_actions_as_text() {
    let text = LONG.markdown();
    assert!(text.contains("\n| 7f/8805 | LONG | §3 | as a read |  | all | `7f 04 00 "), "{text}");
    assert!(text.contains("\n| a3/0c | REPORT"), "{text}");
}

proptest! {
    /// Goal: a lookup never reads past the end, finds what the row's codes say, and agrees with
    /// the row regardless of features. Method: random CDBs, most of them almost whole ones.
    #[test]
    fn any_cdb_is_looked_up(
        which in 0..LONG_COMMANDS.len(),
        fill in prop::collection::vec(any::<u8>(), 260..=260),
        received in 0..=260_usize,
        at in 0..12_usize,
        byte in any::<u8>(),
    ) {
        let mut cdb = fill;
        let whole = self::cdb(LONG_COMMANDS[which].name);
        cdb[..10.min(whole.len())].copy_from_slice(&whole[..10.min(whole.len())]);
        cdb[at] = byte;
        let cdb = &cdb[..received];
        if let Ok(command) = LONG.find(Features::NONE, cdb) {
            prop_assert_eq!(Some(command.name), LONG.row(cdb).map(|row| row.name));
            prop_assert_eq!(command.opcode, cdb[0]);
            if command.opcode == 0x7f {
                prop_assert!(command.cdb_bytes() <= cdb.len());
                prop_assert_eq!(Some(command.cdb_bytes()), variable::announced_bytes(cdb));
                prop_assert_eq!(command.service_action, Some(variable::service_action(cdb)));
            }
        }
        let _ = BLOCK_COMMANDS.find(Features::NONE, cdb);
        let _ = (LONG.class_of(cdb), BLOCK_COMMANDS.class_of(cdb), BLOCK_COMMANDS.row(cdb));
    }
}
