//! Hostile third-party copies: any EXTENDED COPY list, any RECEIVE COPY RESULTS, from two
//! initiators at two units of different block lengths.

use lunar_scsi::copy::{
    COPIES_MAX, CSCD_DESCRIPTORS_MAX, CopyEnd, CopyId, CopyList, SEGMENT_DESCRIPTORS_MAX,
};
use lunar_scsi::plan::{LbaRange, NexusId, Plan, Refusal};
use lunar_scsi::sense::{BLOCK_SENSE_BYTES_MAX, Sense, SenseFormat};
use lunar_scsi::unit::{BlockUnit, Context, InitiatorPort, TargetPort, UnitOptions};
use lunar_wire::Lun;

const HEAD_BYTES: usize = 4;
/// Maximum reply: details of a failure, 60 bytes and the sense data.
const REPLY_BYTES_MAX: usize = 60 + BLOCK_SENSE_BYTES_MAX;

/// Runs an input. The first byte selects the units. Steps follow, each with a header of four bytes:
/// action and sender, a list identifier or the end of the copy, and 16 bits with the length of the
/// following list, or an allocation length.
pub fn run(input: &[u8]) {
    let Some((choice, mut rest)) = input.split_first() else { return };
    let mut harness = Harness::new(*choice);
    while let Some((head, after)) = rest.split_first_chunk::<HEAD_BYTES>() {
        let nexus = NexusId(u64::from(head[0] & 1));
        let number = u16::from_be_bytes([head[2], head[3]]);
        rest = after;
        match head[0] >> 6 {
            0 | 1 => {
                let (list, after) = rest.split_at(usize::from(number).min(rest.len()));
                rest = after;
                harness.copy(nexus, list, head[1]);
            }
            2 => harness.ask(nexus, (head[0] >> 1) & 0x1f, head[1], number),
            _ => harness.disturb(nexus, head[1]),
        }
    }
    for id in harness.running {
        harness.units[0].copies().end(id, CopyEnd::Aborted);
    }
}

struct Harness {
    units: [BlockUnit; 2],
    port: TargetPort,
    running: Vec<CopyId>,
}

impl Harness {
    fn new(choice: u8) -> Self {
        let unit = |number: u8, bits: u8| {
            BlockUnit::new(UnitOptions {
                uuid: [number; 16],
                block_bytes: 512 << (bits & 3),
                block_count: [1, 1 << 20, 1 << 54, 999][usize::from(bits >> 2 & 3)],
                ..UnitOptions::default()
            })
        };
        let units = [unit(1, choice & 0x0f), unit(2, choice >> 4)];
        let name = "iqn.2026-01.example:t".into();
        let port = TargetPort { name, portal_group_tag: 1, relative_id: 1 };
        let mut harness = Self { units, port, running: Vec::new() };
        harness.attach(NexusId(0));
        harness.attach(NexusId(1));
        harness
    }

    fn attach(&mut self, nexus: NexusId) {
        let isid = [0x80, 0, 0, 0, 0, nexus.0 as u8];
        let initiator = InitiatorPort { name: "iqn.2026-01.example:i".into(), isid };
        self.units[0].attach(nexus, initiator, self.port.clone());
    }

    /// Runs a command of `nexus`, after the pending unit attentions.
    fn command(&mut self, nexus: NexusId, cdb: &[u8], list: &[u8]) -> Result<Plan, Refusal> {
        const UNIT_ATTENTION: u8 = 6;
        let luns = [Lun::new(0)];
        let context = Context::new(&luns, &self.port);
        let unit = &mut self.units[0];
        loop {
            match unit.plan(nexus, &context, cdb) {
                Err(Refusal::Check(sense)) if sense.key.0 == UNIT_ATTENTION => {}
                Ok(Plan::Parameters { bytes, awaiting }) => {
                    assert_eq!(bytes as usize, list.len());
                    return unit.resume(nexus, &context, awaiting, list);
                }
                other => return other,
            }
        }
    }

