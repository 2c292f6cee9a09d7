//! The keys of a LUN that concern remote LUNs (devices `iscsi://…`), and their effect on the
//! other LUNs.

use super::file::{Located, TableReader, TextSpan};
use super::model::{ChapConfig, Configuration};
use super::resolve::Resolver;
use super::resolve_chap::login_chap;
use crate::Failure;
use crate::device_url::{DeviceUrl, IdentitySource, NO_IDENTITY};
use lunar_initiator::{Url, parse_portal};
use lunar_target::Portal;
use std::net::{IpAddr, UdpSocket};

/// Keys without effect on a remote LUN, with the reason.
const KEYS_OF_LOCAL_DEVICES: [(&str, &str); 4] = [
    ("io", "the target of the LUN determines how it stores data"),
    ("block_size", "the target of the LUN determines it"),
    ("physical_block_size", "the target of the LUN determines it"),
    ("thin_threshold", "only a thin disk in a sparse file can have a threshold"),
];

/// The keys of a LUN that only a remote LUN has.
#[derive(Debug)]
pub struct RemoteLunKeys {
    /// The key of the credentials.
    chap_key: &'static str,
    chap: Option<Located<ChapConfig>>,
    identity: Option<Located<IdentitySource>>,
}

/// Reads the keys of a LUN that only a remote LUN has.
pub fn remote_lun_keys(
    table: &mut TableReader<'_, '_>,
    resolver: &mut Resolver<'_>,
) -> RemoteLunKeys {
    let chap = login_chap("device_chap", table, resolver);
    let text = table.string("identity", &mut resolver.problems);
    let identity = text.and_then(|text| {
        let sources = [IdentitySource::Own, IdentitySource::Device];
        let source = sources.into_iter().find(|source| source.name() == text.value);
        let source = source.ok_or("write \"own\" or \"device\"".to_owned());
        let value = resolver.ok_or_report("identity", &text, source)?;
        Some(Located { value, span: text.span })
    });
    RemoteLunKeys { chap_key: "device_chap", chap, identity }
}

impl RemoteLunKeys {
    /// The keys of a storage, which has no identity for hosts.
    pub fn of_storage(chap: Option<Located<ChapConfig>>) -> Self {
        Self { chap_key: "chap", chap, identity: None }
    }

    /// The credentials for the login to the target of the LUN.
    pub fn chap(&self) -> Option<ChapConfig> {
        self.chap.as_ref().map(|chap| chap.value.clone())
    }

    /// The identity that initiators see.
    pub fn identity(&self) -> IdentitySource {
        self.identity.as_ref().map(|identity| identity.value).unwrap_or_default()
    }

    /// Checks the keys of the table against its device, which is named at `at`.
    pub fn check(
        &self,
        table: &TableReader<'_, '_>,
        device: &DeviceUrl,
        at: &TextSpan,
        resolver: &mut Resolver<'_>,
    ) -> Option<()> {
        self.check_chap(device, at, resolver)?;
        let problems = &mut resolver.problems;
        let of_device =
            self.identity.as_ref().filter(|source| source.value == IdentitySource::Device);
        if let Some(identity) = of_device {
            if device.portal().is_none() {
                let what = format!("{device} has no identity that can be passed on");
                problems.add(&identity.span, what, Some(NO_IDENTITY.to_owned()));
            } else if table.has("uuid") {
                let what = "`uuid` is an identity of its own, and `identity` is \"device\"";
                let hint = "omit one of them".to_owned();
                problems.add(&identity.span, what, Some(hint));
            }
        }
        let Some(url) = device.portal() else { return Some(()) };
        for (key, why) in KEYS_OF_LOCAL_DEVICES {
            if let Some(span) = table.span_of(key) {
                let what = format!("`{key}` is not allowed for a remote LUN");
                problems.add(&span, what, Some(format!("omit `{key}`: {why}")));
            }
        }
        resolver.remote_luns.push(Located { value: url.clone(), span: at.clone() });
        Some(())
    }

    /// Checks that credentials and a user in the URL occur together, and match.
    fn check_chap(
        &self,
        device: &DeviceUrl,
        at: &TextSpan,
        resolver: &mut Resolver<'_>,
    ) -> Option<()> {
        let url_user = device.portal().and_then(|url| url.user.as_ref());
        let (span, what, hint) = match &self.chap {
            Some(chap) if device.portal().is_none() => {
                let hint = "omit it: only a device iscsi://… is opened with a login";
                (&chap.span, "`device_chap` is only for a remote LUN", hint.to_owned())
            }
            Some(chap)
                if url_user.is_some_and(|user| *user != chap.value.requirement.initiator.user) =>
            {
                let what = "the user differs from that in the URL of the device";
                (&chap.span, what, "omit the user in the URL".to_owned())
            }
            None if url_user.is_some() => {
                let key = self.chap_key;
                let hint = format!("add {key} = {{ user = \"…\", secret_file = \"…\" }}");
                (at, "the URL of the device names a user, but there is no secret", hint)
            }
            _ => return Some(()),
        };
        resolver.problems.add(span, what, Some(hint));
        None
    }
}

/// Checks that no remote LUN is a LUN of this configuration, and that each is used once. Nothing
/// is sent to the network.
pub fn check_remote_luns(resolver: &mut Resolver<'_>, configuration: &Configuration) {
    let luns = std::mem::take(&mut resolver.remote_luns);
    let mut earlier = Vec::new();
    for lun in &luns {
        let conflict = conflict(&lun.value, &earlier, configuration);
        earlier.push(&lun.value);
        if let Some((what, hint)) = conflict {
            resolver.problems.add(&lun.span, what, Some(hint));
        }
    }
}

