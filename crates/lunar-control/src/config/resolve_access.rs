//! Access rules for logins and LUNs: `initiators` and `networks` of a configuration.

use super::file::{Located, TableReader, TextSpan};
use super::model::{LunConfig, TargetConfig};
use super::resolve::Resolver;
use super::rules;
use lunar_target::{Access, Network, Portal};

/// The lists `initiators` and `networks` of a table, with the position of each entry.
#[derive(Debug)]
pub struct ReadAccess {
    initiators: Vec<Located<String>>,
    networks: Vec<Located<Network>>,
}

impl ReadAccess {
    /// The lists without positions.
    pub fn without_spans(&self) -> Access {
        Access {
            initiators: self.initiators.iter().map(|name| name.value.clone()).collect(),
            networks: self.networks.iter().map(|network| network.value).collect(),
        }
    }
}

impl Resolver<'_> {
    /// Reads `initiators` and `networks` of a target or a LUN.
    pub fn access(&mut self, table: &mut TableReader<'_, '_>) -> ReadAccess {
        let names = table.strings("initiators", &mut self.problems).unwrap_or_default();
        let initiators = names.into_iter().map(|name| self.initiator(name)).collect();
        let networks = table.strings("networks", &mut self.problems).unwrap_or_default();
        let read = |text: Located<String>| {
            let network =
                self.ok_or_report("invalid network", &text, Network::parse(&text.value))?;
            Some(Located { value: network, span: text.span })
        };
        ReadAccess { initiators, networks: networks.into_iter().filter_map(read).collect() }
    }

    /// Checks the name of an initiator and returns its normal form.
    pub fn initiator(&mut self, name: Located<String>) -> Located<String> {
        let lower = name.value.to_ascii_lowercase();
        self.ok_or_report("invalid initiator name", &name, rules::check_name(&lower));
        Located { value: lower, span: name.span }
    }

    /// Reads the access rules of a LUN, all of whose initiators the target must admit.
    pub fn lun_access(&mut self, table: &mut TableReader<'_, '_>, target: &Access) -> Access {
        let access = self.access(table);
        for Located { value: name, span } in &access.initiators {
            if !target.initiators.is_empty() && !target.initiators.contains(name) {
                let what =
                    format!("{name} may see this LUN but is not allowed to log in to the target");
                let hint = "add it also to the `initiators` of the target".to_owned();
                self.problems.add(span, what, Some(hint));
            }
        }
        for Located { value: network, span } in &access.networks {
            let single = Access { networks: vec![*network], ..Access::default() };
            let target = Access { networks: target.networks.clone(), ..Access::default() };
            if target.and(&single).is_none() {
                let what = format!(
                    "{network} may see this LUN but is not allowed to log in to the target"
                );
                let hint = "add it also to the `networks` of the target".to_owned();
                self.problems.add(span, what, Some(hint));
            }
        }
        access.without_spans()
    }

    /// Reads `administer` of a target or a LUN: names that all of `access` admit. An empty list
    /// means nobody.
    pub fn administer(
        &mut self,
        table: &mut TableReader<'_, '_>,
        access: &[&Access],
    ) -> Option<Vec<String>> {
        let names = table.strings_or_empty("administer", &mut self.problems)?;
        let read = |name| {
            let Located { value: name, span } = self.initiator(name);
            let admits = |access: &&Access| {
                access.initiators.is_empty() || access.initiators.contains(&name)
            };
            if !access.iter().all(admits) {
                let what = format!(
                    "{name} is an administrator, but is not allowed to log in to the target or to \
                     see the LUN"
                );
                let hint = "add it to `initiators` as well, or remove it from this list".to_owned();
                self.problems.add(&span, what, Some(hint));
            }
            name
        };
        Some(names.into_iter().map(read).collect())
    }

    /// Checks that LUNs with the same number are for different initiators.
    pub fn check_distinct_luns(
        &mut self,
        target: &Access,
        luns: &[LunConfig],
        lun: &LunConfig,
        at: &TextSpan,
    ) {
        let same = luns.iter().filter(|other| other.id == lun.id);
        let mut both = same.filter(|other| target.may_see_both(&other.access, &lun.access));
        if both.next().is_some() {
            let what = format!("the target already has a LUN {}", lun.id);
            let hint = "use another id, or give both LUNs disjoint lists of `initiators` (or \
                        `networks`): an initiator must not see two LUNs with the same id";
            self.problems.add(at, what, Some(hint.to_owned()));
        }
    }

    /// Checks that every target restricts access, because other machines can reach `portal`.
    pub fn check_access_restricted(
        &mut self,
        targets: &[(TargetConfig, TextSpan)],
        portal: &Located<Portal>,
    ) {
        for (target, span) in targets {
            if !target.restricts_access() {
                let what = format!(
                    "the target is accessible without authentication for every host that can \
                         reach {}",
                    portal.value.listen
                );
                let hint = "add chap or networks (an initiator name alone is not authenticated), \
                            or listen on 127.0.0.1";
                self.problems.add(span, what, Some(hint.to_owned()));
            }
        }
    }
}
