//! Index of the LUNs of a target by the initiators that see them: a login reads only the access
//! lists that may apply to its initiator, and no LUN.

use crate::access_list::Access;
use crate::lock::lock;
use crate::lun_table::{LunTable, Luns};
use crate::options::LunOptions;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};

/// Number of tables of a target that are kept for further logins, besides those that sessions use.
const TABLES_KEPT_MAX: usize = 64;
/// LUNs in all kept tables together, unless a single table has more.
const LUNS_KEPT_MAX: usize = 16_384;
/// Bytes of moved data that adding a LUN to a new table counts for in a turn, from an estimate of
/// 300 ns for each.
const LUN_BYTES: usize = 6 << 10;

/// Index of the LUNs of one target by access list.
#[derive(Debug)]
pub(crate) struct LunIndex {
    /// The distinct access lists.
    lists: Vec<ListedLuns>,
    /// Indexes of the lists that name initiators, by name in lower case.
    by_name: HashMap<String, Vec<usize>>,
    /// Indexes of the lists that name no initiator.
    for_any_name: Vec<usize>,
    tables: Mutex<Tables>,
}

/// LUNs with the same access list.
#[derive(Debug)]
struct ListedLuns {
    access: Access,
    /// Indexes into the LUNs of the target.
    luns: Vec<usize>,
}

/// Tables of the LUNs that initiators see, by the indexes of the access lists that allow them.
#[derive(Debug, Default)]
struct Tables {
    by_lists: HashMap<Vec<usize>, Weak<LunTable>>,
    /// Some of the tables, the one used last at the end.
    kept: VecDeque<Arc<LunTable>>,
    luns_kept: usize,
}

impl LunIndex {
    pub(crate) fn new(luns: &[LunOptions]) -> Self {
        let mut by_access: HashMap<&Access, usize> = HashMap::new();
        let mut lists: Vec<ListedLuns> = Vec::new();
        for (index, lun) in luns.iter().enumerate() {
            let at = *by_access.entry(&lun.access).or_insert(lists.len());
            match lists.get_mut(at) {
                Some(list) => list.luns.push(index),
                None => lists.push(ListedLuns { access: lun.access.clone(), luns: vec![index] }),
            }
        }
        let (mut by_name, mut for_any_name) = (HashMap::<_, Vec<usize>>::new(), Vec::new());
        for (at, list) in lists.iter().enumerate() {
            if list.access.initiators.is_empty() {
                for_any_name.push(at);
            }
            for name in &list.access.initiators {
                let of_name = by_name.entry(name.to_ascii_lowercase()).or_default();
                if of_name.last() != Some(&at) {
                    of_name.push(at);
                }
            }
        }
        Self { lists, by_name, for_any_name, tables: Mutex::default() }
    }

    /// True when an initiator of this name sees any LUN from this address.
    pub(crate) fn has_visible_lun(&self, initiator: &str, address: IpAddr) -> bool {
        self.lists_for(initiator, address).next().is_some()
    }

    /// The LUNs, of all `luns` of the target, that an initiator of this name sees from this
    /// address. Initiators that see the same LUNs share a table.
    pub(crate) fn table(
        &self,
        luns: &[LunOptions],
        initiator: &str,
        address: IpAddr,
    ) -> Arc<LunTable> {
        let mut lists: Vec<usize> = self.lists_for(initiator, address).collect();
        lists.sort_unstable();
        if let Some(table) = lock(&self.tables).find(&lists) {
            return table;
        }
        let listed = lists.iter().filter_map(|at| self.lists.get(*at));
        let visible = listed.flat_map(|list| &list.luns).filter_map(|index| luns.get(*index));
        let visible: Luns = visible.map(|lun| (lun.id, Arc::clone(&lun.unit))).collect();
        lunar_net::count_moved(LUN_BYTES * visible.len());
        let table = Arc::new(LunTable::new(&visible));
        lock(&self.tables).add(lists, table)
    }

    fn lists_for(&self, initiator: &str, address: IpAddr) -> impl Iterator<Item = usize> {
        let named = self.by_name.get(&initiator.to_ascii_lowercase());
        let lists = named.into_iter().flatten().chain(&self.for_any_name).copied();
        lists.filter(move |at| {
            self.lists.get(*at).is_some_and(|list| list.access.allows_address(address))
        })
    }
}

impl Tables {
    fn find(&mut self, lists: &[usize]) -> Option<Arc<LunTable>> {
        let table = self.by_lists.get(lists)?.upgrade()?;
        self.keep(&table);
        Some(table)
    }

    /// Adds a table, unless another login has added it before.
    fn add(&mut self, lists: Vec<usize>, table: Arc<LunTable>) -> Arc<LunTable> {
        if let Some(table) = self.find(&lists) {
            return table;
        }
        // Done each time the map is about to grow: constant work for each addition.
        if self.by_lists.len() == self.by_lists.capacity() {
            self.by_lists.retain(|_, table| table.strong_count() > 0);
        }
        self.by_lists.insert(lists, Arc::downgrade(&table));
        self.keep(&table);
        table
    }

