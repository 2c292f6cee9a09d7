//! A unit with two nexuses, and CDBs in one line.

use lunar_scsi::plan::{NexusId, Plan, Refusal};
use lunar_scsi::reservations::ItNexus;
use lunar_scsi::sense::Sense;
use lunar_scsi::share::Origin;
use lunar_scsi::unit::{
    AtomicBlocks, BlockUnit, Context, InitiatorPort, NexusOptions, TargetPort, UnitOptions,
};
use lunar_wire::Lun;
use std::sync::Arc;

pub const A: NexusId = NexusId(1);
pub const B: NexusId = NexusId(2);
/// Number of blocks of the unit: more than 32 bits would hide errors of READ CAPACITY (10).
pub const COUNT: u64 = 0x20_0000;

pub fn options() -> UnitOptions {
    UnitOptions {
        uuid: [7; 16],
        product: "DISK".into(),
        block_bytes: 512,
        block_count: COUNT,
        physical_block_bytes: 4096,
        transfer_blocks_max: 4096,
        optimal_transfer_blocks: 256,
        unmap_granularity_blocks: Some(8),
        write_back: true,
        ..UnitOptions::default()
    }
}

pub fn port() -> TargetPort {
    TargetPort { name: "iqn.2026-11.org.lunarsan:t".into(), portal_group_tag: 1, relative_id: 1 }
}

/// A unit under test, with the context that a target provides.
pub struct Rig {
    pub unit: BlockUnit,
    pub luns: Vec<Lun>,
    port: TargetPort,
    /// iSCSIProtocolLevel of all sessions.
    pub protocol_level: u16,
}

impl Rig {
    /// Attaches `A` and `B`, which have received the power-on.
    pub fn new(options: UnitOptions) -> Self {
        let mut rig = Self::fresh(options);
        for nexus in [A, B] {
            rig.attach(nexus);
            assert_eq!(rig.refusal(nexus, &[0; 6]), Sense::POWER_ON_RESET);
        }
        rig
    }

    /// Attaches no nexus.
    pub fn fresh(options: UnitOptions) -> Self {
        let luns = vec![Lun::new(0), Lun::new(1), Lun::new(300)];
        Self { unit: BlockUnit::new(options), luns, port: port(), protocol_level: 1 }
    }

    pub fn thin() -> Self {
        Self::new(options())
    }

    pub fn removable() -> Self {
        Self::new(UnitOptions { removable: true, ..options() })
    }

    /// A unit with all features.
    pub fn with_everything() -> Self {
        let atomic = Some(AtomicBlocks { unit_blocks: 8, blocks_max: 64 });
        Self::new(UnitOptions { removable: true, atomic, ..options() })
    }

    pub fn attach(&mut self, nexus: NexusId) {
        let isid = [0x80, 0, 0, 0, 0, nexus.0 as u8];
        let initiator = InitiatorPort { name: "iqn.2026-11.org.lunarsan:i".into(), isid };
        self.unit.attach(nexus, initiator, self.port.clone());
    }

    /// Attaches a nexus of the initiator `name`, and takes the power-on.
    pub fn attach_named(&mut self, nexus: NexusId, name: &str, origin: Option<Origin>) {
        let isid = [0x80, 0, 0, 0, (nexus.0 >> 8) as u8, nexus.0 as u8];
        let initiator = InitiatorPort { name: name.into(), isid };
        let ports = Arc::new(ItNexus::new(&initiator, &self.port).from_origin(origin));
        let options = NexusOptions::new(&initiator, &self.port);
        self.unit.attach_with(nexus, NexusOptions { ports, ..options });
        while self.run(nexus, &[0; 6]).is_err() {}
    }

    pub fn run(&mut self, nexus: NexusId, cdb: &[u8]) -> Result<Plan, Refusal> {
        let context =
            Context { protocol_level: self.protocol_level, ..Context::new(&self.luns, &self.port) };
        self.unit.plan(nexus, &context, cdb)
    }

    /// Returns the plan of a command that must not be refused.
    pub fn plan(&mut self, cdb: &[u8]) -> Plan {
        self.run(A, cdb).unwrap_or_else(|refusal| panic!("{cdb:02x?} refused: {refusal:x?}"))
    }

    /// Returns the data-in of a command that must answer at once.
    pub fn reply(&mut self, cdb: &[u8]) -> Vec<u8> {
        match self.plan(cdb) {
            Plan::Reply(reply) => reply,
            other => panic!("{cdb:02x?} gave {other:x?}"),
        }
    }

    /// Returns the sense of a command that must be refused.
    pub fn refusal(&mut self, nexus: NexusId, cdb: &[u8]) -> Sense {
        match self.run(nexus, cdb) {
            Err(Refusal::Check(sense)) => sense,
            other => panic!("{cdb:02x?} gave {other:x?}"),
        }
    }

    /// Returns the sense of a command of `A` that must be refused.
    pub fn sense(&mut self, cdb: &[u8]) -> Sense {
        self.refusal(A, cdb)
    }

    /// Runs a command of `A` whose parameter list is `list`.
    pub fn send(&mut self, cdb: &[u8], list: &[u8]) -> Result<Plan, Refusal> {
        self.send_from(A, cdb, list)
    }

    pub fn send_from(&mut self, nexus: NexusId, cdb: &[u8], list: &[u8]) -> Result<Plan, Refusal> {
        match self.run(nexus, cdb)? {
            Plan::Parameters { bytes, awaiting } => {
                assert_eq!(bytes as usize, list.len(), "the list is as long as the CDB says");
                let context = Context::new(&self.luns, &self.port);
                self.unit.resume(nexus, &context, awaiting, list)
            }
            other => panic!("{cdb:02x?} wants no list: {other:x?}"),
        }
    }
}

/// Builds a CDB of the layout of its operation code, with `flags` as byte 1.
pub fn blocks(opcode: u8, flags: u8, lba: u64, count: u64) -> Vec<u8> {
    let mut cdb = match opcode >> 5 {
        0 => vec![0; 6],
        1 | 2 => vec![0; 10],
        5 => vec![0; 12],
        _ => vec![0; 16],
    };
    cdb[0] = opcode;
    let (lba_bytes, count_at, count_bytes) = match cdb.len() {
        6 => (3, 4, 1),
        10 => (4, 7, 2),
        12 => (4, 6, 4),
        _ => (8, 10, 4),
    };
    let lba_at = if cdb.len() == 6 { 1 } else { 2 };
    cdb[lba_at..lba_at + lba_bytes].copy_from_slice(&lba.to_be_bytes()[8 - lba_bytes..]);
    cdb[count_at..count_at + count_bytes].copy_from_slice(&count.to_be_bytes()[8 - count_bytes..]);
    if cdb.len() > 6 {
        cdb[1] = flags;
    }
    cdb
}
