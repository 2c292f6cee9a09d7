//! Commands of hosts to virtual LUNs, and their effects on the storages.

use super::{MIB, Rig, RigOptions, block_on, command, extent, extents, lun, read, write};
use crate::common::{
    ELSEWHERE, Scratch, Server, TEST_TIMEOUT, assert_exit, json, lunar, pattern, printed, run,
};
use lunar_block::{BlockDevice, BlockRange, ExtentState};
use lunar_initiator::blocking::Connector;
use std::time::{Duration, Instant};

/// Bytes of a storage, read there.
fn stored(url: &str, offset: u64, length: usize) -> Vec<u8> {
    let (offset, length) = (offset.to_string(), length.to_string());
    run(&["read", url, "--offset", &offset, "--length", &length]).stdout
}

/// Goal: data lands at its blocks of both storages, for linear and striped LUNs, and is read back;
/// nothing else is written.
#[test]
fn data_lands_at_its_extents() {
    let stripe = format!(
        "stripe = {{ unit = \"64KiB\", over = [{}, {}] }}",
        extent("b", 16, 4),
        extent("a", 8, 4)
    );
    let luns = lun(0, &extents(&[extent("a", 1, 2), extent("b", 4, 3)])) + &lun(1, &stripe);
    let rig = Rig::new("switch-data", RigOptions { luns: &luns, ..RigOptions::default() });
    let connector = Connector::start().unwrap();
    let [linear, striped] = [0, 1].map(|id| rig.open(&connector, 1, id));
    assert_eq!(linear.geometry().size_bytes(), 5 * MIB);
    assert_eq!(striped.geometry().size_bytes(), 8 * MIB);

    let data = pattern(1, 5 << 20);
    block_on(write(&linear, 0, &data));
    assert_eq!(block_on(read(&linear, 0, data.len())), data);
    let [a, b] = [0, 1].map(|at| rig.storage_url(at));
    assert_eq!(stored(&a, MIB, 2 << 20), data[..2 << 20]);
    assert_eq!(stored(&b, 4 * MIB, 3 << 20), data[2 << 20..]);

    let data = pattern(2, 256 << 10);
    block_on(write(&striped, 0, &data));
    assert_eq!(block_on(read(&striped, 0, data.len())), data);
    let unit = 64 << 10;
    for (url, offset, units) in [(&b, 16, [0, 2]), (&a, 8, [1, 3])] {
        let part = stored(url, offset * MIB, 2 * unit);
        let want = units.map(|at| &data[at * unit..][..unit]).concat();
        assert_eq!(part, want, "{url}");
    }
    for (url, used) in [(&a, [(0, 1), (3, 5), (12, 20)]), (&b, [(0, 4), (7, 9), (20, 12)])] {
        for (offset, length) in used {
            let bytes = stored(url, offset * MIB, length << 20);
            assert!(bytes.iter().all(|byte| *byte == 0), "{url} {offset}");
        }
    }
}

/// Goal: UNMAP reaches both storages: the blocks are deallocated there, and only these.
#[test]
fn unmap_reaches_the_storages() {
    let luns = lun(0, &extents(&[extent("a", 1, 2), extent("b", 4, 2)]));
    let rig = Rig::new("switch-unmap", RigOptions { luns: &luns, ..RigOptions::default() });
    let connector = Connector::start().unwrap();
    let disk = rig.open(&connector, 1, 0);
    let data = pattern(3, 4 << 20);
    block_on(write(&disk, 0, &data));
    let middle = BlockRange::new(MIB / 512, 2 * MIB / 512);
    block_on(disk.sparse().unwrap().unmap(middle, false)).unwrap();

    let storages = [0, 1].map(|at| {
        let options = lunar_initiator::SessionOptions::new("iqn.2026-11.org.lunarsan.test:direct");
        connector.open(&rig.storage_url(at).parse().unwrap(), &options).unwrap()
    });
    for (storage, first, is_mapped) in [(0, 1, true), (0, 2, false), (1, 4, false), (1, 5, true)] {
        let range = BlockRange::new(first * MIB / 512, MIB / 512);
        let remote = storages[storage].remote();
        let status = block_on(remote.sparse().unwrap().status(range, 8)).unwrap();
        let state = if is_mapped { ExtentState::Mapped } else { ExtentState::Unmapped };
        assert!(status.iter().all(|one| one.state == state), "{storage} {first}: {status:?}");
    }
    let back = block_on(read(&disk, 0, 4 << 20));
    assert_eq!(back[..1 << 20], data[..1 << 20]);
    assert!(back[1 << 20..3 << 20].iter().all(|byte| *byte == 0));
    assert_eq!(back[3 << 20..], data[3 << 20..]);
}