/// The checks of [`check_remote_luns`], for a configuration that changes while it is served.
///
/// # Errors
/// Fails for the first remote LUN that is a LUN of this configuration, or is used twice.
pub fn check_remote_luns_of(configuration: &Configuration) -> Result<(), Failure> {
    let luns = configuration.targets.iter().flat_map(|target| &target.luns);
    let served = luns.map(|lun| &lun.unit.device);
    let members =
        configuration.pools.iter().flat_map(|pool| pool.members.iter().chain(&pool.spares));
    let all = served.chain(members.map(|member| &member.device)).filter_map(DeviceUrl::portal);
    let storages = configuration.storages.iter().map(|storage| &storage.url);
    let mut earlier = Vec::new();
    for url in all.chain(storages) {
        if let Some((what, hint)) = conflict(url, &earlier, configuration) {
            return Err(Failure::conflict(what).hint(hint));
        }
        earlier.push(url);
    }
    Ok(())
}

/// Returns a message and a hint if a remote LUN is one of `configuration` or of `earlier`.
fn conflict(
    url: &Url,
    earlier: &[&Url],
    configuration: &Configuration,
) -> Option<(String, String)> {
    let unit = url.unit.as_ref()?;
    let same_name = |other: &str| other.eq_ignore_ascii_case(&unit.target);
    let is_same = |other: &&Url| {
        let other = other.unit.as_ref();
        other.is_some_and(|other| other.lun == unit.lun && same_name(&other.target))
    };
    if earlier.iter().any(is_same) {
        let what = format!("LUN {} of {} is used twice", unit.lun, unit.target);
        let hint = "use a LUN of another target only once: two disks have no common locks";
        return Some((what, hint.to_owned()));
    }
    configuration.targets.iter().find(|target| same_name(&target.name))?;
    let mut servers = configuration.portals.iter().map(|portal| server_of(url, portal));
    let what = format!("{url} is a LUN of this configuration: a disk cannot be its own storage");
    match servers.by_ref().max()? {
        UrlServer::Other => None,
        UrlServer::This => Some((what, "name a LUN of another server".to_owned())),
        UrlServer::Unknown => Some((
            format!("{url} may be a LUN of this configuration, which has a target with that name"),
            "write the IP address of the other server instead of its name".to_owned(),
        )),
    }
}

/// The server of a URL, as far as it is known without the network.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum UrlServer {
    Other,
    Unknown,
    This,
}

/// Returns the server of a URL, with regard to this portal.
fn server_of(url: &Url, portal: &Portal) -> UrlServer {
    let advertised = portal.advertise.as_deref().and_then(|text| parse_portal(text).ok());
    if advertised
        .is_some_and(|(host, port)| host.eq_ignore_ascii_case(&url.host) && port == url.port)
    {
        return UrlServer::This;
    }
    let listen = portal.listen;
    if listen.port() != url.port {
        return UrlServer::Other;
    }
    let (is_wildcard, is_loopback) = (listen.ip().is_unspecified(), listen.ip().is_loopback());
    // Without the zone of a link-local address.
    let host = url.host.split('%').next().unwrap_or_default();
    let is_this = match host.parse::<IpAddr>() {
        Ok(address) => {
            let is_local = || address.is_loopback() || UdpSocket::bind((address, 0)).is_ok();
            address == listen.ip() || (is_wildcard && is_local())
        }
        Err(_) if host.trim_end_matches('.').eq_ignore_ascii_case("localhost") => {
            is_wildcard || is_loopback
        }
        Err(_) if is_loopback => false,
        Err(_) => return UrlServer::Unknown,
    };
    if is_this { UrlServer::This } else { UrlServer::Other }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a URL is recognized as one of this server without the network: by the address, by the
    /// advertised one, and on every address.
    #[test]
    fn portals_of_this_server() {
        let portal = |listen: &str, advertise: Option<&str>| Portal {
            advertise: advertise.map(str::to_owned),
            ..Portal::new(listen.parse().unwrap())
        };
        let every = portal("0.0.0.0:3260", None);
        let one = portal("192.0.2.7:3260", Some("san.example:860"));
        let loopback = portal("[::1]:3260", None);
        for (host, portal, expected) in [
            ("192.0.2.7", &one, UrlServer::This),
            ("192.0.2.7:3261", &one, UrlServer::Other),
            ("192.0.2.8", &one, UrlServer::Other),
            ("SAN.example:860", &one, UrlServer::This),
            ("san.example", &one, UrlServer::Unknown),
            ("127.0.0.1", &one, UrlServer::Other),
            ("localhost", &one, UrlServer::Other),
            ("127.0.0.1", &every, UrlServer::This),
            ("127.8.0.1", &every, UrlServer::This),
            ("localhost.", &every, UrlServer::This),
            ("192.0.2.7", &every, UrlServer::Other), // for documentation: no interface has it
            ("other.example", &every, UrlServer::Unknown),
            ("other.example:860", &every, UrlServer::Other),
            ("[::1]", &loopback, UrlServer::This),
            ("localhost", &loopback, UrlServer::This),
            ("other.example", &loopback, UrlServer::Other),
        ] {
            let url: Url = format!("iscsi://{host}/iqn.2026-11.org.example:a/0").parse().unwrap();
            assert_eq!(server_of(&url, portal), expected, "{host} {portal:?}");
        }
    }
}
