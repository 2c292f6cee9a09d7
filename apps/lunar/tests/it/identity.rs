//! Identities of units are stable.

use crate::common::{Scratch, Server, assert_exit, lunar, printed, run};
use serde_json::Value;

fn uuids(server: &Server) -> Vec<String> {
    let luns = server.report["targets"][0]["luns"].as_array().unwrap();
    luns.iter().map(|lun| lun["uuid"].as_str().unwrap().to_owned()).collect()
}

fn path(scratch: &Scratch, name: &str) -> String {
    scratch.path().join(name).to_str().unwrap().to_owned()
}

/// Goal: identities follow the files, not the order or the spelling of their names.
#[test]
fn identities_survive_reordering() {
    let scratch = Scratch::new("reordering");
    let (a, b) = (path(&scratch, "a.img"), path(&scratch, "b.img"));
    let state = path(&scratch, "state");
    for state in [&[][..], &["--state", &state]] {
        let start = |first: &str, second: &str| {
            let server = Server::start(&[&[first, second, "--size", "1M"], state].concat());
            let found = uuids(&server);
            assert_exit(&server.stop().0, 0);
            found
        };
        let first = start(&a, &b);
        assert_ne!(first[0], first[1]);
        let swapped = start(&b, &a);
        assert_eq!((&swapped[0], &swapped[1]), (&first[1], &first[0]));
        let roundabout = path(&scratch, "./../").clone()
            + scratch.path().file_name().unwrap().to_str().unwrap()
            + "/a.img";
        let spelled = start(&format!("file:{roundabout}"), &b);
        assert_eq!(spelled, first);
    }
    let first = Server::start(&["mem:1M"]);
    let second = Server::start(&["mem:1M"]);
    assert_ne!(uuids(&first), uuids(&second), "memory is new each time");
}

/// Goal: a file under two names is one unit; a copy of the file with a copied identity is refused.
#[test]
fn one_file_is_one_unit() {
    let scratch = Scratch::new("one-unit");
    let file = scratch.file("disk.img", &[0; 1 << 20]);
    let link = path(&scratch, "link.img");
    std::fs::hard_link(&file, &link).unwrap();
    let server = Server::start(&[&file, &link, "mem:1M"]);
    let found = uuids(&server);
    assert_eq!(found[0], found[1]);
    assert_ne!(found[0], found[2]);
    drop(server);
    let copy = scratch.file("copy.img", &[0; 1 << 20]);
    std::fs::create_dir(path(&scratch, "copy.img.lunar")).unwrap();
    std::fs::copy(path(&scratch, "disk.img.lunar/uuid"), path(&scratch, "copy.img.lunar/uuid"))
        .unwrap();
    let refused = run(&["serve", &file, &copy, "--listen", "127.0.0.1:0"]);
    assert_exit(&refused, 1);
    assert!(printed(&refused).contains("identity of another disk"), "{}", printed(&refused));
}

/// Goal: a damaged identity prevents the start, and the disk gets no new identity.
#[test]
fn a_damaged_identity_is_not_replaced() {
    let scratch = Scratch::new("damaged");
    let file = scratch.file("disk.img", &[0; 1 << 20]);
    drop(Server::start(&[&file]));
    let kept = path(&scratch, "disk.img.lunar/uuid");
    std::fs::write(&kept, "").unwrap();
    let refused = run(&["serve", &file, "--listen", "127.0.0.1:0"]);
    assert_exit(&refused, 1);
    assert!(printed(&refused).contains("does not contain a UUID"), "{}", printed(&refused));
    assert_eq!(std::fs::read(&kept).unwrap(), b"");
}

/// Goal: the uuid of the configuration is used, whatever its state directory held before.
#[test]
fn a_configured_uuid_counts() {
    let scratch = Scratch::new("configured");
    scratch.file("disk.img", &[0; 1 << 20]);
    let uuid = "0b0f3c1e-7d55-4f0e-9b1d-2f6c5c1f9a10";
    let text = format!(
        "state = \"state\"\n[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\n\
         name = \"iqn.2026-11.org.example:a\"\n[[target.lun]]\nid = 3\ndevice = \"disk.img\"\n\
         uuid = \"{uuid}\"\n"
    );
    let config = scratch.file("lunar.toml", text.as_bytes());
    let server = Server::start_command(lunar(&["target", "--config", &config]));
    assert_eq!(uuids(&server), [uuid]);
    assert_eq!(server.report["targets"][0]["luns"][0]["id"], Value::from(3));
    assert!(scratch.path().join("state").join(uuid).is_dir());
    assert_exit(&server.stop().0, 0);
}
