//! The CHAP tables of a configuration.

use super::file::{Located, TableReader, TextSpan, mismatch};
use super::model::ChapConfig;
use super::resolve::Resolver;
use crate::Failure;
use crate::secrets::{self, Lengths};
use lunar_iscsi::login::{ChapAlgorithm, ChapRequirement, Credential, Secret};
use toml::de::DeValue;

/// Reads `chap` of a target: one table for all initiators, or a list with one table for each.
pub fn chap_list(table: &mut TableReader<'_, '_>, resolver: &mut Resolver<'_>) -> Vec<ChapConfig> {
    let mut entries: Vec<ChapConfig> = Vec::new();
    table.refuse_empty("chap", &mut resolver.problems);
    for item in table.items("chap") {
        let DeValue::Table(inner) = item.get_ref() else {
            let wanted = "{ user = \"…\", secret_file = \"…\" }, or a list of such tables";
            mismatch("chap", wanted, item.get_ref(), &item.span(), &mut resolver.problems);
            continue;
        };
        let mut reader = TableReader::new(inner, item.span(), "chap");
        let initiator = reader.string("initiator", &mut resolver.problems);
        let initiator = initiator.map(|name| resolver.initiator(name).value);
        let read = read_requirement(&mut reader, resolver);
        reader.finish(&[], &mut resolver.problems);
        if entries.iter().any(|entry| entry.initiator == initiator) {
            let hint = "use a different initiator in each: only the first matching credential is \
                        used"
                .to_owned();
            let what = "a second credential for the same initiator";
            resolver.problems.add(&item.span(), what, Some(hint));
        }
        entries.extend(read.map(|chap| ChapConfig { initiator, ..chap }));
    }
    entries
}

/// Reads `chap` of discovery sessions: one table.
pub fn discovery_chap(
    table: &mut TableReader<'_, '_>,
    resolver: &mut Resolver<'_>,
) -> Option<ChapConfig> {
    let mut reader = table.table("chap", &mut resolver.problems)?;
    let chap = read_requirement(&mut reader, resolver);
    reader.finish(&[], &mut resolver.problems);
    chap
}

/// Reads the credentials for the login to the target of a remote LUN.
pub fn login_chap(
    key: &'static str,
    table: &mut TableReader<'_, '_>,
    resolver: &mut Resolver<'_>,
) -> Option<Located<ChapConfig>> {
    let mut reader = table.table(key, &mut resolver.problems)?;
    let span = reader.span.clone();
    let read = credentials(&mut reader, resolver);
    reader.finish(&[], &mut resolver.problems);
    let (chap, own_span) = read?;
    if let (Some(own), Some(span)) = (&chap.requirement.target, own_span)
        && let Err(Failure { what, hint, .. }) =
            secrets::check_mutual(&chap.requirement.initiator.secret, &own.secret)
    {
        resolver.problems.add(&span, what, hint);
    }
    Some(Located { value: chap, span })
}

fn read_requirement(
    reader: &mut TableReader<'_, '_>,
    resolver: &mut Resolver<'_>,
) -> Option<ChapConfig> {
    let (chap, own_span) = credentials(reader, resolver)?;
    if let (Some(own), Some(span)) = (&chap.requirement.target, own_span) {
        resolver.own_secrets.push(Located { value: own.secret.clone(), span });
    }
    resolver.initiator_secrets.push(chap.requirement.initiator.secret.clone());
    Some(chap)
}

