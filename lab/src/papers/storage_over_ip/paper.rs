//! Figures of the paper: Haluza, Staněk, Doležal, Storage Over IP, CESNET technical report 5/2002,
//! the table at the end of its chapter on performance. Values in kB/s, measured by IOzone.

use super::access::FileLocation;

/// One column of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Record size in kB, and its key in JSON.
    pub(super) kilobytes: u64,
    pub(super) key: &'static str,
    /// Values for iSCSI, local disk and NFS.
    reads: [u32; 3],
    writes: [u32; 3],
}

/// All columns.
pub(super) const RECORDS: &[Record] = &[
    record(256, "kb_256", [14473, 21193, 15291], [8665, 17269, 10124]),
    record(512, "kb_512", [25849, 28629, 23236], [10975, 17633, 12203]),
    record(1024, "kb_1024", [29185, 31751, 27448], [11833, 18981, 12425]),
    record(2048, "kb_2048", [30233, 34477, 29824], [12344, 20660, 12742]),
    record(4096, "kb_4096", [30254, 35170, 31973], [11952, 18642, 16412]),
    record(8192, "kb_8192", [31080, 35888, 34167], [13141, 23639, 12390]),
    record(16384, "kb_16384", [27051, 37550, 30208], [11799, 22230, 16152]),
];

const fn record(kilobytes: u64, key: &'static str, reads: [u32; 3], writes: [u32; 3]) -> Record {
    Record { kilobytes, key, reads, writes }
}

impl Record {
    pub(super) const fn bytes(&self) -> u64 {
        self.kilobytes << 10
    }

    /// Throughput in kB/s.
    pub(super) fn kilobytes_per_second(&self, location: FileLocation, writes: bool) -> f64 {
        let figures = if writes { self.writes } else { self.reads };
        let [iscsi, local, nfs] = figures;
        f64::from(match location {
            FileLocation::Iscsi => iscsi,
            FileLocation::Local => local,
            FileLocation::Nfs => nfs,
        })
    }

    /// Throughput as a percentage of the local disk.
    pub(super) fn percent(&self, location: FileLocation, writes: bool) -> f64 {
        let local = self.kilobytes_per_second(FileLocation::Local, writes);
        self.kilobytes_per_second(location, writes) / local * 100.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the percentages computed from the figures match those printed in the paper.
    #[test]
    fn percentages_are_those_of_the_paper() {
        let printed = [
            (FileLocation::Iscsi, false, [68, 90, 92, 88, 86, 87, 72]),
            (FileLocation::Nfs, false, [72, 81, 86, 87, 91, 95, 80]),
            (FileLocation::Iscsi, true, [50, 62, 62, 60, 64, 56, 53]),
            (FileLocation::Nfs, true, [59, 69, 65, 62, 88, 52, 73]),
        ];
        for (location, writes, percents) in printed {
            for (record, percent) in RECORDS.iter().zip(percents) {
                let ours = record.percent(location, writes);
                assert!((ours - f64::from(percent)).abs() < 1.0, "{location:?} {record:?}: {ours}");
            }
        }
    }
}
