//! The targets and their configuration.

use crate::cuts::recorder::Recorder;
use anyhow::{Context, Result, ensure};
use lunar_initiator::Url;
use lunar_iscsi::text::{Digest, Offer};
use lunar_lab::cutter::PduKind;
use lunar_lab::istgt::{Istgt, IstgtOptions};
use lunar_lab::scratch::Scratch;
use lunar_lab::tgt::Tgt;
use lunar_target::{
    Access, Limits, LogicalUnit, LogicalUnitOptions, LunOptions, Portal, Server, ServerOptions,
    TargetOptions,
};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// Name of our own target.
pub const OWN: &str = "iqn.2026-11.org.lunarsan.test:cuts";

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

/// Kind of target.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Who {
    Own,
    Tgt,
    Istgt,
}

/// A running target with one disk of zeroes.
pub struct Peer {
    who: Who,
    address: String,
    target: &'static str,
    pub lun: u16,
    process: Process,
    _scratch: Scratch,
}

enum Process {
    Own(Box<Server>, Arc<Recorder>),
    Tgt(Tgt),
    Istgt(Istgt),
}

impl Peer {
    /// Starts a target with a disk of this many blocks of 512 bytes.
    pub fn start(who: Who, keys: Keys, blocks: u64, seed: u64) -> Result<Self> {
        let scratch = Scratch::in_memory("cuts")?;
        let file = scratch.path("disk.img");
        if who != Who::Own {
            File::create(&file)?.set_len(blocks * 512)?;
        }
        let (address, target, lun, process) = match who {
            Who::Own => {
                let recorder = Arc::new(Recorder::new(blocks, seed)?);
                let server = own(keys, &recorder)?;
                let address = server.addresses()[0].to_string();
                (address, OWN, 0, Process::Own(Box::new(server), recorder))
            }
            Who::Tgt => {
                let tgt = tgt(keys, &file)?;
                (tgt.address(), Tgt::TARGET, 1, Process::Tgt(tgt))
            }
            Who::Istgt => {
                let yes_no = |yes| if yes { "Yes" } else { "No" }.to_owned();
                let keys = vec![("ImmediateData", yes_no(keys.immediate_data))];
                let options = IstgtOptions { keys, ..IstgtOptions::default() };
                let istgt = Istgt::start(&scratch, &file, &options)?;
                (istgt.address(), Istgt::TARGET, 0, Process::Istgt(istgt))
            }
        };
        Ok(Self { who, address, target, lun, process, _scratch: scratch })
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn target(&self) -> &'static str {
        self.target
    }

    /// Returns the URL of its disk, at this address.
    pub fn url(&self, address: &str) -> Result<Url> {
        Ok(format!("iscsi://{address}/{}/{}", self.target, self.lun).parse()?)
    }

    /// Returns the recorder of our own target's disk.
    pub fn recorder(&self) -> Option<&Recorder> {
        match &self.process {
            Process::Own(_, recorder) => Some(recorder),
            _ => None,
        }
    }

    /// Returns our own target.
    pub fn server(&self) -> Option<&Server> {
        match &self.process {
            Process::Own(server, _) => Some(server),
            _ => None,
        }
    }

    /// Returns the last lines of its output.
    pub fn log(&self) -> String {
        let log = match &self.process {
            Process::Own(..) => String::new(),
            Process::Tgt(tgt) => tgt.log(),
            Process::Istgt(istgt) => istgt.log(),
        };
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
        if !keys.initial_r2t && self.who != Who::Istgt {
            kinds.push(DataOutUnsolicited);
        }
        if self.who != Who::Istgt {
            kinds.extend([TextRequest, TextResponse]);
        }
        if self.who == Who::Own {
            kinds.push(AsyncMessage);
            // Occurs for damaged data; tgt closes the connection instead.
            if keys.data_digest {
                kinds.push(Reject);
            }
        }
        kinds
    }

    /// Checks that no state of the sessions remains, if the target shows it.
    pub fn ends_well(self) -> Result<()> {
        if let Process::Own(server, _) = self.process {
            let report = server.shutdown(Duration::from_secs(30), &mut |_| {});
            ensure!(report.failed_syncs.is_empty(), "{report:?}");
            ensure!(report.connections_cut == 0, "{report:?}");
        }
        Ok(())
    }
}

fn own(keys: Keys, recorder: &Arc<Recorder>) -> Result<Server> {
    let device: Arc<dyn lunar_block::BlockDevice> = Arc::<Recorder>::clone(recorder);
    let options = LogicalUnitOptions::new(uuid::Uuid::from_u128(76), device);
    let unit = LogicalUnit::open(options)?;
    let offer = Offer {
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
    let limits = Limits { ping_after_seconds: 1, ping_timeout_seconds: 10, ..Limits::default() };
    let target = TargetOptions {
        name: OWN.to_owned(),
        alias: None,
        portal_group: 1,
        access: Access::default(),
        administer: None,
        chap: Vec::new(),
        offer,
        redirect: None,
        initiator_limits: Vec::new(),
        luns: vec![LunOptions::new(0, unit)],
    };
    let listen = "127.0.0.1:0".parse().context("an address")?;
    let options = ServerOptions {
        portals: vec![Portal::new(listen)],
        targets: vec![target],
        discovery_chap: None,
        cores: 2,
        latency_mode: false,
        limits,
        buffers: lunar_block::BufferPool::default(),
    };
    Ok(Server::start(options)?)
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
