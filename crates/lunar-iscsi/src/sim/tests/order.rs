//! Numbers: CmdSN over several connections, the window, the wrap.

use super::{Pair, PairOptions, Rng, random_load, random_options, seeds};
use crate::pdu::*;
use lunar_wire::SerialNumber;
use std::collections::BTreeMap;
use std::vec::Vec;

/// Goal: commands of all connections are started in CmdSN order, whatever arrives first.
/// Method: three connections with random delivery on links and sessions; each command has its own
/// block, so that the executor's list can be compared with the numbers on the wire.
#[test]
fn commands_start_in_order_over_all_connections() {
    for seed in seeds(20) {
        let mut rng = Rng::new(seed);
        let mut options = random_options(&mut rng);
        options.session_limits.window_commands = 64;
        options.one_core = true;
        let mut pair = Pair::new(seed, options);
        let mut links = std::vec![pair.login()];
        for cid in [4, 9] {
            links.push(pair.connect(0, cid));
            pair.run();
            assert!(pair.is_logged_in(links[links.len() - 1]), "seed {seed}");
        }
        let ids: Vec<_> = (0..90).map(|lba| pair.start_read(*rng.pick(&links), lba, 512)).collect();
        pair.run();
        let numbers: BTreeMap<Vec<u8>, SerialNumber> = pair
            .log()
            .headers(Opcode::SCSI_COMMAND)
            .map(ScsiCommand::decode)
            .map(|sent| (sent.cdb.to_vec(), sent.cmd_sn))
            .collect();
        let started: Vec<SerialNumber> = pair.started().map(|cdb| numbers[&cdb[..]]).collect();
        assert_eq!(started.len(), 90, "seed {seed}");
        for two in started.windows(2) {
            assert_eq!(two[1], two[0].next(), "seed {seed}");
        }
        for id in ids {
            assert_eq!(pair.result(id).0.expect("a status").status, 0);
        }
        pair.assert_nothing_left();
    }
}

/// Goal: a window of 64 works across 2^32. Method: CmdSN starts just below; the number on the wire
/// never leaves the last window sent by the target.
#[test]
fn a_full_window_wraps() {
    for seed in seeds(5) {
        let mut rng = Rng::new(seed);
        let mut options =
            PairOptions { cmd_sn: SerialNumber(u32::MAX - 100), ..PairOptions::default() };
        options.session_limits.window_commands = 64;
        let mut pair = Pair::new(seed, options);
        let link = pair.login();
        let ids = random_load(&mut pair, &mut rng, &[link], 300);
        pair.run();
        for id in ids {
            assert_eq!(pair.result(id).0.expect("a status").status, 0, "seed {seed}");
        }
        let mut last_max = SerialNumber(u32::MAX - 101);
        let mut wrapped = false;
        for bhs in pair.log().all() {
            let opcode = bhs[0] & 0x3f;
            if opcode == Opcode::SCSI_COMMAND.0 {
                let cmd_sn = ScsiCommand::decode(bhs).cmd_sn;
                assert!(!cmd_sn.after(last_max), "seed {seed}: {cmd_sn:?} {last_max:?}");
                wrapped |= cmd_sn == SerialNumber(0);
            } else if opcode & 0x20 != 0 {
                let max_cmd_sn = ScsiResponse::decode(bhs).max_cmd_sn;
                assert!(!max_cmd_sn.before(last_max), "seed {seed}: the window moved back");
                last_max = max_cmd_sn;
            }
        }
        assert!(wrapped);
        pair.assert_nothing_left();
    }
}

/// Goal: immediate commands overtake waiting ones, and do not use up numbers.
#[test]
fn immediate_commands_do_not_wait() {
    use crate::connection::initiator::{Command, Input};
    for seed in seeds(10) {
        let mut options = PairOptions::default();
        options.session_limits.window_commands = 2;
        let mut pair = Pair::new(seed, options);
        let link = pair.login();
        let ids: Vec<_> = (0..20).map(|lba| pair.start_read(link, lba, 512)).collect();
        let id = pair.new_id();
        let urgent = Command {
            id,
            lun: lunar_wire::Lun::new(1),
            cdb: std::vec![0; 6].into(),
            attribute: TaskAttribute::HEAD_OF_QUEUE,
            priority: 0,
            data_out: bytes::Bytes::new(),
            data_in_bytes_max: 0,
            immediate: true,
        };
        pair.ask(link, Input::Execute(urgent));
        while !pair.is_answered(id) {
            assert!(pair.step(), "seed {seed}");
        }
        assert!(ids.iter().any(|id| !pair.is_answered(*id)), "seed {seed}: it passed");
        pair.run();
        pair.assert_nothing_left();
    }
}

/// Goal: no status precedes the acknowledgement of its command, whatever happens on other
/// connections. RFC 7143 §4.2.2.1. Method: three connections and sessions with random delivery of
/// messages; every status carries an ExpCmdSN past the CmdSN of its own command.
#[test]
fn no_status_precedes_its_acknowledgement() {
    for seed in seeds(20) {
        let mut rng = Rng::new(seed);
        let mut options = random_options(&mut rng);
        options.cmd_sn = SerialNumber(u32::MAX - 30);
        let mut pair = Pair::new(seed, options);
        let mut links = std::vec![pair.login()];
        for cid in [4, 9] {
            links.push(pair.connect(0, cid));
            pair.run();
        }
        random_load(&mut pair, &mut rng, &links, 80);
        pair.run();
        let mut commands: BTreeMap<u32, SerialNumber> = BTreeMap::new();
        let mut checked = 0;
        for bhs in pair.log().all() {
            let exp_cmd_sn = match bhs[0] & 0x3f {
                code if code == Opcode::SCSI_COMMAND.0 => {
                    let sent = ScsiCommand::decode(bhs);
                    commands.insert(sent.initiator_task_tag, sent.cmd_sn);
                    continue;
                }
                code if code == Opcode::SCSI_RESPONSE.0 => ScsiResponse::decode(bhs).exp_cmd_sn,
                code if code == Opcode::DATA_IN.0 => {
                    let data_in = DataIn::decode(bhs);
                    if !data_in.flags.has(DataInFlags::STATUS) {
                        continue;
                    }
                    data_in.exp_cmd_sn
                }
                _ => continue,
            };
            let cmd_sn = commands[&ScsiResponse::decode(bhs).initiator_task_tag];
            assert!(exp_cmd_sn.after(cmd_sn), "seed {seed}: {exp_cmd_sn:?} of {cmd_sn:?}");
            checked += 1;
        }
        assert_eq!(checked, 80, "seed {seed}");
        pair.assert_nothing_left();
    }
}