/// Executes COMPARE AND WRITE of one block.
async fn compare_and_write(
    disk: &lunar_initiator::RemoteDisk,
    lba: u64,
    old: &[u8],
    new: &[u8],
) -> (u8, Vec<u8>) {
    let mut cdb = [0; 16];
    cdb[0] = 0x89;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[13] = (old.len() / 512) as u8;
    command(disk, &cdb, &[old, new].concat()).await
}

/// Goal: COMPARE AND WRITE compares and writes on the storages, also across two extents, and
/// excludes hosts that use the storage directly.
#[test]
fn compare_and_write_reaches_the_storages() {
    let luns = lun(0, &extents(&[extent("a", 1, 1), extent("b", 4, 1)]));
    let rig = Rig::new("switch-compare", RigOptions { luns: &luns, ..RigOptions::default() });
    let connector = Connector::start().unwrap();
    let disk = rig.open(&connector, 1, 0);
    let last = MIB / 512 - 1;
    block_on(async {
        let (zeroes, ones, twos) = (vec![0; 1024], vec![1; 1024], vec![2; 1024]);
        while command(&disk, &[0; 6], &[]).await.0 != 0 {}
        for (lba, bytes) in [(0, 512), (last, 1024)] {
            let (zeroes, ones, twos) = (&zeroes[..bytes], &ones[..bytes], &twos[..bytes]);
            assert_eq!(compare_and_write(&disk, lba, zeroes, ones).await.0, 0, "{lba}");
            let (status, sense) = compare_and_write(&disk, lba, zeroes, twos).await;
            assert_eq!((status, sense[2] & 0x0f), (2, 0x0e), "{lba}: MISCOMPARE");
            assert_eq!(read(&disk, lba * 512, bytes).await, ones);
        }
    });
    assert_eq!(stored(&rig.storage_url(0), 2 * MIB - 512, 512), [1; 512]);
    assert_eq!(stored(&rig.storage_url(1), 4 * MIB, 512), [1; 512]);
}

/// A persistent reservation of the whole unit: REGISTER (0) or RESERVE (1) of type 5, registrants
/// only write exclusive.
pub(super) async fn reserve(
    disk: &lunar_initiator::RemoteDisk,
    action: u8,
    key: u64,
    aptpl: u8,
) -> u8 {
    let cdb = [0x5f, action, if action == 1 { 5 } else { 0 }, 0, 0, 0, 0, 0, 24, 0];
    let (existing, new) = if action == 0 { (0, key) } else { (key, 0) };
    let mut list = [0; 24];
    list[..8].copy_from_slice(&u64::to_be_bytes(existing));
    list[8..16].copy_from_slice(&u64::to_be_bytes(new));
    list[20] = aptpl;
    command(disk, &cdb, &list).await.0
}

/// Goal: reservations are kept by the switch, also through its restart with APTPL: a host without
/// the reservation is refused. Identity and data stay the same.
#[test]
fn reservations_outlive_the_switch() {
    let luns = lun(0, &extents(&[extent("a", 1, 1), extent("b", 4, 1)]));
    let mut rig = Rig::new("switch-reserved", RigOptions { luns: &luns, ..RigOptions::default() });
    let serial = |url: &str| json(&run(&["info", url, "--json"]))["unit"]["serial_number"].clone();
    let before = serial(&rig.switch.lun(0));
    let connector = Connector::start().unwrap();
    let holder = rig.open(&connector, 1, 0);
    block_on(async {
        while command(&holder, &[0; 6], &[]).await.0 != 0 {}
        assert_eq!(reserve(&holder, 0, 7, 1).await, 0);
        assert_eq!(reserve(&holder, 1, 7, 0).await, 0);
        write(&holder, 0, &pattern(4, 4096)).await;
    });
    drop(holder);
    rig.restart_switch();
    assert_eq!(serial(&rig.switch.lun(0)), before);
    let other = rig.open(&connector, 2, 0);
    block_on(async {
        while command(&other, &[0; 6], &[]).await.0 == 2 {}
        let write = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        assert_eq!(command(&other, &write, &[5; 512]).await.0, 0x18, "RESERVATION CONFLICT");
        assert_eq!(read(&other, 0, 4096).await, pattern(4, 4096));
    });
}

