//! The targets and their configuration.

use crate::cuts::recorder::Recorder;
use crate::targets::{RunningTarget, TargetKind, own_options};
use anyhow::{Result, ensure};
use lunar_initiator::Url;
use lunar_iscsi::text::{Digest, Offer};
use lunar_lab::peers::istgt::{Istgt, IstgtOptions};
use lunar_lab::peers::tgt::Tgt;
use lunar_lab::system::scratch::Scratch;
use lunar_lab::wire::cutter::PduKind;
use lunar_target::{DiskUnit, DiskUnitOptions, Limits, Server};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// Number of lines of a peer's log in a message.
const LOG_LINES: usize = 30;

/// Keys that a session negotiates: by seed, so that each kind of PDU occurs with some of them.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    pub header_digest: bool,
    pub data_digest: bool,
    pub immediate_data: bool,
    pub initial_r2t: bool,
}

impl Keys {
    pub fn of(seed: u64) -> Self {
        let [header_digest, data_digest] =
            [[false, false], [true, true], [false, true], [true, false]][(seed % 4) as usize];
        Self {
            header_digest,
            data_digest,
            immediate_data: seed.is_multiple_of(2),
            initial_r2t: seed % 4 > 1,
        }
    }

    /// Returns the digests that the initiator requires.
    pub fn digests(self) -> (Digest, Digest) {
        let digest = |on| if on { Digest::Crc32c } else { Digest::None };
        (digest(self.header_digest), digest(self.data_digest))
    }
}

/// A running target with one disk of zeroes.
pub struct Peer {
    who: TargetKind,
    running: RunningTarget,
    /// Recorder of our own target's disk.
    recorder: Option<Arc<Recorder>>,
    address: String,
    pub lun: u16,
    _scratch: Scratch,
}

impl Peer {
    /// Starts a target with a disk of this many blocks of 512 bytes.
    pub fn start(who: TargetKind, keys: Keys, blocks: u64, seed: u64) -> Result<Self> {
        let scratch = Scratch::in_memory("cuts")?;
        let file = scratch.path("disk.img");
        let mut recorder = None;
        if who != TargetKind::Own {
            File::create(&file)?.set_len(blocks * 512)?;
        }
        let running = match who {
            TargetKind::Own => {
                start_own(keys, recorder.insert(Arc::new(Recorder::new(blocks, seed)?)))?
            }
            TargetKind::Tgt => RunningTarget::Tgt(tgt(keys, &file)?),
            TargetKind::Istgt => {
                let yes_no = |yes| if yes { "Yes" } else { "No" }.to_owned();
                let keys = vec![("ImmediateData", yes_no(keys.immediate_data))];
                let options = IstgtOptions { keys, ..IstgtOptions::default() };
                RunningTarget::Istgt(Istgt::start(&scratch, &file, &options)?)
            }
        };
        let (address, lun) = (running.address(), running.lun());
        Ok(Self { who, running, recorder, address, lun, _scratch: scratch })
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn target(&self) -> &'static str {
        self.running.name()
    }

    /// Returns the URL of its disk, at this address.
    pub fn url(&self, address: &str) -> Result<Url> {
        self.running.url(address)
    }

    /// Returns the recorder of our own target's disk.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_deref()
    }

    /// Returns our own target.
    pub fn server(&self) -> Option<&Server> {
        self.running.server()
    }

    /// Returns the last lines of its output.
    pub fn log(&self) -> String {
        let log = self.running.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    /// Returns the kinds of PDU that occur between our initiator and this target.
    pub fn kinds(&self, keys: Keys) -> Vec<PduKind> {
        use PduKind::*;
        let mut kinds = vec![
            LoginRequest,
            LoginResponse,
            CommandRead,
            CommandOther,
            DataOutSolicited,
            ReadyToTransfer,
            DataIn,
            ScsiResponse,
            NopOut,
            NopIn,
            ManagementRequest,
            ManagementResponse,
            LogoutRequest,
            LogoutResponse,
        ];
        kinds.push(if keys.immediate_data { CommandImmediate } else { CommandWrite });
        // istgt accepts no InitialR2T but Yes; SendTargets sends it into an endless loop.
        if !keys.initial_r2t && self.who != TargetKind::Istgt {
            kinds.push(DataOutUnsolicited);
        }
        if self.who != TargetKind::Istgt {
            kinds.extend([TextRequest, TextResponse]);
        }
        if self.who == TargetKind::Own {
            kinds.push(AsyncMessage);
            // Occurs for damaged data; tgt closes the connection instead.
            if keys.data_digest {
                kinds.push(Reject);
            }
        }
        kinds
    }

    /// Checks that no state of the sessions remains, if the target shows it.
    pub fn check_no_sessions(self) -> Result<()> {
        if let RunningTarget::Own(server) = self.running {
            let report = server.shutdown(Duration::from_secs(30), &mut |_| {});
            ensure!(report.failed_syncs.is_empty(), "{report:?}");
            ensure!(report.connections_cut == 0, "{report:?}");
        }
        Ok(())
    }
}

fn start_own(keys: Keys, recorder: &Arc<Recorder>) -> Result<RunningTarget> {
    let device: Arc<dyn lunar_block::BlockDevice> = Arc::<Recorder>::clone(recorder);
    let unit = DiskUnitOptions::new(uuid::Uuid::from_u128(76), device);
    let mut options = own_options(DiskUnit::open(unit)?)?;
    options.targets[0].offer = Offer {
        max_connections: 4,
        immediate_data: keys.immediate_data,
        initial_r2t: keys.initial_r2t,
        // Shorter than the first burst, so that a part of it arrives in Data-Outs.
        max_recv_data_segment_bytes: 16 << 10,
        first_burst_bytes: 64 << 10,
        max_burst_bytes: 256 << 10,
        time_to_wait_seconds: 0,
        ..Offer::default()
    };
    options.limits =
        Limits { ping_after_seconds: 1, ping_timeout_seconds: 10, ..Limits::default() };
    RunningTarget::start_own(options)
}

fn tgt(keys: Keys, file: &str) -> Result<Tgt> {
    let tgt = Tgt::start(file)?;
    tgt.allow_digests()?;
    let yes_no = |yes| if yes { "Yes" } else { "No" };
    tgt.negotiate("ImmediateData", yes_no(keys.immediate_data))?;
    tgt.negotiate("InitialR2T", yes_no(keys.initial_r2t))?;
    tgt.negotiate("DefaultTime2Wait", "0")?;
    Ok(tgt)
}
