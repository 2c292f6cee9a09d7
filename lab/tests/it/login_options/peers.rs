//! The targets, configured by a row of the table.

use crate::login_options::{DISK_BLOCKS, PROOF, PROOF_USER, SECRET, USER, credential};
use anyhow::{Context, Result, bail};
use lunar_block::MemoryDevice;
use lunar_initiator::Url;
use lunar_iscsi::login::{ChapAlgorithm, ChapDemand};
use lunar_iscsi::text::Offer;
use lunar_lab::peers::istgt::{Istgt, IstgtOptions};
use lunar_lab::peers::tgt::Tgt;
use lunar_lab::system::scratch::Scratch;
use lunar_target::{
    Access, ChapEntry, Limits, LogicalUnit, LogicalUnitOptions, LunOptions, Portal, Server,
    ServerOptions, TargetOptions,
};
use std::fs::File;
use std::sync::Arc;

const OWN: &str = "iqn.2026-11.org.lunarsan.test:login-options";

/// Kind of target.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Who {
    Own,
    Tgt,
    Istgt,
}

impl Who {
    /// Returns the CHAP algorithms that it supports. tgt 1.0.85 takes number 7 for SHA-1; IANA
    /// assigned it to SHA-256.
    pub fn algorithms(self) -> &'static [ChapAlgorithm] {
        match self {
            Self::Own => &ChapAlgorithm::ALL,
            Self::Tgt | Self::Istgt => &[ChapAlgorithm::Md5],
        }
    }
}

/// Configuration of a target.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    pub keys: Vec<(&'static str, &'static str)>,
    pub chap: bool,
    /// True if it can authenticate itself, too.
    pub mutual: bool,
    pub discovery_chap: bool,
}

/// A running target.
pub struct Peer {
    pub who: Who,
    address: String,
    process: Process,
    _scratch: Scratch,
}

enum Process {
    Own(Box<Server>),
    Tgt(Tgt),
    Istgt(Istgt),
}

impl Peer {
    pub fn start(who: Who, setup: &Setup) -> Result<Self> {
        let scratch = Scratch::new("login-options")?;
        let file = scratch.path("disk.img");
        File::create(&file)?.set_len(DISK_BLOCKS * 512)?;
        let (address, process) = match who {
            Who::Own => {
                let server = own(setup)?;
                (server.addresses()[0].to_string(), Process::Own(Box::new(server)))
            }
            Who::Tgt => {
                let tgt = tgt(setup, &file)?;
                (tgt.address(), Process::Tgt(tgt))
            }
            Who::Istgt => {
                let keys = setup.keys.iter().map(|(key, value)| (*key, (*value).to_owned()));
                let options = IstgtOptions {
                    keys: keys.collect(),
                    chap: setup.chap.then_some((USER, SECRET)),
                    mutual: setup.mutual.then_some((PROOF_USER, PROOF)),
                    ..IstgtOptions::default()
                };
                let istgt = Istgt::start(&scratch, &file, &options)?;
                (istgt.address(), Process::Istgt(istgt))
            }
        };
        Ok(Self { who, address, process, _scratch: scratch })
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn target(&self) -> &'static str {
        match self.who {
            Who::Own => OWN,
            Who::Tgt => Tgt::TARGET,
            Who::Istgt => Istgt::TARGET,
        }
    }

    pub fn url(&self) -> Result<Url> {
        self.url_at(&self.address)
    }

    pub fn url_at(&self, address: &str) -> Result<Url> {
        let lun = if self.who == Who::Tgt { 1 } else { 0 };
        Ok(format!("iscsi://{address}/{}/{lun}", self.target()).parse()?)
    }

    /// Returns its output so far.
    pub fn log(&self) -> String {
        match &self.process {
            Process::Own(server) => format!("{} sessions", server.sessions().len()),
            Process::Tgt(tgt) => tgt.log(),
            Process::Istgt(istgt) => istgt.log(),
        }
    }
}

fn offer(keys: &[(&str, &str)]) -> Result<Offer> {
    let mut offer = Offer::default();
    for (key, value) in keys {
        let number = value.parse().unwrap_or(0);
        match *key {
            "ImmediateData" => offer.immediate_data = *value == "Yes",
            "InitialR2T" => offer.initial_r2t = *value == "Yes",
            "MaxRecvDataSegmentLength" => offer.max_recv_data_segment_bytes = number,
            "MaxBurstLength" => offer.max_burst_bytes = number,
            "FirstBurstLength" => offer.first_burst_bytes = number,
            "MaxOutstandingR2T" => offer.max_outstanding_r2t = number as u16,
            _ => bail!("{key} has no place here"),
        }
    }
    Ok(offer)
}

fn own(setup: &Setup) -> Result<Server> {
    let device = Arc::new(MemoryDevice::new(DISK_BLOCKS * 512, 512, 4096)?);
    let unit = LogicalUnit::open(LogicalUnitOptions::new(uuid::Uuid::from_u128(80), device))?;
    let demand = ChapDemand {
        algorithms: ChapAlgorithm::ALL.to_vec(),
        initiator: credential(USER, SECRET),
        target: setup.mutual.then(|| credential(PROOF_USER, PROOF)),
    };
    let entry = ChapEntry { initiator: None, demand: demand.clone() };
    let target = TargetOptions {
        name: OWN.to_owned(),
        alias: None,
        portal_group: 1,
        access: Access::default(),
        administer: None,
        chap: setup.chap.then_some(entry).into_iter().collect(),
        offer: offer(&setup.keys)?,
        redirect: None,
        initiator_limits: Vec::new(),
        luns: vec![LunOptions::new(0, unit)],
    };
    Ok(Server::start(ServerOptions {
        portals: vec![Portal::new("127.0.0.1:0".parse().context("an address")?)],
        targets: vec![target],
        discovery_chap: setup.discovery_chap.then_some(demand),
        cores: 1,
        latency_mode: false,
        limits: Limits::default(),
        buffers: lunar_block::BufferPool::default(),
    })?)
}

fn tgt(setup: &Setup, file: &str) -> Result<Tgt> {
    let tgt = Tgt::start(file)?;
    tgt.allow_digests()?;
    for (key, value) in &setup.keys {
        tgt.negotiate(key, value)?;
    }
    if setup.chap {
        tgt.require_chap(USER, SECRET)?;
        if setup.mutual {
            tgt.prove_itself(PROOF_USER, PROOF)?;
        }
    }
    if setup.discovery_chap {
        tgt.require_chap_for_discovery(USER, SECRET)?;
        if setup.mutual {
            tgt.prove_itself_in_discovery(PROOF_USER, PROOF)?;
        }
    }
    Ok(tgt)
}
