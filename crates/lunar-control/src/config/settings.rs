//! A configuration as keys and values, the basis of differences, drift and the lines to paste.

use super::api_options::{ApiListen, ApiOptions};
use super::defaults::{default_offer, default_portal};
use super::model::{
    ChapConfig, Configuration, LunConfig, PoolConfig, PoolMemberConfig, TargetConfig,
};
use super::setting::{Setting, Value};
use super::virtual_lun::{self, StorageConfig};
use crate::device_url::{DeviceOptions, DeviceUrl, IdentitySource};
use crate::secrets;
use lunar_iscsi::text::Digest;
use lunar_target::{Access, CacheMode, InitiatorLimit, Limit, OutOfSpace, Portal};
use std::path::PathBuf;

fn chap_value(chap: &ChapConfig) -> Value {
    let mut table = Vec::new();
    let requirement = &chap.requirement;
    if let Some(initiator) = &chap.initiator {
        table.push(("initiator", Value::text(initiator)));
    }
    table.push(("user", Value::text(&requirement.initiator.user)));
    if let Some(file) = &chap.secret_file {
        table.push(("secret_file", Value::path(file)));
    }
    if let (Some(own), Some(file)) = (&requirement.target, &chap.mutual_secret_file) {
        table.push(("mutual_user", Value::text(&own.user)));
        table.push(("mutual_secret_file", Value::path(file)));
    }
    // The order of the algorithms is their order of preference.
    if !requirement.algorithms.iter().eq(secrets::ALGORITHMS.iter().map(|(known, _)| known)) {
        let name = |wanted| secrets::ALGORITHMS.iter().find(|(known, _)| known == wanted);
        let names = requirement.algorithms.iter().filter_map(name);
        let names = names.map(|(_, name)| Value::text(*name)).collect();
        table.push(("algorithms", Value::List(names)));
    }
    if chap.allow_short_secrets {
        table.push(("allow_short_secrets", Value::Flag(true)));
    }
    Value::Table(table)
}

fn chap_setting(key: &'static str, chaps: &[&ChapConfig]) -> Setting {
    let value = match chaps {
        [] => None,
        [one] if one.initiator.is_none() => Some(chap_value(one)),
        several => Some(Value::List(several.iter().map(|chap| chap_value(chap)).collect())),
    };
    let secrets = chaps.iter().flat_map(|chap| {
        let own = chap.requirement.target.iter().map(|own| own.secret.clone());
        std::iter::once(chap.requirement.initiator.secret.clone()).chain(own)
    });
    Setting { secrets: secrets.collect(), ..Setting::optional(key, value) }
}

fn access_settings(access: &Access) -> [Setting; 2] {
    let texts = |list: Vec<String>| list.into_iter().map(Value::Text).collect();
    let networks = access.networks.iter().map(ToString::to_string).collect();
    [
        Setting::list("initiators", texts(access.initiators.clone())),
        Setting::list("networks", texts(networks)),
    ]
}

/// Builds `administer`: an empty list means nobody, unlike no list.
fn administer(names: Option<&Vec<String>>) -> Setting {
    let names = names.map(|names| Value::List(names.iter().map(Value::text).collect()));
    Setting::optional("administer", names)
}

fn limit_keys(limit: Limit) -> Vec<(&'static str, Value)> {
    let iops = limit.iops().map(|iops| ("iops", Value::Number(iops)));
    let bandwidth = limit.bytes_per_second().map(|rate| ("bandwidth", Value::Rate(rate)));
    iops.into_iter().chain(bandwidth).collect()
}

fn initiator_limits(limits: &[InitiatorLimit]) -> Vec<Value> {
    let limits = limits.iter().map(|entry| {
        let name = entry.initiator.as_ref().map(|name| ("initiator", Value::text(name)));
        Value::Table(name.into_iter().chain(limit_keys(entry.limit)).collect())
    });
    limits.collect()
}

