//! Places of processes: cores, addresses and network namespaces.

use crate::system::cores::{CLIENT_CORE, TARGET_CORE};
use crate::system::namespaces::{self, Namespace, connect, limit_rate};
use crate::system::process::on_core;
use anyhow::{Context, Result};

const LOOPBACK: &str = "127.0.0.1";
/// Rate of each link in each direction.
pub const LINK_RATE: &str = "1gbit";
/// Addresses of the links, reserved for benchmarks by RFC 2544.
pub const NETWORK: &str = "198.18.0.0/15";

/// The network and the cores of the processes of a scene. The switch has a core of its own; hosts
/// and storages share the other one.
#[derive(Debug)]
pub enum Site {
    Loopback,
    /// Three machines, of which each two are connected by a link.
    Links {
        host: Namespace,
        switch: Namespace,
        storage: Namespace,
    },
}

impl Site {
    /// Connects a host, a switch and a storage by links with a limited rate.
    ///
    /// # Errors
    /// The system refuses namespaces or rates.
    pub fn links() -> Result<Self> {
        if let Some(removed) = namespaces::clear_up() {
            println!("{removed}");
        }
        let make = || {
            let (host, switch) = (Namespace::create("host")?, Namespace::create("switch")?);
            let storage = Namespace::create("storage")?;
            for (name, number, near, far) in [
                ("direct", 0, &storage, &host),
                ("front", 1, &switch, &host),
                ("back", 2, &storage, &switch),
            ] {
                let [one, other] = [1, 2].map(|side| format!("198.18.{number}.{side}/24"));
                connect(name, [(near, &one), (far, &other)], &[])?;
                for side in [near, far] {
                    limit_rate(side, name, LINK_RATE)?;
                }
            }
            Ok(Self::Links { host, switch, storage })
        };
        make().map_err(|why: String| namespaces::explained(&why))
    }

    /// Returns the words before the command of a storage.
    pub fn storage_words(&self) -> Vec<String> {
        let namespace = match self {
            Self::Loopback => Vec::new(),
            Self::Links { storage, .. } => storage.words(),
        };
        [namespace, on_core(Some(CLIENT_CORE))].concat()
    }

    /// Returns the words before the command of a switch.
    pub fn switch_words(&self) -> Vec<String> {
        let namespace = match self {
            Self::Loopback => Vec::new(),
            Self::Links { switch, .. } => switch.words(),
        };
        [namespace, on_core(Some(TARGET_CORE))].concat()
    }

    /// Moves this thread to the machine of the hosts.
    ///
    /// # Errors
    /// The system refuses.
    pub fn enter_host(&self) -> Result<()> {
        match self {
            Self::Loopback => Ok(()),
            Self::Links { host, .. } => host.enter(),
        }
    }

    /// Moves this thread to the machine of the switch.
    ///
    /// # Errors
    /// The system refuses.
    pub fn enter_switch(&self) -> Result<()> {
        match self {
            Self::Loopback => Ok(()),
            Self::Links { switch, .. } => switch.enter(),
        }
    }

    /// Returns the address on which storages listen.
    pub fn storage_listens(&self) -> &'static str {
        match self {
            Self::Loopback => LOOPBACK,
            Self::Links { .. } => "0.0.0.0",
        }
    }

    /// Returns the address of storages for a host without a switch.
    pub fn storage_for_host(&self) -> &'static str {
        match self {
            Self::Loopback => LOOPBACK,
            Self::Links { .. } => "198.18.0.1",
        }
    }

    /// Returns the address of storages for a switch.
    pub fn storage_for_switch(&self) -> &'static str {
        match self {
            Self::Loopback => LOOPBACK,
            Self::Links { .. } => "198.18.2.1",
        }
    }

    /// Returns the address on which a switch listens for hosts.
    pub fn switch_for_host(&self) -> &'static str {
        match self {
            Self::Loopback => LOOPBACK,
            Self::Links { .. } => "198.18.1.1",
        }
    }
}

/// Returns the port of an address.
///
/// # Errors
/// The address has no port.
pub fn port(address: &str) -> Result<&str> {
    Ok(address.rsplit_once(':').context("an address with a port")?.1)
}
