//! Targets for tests of the initiator as a library: our own in this process, tgt and istgt.

use anyhow::{Context, Result};
use lunar_initiator::Url;
use lunar_lab::peers::istgt::Istgt;
use lunar_lab::peers::tgt::Tgt;
use lunar_target::{
    Access, DiskUnit, Limits, LunOptions, Portal, Server, ServerOptions, TargetOptions,
};
use std::sync::Arc;

/// Name of our own target.
pub const OWN: &str = "iqn.2026-11.org.lunarsan.test:own";

/// Kind of target.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TargetKind {
    Own,
    Tgt,
    Istgt,
}

/// A running target with one disk.
pub enum RunningTarget {
    Own(Box<Server>),
    Tgt(Tgt),
    Istgt(Istgt),
}

/// Returns options of a server on a free port, whose target [`OWN`] has this unit as LUN 0.
pub fn own_options(unit: Arc<DiskUnit>) -> Result<ServerOptions> {
    let target = TargetOptions {
        name: OWN.to_owned(),
        alias: None,
        portal_group: 1,
        access: Access::default(),
        administer: None,
        chap: Vec::new(),
        offer: lunar_iscsi::text::Offer::default(),
        redirect: None,
        initiator_limits: Vec::new(),
        luns: vec![LunOptions::new(0, unit)],
    };
    Ok(ServerOptions {
        portals: vec![Portal::new("127.0.0.1:0".parse().context("an address")?)],
        targets: vec![target],
        discovery_chap: None,
        cores: 2,
        latency_mode: false,
        limits: Limits::default(),
        buffers: lunar_block::BufferPool::default(),
        relays: None,
    })
}

impl RunningTarget {
    /// Starts our own target.
    pub fn start_own(options: ServerOptions) -> Result<Self> {
        Ok(Self::Own(Box::new(Server::start(options)?)))
    }

    pub fn address(&self) -> String {
        match self {
            Self::Own(server) => server.addresses()[0].to_string(),
            Self::Tgt(tgt) => tgt.address().to_owned(),
            Self::Istgt(istgt) => istgt.address(),
        }
    }

    /// Returns its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Own(_) => OWN,
            Self::Tgt(_) => Tgt::TARGET,
            Self::Istgt(_) => Istgt::TARGET,
        }
    }

    /// Returns the number of its disk.
    pub fn lun(&self) -> u16 {
        u16::from(matches!(self, Self::Tgt(_)))
    }

    /// Returns the URL of its disk, at this address.
    pub fn url(&self, address: &str) -> Result<Url> {
        Ok(format!("iscsi://{address}/{}/{}", self.name(), self.lun()).parse()?)
    }

    /// Returns our own target.
    pub fn server(&self) -> Option<&Server> {
        match self {
            Self::Own(server) => Some(server),
            _ => None,
        }
    }

    /// Returns its output so far.
    pub fn log(&self) -> String {
        match self {
            Self::Own(server) => format!("{} sessions", server.sessions().len()),
            Self::Tgt(tgt) => tgt.log(),
            Self::Istgt(istgt) => istgt.log(),
        }
    }
}