/// Goal: a mirror keeps its labels inside its extents, is refused until it is created, and serves
/// its data while one storage is unreachable.
#[test]
fn a_mirror_survives_a_storage() {
    let mirror = format!("mirror = [{}, {}]", extent("a", 8, 8), extent("b", 16, 8));
    let both = lun(0, &extents(&[extent("a", 0, 1)])) + &lun(1, &mirror);
    let first = lun(0, &extents(&[extent("a", 0, 1)]));
    let mut rig = Rig::new("switch-mirror", RigOptions { luns: &first, ..RigOptions::default() });
    let with_mirror = rig.configuration(RigOptions { luns: &both, ..RigOptions::default() });
    let api = rig.api();
    let apply = || run(&["apply", &with_mirror, "--api", &api]);
    let refused = apply();
    assert_exit(&refused, 1);
    assert!(printed(&refused).contains("create-mirror"), "{}", printed(&refused));
    let create = ["switch", "create-mirror", super::VIRTUAL, "1", "--config", &with_mirror];
    assert_exit(&run(&create), 0);
    let again = run(&create);
    assert_exit(&again, 1);
    assert!(printed(&again).contains("member of"), "{}", printed(&again));
    assert_exit(&apply(), 0);

    let connector = Connector::start().unwrap();
    let disk = rig.open(&connector, 1, 1);
    let data = pattern(5, 1 << 20);
    block_on(write(&disk, 0, &data));
    rig.kill_storage(1);
    assert_eq!(block_on(read(&disk, 0, data.len())), data);
    block_on(write(&disk, MIB, &data));
    rig.start_storage(1, &[]);
    assert_eq!(block_on(read(&disk, MIB, data.len())), data);
    // Both copies, behind the labels.
    for (at, start) in [(0, 8), (1, 16)] {
        assert_eq!(stored(&rig.storage_url(at), (start + 1) * MIB, 1 << 20), data);
        let before = stored(&rig.storage_url(at), (start - 1) * MIB, 1 << 20);
        assert!(before.iter().all(|byte| *byte == 0));
    }
    let status = json(&run(&["pool", "status", "--api", &api, "--json"]));
    assert_eq!(status["pools"][0]["members"].as_array().unwrap().len(), 2, "{status}");
}

/// Goal: a mirror with `degraded` is served although a storage is unreachable at the start; its
/// spare gets the data, and the pool is healthy then.
#[test]
fn a_degraded_mirror_starts_with_its_spare() {
    let (first, second) = (extent("a", 8, 4), extent("b", 16, 4));
    let with = |keys: &str| {
        let mirror = format!("mirror = {{ over = [{first}, {second}], {keys} }}");
        lun(0, &extents(&[extent("a", 0, 1)])) + &lun(1, &mirror)
    };
    let (luns, degraded) = (lun(0, &extents(&[extent("a", 0, 1)])), with("degraded = true"));
    let mut rig = Rig::new("switch-degraded", RigOptions { luns: &luns, ..RigOptions::default() });
    let file = rig.configuration(RigOptions { luns: &degraded, ..RigOptions::default() });
    let create = ["switch", "create-mirror", super::VIRTUAL, "1", "--config", &file];
    assert_exit(&run(&create), 0);
    let api = rig.api();
    assert_exit(&run(&["apply", &file, "--api", &api]), 0);
    let data = pattern(7, 1 << 20);
    {
        let connector = Connector::start().unwrap();
        block_on(write(&rig.open(&connector, 1, 1), 0, &data));
    }
    rig.kill_storage(1);
    rig.restart_switch();
    let connector = Connector::start().unwrap();
    let disk = rig.open(&connector, 1, 1);
    assert_eq!(block_on(read(&disk, 0, data.len())), data);

    let (spare_file, name) = (rig.scratch.path().join("c.img"), super::storage_name(1) + "-spare");
    let spare = ["serve", spare_file.to_str().unwrap(), "--size", "8M", "--name", &name];
    let spare = Server::start_command(lunar(&[&spare[..], &["--listen", ELSEWHERE]].concat()));
    let luns = with(&format!("degraded = true, spares = [{}]", extent("c", 2, 4)));
    let text = std::fs::read_to_string(&file).unwrap();
    let (head, _) = text.split_once("[[target]]").unwrap();
    let storage = format!("[[storage]]\nname = \"c\"\nurl = \"{}\"\n", spare.lun(0));
    let text = format!("{head}{storage}[[target]]\nname = \"{}\"\n{luns}", super::VIRTUAL);
    std::fs::write(&file, text).unwrap();
    assert_exit(&run(&["apply", &file, "--api", &api]), 0);
    let status = || json(&run(&["pool", "status", "--api", &api, "--json"]))["pools"][0].clone();
    let deadline = Instant::now() + TEST_TIMEOUT;
    while status()["health"] != "healthy" {
        assert!(Instant::now() < deadline, "{}", status());
        std::thread::sleep(Duration::from_millis(20));
    }
    let member = status()["members"][1]["device"].clone();
    assert_eq!(member, "extent:c:2MiB+4MiB", "{}", status());
    assert_eq!(stored(&spare.lun(0), 3 * MIB, data.len()), data);
}