/// The keys of `[[target.lun]]`.
pub fn of_lun(lun: &LunConfig) -> Vec<Setting> {
    let unit = &lun.unit;
    let (options, defaults) = (&unit.options, DeviceOptions::default());
    let cache = |mode| {
        Value::text(match mode {
            CacheMode::WriteThrough => "write-through",
            CacheMode::WriteBack => "write-back",
        })
    };
    let io = |direct| Value::text(if direct { "direct" } else { "buffered" });
    let hold = |policy| {
        Value::text(match policy {
            OutOfSpace::Fail => "fail",
            OutOfSpace::Hold => "hold",
        })
    };
    let size = |bytes: u32| Value::Size(bytes.into());
    let threshold = unit.thin_threshold_percent.map(|percent| Value::Text(format!("{percent}%")));
    let mut settings = vec![
        Setting::new("id", Some(Value::Number(lun.id.into())), false),
        Setting::optional("uuid", unit.uuid.map(|uuid| Value::Text(uuid.to_string()))),
        match &unit.device {
            DeviceUrl::Virtual(_) => Setting::optional("device", None),
            device => Setting::new("device", Some(Value::device(device)), false),
        },
        chap_setting("device_chap", &options.chap.iter().collect::<Vec<_>>()),
        Setting::with_default("identity", unit.identity, IdentitySource::Own, |source| {
            Value::text(source.name())
        }),
        // The extents of a virtual LUN determine its size.
        Setting {
            default: options.size_bytes.is_none() || options.virtual_disk.is_some(),
            ..Setting::optional("size", options.size_bytes.map(Value::Size))
        },
        Setting::with_default("cache", unit.cache, CacheMode::default(), cache),
        Setting::with_default("io", options.direct, defaults.direct, io),
        Setting::with_default("block_size", options.block_bytes, defaults.block_bytes, size),
        Setting::with_default(
            "physical_block_size",
            options.physical_block_bytes,
            defaults.physical_block_bytes,
            size,
        ),
        Setting::with_default("read_only", options.read_only, defaults.read_only, Value::Flag),
        Setting::with_default("removable", unit.removable, false, Value::Flag),
        Setting::with_default("thin", options.thin, defaults.thin, Value::Flag),
        Setting::optional("thin_threshold", threshold),
        Setting::with_default("out_of_space", unit.out_of_space, OutOfSpace::default(), hold),
        Setting::optional("maintenance_rate", unit.maintenance_bytes_per_second.map(Value::Rate)),
    ];
    settings.extend(virtual_lun::settings_of(unit));
    settings.extend(access_settings(&lun.access));
    settings.push(administer(lun.administer.as_ref()));
    let limit = (!lun.limit.is_none()).then(|| Value::Table(limit_keys(lun.limit)));
    settings.extend([
        Setting::optional("limit", limit),
        Setting::list("initiator_limit", initiator_limits(&lun.initiator_limits)),
    ]);
    settings
}

/// The keys of `[[pool]]`.
pub fn of_pool(pool: &PoolConfig) -> Vec<Setting> {
    let defaults = DeviceOptions::default();
    let devices = |list: &[PoolMemberConfig]| {
        Value::List(list.iter().map(|member| Value::device(&member.device)).collect())
    };
    let spares = (!pool.spares.is_empty()).then(|| devices(&pool.spares));
    // All members have the same options.
    let options = pool.members.first().map_or(&defaults, |member| &member.options);
    let chap =
        pool.members.iter().chain(&pool.spares).find_map(|member| member.options.chap.as_ref());
    let size = |bytes: u32| Value::Size(bytes.into());
    let io = |direct| Value::text(if direct { "direct" } else { "buffered" });
    let wait = pool.member_wait.map(|wait| Value::Number(wait.as_secs()));
    let lease = pool.lease.map(|lease| Value::Number(lease.as_secs()));
    let rate = pool.resync_bytes_per_second.map(|rate| Value::Rate(rate.get()));
    vec![
        Setting::new("name", Some(Value::text(&pool.name)), false),
        Setting::new("members", Some(devices(&pool.members)), false),
        Setting::optional("spares", spares),
        chap_setting("device_chap", &chap.into_iter().collect::<Vec<_>>()),
        Setting::with_default("io", options.direct, defaults.direct, io),
        Setting::with_default("block_size", options.block_bytes, defaults.block_bytes, size),
        Setting::with_default(
            "physical_block_size",
            options.physical_block_bytes,
            defaults.physical_block_bytes,
            size,
        ),
        Setting::with_default("degraded", pool.degraded, false, Value::Flag),
        Setting::optional("member_wait_seconds", wait),
        Setting::optional("resync_rate", rate),
        Setting::optional("lease_seconds", lease),
    ]
}