    /// Keeps a table that was just used, and drops the least recently used ones.
    fn keep(&mut self, table: &Arc<LunTable>) {
        match self.kept.iter().rposition(|kept| Arc::ptr_eq(kept, table)) {
            Some(at) => drop(self.kept.remove(at)),
            None => self.luns_kept += table.len(),
        }
        self.kept.push_back(Arc::clone(table));
        while self.kept.len() > TABLES_KEPT_MAX
            || self.luns_kept > LUNS_KEPT_MAX && self.kept.len() > 1
        {
            let oldest = self.kept.pop_front();
            self.luns_kept -= oldest.map_or(0, |oldest| oldest.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_list::Network;
    use crate::disk_unit::{DiskUnit, DiskUnitOptions};
    use lunar_block::MemoryDevice;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn unit() -> Arc<DiskUnit> {
        let device = Arc::new(MemoryDevice::new(64 << 10, 512, 4096).unwrap());
        DiskUnit::open(DiskUnitOptions::new(uuid::Uuid::from_u128(1), device)).unwrap()
    }

    fn lun(id: u16, unit: &Arc<DiskUnit>, initiators: &[String], networks: &[&str]) -> LunOptions {
        let networks = networks.iter().map(|text| Network::parse(text).unwrap()).collect();
        let access = Access { initiators: initiators.to_vec(), networks };
        LunOptions { access, ..LunOptions::new(id, Arc::<DiskUnit>::clone(unit)) }
    }

    fn host(number: usize) -> String {
        format!("iqn.2026-11.org.lunarsan.test:Host-{number}")
    }

    /// Goal: initiators that see the same LUNs share one table, which is made once; an initiator
    /// that sees others has another table. Without this, each login to a target whose LUNs have
    /// access lists made a table of all of them, 300 us for 1,000.
    #[test]
    fn initiators_that_see_the_same_share_a_table() {
        let unit = unit();
        let home = "10.0.0.0/8";
        let luns: Vec<_> = (0..200)
            .map(|id| match id % 4 {
                0 => lun(id, &unit, &[], &[home]),
                1 => lun(id, &unit, &[host(1), host(2)], &[]),
                2 => lun(id, &unit, &[host(2)], &[home]),
                _ => lun(id, &unit, &[], &[]),
            })
            .collect();
        let index = LunIndex::new(&luns);
        let seen = |name: &str, from: &str| index.table(&luns, name, from.parse().unwrap());
        let one = seen(&host(1), "10.0.0.1");
        assert_eq!(one.len(), 150);
        assert!(Arc::ptr_eq(&one, &seen(&host(1).to_lowercase(), "10.1.0.1")));
        let other = seen(&host(9), "10.0.0.1");
        assert_eq!((other.len(), seen(&host(2), "10.0.0.1").len()), (100, 200));
        assert!(Arc::ptr_eq(&other, &seen(&host(8), "10.0.0.1")));
        assert_eq!(seen(&host(8), "192.0.2.1").len(), 50);
        // The table is kept while no session uses it.
        let address = Arc::as_ptr(&one);
        drop(one);
        assert_eq!(address, Arc::as_ptr(&seen(&host(1), "10.0.0.1")));
    }

    /// Goal: the number of kept tables is bounded, and a table that a session uses is found even
    /// when it is not kept.
    #[test]
    fn the_tables_that_are_kept_are_bounded() {
        let unit = unit();
        let hosts = 10 * TABLES_KEPT_MAX;
        let own = |id| lun(id, &unit, &[host(usize::from(id))], &[]);
        let luns: Vec<_> = (0..hosts as u16).map(own).collect();
        let index = LunIndex::new(&luns);
        let from = "192.0.2.1".parse().unwrap();
        let used = index.table(&luns, &host(0), from);
        for number in 1..hosts {
            assert_eq!(index.table(&luns, &host(number), from).len(), 1);
        }
        assert!(Arc::ptr_eq(&used, &index.table(&luns, &host(0), from)));
        let tables = lock(&index.tables);
        assert_eq!((tables.kept.len(), tables.luns_kept), (TABLES_KEPT_MAX, TABLES_KEPT_MAX));
        assert!(tables.by_lists.len() <= 4 * TABLES_KEPT_MAX, "{}", tables.by_lists.len());
        drop(tables);
        let large: Vec<_> = (0..LUNS_KEPT_MAX as u16)
            .map(|id| match id {
                0 => lun(id, &unit, &[host(0)], &[]),
                _ => lun(id, &unit, &[], &[]),
            })
            .collect();
        let index = LunIndex::new(&large);
        for number in 0..2 {
            index.table(&large, &host(number), from);
        }
        let tables = lock(&index.tables);
        assert_eq!((tables.kept.len(), tables.luns_kept), (1, LUNS_KEPT_MAX - 1));
    }

    proptest! {
        /// Goal: the index agrees with the access lists.
        #[test]
        fn the_index_agrees_with_the_lists(
            lists in vec(
                (vec(0_usize..4, 0..3), vec(0..3_usize, 0..3)),
                0..12,
            ),
        ) {
            const NETWORKS: [&str; 3] = ["10.0.0.0/8", "10.1.0.0/16", "2001:db8::/64"];
            let unit = unit();
            let luns: Vec<_> = (0_u16..).zip(&lists).map(|(id, (names, networks))| {
                let names: Vec<_> = names.iter().map(|name| host(*name)).collect();
                let networks: Vec<_> = networks.iter().map(|at| NETWORKS[*at]).collect();
                lun(id, &unit, &names, &networks)
            }).collect();
            let index = LunIndex::new(&luns);
            for name in (0..5).map(host) {
                for address in ["10.0.0.1", "10.1.0.1", "2001:db8::1", "192.0.2.1"] {
                    let address = address.parse().unwrap();
                    let seen = luns.iter().filter(|lun| lun.access.allows(&name, address));
                    let ids: Vec<_> = seen.map(|lun| lun.id).collect();
                    let table = index.table(&luns, &name, address);
                    prop_assert_eq!(table.ids().collect::<Vec<_>>(), ids);
                    prop_assert_eq!(index.has_visible_lun(&name, address), table.len() > 0);
                }
            }
        }
    }
}
