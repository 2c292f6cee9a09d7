//! Shell commands that a person can paste to use the served disks.

use lunar_control::secrets::SECRET_VARIABLE;
use std::path::{Path, PathBuf};

/// Credentials and name that a client needs.
#[derive(Debug, Default)]
pub struct ClientCredentials {
    /// CHAP user, and the file with the secret; without a file the secret is in the environment.
    pub chap: Option<(String, Option<PathBuf>)>,
    /// Credentials for discovery, if they differ.
    pub discovery_chap: Option<(String, Option<PathBuf>)>,
    /// The name of an initiator that may log in.
    pub initiator: Option<String>,
}

impl ClientCredentials {
    /// Commands for discovery, followed by those for a LUN of a target.
    pub fn lines(&self, portal: &str, target: &str, lun: Option<u16>) -> Vec<String> {
        let mut lines = Vec::new();
        let name = self.initiator.as_ref();
        let iscsi_ls =
            "iscsi-ls".to_owned() + &name.map_or_else(String::new, |n| format!(" -i {n}"));
        // iscsi-ls uses one credential both for discovery and for the targets it finds.
        if let Some((user, file)) = &self.discovery_chap {
            lines.push(format!("{} {iscsi_ls} {portal}", libiscsi(user, file.as_deref())));
        }
        if let Some((user, file)) = &self.chap {
            lines.push(format!("export {}", libiscsi(user, file.as_deref())));
        }
        if self.discovery_chap.is_none() {
            lines.push(format!("{iscsi_ls} -s {portal}"));
        }
        let Some(lun) = lun else { return lines };
        let url = format!("{portal}/{target}/{lun}");
        // qemu-img has no option for its initiator name.
        if self.initiator.is_none() {
            lines.push(format!("qemu-img info '{url}'"));
        }
        let mut lunar = "lunar info".to_owned();
        if let Some((user, file)) = &self.chap {
            lunar.push_str(&format!(" --chap-user {}", quoted(user)));
            if let Some(file) = file {
                let file = quoted(&file.display().to_string());
                lunar.push_str(&format!(" --chap-secret-file {file}"));
            }
        }
        if let Some(name) = name {
            lunar.push_str(&format!(" --initiator-name {name}"));
        }
        lines.push(format!("{lunar} '{url}'"));
        lines
    }
}

/// Environment variables from which libiscsi reads a credential.
fn libiscsi(user: &str, file: Option<&Path>) -> String {
    let secret = match file {
        Some(file) => format!("\"$(cat {})\"", quoted(&file.display().to_string())),
        None => format!("\"${SECRET_VARIABLE}\""),
    };
    format!("LIBISCSI_CHAP_USERNAME={} LIBISCSI_CHAP_PASSWORD={secret}", quoted(user))
}

/// The text quoted as one word of a shell command.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> Option<PathBuf> {
        Some(PathBuf::from(path))
    }

    #[test]
    fn without_credentials() {
        let lines = ClientCredentials::default().lines("iscsi://p:1", "iqn.x", Some(3));
        let expected = ["iscsi-ls -s iscsi://p:1", "qemu-img info 'iscsi://p:1/iqn.x/3'"];
        assert_eq!(lines[..2], expected);
        assert_eq!(lines[2..], ["lunar info 'iscsi://p:1/iqn.x/3'"]);
    }

    #[test]
    fn discovery_with_another_credential() {
        let clients = ClientCredentials {
            chap: Some(("it's me".into(), file("a b"))),
            discovery_chap: Some(("find".into(), file("f"))),
            initiator: Some("iqn.i".into()),
        };
        assert_eq!(
            clients.lines("iscsi://p:1", "iqn.x", Some(0)),
            [
                "LIBISCSI_CHAP_USERNAME='find' LIBISCSI_CHAP_PASSWORD=\"$(cat 'f')\" \
                 iscsi-ls -i iqn.i iscsi://p:1",
                "export LIBISCSI_CHAP_USERNAME='it'\\''s me' \
                 LIBISCSI_CHAP_PASSWORD=\"$(cat 'a b')\"",
                "lunar info --chap-user 'it'\\''s me' --chap-secret-file 'a b' \
                 --initiator-name iqn.i 'iscsi://p:1/iqn.x/0'",
            ]
        );
    }

    #[test]
    fn a_secret_in_the_environment() {
        let clients =
            ClientCredentials { chap: Some(("u".into(), None)), ..ClientCredentials::default() };
        let lines = clients.lines("iscsi://p:1", "iqn.x", None);
        let export =
            "export LIBISCSI_CHAP_USERNAME='u' LIBISCSI_CHAP_PASSWORD=\"$LUNAR_CHAP_SECRET\"";
        assert_eq!(lines, [export, "iscsi-ls -s iscsi://p:1"]);
    }
}