/// The keys of `[[storage]]`.
pub fn of_storage(storage: &StorageConfig) -> Vec<Setting> {
    let mut settings = virtual_lun::storage_values(storage).to_vec();
    settings.push(chap_setting("chap", &storage.chap.iter().collect::<Vec<_>>()));
    settings
}

/// The keys of `[[target]]`, without its LUNs.
pub fn of_target(target: &TargetConfig) -> Vec<Setting> {
    let defaults = default_offer();
    let digests = |list: Vec<Digest>| {
        let names = list.iter().map(|digest| match digest {
            Digest::None => Value::text("none"),
            Digest::Crc32c => Value::text("crc32c"),
        });
        Value::List(names.collect())
    };
    let offer = &target.offer;
    let mut settings = vec![
        Setting::new("name", Some(Value::text(&target.name)), false),
        Setting::optional("alias", target.alias.as_ref().map(Value::text)),
    ];
    settings.extend(access_settings(&target.access));
    settings.push(administer(target.administer.as_ref()));
    settings.extend([
        Setting::with_default("portal_group", target.portal_group, 1, |tag| {
            Value::Number(tag.into())
        }),
        chap_setting("chap", &target.chap.iter().collect::<Vec<_>>()),
        Setting::with_default(
            "max_connections",
            offer.max_connections,
            defaults.max_connections,
            |count| Value::Number(count.into()),
        ),
        Setting::with_default(
            "header_digest",
            offer.header_digest.clone(),
            defaults.header_digest,
            digests,
        ),
        Setting::with_default(
            "data_digest",
            offer.data_digest.clone(),
            defaults.data_digest,
            digests,
        ),
        Setting::optional("redirect", target.redirect.as_ref().map(Value::text)),
        Setting::list("limit", initiator_limits(&target.initiator_limits)),
    ]);
    settings
}

fn portal_value(portal: &Portal) -> Value {
    let listen = Value::Text(portal.listen.to_string());
    if portal.advertise.is_none() && portal.portal_group.is_none() {
        return listen;
    }
    let mut table = vec![("listen", listen)];
    table.extend(portal.advertise.as_ref().map(|text| ("advertise", Value::text(text))));
    let group = portal.portal_group.map(|tag| ("portal_group", Value::Number(tag.into())));
    table.extend(group);
    Value::Table(table)
}

/// The keys outside of `[[target]]`, by section; "" has the keys outside of all sections.
pub fn of_server(configuration: &Configuration) -> Vec<(&'static str, Vec<Setting>)> {
    let portals = &configuration.portals;
    let listen = Setting::new(
        "portals",
        Some(Value::List(portals.iter().map(portal_value).collect())),
        *portals == [default_portal()],
    );
    let discovery = configuration.discovery_chap.iter().collect::<Vec<_>>();
    let cores = configuration.cores as u64;
    let metrics = configuration.metrics.map(|address| Value::text(address.to_string()));
    vec![
        ("", vec![Setting::optional("state", configuration.state.as_deref().map(Value::path))]),
        ("listen", vec![listen]),
        ("discovery", vec![chap_setting("chap", &discovery)]),
        ("api", of_api(&configuration.api)),
        ("metrics", vec![Setting::optional("listen", metrics)]),
        ("limits", configuration.limits.settings()),
        (
            "data_path",
            vec![
                Setting::with_default("cores", cores, 0, Value::Number),
                Setting::with_default(
                    "latency_mode",
                    configuration.latency_mode,
                    false,
                    Value::Flag,
                ),
                Setting::with_default("io_uring", configuration.io_uring, true, Value::Flag),
            ],
        ),
    ]
}

