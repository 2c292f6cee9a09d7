//! Hostile mode parameter lists.

use lunar_scsi::plan::{NexusId, Plan, Refusal};
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::{BlockUnit, Context, InitiatorPort, TargetPort, Threshold, UnitOptions};

const SENDER: NexusId = NexusId(1);
const OTHER: NexusId = NexusId(2);
const CURRENT: u8 = 0;
const CHANGEABLE: u8 = 1;
const DEFAULT: u8 = 2;
/// Length of the header before the mode data of all pages, without block descriptor.
const HEADER_BYTES: usize = 8;

/// Runs an input. The first byte selects the unit. Lists follow: a byte for the CDB, a length byte,
/// the list.
pub fn run(input: &[u8]) {
    let Some((options, mut rest)) = input.split_first() else { return };
    let mut harness = Harness::new(*options);
    let defaults = harness.all_pages(DEFAULT);
    harness.check_round_trip();
    while let [cdb, bytes, after @ ..] = rest {
        let (list, after) = after.split_at(usize::from(*bytes).min(after.len()));
        harness.check_list(*cdb, list);
        let unchanged = harness.all_pages(DEFAULT)[HEADER_BYTES..] == defaults[HEADER_BYTES..];
        assert!(unchanged, "the defaults have changed");
        rest = after;
    }
    harness.check_round_trip();
}

struct Harness {
    unit: BlockUnit,
    port: TargetPort,
}

impl Harness {
    fn new(options: u8) -> Self {
        let bit = |number: u8| options & (1 << number) != 0;
        let port = TargetPort {
            name: "iqn.2026-01.example:t".into(),
            portal_group_tag: 1,
            relative_id: 1,
        };
        let unit = BlockUnit::new(UnitOptions {
            block_count: if bit(0) { 1 << 40 } else { 1 << 20 },
            block_bytes: if bit(1) { 4096 } else { 512 },
            physical_block_bytes: 4096,
            unmap_granularity_blocks: Some(8),
            threshold: bit(2).then_some(Threshold { set_exponent: 11, available_sets: 100 }),
            write_back: bit(3),
            read_only: bit(4),
            ..UnitOptions::default()
        });
        let mut harness = Self { unit, port };
        for nexus in [SENDER, OTHER] {
            let isid = [0x80, 0, 0, 0, 0, nexus.0 as u8];
            let initiator = InitiatorPort { name: "iqn.2026-01.example:i".into(), isid };
            harness.unit.attach(nexus, initiator, harness.port.clone());
            assert_eq!(harness.take_attention(nexus), Some(Sense::POWER_ON_RESET));
        }
        harness
    }

    fn plan(&mut self, nexus: NexusId, cdb: &[u8]) -> Result<Plan, Refusal> {
        self.unit.plan(nexus, &Context::new(&[], &self.port), cdb)
    }

    /// Takes the pending unit attention of a nexus.
    fn take_attention(&mut self, nexus: NexusId) -> Option<Sense> {
        match self.plan(nexus, &[0; 6]) {
            Err(Refusal::Check(sense)) => Some(sense),
            _ => None,
        }
    }

    /// MODE SENSE (10) of all pages and subpages.
    fn all_pages(&mut self, page_control: u8) -> Vec<u8> {
        let cdb = [0x5a, 0x08, page_control << 6 | 0x3f, 0xff, 0, 0, 0, 0xff, 0xff, 0];
        match self.plan(SENDER, &cdb) {
            Ok(Plan::Reply(data)) => data,
            other => panic!("MODE SENSE gave {other:x?}"),
        }
    }

    fn select(&mut self, is_ten: bool, flags: u8, list: &[u8]) -> Result<Plan, Refusal> {
        let bytes = list.len() as u8;
        let cdb_6 = [0x15, flags, 0, 0, bytes, 0];
        let cdb_10 = [0x55, flags, 0, 0, 0, 0, 0, 0, bytes, 0];
        match self.plan(SENDER, if is_ten { &cdb_10 } else { &cdb_6 })? {
            Plan::Parameters { bytes, awaiting } => {
                assert_eq!(bytes as usize, list.len());
                let context = Context::new(&[], &self.port);
                self.unit.resume(SENDER, &context, awaiting, list)
            }
            plan => Ok(plan),
        }
    }

    /// Checks one list: if refused, it changes nothing; if accepted, it changes only changeable
    /// bits, and the other nexus is informed exactly if something has changed.
    fn check_list(&mut self, cdb: u8, list: &[u8]) {
        let (ten, flags) = (cdb & 0x80 != 0, if cdb & 0x40 != 0 { cdb & 0x1f } else { 0x10 });
        let before = self.all_pages(CURRENT);
        let changeable = self.all_pages(CHANGEABLE);
        let answer = self.select(ten, flags, list);
        let after = self.all_pages(CURRENT);
        match answer {
            Ok(Plan::Reply(reply)) => assert!(reply.is_empty()),
            Err(Refusal::Check(_)) => assert_eq!(before, after, "a refused list has changed bits"),
            other => panic!("{other:?}"),
        }
        assert_eq!(before.len(), after.len());
        let pages = before.iter().zip(&after).zip(&changeable).skip(HEADER_BYTES);
        for (at, ((old, new), mask)) in pages.enumerate() {
            assert_eq!((old ^ new) & !mask, 0, "bits of byte {at} may not change");
        }
        let attention = self.take_attention(OTHER);
        let expected = (before[HEADER_BYTES..] != after[HEADER_BYTES..])
            .then_some(Sense::MODE_PARAMETERS_CHANGED);
        assert_eq!(attention, expected);
        assert_eq!(self.take_attention(SENDER), None, "the sender gets no unit attention");
    }

    /// Checks that MODE SELECT accepts the output of MODE SENSE, which changes nothing.
    fn check_round_trip(&mut self) {
        let data = self.all_pages(CURRENT);
        assert_eq!(self.select(true, 0x10, &data), Ok(Plan::Reply(Vec::new())));
        assert_eq!(self.all_pages(CURRENT), data);
        assert_eq!(self.take_attention(OTHER), None);
    }
}
