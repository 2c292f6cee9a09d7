//! `lab switch-peers` with the hosts and storages that need no guest.

use anyhow::{Result, ensure};
use lunar_lab::switch_peers::{HostPeer, StoragePeer, SwitchPeers};

/// Goal: libiscsi, QEMU and Lunar store data by a switch on Lunar and on tgt, by both paths, and
/// the fast path relays.
#[test]
fn hosts_use_storages_by_a_switch() -> Result<()> {
    let storage = vec![StoragePeer::Lunar, StoragePeer::Tgt];
    let host = vec![HostPeer::Libiscsi, HostPeer::Qemu, HostPeer::Lunar];
    let matrix = SwitchPeers { storage, host, seed: 7, ..SwitchPeers::default() }.run()?;
    ensure!(matrix.errors.is_empty(), "{:?}", matrix.errors);
    let errors: Vec<_> = matrix.cells.iter().filter_map(|cell| cell.error.as_ref()).collect();
    ensure!(errors.is_empty(), "{errors:?}");
    ensure!(matrix.cells.len() == 12, "{} cells", matrix.cells.len());
    Ok(())
}
