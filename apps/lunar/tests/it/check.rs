//! Validation of configurations: errors are reported with line, column and remedy.

use crate::common::{Scratch, assert_exit, json, printed, run};

/// An invalid configuration, and the expected problems: line, column, parts of the error and the
/// hint.
struct Case {
    text: &'static str,
    expected: &'static [(u64, u64, &'static str, &'static str)],
}

const CASES: &[Case] = &[
    Case { text: "", expected: &[(1, 1, "no target", "[[target]]")] },
    Case {
        text: "[[target]\nname = 1\n",
        expected: &[(1, 10, "expected `]`", "correct the TOML syntax")],
    },
    Case {
        text: "[[target]]\nname = \"iqn.2026-11.org.example:a\"\nredirect = \"h:1\"\n\
               aliass = \"x\"\n",
        expected: &[(4, 1, "unknown key `aliass`", "did you mean `alias`?")],
    },
    Case {
        text: "portals = [\"127.0.0.1:1\"]\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
               cache = \"write-back\"\nuser = \"x\"\nredirect = \"h:1\"\n",
        expected: &[
            (1, 1, "unknown key `portals`", "belongs in [listen]"),
            (4, 1, "unknown key `cache`", "belongs in [[target.lun]]"),
            (5, 1, "unknown key `user`", "belongs in chap"),
        ],
    },
    Case {
        text: "colour = 1\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\nredirect = \"h:1\"\n",
        expected: &[(1, 1, "unknown key `colour`", "known keys here:")],
    },
    Case {
        text: "[storages]\nlisten = \"unix:x\"\n[metrics]\nlisten = \"x\"\n\
               [data_path]\nlatency_mode = 1\n\
               [[target]]\nname = \"iqn.2026-11.org.example:a\"\nredirect = \"h:1\"\n",
        expected: &[
            (1, 2, "unknown key `storages`", "did you mean `storage`?"),
            (4, 10, "invalid listen address: \"x\"", "write ADDRESS:PORT"),
            (6, 16, "`latency_mode` ", "true or false"),
        ],
    },
    Case {
        text: "[[pool]]\nname = \"a\"\nmembers = [\"/dev/null\", \"/dev/../dev/null\"]\n\
               [[pool]]\nname = \"b\"\nmembers = [\"pool:b\", \"pool:none\", \"mem:1M\"]\n\
               [[pool]]\nname = \"a\"\nmembers = [\"/dev/zero\"]\n\
               [[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
               [[target.lun]]\nid = 0\ndevice = \"pool:a\"\nio = \"direct\"\n\
               [[target.lun]]\nid = 1\ndevice = \"/dev/null\"\n\
               [[target.lun]]\nid = 2\ndevice = \"pool:c\"\n",
        expected: &[
            (3, 25, "file:/dev/../dev/null is a member twice", "name each device once"),
            (6, 35, "mem:1MiB cannot be a member", "a file or a remote LUN"),
            (7, 1, "the pool a is configured twice", "its own name"),
            (15, 6, "`io` is not allowed for a pool", "in the [[pool]]"),
            (18, 10, "file:/dev/null is a member of the pool a", "serve pool:a"),
            (21, 10, "there is no pool c", "the configured pools are a"),
        ],
    },
    Case {
        text: "[[pool]]\nname = \"a\"\nmembers = [\"/dev/null\", \"/dev/zero\"]\n\
               spares = [\"/dev/null\", \"pool:a\"]\n\
               [[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
               [[target.lun]]\nid = 0\ndevice = \"pool:a\"\n",
        expected: &[
            (4, 11, "file:/dev/null is a member twice", "name each device once"),
            (4, 24, "pool:a cannot be a spare device", "a file or a remote LUN"),
        ],
    },
    Case {
        text: "[[pool]]\nname = \"a\"\nmembers = [\"pool:b\"]\n\
               [[pool]]\nname = \"b\"\nmembers = [\"pool:a\", \"pool:none\"]\n\
               [[target]]\nname = \"iqn.2026-11.org.example:a\"\nredirect = \"h:1\"\n",
        expected: &[
            (3, 12, "pool:b cannot be opened", "a member of itself"),
            (6, 12, "pool:a cannot be opened", "a member of itself"),
            (6, 22, "pool:none cannot be opened", "add a [[pool]]"),
        ],
    },
    Case {
        text: "[api]\nlisten = \"0.0.0.0:9000\"\ntls = { certificate_file = \"c\" }\n\
               [[target]]\nname = \"iqn.2026-11.org.example:a\"\nredirect = \"h:1\"\n",
        expected: &[
            (1, 1, "other machines can reach an API", "TLS"),
            (3, 7, "has no `key_file`", "add a line key_file"),
        ],
    },
    Case {
        text: "[api]\nlisten = \"/run/api.sock\"\ntoken_file = \"t\"\n\
               [[target]]\nname = \"iqn.2026-11.org.example:a\"\nredirect = \"h:1\"\n",
        expected: &[
            (1, 1, "TLS and a token require an API over TCP", "omit TLS and the token"),
            (2, 10, "[api] listen", "unix:/run/api.sock"),
        ],
    },
    Case {
        text: "[[target]]\nname = \"disk\"\nerror_recovery_level = 2\nmax_connections = \"8\"\n\
               header_digest = [\"md5\"]\nportal_group = 0\n  [[target.lun]]\n  id = 0\n\
               \x20 device = \"mem:1M\"\n  cahce = \"write-back\"\n  io = \"fast\"\n",
        expected: &[
            (2, 8, "invalid target name", "must begin with `iqn.`"),
            (3, 24, "`error_recovery_level` is 2", "only 0"),
            (4, 19, "`max_connections` is a string", "whole number"),
            (5, 18, "header_digest: \"md5\"", "crc32c"),
            (6, 16, "`portal_group` is 0", "1 to 65535"),
            (10, 3, "unknown key `cahce`", "did you mean `cache`?"),
            (11, 8, "io: \"fast\"", "\"buffered\" or \"direct\""),
        ],
    },
    Case {
        text: "[[target]]\nname = \"iqn.2026-11.org.example:a\"\n[[target.lun]]\nid = 0\n\
               device = \"mem:1M\"\n[[target.lun]]\nid = 0\ndevice = \"mem:2M\"\n\
               [[target]]\nname = \"iqn.2026-11.org.example:a\"\n[[target.lun]]\nid = 16384\n\
               device = \"mem:1000\"\n[[target.lun]]\nuuid = \"x\"\n",
        expected: &[
            (6, 1, "already has a LUN 0", "another id"),
            (9, 1, "is used twice", "its own name"),
            (12, 6, "`id` is 16384", "0 to 16383"),
            (13, 10, "mem:1000", "multiple of the block size"),
            (14, 1, "the LUN has no `id`", "id = 0"),
            (14, 1, "has no `device`", "device ="),
            (15, 8, "uuid: \"x\"", "uuidgen"),
        ],
    },
    Case {
        text: "[listen]\nportals = [\"0.0.0.0:3260\", \
               { listen = \"127.0.0.1:1\", advertise = \"x\" },\n\
               \x20 \"san.example\"]\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
               initiators = [\"iqn.1993-08.org.debian:01:abc\", \"x\"]\n\
               networks = [\"10.0.0.0/40\"]\n\
               redirect = \"h\"\n",
        expected: &[
            (2, 66, "advertise: \"x\"", "HOST:PORT"),
            (3, 3, "invalid listen address", "127.0.0.1:3260"),
            (4, 1, "for every host that can reach 0.0.0.0:3260", "chap or networks"),
            (6, 48, "invalid initiator name", "iqn."),
            (7, 13, "invalid network: \"10.0.0.0/40\"", "prefix length"),
            (8, 12, "redirect: \"h\"", "HOST:PORT"),
        ],
    },
    Case {
        text: "[listen]\nportals = [\n{ listen = \"127.0.0.1:1\", portal_group = 0 },\n\
               { listen = \"127.0.0.1:2\", portal_group = 65536 },\n\
               { listen = \"127.0.0.1:3\", advertise = \"h:1\", portal_group = 2 },\n\
               { listen = \"127.0.0.1:4\", advertise = \"h:1\", portal_grup = 2 }]\n\
               [[target]]\nname = \"iqn.2026-11.org.example:a\"\nredirect = \"h:1\"\n",
        expected: &[
            (3, 42, "`portal_group` is 0", "1 to 65535"),
            (4, 42, "`portal_group` is 65536", "1 to 65535"),
            (6, 1, "h:1 is already advertised for 127.0.0.1:3", "same portal group"),
            (6, 46, "unknown key `portal_grup`", "did you mean `portal_group`?"),
        ],
    },
    // Remote LUNs: the form of the URL, keys of local devices, credentials, LUNs of this file by
    // any of its addresses, and LUNs that are served twice.
    Case {
        text: "[listen]\nportals = [\"127.0.0.1:3260\",\n\
               { listen = \"127.0.0.2:7\", advertise = \"san.example:860\" }]\n\
               [[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
               [[target.lun]]\nid = 0\n\
               device = \"iscsi://localhost/iqn.2026-11.org.example:A/1\"\n\
               [[target.lun]]\nid = 1\n\
               device = \"iscsi://san.example:860/iqn.2026-11.org.example:a/2\"\n\
               [[target.lun]]\nid = 2\ndevice = \"iscsi://other:7/iqn.2026-11.org.example:a/3\"\n\
               [[target.lun]]\nid = 3\n\
               device = \"iscsi://u@192.0.2.1/iqn.2026-11.org.example:b/0\"\n\
               [[target.lun]]\nid = 4\ndevice = \"iscsi://192.0.2.1/iqn.2026-11.org.example:b/7\"\n\
               io = \"direct\"\nblock_size = 4096\nphysical_block_size = 4096\n\
               thin_threshold = \"90%\"\n\
               [[target.lun]]\nid = 5\ndevice = \"iscsi://192.0.2.2/iqn.2026-11.org.example:B/7\"\n\
               [[target.lun]]\nid = 6\ndevice = \"iscsi://192.0.2.2/iqn.2026-11.org.example:b\"\n\
               [[target.lun]]\nid = 7\ndevice = \"iscsi://192.0.2.2\"\n",
        expected: &[
            (8, 10, "is a LUN of this configuration", "another server"),
            (11, 10, "is a LUN of this configuration", "another server"),
            (17, 10, "names a user, but there is no secret", "device_chap"),
            (21, 6, "`io` is not allowed for a remote LUN", "omit `io`"),
            (22, 14, "`block_size` is not allowed", "omit"),
            (23, 23, "`physical_block_size` is not allowed", "omit"),
            (24, 18, "`thin_threshold` is not allowed", "omit"),
            (27, 10, "LUN 7 of iqn.2026-11.org.example:B is used twice", "only once"),
            (30, 10, "contains the target iqn.2026-11.org.example:b but no LUN", "/0"),
            (33, 10, "the URL contains a portal, but no target and LUN", "lunar discover"),
        ],
    },
    // The same target name at a server whose address is not known without the network.
    Case {
        text: "[listen]\nportals = [\"192.0.2.7:3260\"]\n[[target]]\n\
               name = \"iqn.2026-11.org.example:a\"\nnetworks = [\"10.0.0.0/8\"]\n\
               [[target.lun]]\nid = 0\ndevice = \"iscsi://other/iqn.2026-11.org.example:a/0\"\n\
               [[target.lun]]\nid = 1\n\
               device = \"iscsi://192.0.2.8/iqn.2026-11.org.example:a/1\"\n\
               [[target.lun]]\nid = 2\ndevice = \"iscsi://other/iqn.2026-11.org.example:b/2\"\n",
        expected: &[(8, 10, "may be a LUN of this configuration", "write the IP address")],
    },
    // Fault: an empty list, left after the last name was removed, admitted everybody.
    Case {
        text: "[listen]\nportals = []\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
               initiators = []\nnetworks = []\nchap = []\n[[target.lun]]\nid = 0\n\
               device = \"mem:1M\"\ninitiators = []\nnetworks = [ ]\n",
        expected: &[
            (2, 11, "`portals` is empty", "list at least one"),
            (5, 14, "`initiators` is empty", "omit the key"),
            (6, 12, "`networks` is empty", "omit the key"),
            (7, 8, "`chap` is empty", "omit the key"),
            (11, 14, "`initiators` is empty", "omit the key"),
            (12, 12, "`networks` is empty", "omit the key"),
        ],
    },
    // Fault: these portals were found valid, but could not be served.
    Case {
        text: "[listen]\nportals = [\"127.0.0.1:7\", \"0.0.0.0:7\", \"[::]:7\", \"0.0.0.0:8\",\n\
               \x20 \"127.0.0.1:8\", \"127.0.0.1:0\", \"0.0.0.0:0\", \"[::1]:8\"]\n\
               [[target]]\nname = \"iqn.2026-11.org.example:a\"\nnetworks = [\"::1\"]\n\
               [[target.lun]]\nid = 0\ndevice = \"mem:1M\"\nthin_threshold = \"90%\"\n\
               [[target.lun]]\nid = 1\ndevice = \"lunar.toml\"\nthin = false\n\
               thin_threshold = \"90%\"\n",
        expected: &[
            (2, 27, "0.0.0.0:7 and 127.0.0.1:7 overlap", ""),
            (3, 3, "127.0.0.1:8 and 0.0.0.0:8 overlap", ""),
            (10, 18, "`thin_threshold` is not supported for a memory disk", "sparse file"),
            (15, 18, "for a disk with thin = false", "sparse file"),
        ],
    },
    Case {
        text: "[[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
               initiators = [\"iqn.2026-11.org.example:ALICE\", \"iqn.2026-11.org.example:bob\"]\n\
               networks = [\"10.1.0.0/16\"]\n[[target.lun]]\nid = 0\ndevice = \"mem:1M\"\n\
               initiators = [\"iqn.2026-11.org.example:alice\", \"iqn.2026-11.org.example:eve\"]\n\
               networks = [\"10.0.0.0/8\", \"10.2.0.0/16\", \"here\", 1]\n\
               [[target.lun]]\nid = 0\ndevice = \"mem:1M\"\ninitiators = \"x\"\n\
               [[target.lun]]\nid = 0\ndevice = \"mem:1M\"\nnetworks = [\"10.2.0.0/16\"]\n",
        expected: &[
            (
                8,
                48,
                "example:eve may see this LUN but is not allowed",
                "`initiators` of the target",
            ),
            (9, 27, "10.2.0.0/16 may see this LUN but", "`networks` of the target"),
            (9, 42, "invalid network: \"here\"", "not an IP address"),
            (9, 50, "`networks` is a whole number", "string"),
            (10, 1, "already has a LUN 0", "disjoint lists"),
            (13, 14, "`initiators` is a string", "list of strings"),
            (17, 13, "10.2.0.0/16 may see this LUN but", "`networks` of the target"),
        ],
    },
    Case {
        text: "[[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
               initiators = [\"iqn.2026-11.org.example:alice\", \"iqn.2026-11.org.example:bob\"]\n\
               administer = [\"iqn.2026-11.org.example:ALICE\", \"iqn.2026-11.org.example:eve\"]\n\
               [[target.lun]]\nid = 0\ndevice = \"mem:1M\"\n\
               initiators = [\"iqn.2026-11.org.example:alice\"]\n\
               administer = [\"iqn.2026-11.org.example:alice\",\"iqn.2026-11.org.example:bob\",1]\n\
               [[target.lun]]\nid = 1\ndevice = \"mem:1M\"\nadminister = []\n\
               [[target.lun]]\nid = 2\ndevice = \"mem:1M\"\nadminister = \"nobody\"\n",
        expected: &[
            (4, 48, "example:eve is an administrator, but is not allowed", "`initiators` as well"),
            (9, 47, "example:bob is an administrator, but is not allowed", "remove it from"),
            (9, 77, "`administer` is a whole number", "string"),
            (17, 14, "`administer` is a string", "list of strings"),
        ],
    },
    Case {
        text: "[limits]\nlogin_failures_free = -1\nlogin_backoff_seconds_max = 8\n\
               data_out_seconds = 0\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
               redirect = \"h:1\"\n",
        expected: &[
            (2, 23, "`login_failures_free` is -1", "0 to"),
            (3, 29, "`login_backoff_seconds_max` is 8", "half of `login_seconds`: 7"),
            (4, 20, "`data_out_seconds` is 0", "1 to 3600"),
        ],
    },
    Case {
        text: "[limits]\nconnections = 0\nlogin_seconds = 1.5\ntransfer_bytes = \"100K\"\n\
               [data_path]\ncores = 2000\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
               chap = { user = \"u\", secret_file = \"missing\", mutual_user = \"t\" }\n\
               [[target.lun]]\nid = 0\ndevice = \"missing.img\"\n[[target.lun]]\nid = 1\n\
               device = \"new.img\"\nsize = \"1000\"\nblock_size = 4096\n\
               physical_block_size = 512\n",
        expected: &[
            (2, 15, "`connections` is 0", "1 to"),
            (3, 17, "`login_seconds` is a number with a fraction", "whole number"),
            (4, 18, "is not a multiple of 64KiB", "choose"),
            (6, 9, "`cores` is 2000", "0 to 1024"),
            (9, 8, "`mutual_user` without `mutual_secret_file`", "both or none"),
            (9, 36, "cannot read the secret file", "umask 077"),
            (12, 10, "missing.img does not exist", "`size`"),
            (16, 8, "`size` is 1000 bytes", "multiple of the block size"),
            (18, 23, "invalid block sizes: 4096, physical 512", "power of two"),
        ],
    },
    Case {
        text: "[[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
               limit = [{ iops = 9 }, { initiator = \"x\", iops = 10 }, { iops = 10 }, 7]\n\
               [[target.lun]]\nid = 0\ndevice = \"mem:1M\"\nlimit = {}\n\
               [[target.lun]]\nid = 1\ndevice = \"mem:1M\"\n\
               limit = { bandwidth = \"9Mbit\", io = 1 }\ninitiator_limit = []\n",
        expected: &[
            (3, 19, "`iops` is 9", "10 to"),
            (3, 38, "invalid initiator name", "iqn."),
            (3, 56, "already a limit for each initiator", ""),
            (3, 71, "`limit` is a whole number", "a list like"),
            (7, 9, "neither iops nor bandwidth", "iops ="),
            (11, 23, "9Mbit", "the minimum is 10Mbit"),
            (11, 32, "unknown key `io`", "iops"),
            (12, 19, "`initiator_limit` is empty", "omit"),
        ],
    },
];

/// Goal: each mistake is reported at its position, all of them at once, and nothing else. Method: a
/// table of invalid configurations; the JSON form for position and text.
#[test]
fn mistakes_are_reported_at_their_positions() {
    let scratch = Scratch::new("mistakes");
    for case in CASES {
        let file = scratch.file("lunar.toml", case.text.as_bytes());
        let output = run(&["check", &file, "--json"]);
        assert_exit(&output, 1);
        let document = json(&output);
        let problems = document["problems"].as_array().unwrap();
        assert_eq!(problems.len(), case.expected.len(), "{}\n{document:#}", case.text);
        for (problem, (line, column, error, hint)) in problems.iter().zip(case.expected) {
            let position = (problem["line"].as_u64(), problem["column"].as_u64());
            assert_eq!(position, (Some(*line), Some(*column)), "{problem} of {document:#}");
            assert!(problem["error"].as_str().unwrap().contains(error), "{problem} {error}");
            assert!(
                problem["hint"].as_str().unwrap_or_default().contains(hint),
                "{problem} {hint}"
            );
        }
        assert!(document["error"].as_str().unwrap().contains("problem"));
        let human = run(&["check", &file]);
        assert_exit(&human, 1);
        let stderr = String::from_utf8(human.stderr).unwrap();
        assert_eq!(stderr.lines().count(), case.expected.len());
        for (line, (row, column, ..)) in stderr.lines().zip(case.expected) {
            assert!(line.starts_with(&format!("{file}:{row}:{column}: ")), "{line}");
        }
    }
}

/// A configuration with every key of this version.
const EVERY_KEY: &str = r#"
state = "state"
[listen]
portals = [{ listen = "0.0.0.0:3260", advertise = "192.0.2.7:3260", portal_group = 2 },
           "[::1]:3260"]
[discovery]
chap = { user = "find", secret_file = "vm.secret" }
[api]
listen = "0.0.0.0:9000"
token_file = "api.token"
tls = { certificate_file = "api.pem", key_file = "api.key" }
[limits]
connections = 100
logins_per_address = 20
login_seconds = 5
login_failures_free = 10
login_backoff_seconds_max = 2
text_bytes = "8KiB"
window_commands = 64
data_out_bytes = "32MiB"
data_out_seconds = 60
data_in_bytes = 33554432
transfer_bytes = "4MiB"
ping_after_seconds = 10
ping_timeout_seconds = 5
[data_path]
cores = 1
latency_mode = true
io_uring = false
[[target]]
name = "iqn.2026-11.org.example:vm"
alias = "the machine"
initiators = ["iqn.1993-08.org.debian:01:ABC"]
networks = ["10.1.0.0/16", "2001:db8::/64"]
administer = ["iqn.1993-08.org.debian:01:abc"]
portal_group = 1
chap = { user = "vm", secret_file = "vm.secret", mutual_user = "lunar",
         mutual_secret_file = "own.secret", algorithms = ["sha3-256", "sha-256", "sha-1", "md5"],
         allow_short_secrets = false }
max_connections = 8
header_digest = ["crc32c", "none"]
data_digest = ["none"]
error_recovery_level = 0
limit = [{ initiator = "iqn.1993-08.org.debian:01:abc", iops = 1000 }, { bandwidth = "1Gbit" }]
  [[target.lun]]
  id = 0
  uuid = "0b0f3c1e-7d55-4f0e-9b1d-2f6c5c1f9a10"
  device = "file:disk.img"
  size = "1MiB"
  cache = "write-through"
  io = "direct"
  block_size = 512
  physical_block_size = 4096
  read_only = false
  removable = false
  thin = true
  limit = { iops = 1000, bandwidth = "200Mbit" }
  initiator_limit = [{ iops = 500 }]
  initiators = ["iqn.1993-08.org.debian:01:abc"]
  networks = ["10.1.2.0/24"]
  administer = []
  [[target.lun]]
  id = 0
  device = "mem:1M"
  networks = ["10.1.3.0/24", "::ffff:10.1.4.0/120"]
[[storage]]
name = "a"
url = "iscsi://192.0.2.9/iqn.2026-11.org.example:storage/0"
portals = ["192.0.2.10:3260"]
chap = { user = "vm", secret_file = "vm.secret" }
on_storage_loss = "wait 60s"
[[storage]]
name = "b"
url = "iscsi://192.0.2.11/iqn.2026-11.org.example:storage-b/0"
on_storage_loss = "fail"
[[storage]]
name = "c"
url = "iscsi://192.0.2.12/iqn.2026-11.org.example:storage-c/0"
[[target]]
name = "iqn.2026-11.org.example:virtual"
networks = ["10.1.0.0/16"]
  [[target.lun]]
  id = 0
  extents = [{ storage = "a", start = 0, length = "1GiB" }, { storage = "b", length = "1GiB" }]
  [[target.lun]]
  id = 1
  [target.lun.stripe]
  unit = "64KiB"
  over = [{ storage = "a", start = "1GiB", length = "1GiB" },
          { storage = "b", start = "1GiB", length = "1GiB" }]
  [[target.lun]]
  id = 2
  mirror = [{ storage = "a", start = "2GiB", length = "1GiB" },
            { storage = "b", start = "2GiB", length = "1GiB" }]
  [[target.lun]]
  id = 3
  [target.lun.mirror]
  over = [{ storage = "a", start = "3GiB", length = "1GiB" },
          { storage = "b", start = "3GiB", length = "1GiB" }]
  spares = [{ storage = "c", start = 0, length = "1GiB" }]
  degraded = true
  member_wait_seconds = 5
  resync_rate = "1Gbit"
[[target]]
name = "iqn.2026-11.org.example:two"
chap = [
  { initiator = "iqn.1993-08.org.debian:01:abc", user = "a", secret_file = "vm.secret" },
  { user = "b", secret_file = "short.secret", allow_short_secrets = true },
]
redirect = "192.0.2.8:3260"
limit = { iops = 10, bandwidth = "10Mbit" }
"#;

/// Goal: a configuration with every key of this version is valid, and its paths are relative to it.
#[test]
fn every_key_is_known() {
    let scratch = Scratch::new("every-key");
    scratch.file("vm.secret", b"twelve bytes and more\n");
    scratch.file("own.secret", b"another secret of the target\n");
    scratch.file("short.secret", b"short");
    scratch.file("disk.img", &[0; 1 << 20]);
    let file = scratch.file("lunar.toml", EVERY_KEY.as_bytes());
    let output = run(&["check", &file, "--json"]);
    assert_exit(&output, 0);
    let document = json(&output);
    assert_eq!(
        (&document["valid"], &document["targets"], &document["luns"]),
        (&true.into(), &3.into(), &6.into())
    );
    let served = &document["configuration"];
    assert_eq!(served["limits"]["data_out_bytes"], 32 << 20);
    let lun = &served["targets"][0]["luns"][0];
    assert_eq!((&lun["io"], &lun["size"]), (&"direct".into(), &(1 << 20).into()));
    assert!(!printed(&output).contains("twelve bytes"), "files are named, secrets are not shown");
    let human = run(&["check", &file]);
    assert_exit(&human, 0);
    assert!(printed(&human).contains("valid"));
}

/// Goal: problems with secrets are reported without the secrets.
#[test]
fn secrets_are_checked_without_printing_them() {
    let scratch = Scratch::new("secrets");
    scratch.file("same", b"hunter2hunter2hunter2");
    scratch.file("short", b"hunter2");
    scratch.file("other", b"hunter2 of another one");
    let text = r#"
[[target]]
name = "iqn.2026-11.org.example:a"
chap = { user = "u", secret_file = "same", mutual_user = "t", mutual_secret_file = "same" }
redirect = "h:1"
[[target]]
name = "iqn.2026-11.org.example:b"
chap = [{ user = "u", secret_file = "short" }, { user = "v", secret_file = "same" },
        { user = "w", secret_file = "same" }]
redirect = "h:1"
[discovery]
chap = { user = "d", secret_file = "other", mutual_user = "t", mutual_secret_file = "same" }
"#;
    let file = scratch.file("lunar.toml", text.as_bytes());
    let output = run(&["check", &file]);
    assert_exit(&output, 1);
    let output = printed(&output);
    assert!(!output.contains("hunter2"), "{output}");
    for part in [
        ":4:84: the mutual CHAP secret is the same",
        ":8:37: the CHAP secret is shorter",
        "a second credential for the same initiator",
        ":12:85: the mutual CHAP secret is the same",
    ] {
        assert!(output.contains(part), "{part} in {output}");
    }
}

/// Goal: the message about a short secret says how to make one, and a secret made in this way is
/// accepted: 144 random bits. RFC 7143 §9.2.1.
#[test]
fn a_secret_created_by_the_suggested_command_is_accepted() {
    let scratch = Scratch::new("made");
    let secret = scratch.file("secret", b"short");
    let text = r#"
[[target]]
name = "iqn.2026-11.org.example:a"
chap = { user = "u", secret_file = "secret" }
redirect = "h:1"
"#;
    let file = scratch.file("lunar.toml", text.as_bytes());
    let document = json(&run(&["check", &file, "--json"]));
    let hint = document["problems"][0]["hint"].as_str().unwrap();
    let command = hint.split_once(": ").unwrap().1.split("; or accept").next().unwrap();
    let command = command.replace("FILE", &secret);
    let made = std::process::Command::new("sh").args(["-c", &command]).status().unwrap();
    assert!(made.success(), "{command}");
    let bytes = std::fs::read(&secret).unwrap();
    assert_eq!(bytes.trim_ascii_end().len(), 16, "12 bytes in base64");
    assert_exit(&run(&["check", &file]), 0);
}

/// Goal: listening beyond this machine requires CHAP or a network for every LUN; names alone, or a
/// network for some LUNs only, are not sufficient.
#[test]
fn names_alone_open_nothing() {
    let scratch = Scratch::new("unlock");
    scratch.file("secret", b"twelve bytes and more");
    let chap = "chap = { user = \"u\", secret_file = \"secret\" }\n";
    let (names, networks) =
        ("initiators = [\"iqn.2026-11.org.example:i\"]\n", "networks = [\"10.0.0.0/8\"]\n");
    for (target, first, second, opened) in [
        ("", "", "", false),
        (names, "", "", false),
        (names, names, names, false),
        ("", networks, "", false),
        ("", networks, names, false),
        ("", networks, networks, true),
        (networks, "", "", true),
        (chap, "", "", true),
    ] {
        let text = format!(
            "[listen]\nportals = [\"127.0.0.1:1\", \"0.0.0.0:3260\"]\n\
             [[target]]\nname = \"iqn.2026-11.org.example:a\"\n{target}\
             [[target.lun]]\nid = 0\ndevice = \"mem:1M\"\n{first}\
             [[target.lun]]\nid = 1\ndevice = \"mem:1M\"\n{second}"
        );
        let file = scratch.file("lunar.toml", text.as_bytes());
        let checked = run(&["check", &file]);
        assert_exit(&checked, i32::from(!opened));
        let has_warning = printed(&checked).contains("lunar.toml:3:1: the target is accessible");
        assert_eq!(has_warning, !opened, "{text}{}", printed(&checked));
    }
}

/// Goal: two LUNs over one file with different settings are refused, as they are one disk.
#[test]
fn one_disk_has_one_face() {
    let scratch = Scratch::new("faces");
    scratch.file("disk.img", &[0; 4096]);
    let text = "[[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
        [[target.lun]]\nid = 0\ndevice = \"disk.img\"\n\
        [[target.lun]]\nid = 1\ndevice = \"disk.img\"\nCACHE\n";
    let same = scratch.file("same.toml", text.replace("CACHE", "").as_bytes());
    assert_exit(&run(&["check", &same]), 0);
    let other = text.replace("CACHE", "cache = \"write-back\"");
    let other = scratch.file("other.toml", other.as_bytes());
    let output = run(&["check", &other]);
    assert_exit(&output, 1);
    assert!(printed(&output).contains("twice with different settings"), "{}", printed(&output));
    std::os::unix::fs::symlink("disk.img", scratch.path().join("link.img")).unwrap();
    let linked = text.replacen("disk.img", "./link.img", 1);
    let same = scratch.file("linked.toml", linked.replace("CACHE", "").as_bytes());
    assert_exit(&run(&["check", &same]), 0);
    let other = linked.replace("CACHE", "cache = \"write-back\"");
    let other = scratch.file("linked.toml", other.as_bytes());
    let output = run(&["check", &other]);
    assert_exit(&output, 1);
    assert!(
        printed(&output).contains("are the same file with different settings"),
        "{}",
        printed(&output)
    );
}

/// Goal: no text makes `check` panic. Method: every prefix of a valid configuration, and bytes that
/// are not text.
#[test]
fn any_text_is_handled() {
    let scratch = Scratch::new("any");
    let text = "[[target]]\nname = \"iqn.2026-11.org.example:ä\"\nchap = [1, {}]\n[[target.lun]]\n";
    for end in 0..=text.len() {
        let file = scratch.file("lunar.toml", &text.as_bytes()[..end]);
        assert_exit(&run(&["check", &file]), 1);
    }
}

/// Goal: the configurations in the documents are valid.
#[test]
fn documents_show_valid_configurations() {
    let operating = include_str!("../../../../docs/operating.md");
    let access = include_str!("../../../../docs/access.md");
    let scratch = Scratch::new("documents");
    scratch.file("alice.secret", b"the secret of alice");
    scratch.file("bob.secret", b"the secret of bob");
    scratch.file("storage.secret", b"the secret of the storage");
    let rests = [operating, access].into_iter().flat_map(|text| text.split("```toml\n").skip(1));
    let blocks = rests.map(|rest| rest.split_once("```").unwrap().0);
    let counts = blocks.map(|text| {
        let file = scratch.file("lunar.toml", text.as_bytes());
        let checked = run(&["check", &file, "--json"]);
        assert_exit(&checked, 0);
        (json(&checked)["targets"].as_u64().unwrap(), json(&checked)["luns"].as_u64().unwrap())
    });
    assert_eq!(counts.collect::<Vec<_>>(), [(1, 1), (1, 1), (1, 1), (1, 2), (1, 3)]);
}