/// The keys of `[api]`.
pub fn of_api(options: &ApiOptions) -> Vec<Setting> {
    let path = |path: &PathBuf| Value::path(path);
    let listen = match &options.listen {
        ApiListen::Default => None,
        ApiListen::Disabled => Some(Value::text("none")),
        ApiListen::At(address) => Some(Value::text(address.to_string())),
    };
    let tls = options.tls.as_ref().map(|files| {
        Value::Table(vec![
            ("certificate_file", path(&files.certificate)),
            ("key_file", path(&files.key)),
        ])
    });
    vec![
        Setting::optional("listen", listen),
        Setting::optional("token_file", options.token_file.as_ref().map(path)),
        Setting::optional("tls", tls),
    ]
}

/// The whole configuration as JSON; secrets are named by their files.
pub fn json(configuration: &Configuration) -> serde_json::Value {
    let object = |settings: &[Setting]| {
        let shown = settings
            .iter()
            .filter_map(|setting| Some((setting.key.to_owned(), setting.value.as_ref()?.json())));
        shown.collect::<serde_json::Map<_, _>>()
    };
    let mut all = serde_json::Map::new();
    for (section, settings) in of_server(configuration) {
        let keys = object(&settings);
        match section {
            "" => all.extend(keys),
            _ if keys.is_empty() => {}
            _ => {
                all.insert(section.to_owned(), keys.into());
            }
        }
    }
    let storages = configuration.storages.iter().map(|one| object(&of_storage(one)).into());
    all.insert("storages".to_owned(), serde_json::Value::Array(storages.collect()));
    let pools = configuration.pools.iter().map(|pool| object(&of_pool(pool)).into());
    all.insert("pools".to_owned(), serde_json::Value::Array(pools.collect()));
    let targets = configuration.targets.iter().map(|target| {
        let mut keys = object(&of_target(target));
        let luns = target.luns.iter().map(|lun| object(&of_lun(lun)).into());
        keys.insert("luns".to_owned(), serde_json::Value::Array(luns.collect()));
        serde_json::Value::Object(keys)
    });
    all.insert("targets".to_owned(), serde_json::Value::Array(targets.collect()));
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_iscsi::login::Secret;

    /// Goal: values written as TOML are read back unchanged.
    #[test]
    fn values_are_written_as_toml_reads_them() {
        let texts = ["", "plain", "a\"b\\c", "two\nlines\t\u{7f}", "ä\u{1f600}"];
        for text in texts {
            let written = format!("key = {}", Value::text(text).toml());
            let table: toml::Table = written.parse().unwrap();
            assert_eq!(table["key"].as_str(), Some(text), "{written}");
        }
        for bytes in [1, 512, 1023, 1024, 1536, 1 << 30, (1 << 40) + 1, 3 << 40, i64::MAX as u64] {
            let written = Value::Size(bytes).toml();
            let text = written.trim_matches('"');
            assert_eq!(crate::units::parse_size(text), Ok(bytes), "{written}");
        }
        for bytes in [1_000, 1_001, 125_000_000, 187_500_000, 12_345_678] {
            let written = Value::Rate(bytes).toml();
            let text = written.trim_matches('"');
            assert_eq!(crate::units::parse_rate(text), Ok(bytes), "{written}");
        }
        let list =
            Value::List(vec![Value::Table(vec![("a", Value::Flag(true))]), Value::text("b")]);
        assert_eq!(list.toml(), "[{ a = true }, \"b\"]");
        assert_eq!(list.json(), serde_json::json!([{ "a": true }, "b"]));
    }

    /// Goal: another order of the algorithms is another preference; paths are absolute.
    #[test]
    fn a_chap_requirement_is_written_completely() {
        use lunar_iscsi::login::Credential;
        let secret = Secret::new("twelve bytes");
        let initiator = Credential { user: "u".to_owned(), secret };
        let mut chap = ChapConfig {
            initiator: None,
            requirement: secrets::chap_requirement(initiator, None),
            secret_file: Some(PathBuf::from("secret")),
            mutual_secret_file: None,
            allow_short_secrets: false,
        };
        let whole = std::path::absolute("secret").unwrap();
        let expected = format!("{{ user = \"u\", secret_file = \"{}\" }}", whole.display());
        assert_eq!(chap_value(&chap).toml(), expected);
        chap.requirement.algorithms.reverse();
        let toml = chap_value(&chap).toml();
        assert!(toml.contains("[\"md5\", \"sha-1\", \"sha-256\", \"sha3-256\"]"), "{toml}");
    }
}