    fn copy(&mut self, nexus: NexusId, list: &[u8], then: u8) {
        let mut cdb = [0; 16];
        cdb[0] = 0x83;
        cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
        let list = match self.command(nexus, &cdb, list) {
            Ok(Plan::Copy { list }) => list,
            Ok(Plan::Reply(reply)) => return assert!(reply.is_empty() && list.is_empty()),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => return check_refusal(&refusal),
        };
        let bytes = check_list(&list, &self.units);
        let id = match self.units[0].begin_copy(nexus, list.list_identifier) {
            Ok(id) => id,
            Err(refusal) => return check_refusal(&refusal),
        };
        let copies = self.units[0].copies();
        copies.progress(id, list.segments.len() as u16, bytes);
        match then & 3 {
            0 => copies.end(id, CopyEnd::Completed),
            1 => copies.end(id, CopyEnd::Failed(vec![then; BLOCK_SENSE_BYTES_MAX])),
            2 => copies.end(id, CopyEnd::Aborted),
            _ => self.running.push(id),
        }
        assert!(self.running.len() <= usize::from(COPIES_MAX));
    }

    fn ask(&mut self, nexus: NexusId, action: u8, name: u8, allocation_bytes: u16) {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[2]) = (0x84, action, name);
        cdb[12..14].copy_from_slice(&allocation_bytes.to_be_bytes());
        match self.command(nexus, &cdb, &[]) {
            Ok(Plan::Reply(reply)) => {
                assert!(reply.len() <= REPLY_BYTES_MAX.min(allocation_bytes.into()));
            }
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => check_refusal(&refusal),
        }
    }

    fn disturb(&mut self, nexus: NexusId, what: u8) {
        match what & 3 {
            0 => self.units[0].reset(Some(nexus)),
            1 => {
                self.units[0].detach(nexus);
                self.attach(nexus);
            }
            _ => {
                if let Some(id) = self.running.pop() {
                    self.units[0].copies().end(id, CopyEnd::Completed);
                }
            }
        }
    }
}

/// Checks that all moves lie within both units; returns their total length.
fn check_list(list: &CopyList, units: &[BlockUnit]) -> u64 {
    assert!(list.cscds.len() <= usize::from(CSCD_DESCRIPTORS_MAX));
    assert!(list.segments.len() <= usize::from(SEGMENT_DESCRIPTORS_MAX));
    let mut bytes = 0;
    for (number, segment) in list.segments.iter().enumerate() {
        let find = |cscd: u16| {
            let cscd = &list.cscds[usize::from(cscd)];
            units.iter().map(BlockUnit::options).find(|unit| cscd.designates(&unit.uuid, None))
        };
        let (Some(from), Some(to)) = (find(segment.source), find(segment.destination)) else {
            continue;
        };
        match list.plan_move(number, from, to) {
            Some(Ok(found)) => {
                let inside = |range: LbaRange, unit: &UnitOptions| {
                    let end = range.lba.checked_add(range.count);
                    assert!(end.is_some_and(|end| end <= unit.block_count), "{range:?}");
                    assert_eq!(range.count * u64::from(unit.block_bytes), found.bytes);
                };
                inside(found.source, from);
                inside(found.destination, to);
                bytes += found.bytes;
            }
            Some(Err(sense)) => check_sense(&sense),
            None => panic!("segment {number} is there"),
        }
    }
    bytes
}

fn check_refusal(refusal: &Refusal) {
    if let Refusal::Check(sense) = refusal {
        check_sense(sense);
    }
}

/// Checks that the sense can be encoded in both formats, and decodes to the same key and code.
fn check_sense(sense: &Sense) {
    for format in [SenseFormat::Fixed, SenseFormat::Descriptor] {
        let bytes = sense.encode(format);
        assert!(bytes.len() <= BLOCK_SENSE_BYTES_MAX);
        let back = Sense::decode(&bytes);
        assert!(back.is_some_and(|back| (back.key, back.code) == (sense.key, sense.code)));
    }
}
