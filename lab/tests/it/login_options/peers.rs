//! The targets, configured by a row of the table.

use crate::login_options::{DISK_BLOCKS, PROOF, PROOF_USER, SECRET, USER, credential};
use crate::targets::{RunningTarget, TargetKind, own_options};
use anyhow::{Result, bail};
use lunar_block::MemoryDevice;
use lunar_initiator::Url;
use lunar_iscsi::login::{ChapAlgorithm, ChapRequirement};
use lunar_iscsi::text::Offer;
use lunar_lab::peers::istgt::{Istgt, IstgtOptions};
use lunar_lab::peers::tgt::Tgt;
use lunar_lab::system::scratch::Scratch;
use lunar_target::{ChapEntry, DiskUnit, DiskUnitOptions};
use std::fs::File;
use std::sync::Arc;

/// Returns the CHAP algorithms that a target supports. tgt 1.0.85 takes number 7 for SHA-1; IANA
/// assigned it to SHA-256.
pub fn algorithms(who: TargetKind) -> &'static [ChapAlgorithm] {
    match who {
        TargetKind::Own => &ChapAlgorithm::ALL,
        TargetKind::Tgt | TargetKind::Istgt => &[ChapAlgorithm::Md5],
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
    pub who: TargetKind,
    running: RunningTarget,
    address: String,
    _scratch: Scratch,
}

impl Peer {
    pub fn start(who: TargetKind, setup: &Setup) -> Result<Self> {
        let scratch = Scratch::new("login-options")?;
        let file = scratch.path("disk.img");
        File::create(&file)?.set_len(DISK_BLOCKS * 512)?;
        let running = match who {
            TargetKind::Own => start_own(setup)?,
            TargetKind::Tgt => RunningTarget::Tgt(tgt(setup, &file)?),
            TargetKind::Istgt => {
                let keys = setup.keys.iter().map(|(key, value)| (*key, (*value).to_owned()));
                let options = IstgtOptions {
                    keys: keys.collect(),
                    chap: setup.chap.then_some((USER, SECRET)),
                    mutual: setup.mutual.then_some((PROOF_USER, PROOF)),
                    ..IstgtOptions::default()
                };
                RunningTarget::Istgt(Istgt::start(&scratch, &file, &options)?)
            }
        };
        let address = running.address();
        Ok(Self { who, running, address, _scratch: scratch })
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn target(&self) -> &'static str {
        self.running.name()
    }

    pub fn url(&self) -> Result<Url> {
        self.url_at(&self.address)
    }

    pub fn url_at(&self, address: &str) -> Result<Url> {
        self.running.url(address)
    }

    pub fn log(&self) -> String {
        self.running.log()
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
            _ => bail!("{key} does not belong here"),
        }
    }
    Ok(offer)
}

fn start_own(setup: &Setup) -> Result<RunningTarget> {
    let device = Arc::new(MemoryDevice::new(DISK_BLOCKS * 512, 512, 4096)?);
    let unit = DiskUnit::open(DiskUnitOptions::new(uuid::Uuid::from_u128(80), device))?;
    let requirement = ChapRequirement {
        algorithms: ChapAlgorithm::ALL.to_vec(),
        initiator: credential(USER, SECRET),
        target: setup.mutual.then(|| credential(PROOF_USER, PROOF)),
    };
    let entry = ChapEntry { initiator: None, requirement: requirement.clone() };
    let mut options = own_options(unit)?;
    options.targets[0].chap.extend(setup.chap.then_some(entry));
    options.targets[0].offer = offer(&setup.keys)?;
    options.discovery_chap = setup.discovery_chap.then_some(requirement);
    options.cores = 1;
    RunningTarget::start_own(options)
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