/// Goal: a mirror keeps its data when its extents get longer, and is enlarged then.
#[test]
fn a_mirror_grows() {
    let mirror = |length| {
        let extents = [extent("a", 8, length), extent("b", 16, length)];
        lun(0, &format!("mirror = [{}, {}]", extents[0], extents[1]))
    };
    let plain = lun(1, &extents(&[extent("a", 0, 1)]));
    let rig = Rig::new("switch-mirror-grows", RigOptions { luns: &plain, ..RigOptions::default() });
    let api = rig.api();
    let apply = |length| {
        let luns = format!("{plain}{}", mirror(length));
        let config = rig.configuration(RigOptions { luns: &luns, ..RigOptions::default() });
        let create = ["switch", "create-mirror", super::VIRTUAL, "0", "--config", &config];
        (run(&create), run(&["apply", &config, "--api", &api]))
    };
    let (created, applied) = apply(4);
    assert_exit(&created, 0);
    assert_exit(&applied, 0);
    let connector = Connector::start().unwrap();
    let data = pattern(8, 1 << 20);
    block_on(write(&rig.open(&connector, 1, 0), 0, &data));
    let (created, applied) = apply(8);
    assert_exit(&created, 1);
    assert_exit(&applied, 0);
    assert_exit(&run(&["ctl", "--api", &api, "resize", "0", "6M"]), 0);
    let disk = rig.open(&connector, 1, 0);
    assert_eq!(disk.geometry().size_bytes(), 6 * MIB);
    assert_eq!(block_on(read(&disk, 0, data.len())), data);
    let zeroes = block_on(read(&disk, 4 * MIB, 2 << 20));
    assert!(zeroes.iter().all(|byte| *byte == 0));
}

/// Goal: apply adds a virtual LUN, moves one to another number, and lets one grow onto another
/// storage, while a host is connected and writes.
#[test]
fn virtual_luns_change_while_they_are_used() {
    const UUID: &str = "uuid = \"6b1f1c1e-0000-4000-8000-000000000002\"\n";
    let small = lun(0, &format!("{UUID}{}", extents(&[extent("a", 1, 2)])));
    let rig = Rig::new("switch-apply", RigOptions { luns: &small, ..RigOptions::default() });
    let apply = |luns: &str, more: &[&str]| {
        let config = rig.configuration(RigOptions { luns, ..RigOptions::default() });
        run(&[&["apply", &config, "--api", &rig.api()], more].concat())
    };
    let connector = Connector::start().unwrap();
    let disk = rig.open(&connector, 1, 0);
    disk.stay_connected();
    let data = pattern(6, 2 << 20);
    block_on(write(&disk, 0, &data));

    let grown = extents(&[extent("a", 1, 3), extent("b", 4, 2)]);
    let grown = lun(0, &format!("{UUID}{grown}"));
    let applied = apply(&grown, &[]);
    assert_exit(&applied, 0);
    assert!(printed(&applied).contains("sessions ended: 0"), "{}", printed(&applied));
    let begin = Instant::now();
    while disk.geometry().size_bytes() != 5 * MIB {
        assert!(begin.elapsed() < TEST_TIMEOUT, "{:?}", disk.geometry());
        std::thread::sleep(Duration::from_millis(50));
    }
    block_on(async {
        write(&disk, 2 * MIB, &pattern(7, 2 << 20)).await;
        assert_eq!(read(&disk, 0, 2 << 20).await, data);
    });
    assert_eq!(stored(&rig.storage_url(1), 4 * MIB, 1 << 20), pattern(7, 2 << 20)[1 << 20..]);

    let shrunken = apply(&small, &[]);
    assert_exit(&shrunken, 1);
    assert!(printed(&shrunken).contains("would shrink"), "{}", printed(&shrunken));

    let moved = grown.replace("id = 0", "id = 5") + &lun(0, &extents(&[extent("b", 8, 1)]));
    assert_exit(&apply(&moved, &[]), 0);
    let moved = rig.open(&connector, 1, 5);
    assert_eq!(block_on(read(&moved, 0, 2 << 20)), data);
    assert_eq!(moved.geometry().size_bytes(), 5 * MIB);
    let new = rig.open(&connector, 1, 0);
    assert_eq!(new.geometry().size_bytes(), MIB);
    assert_eq!(block_on(read(&new, 0, 4096)), [0; 4096]);
}

/// Goal: a switch is not started without storages.
#[test]
fn refused_starts() {
    let scratch = Scratch::new("switch-refused");
    let text = format!(
        "[[target]]\nname = \"{}\"\n[[target.lun]]\nid = 0\ndevice = \"mem:1M\"\n",
        super::VIRTUAL
    );
    let config = scratch.file("switch.toml", text.as_bytes());
    let refused = run(&["switch", "--config", &config]);
    assert_exit(&refused, 1);
    assert!(printed(&refused).contains("no [[storage]] is configured"), "{}", printed(&refused));
}