/// Reads one table of credentials; also returns where the file of the target's secret is named.
fn credentials(
    reader: &mut TableReader<'_, '_>,
    resolver: &mut Resolver<'_>,
) -> Option<(ChapConfig, Option<TextSpan>)> {
    let user = reader.required("user", &mut resolver.problems);
    let secret_file = reader.required("secret_file", &mut resolver.problems);
    let mutual_user = reader.string("mutual_user", &mut resolver.problems);
    let mutual_file = reader.string("mutual_secret_file", &mut resolver.problems);
    let short = reader.boolean("allow_short_secrets", &mut resolver.problems).unwrap_or(false);
    let algorithms = algorithms(reader, resolver);
    if mutual_user.is_some() != mutual_file.is_some() {
        let (given, missing) = if mutual_user.is_some() {
            ("mutual_user", "mutual_secret_file")
        } else {
            ("mutual_secret_file", "mutual_user")
        };
        let what = format!("`{given}` without `{missing}`");
        resolver.problems.add(&reader.span, what, Some("give both or none".to_owned()));
    }
    for user in [&user, &mutual_user].into_iter().flatten() {
        resolver.ok_or_report("invalid CHAP user name", user, check_user(&user.value));
    }
    let of_initiator = secret_file.as_ref().and_then(|file| secret(file, short, resolver));
    let mutual = mutual_file.as_ref().and_then(|file| secret(file, short, resolver));
    let own_span = mutual_file.as_ref().map(|file| file.span.clone());
    let target =
        mutual_user.zip(mutual).map(|(user, secret)| Credential { user: user.value, secret });
    let initiator = Credential { user: user?.value, secret: of_initiator? };
    let chap = ChapConfig {
        initiator: None,
        requirement: ChapRequirement { algorithms, initiator, target },
        secret_file: secret_file.map(|file| resolver.path(&file.value)),
        mutual_secret_file: mutual_file.map(|file| resolver.path(&file.value)),
        allow_short_secrets: short,
    };
    Some((chap, own_span))
}

/// Checks a user name: CHAP_N is a text value without zero bytes and of limited length.
pub fn check_user(user: &str) -> Result<(), String> {
    const USER_BYTES_MAX: usize = 255;
    if user.is_empty() || user.len() > USER_BYTES_MAX || user.chars().any(char::is_control) {
        return Err(format!("write 1 to {USER_BYTES_MAX} bytes without control characters"));
    }
    Ok(())
}

fn secret(file: &Located<String>, short: bool, resolver: &mut Resolver<'_>) -> Option<Secret> {
    let path = resolver.path(&file.value);
    let read = secrets::read(&path, resolver.readable)
        .and_then(|secret| secrets::check_length(&secret, Lengths::of(short)).map(|()| secret));
    match read {
        Ok(secret) => Some(secret),
        Err(Failure { what, hint, .. }) => {
            resolver.problems.add(&file.span, what, hint);
            None
        }
    }
}

/// Checks that no initiator's secret equals a secret of a target. Initiators hold the target's
/// secret to verify it, so an initiator's secret for any target or for discovery must differ from
/// all of them. RFC 7143 §9.2.1.
pub fn check_secrets_differ(resolver: &mut Resolver<'_>) {
    for own in &resolver.own_secrets {
        let same = |other: &Secret| secrets::check_mutual(other, &own.value).err();
        if let Some(Failure { what, hint, .. }) = resolver.initiator_secrets.iter().find_map(same) {
            resolver.problems.add(&own.span, what, hint);
        }
    }
}

fn algorithms(reader: &mut TableReader<'_, '_>, resolver: &mut Resolver<'_>) -> Vec<ChapAlgorithm> {
    let all = || secrets::ALGORITHMS.iter().map(|(algorithm, _)| *algorithm).collect();
    let Some(names) = reader.strings("algorithms", &mut resolver.problems) else { return all() };
    let mut chosen = Vec::new();
    for name in &names {
        let known = secrets::ALGORITHMS.iter().find(|(_, known)| *known == name.value);
        let known = known.map(|(algorithm, _)| *algorithm);
        let expected = "write \"sha3-256\", \"sha-256\", \"sha-1\" or \"md5\"".to_owned();
        if let Some(algorithm) =
            resolver.ok_or_report("invalid CHAP algorithm", name, known.ok_or(expected))
            && !chosen.contains(&algorithm)
        {
            chosen.push(algorithm);
        }
    }
    if names.is_empty() {
        let hint = "omit `algorithms` to allow all".to_owned();
        resolver.problems.add(&reader.span, "`algorithms` is empty", Some(hint));
    }
    chosen
}
