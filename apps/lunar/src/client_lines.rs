//! Shell commands that a person can paste to use the served disks.

use lunar_control::client::client_address;
use lunar_control::config::model::{ChapConfig, Configuration, LunConfig, TargetConfig};
use lunar_control::secrets::SECRET_VARIABLE;
use lunar_target::{Access, Network};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
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

/// A URL that clients use to reach a portal.
#[derive(Debug, Eq, PartialEq)]
pub struct ClientUrl {
    /// `iscsi://HOST:PORT`.
    pub url: String,
    /// A comment that says where clients have to be, if that is not this machine.
    pub note: Option<String>,
}

impl ClientUrl {
    /// The URL for clients that the first target of `configuration` admits. `source` returns the
    /// address from which this machine reaches another one.
    pub fn of(
        configuration: &Configuration,
        listen: SocketAddr,
        advertised: Option<&str>,
        source: impl Fn(IpAddr) -> Option<IpAddr>,
    ) -> Self {
        let own = client_address(listen);
        let target = configuration.targets.first();
        let lun_access = target.and_then(|target| target.luns.first()).map(|lun| &lun.access);
        let lists = [target.map(|target| &target.access), lun_access];
        let lists = lists.into_iter().flatten().map(|access| &access.networks);
        let lists: Vec<&Vec<Network>> = lists.filter(|networks| !networks.is_empty()).collect();
        let admits = |address: IpAddr| lists.iter().all(|networks| contains(networks, address));
        let note = || {
            let networks = lists.last().into_iter().copied().flatten();
            let networks: Vec<_> = networks.map(ToString::to_string).collect();
            Some(format!("# on a machine in {}:", networks.join(" ")))
        };
        if let Some(advertised) = advertised {
            let note = if lists.is_empty() { None } else { note() };
            return Self { url: format!("iscsi://{advertised}"), note };
        }
        // A client on this machine has the address that it connects to.
        let reached = match admits(own.ip()) || !listen.ip().is_unspecified() {
            true => own.ip(),
            false => {
                let networks = lists.iter().copied().flatten();
                let found = networks.filter_map(|network| source(network.address));
                let found: Vec<_> = found.collect();
                let admitted = found.iter().find(|address| admits(**address));
                admitted.or(found.first()).copied().unwrap_or(own.ip())
            }
        };
        let url = format!("iscsi://{}", SocketAddr::new(reached, own.port()));
        Self { url, note: if admits(reached) { None } else { note() } }
    }
}

fn contains(networks: &[Network], address: IpAddr) -> bool {
    let access = Access { initiators: Vec::new(), networks: networks.to_vec() };
    access.allows("", address)
}

