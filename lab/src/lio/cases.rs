//! The table of cases.

use crate::peers::lio_guest::Authentication;
use crate::random::Random;
use crate::wire::cutter::{ConnectionCut, Cut, CutPosition, Flip, PduKind};
use std::fmt;
use std::time::Duration;

/// An initiator of ours.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum InitiatorProgram {
    Rust,
    Java,
}

/// Interference of the relay with connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NetworkFault {
    /// Passes all PDUs on.
    Sound,
    /// Cuts connections, one after the other.
    Cut,
    /// Cuts connections and inverts bits of data, which digests detect.
    CutAndDamaged,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub client: InitiatorProgram,
    pub connections: u16,
    pub access: Authentication,
    pub digests: bool,
    pub network: NetworkFault,
    pub lun: u16,
}

/// The LUN that is a file on this machine.
pub const DISK: u16 = 0;
/// Maximum number of commands that a client reads with until it has opened a disk.
const OPENING_COMMANDS_MAX: u32 = 20;
const LUNS: [&str; 3] = ["iblock", "fileio", "ramdisk"];

impl fmt::Display for InitiatorProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Rust { "rust" } else { "java" })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.connections == 1 { "" } else { "s" };
        write!(f, "{}, {} connection{plural}", self.client, self.connections)?;
        write!(f, ", {}", LUNS[usize::from(self.lun)])?;
        match self.access {
            Authentication::Open => {}
            Authentication::Chap => write!(f, ", CHAP")?,
            Authentication::Mutual => write!(f, ", mutual CHAP")?,
        }
        if self.digests {
            write!(f, ", digests")?;
        }
        match self.network {
            NetworkFault::Sound => Ok(()),
            NetworkFault::Cut => write!(f, ", cut"),
            NetworkFault::CutAndDamaged => write!(f, ", cut and damaged"),
        }
    }
}

/// The table: both clients, one and several connections, every kind of login and network; then the
/// other backends of LIO.
pub fn cases() -> Vec<Case> {
    let kinds = [
        (Authentication::Open, false, NetworkFault::Sound),
        (Authentication::Open, true, NetworkFault::Sound),
        (Authentication::Chap, false, NetworkFault::Sound),
        (Authentication::Mutual, false, NetworkFault::Sound),
        (Authentication::Open, false, NetworkFault::Cut),
        (Authentication::Mutual, true, NetworkFault::CutAndDamaged),
    ];
    let mut all = Vec::new();
    for client in [InitiatorProgram::Rust, InitiatorProgram::Java] {
        for connections in [1, 4] {
            for (access, digests, network) in kinds {
                all.push(Case { client, connections, access, digests, network, lun: DISK });
            }
        }
        for lun in [1, 2] {
            let (access, network) = (Authentication::Open, NetworkFault::Sound);
            all.push(Case { client, connections: 4, access, digests: false, network, lun });
        }
    }
    all
}

impl Case {
    /// Returns the name of the target that this case uses. LIO crashes if a login replaces a
    /// session of several connections two seconds after the loss of one, its default
    /// DefaultTime2Wait.
    pub fn target(&self) -> String {
        let is_late = self.connections > 1 && self.network != NetworkFault::Sound;
        if is_late { self.access.late_target() } else { self.access.target() }
    }

    /// Returns the cuts while a LUN is written, in this order: before a command, within its data,
    /// within the login that follows, before a response, within an R2T, before a login response,
    /// and one after which the target keeps the connection.
    pub fn cuts_of_writes(&self, random: &mut Random) -> Vec<Cut> {
        let late = ConnectionCut::Linger(Duration::from_millis(200));
        self.cuts(
            random,
            &[
                (PduKind::CommandImmediate, CutPosition::Before, ConnectionCut::Reset),
                (PduKind::DataOutSolicited, CutPosition::InData(500), ConnectionCut::Close),
                (PduKind::LoginRequest, CutPosition::After, ConnectionCut::Reset),
                (PduKind::ScsiResponse, CutPosition::Before, ConnectionCut::Reset),
                (PduKind::ReadyToTransfer, CutPosition::InHeader(20), ConnectionCut::Close),
                (PduKind::LoginResponse, CutPosition::Before, ConnectionCut::Close),
                (PduKind::DataOutSolicited, CutPosition::InHeader(30), late),
            ],
        )
    }

    /// Returns the cuts while a LUN is read.
    pub fn cuts_of_reads(&self, random: &mut Random) -> Vec<Cut> {
        let late = ConnectionCut::Linger(Duration::from_millis(200));
        self.cuts(
            random,
            &[
                (PduKind::CommandRead, CutPosition::After, ConnectionCut::Reset),
                (PduKind::DataIn, CutPosition::InData(500), ConnectionCut::Close),
                (PduKind::DataIn, CutPosition::After, ConnectionCut::Reset),
                (PduKind::CommandRead, CutPosition::InHeader(10), late),
            ],
        )
    }

    fn cuts(
        &self,
        random: &mut Random,
        positions: &[(PduKind, CutPosition, ConnectionCut)],
    ) -> Vec<Cut> {
        if self.network == NetworkFault::Sound {
            return Vec::new();
        }
        let mut cut =
            |(at, &(kind, position, manner)): (usize, &(PduKind, CutPosition, ConnectionCut))| {
                let skip = match kind {
                    // The next login is the only one.
                    PduKind::LoginRequest | PduKind::LoginResponse => 0,
                    // A client that loses its connection while it opens a disk stops, which is
                    // permitted.
                    PduKind::CommandRead if at == 0 => {
                        OPENING_COMMANDS_MAX + random.below(3) as u32
                    }
                    _ => random.below(4) as u32,
                };
                Cut { kind, skip, position, manner }
            };
        positions.iter().enumerate().map(&mut cut).collect()
    }

    /// Returns the bit of data to invert in a PDU of this kind, if any.
    pub fn flip(&self, random: &mut Random, kind: PduKind) -> Option<Flip> {
        (self.network == NetworkFault::CutAndDamaged).then(|| {
            let opening = if kind == PduKind::DataIn { OPENING_COMMANDS_MAX } else { 0 };
            let (skip, bit) = (opening + random.below(8) as u32, random.below(1 << 16) as usize);
            Flip { kind, skip, in_data: true, bit }
        })
    }
}
