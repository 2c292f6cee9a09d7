//! Layout of the blocks: the range of each host in a virtual LUN, and the extents of this LUN on
//! the storage.

/// Length of a MiB.
pub const MIB: usize = 1 << 20;
/// Length of each extent.
const EXTENT_BYTES: usize = 8 * MIB;
/// Length of a stripe unit.
const UNIT_BYTES: usize = 64 << 10;
/// Length of a virtual LUN: a stripe of two extents.
pub const VIRTUAL_BYTES: usize = 2 * EXTENT_BYTES;
/// Length of the range of each host.
pub const RANGE_BYTES: usize = 3 * MIB;
/// Length of the LUNs of a storage that has two: an extent for each path.
pub const PAIR_LUN_BYTES: usize = 2 * EXTENT_BYTES;
/// Length of the LUN of a storage that has one: two extents for each path.
pub const SINGLE_LUN_BYTES: usize = 4 * EXTENT_BYTES;

/// Values of `--path`.
pub const PATHS: [&str; 2] = ["slow", "fast"];
/// Position of the fast path in [`PATHS`].
pub const FAST: usize = 1;

/// An extent on a LUN of a storage.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExtentLocation {
    /// Number of the LUN.
    pub lun: usize,
    pub start: usize,
}

/// Returns both extents of the virtual LUN of a path, on a storage with one or two LUNs.
pub fn extents(luns: usize, path: usize) -> [ExtentLocation; 2] {
    [0, 1].map(|number| match luns {
        1 => ExtentLocation { lun: 0, start: (2 * number + path) * EXTENT_BYTES },
        _ => ExtentLocation { lun: number, start: path * EXTENT_BYTES },
    })
}

/// Returns the configuration of a switch with the virtual LUN of a path. `urls` are the LUNs of the
/// storage; `bandwidth` limits the virtual LUN.
pub fn configuration(target: &str, urls: &[String], path: usize, bandwidth: &str) -> String {
    let mut text = "[listen]\nportals = [\"127.0.0.1:0\"]\n[metrics]\nlisten = \"127.0.0.1:0\"\n\
                    [api]\nlisten = \"none\"\n"
        .to_owned();
    for (number, url) in urls.iter().enumerate() {
        text += &format!("[[storage]]\nname = \"lun-{number}\"\nurl = \"{url}\"\n");
    }
    let over = extents(urls.len(), path).map(|ExtentLocation { lun, start }| {
        format!("{{ storage = \"lun-{lun}\", start = {start}, length = {EXTENT_BYTES} }}")
    });
    text + &format!(
        "[[target]]\nname = \"{target}\"\n[[target.lun]]\nid = 0\ncache = \"write-back\"\n\
         limit = {{ bandwidth = \"{bandwidth}\" }}\n\
         [target.lun.stripe]\nunit = {UNIT_BYTES}\nover = [{}]\n",
        over.join(", ")
    )
}

/// Returns the data of a virtual LUN, given the data of its extents.
pub fn joined(extents: &[Vec<u8>; 2]) -> Vec<u8> {
    let [first, second] = extents.each_ref().map(|data| data.chunks(UNIT_BYTES));
    first.zip(second).flat_map(|(even, odd)| [even, odd]).flatten().copied().collect()
}

/// Returns the length of each extent as an argument.
pub fn extent_length() -> String {
    EXTENT_BYTES.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: extents of different paths have no common block, and lie on their LUN.
    #[test]
    fn extents_are_disjoint() {
        for (luns, bytes) in [(1, SINGLE_LUN_BYTES), (2, PAIR_LUN_BYTES)] {
            let all: Vec<_> = (0..PATHS.len()).flat_map(|path| extents(luns, path)).collect();
            for (number, one) in all.iter().enumerate() {
                assert!(one.lun < luns && one.start + EXTENT_BYTES <= bytes);
                assert!(!all[..number].contains(one));
            }
        }
    }

    /// Goal: stripe units alternate between the extents.
    #[test]
    fn units_alternate() {
        let extents = [1, 2].map(|value| vec![value; 2 * UNIT_BYTES]);
        let units: Vec<_> = joined(&extents).into_iter().step_by(UNIT_BYTES).collect();
        assert_eq!(units, [1, 2, 1, 2]);
    }
}