/// The address from which this machine reaches the network of `address`; nothing is sent.
pub fn source_address(address: IpAddr) -> Option<IpAddr> {
    // The first address of a network often stands for the network itself.
    let (any, next): (IpAddr, IpAddr) = match address {
        IpAddr::V4(ip) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::from(u32::from(ip) | 1).into()),
        IpAddr::V6(ip) => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::from(u128::from(ip) | 1).into()),
    };
    let source = |address: IpAddr| {
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
        socket.connect(SocketAddr::new(address, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    source(address).or_else(|| source(next))
}

fn credential(chap: &ChapConfig) -> (String, Option<PathBuf>) {
    (chap.requirement.initiator.user.clone(), chap.secret_file.clone())
}

impl ClientCredentials {
    /// The name and credentials of an initiator that sees the first LUN of the first target.
    pub fn of(configuration: &Configuration) -> Self {
        let Some(target) = configuration.targets.first() else { return Self::default() };
        let initiator = initiator(target, target.luns.first());
        let chap_of = |name: Option<&String>| {
            target.chap.iter().find(|chap| match (&chap.initiator, name) {
                (Some(one), Some(other)) => one.eq_ignore_ascii_case(other),
                (one, other) => one.is_none() && other.is_none(),
            })
        };
        let chap = chap_of(initiator).or_else(|| chap_of(None)).map(credential);
        let discovery = configuration.discovery_chap.as_ref().map(credential);
        Self {
            discovery_chap: discovery.filter(|discovery| chap.as_ref() != Some(discovery)),
            chap,
            initiator: initiator.cloned(),
        }
    }

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
        // iscsiadm reads credentials and names from files of root. A comment, because the other
        // commands need no root.
        if self.chap.is_none() && self.discovery_chap.is_none() && self.initiator.is_none() {
            let address = portal.trim_start_matches("iscsi://");
            let command = format!("iscsiadm -m discovery -t sendtargets -p {address} --login");
            lines.push(format!("# Linux, as root: {command}"));
        }
        lines
    }
}

/// The name of an initiator that may log in and sees the LUN; `None` if any may.
fn initiator<'c>(target: &'c TargetConfig, lun: Option<&'c LunConfig>) -> Option<&'c String> {
    let by_lun = lun.map(|lun| &lun.access.initiators);
    let lists = [by_lun, Some(&target.access.initiators)].into_iter().flatten();
    let lists: Vec<_> = lists.filter(|names| !names.is_empty()).collect();
    let is_in = |names: &[String], name: &str| names.iter().any(|n| n.eq_ignore_ascii_case(name));
    let with_chap = target.chap.iter().filter_map(|chap| chap.initiator.as_ref());
    let has_chap = |name: &str| {
        let is_for = |chap: &ChapConfig| {
            chap.initiator.as_ref().is_none_or(|n| n.eq_ignore_ascii_case(name))
        };
        target.chap.is_empty() || target.chap.iter().any(is_for)
    };
    let needs_name = !lists.is_empty() || target.chap.iter().all(|chap| chap.initiator.is_some());
    let mut names = lists.iter().copied().flatten().chain(with_chap);
    names
        .find(|name| lists.iter().all(|list| is_in(list, name)) && has_chap(name))
        .filter(|_| needs_name)
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
        let linux = "# Linux, as root: iscsiadm -m discovery -t sendtargets -p p:1 --login";
        assert_eq!(lines[2..], ["lunar info 'iscsi://p:1/iqn.x/3'", linux]);
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

    fn configuration(target: &str) -> Configuration {
        let text = format!(
            "[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\n\
             name = \"iqn.2026-11.org.example:a\"\n{target}\n[[target.lun]]\n\
             id = 0\ndevice = \"mem:1M\"\n"
        );
        lunar_control::config::parse(&text, Path::new("/lunar.toml")).unwrap()
    }

    /// Goal: the URL is one that the target admits, or a comment says from where.
    /// Fault: 127.0.0.1 was printed although only another network was admitted.
    #[test]
    fn the_url_is_admitted() {
        let networks = "networks = [\"192.0.2.0/24\", \"2001:db8::/64\"]";
        let far = Some("# on a machine in 192.0.2.0/24 2001:db8::/64:");
        let here: fn(IpAddr) -> Option<IpAddr> = |to| to.is_ipv4().then(|| [192, 0, 2, 7].into());
        let routed: fn(IpAddr) -> Option<IpAddr> = |_| Some([10, 0, 0, 1].into());
        let none: fn(IpAddr) -> Option<IpAddr> = |_| None;
        for (target, listen, advertised, source, url, note) in [
            ("", "0.0.0.0:1", None, none, "iscsi://127.0.0.1:1", None),
            ("networks = [\"127.0.0.0/8\"]", "0.0.0.0:1", None, none, "iscsi://127.0.0.1:1", None),
            (networks, "0.0.0.0:1", None, here, "iscsi://192.0.2.7:1", None),
            (networks, "[::]:1", None, here, "iscsi://192.0.2.7:1", None),
            (networks, "0.0.0.0:1", None, routed, "iscsi://10.0.0.1:1", far),
            (networks, "0.0.0.0:1", None, none, "iscsi://127.0.0.1:1", far),
            (networks, "192.0.2.9:1", None, none, "iscsi://192.0.2.9:1", None),
            (networks, "10.0.0.1:1", None, here, "iscsi://10.0.0.1:1", far),
            (networks, "0.0.0.0:1", Some("san:3"), here, "iscsi://san:3", far),
        ] {
            let found =
                ClientUrl::of(&configuration(target), listen.parse().unwrap(), advertised, source);
            let expected = ClientUrl { url: url.to_owned(), note: note.map(str::to_owned) };
            assert_eq!(found, expected, "{target} {listen}");
        }
    }
}
