//! Description of the machine on which the figures were measured.

use serde::Serialize;

/// The machine as its kernel describes it; `-` for unknown values.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Number of processors that this process may use.
    pub cores: usize,
    /// Model name of the processor.
    pub cpu: String,
    /// Release of the kernel.
    pub kernel: String,
}

/// Returns the description of this machine.
pub fn machine() -> Machine {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let model = read("/proc/cpuinfo").lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "model name").then(|| value.trim().to_owned())
    });
    let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
    Machine {
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        cpu: model.unwrap_or_else(|| "-".to_owned()),
        kernel: if kernel.is_empty() { "-".to_owned() } else { kernel },
    }
}

impl Machine {
    /// Returns the description as facts of a report.
    pub fn facts(&self) -> Vec<(String, String)> {
        vec![
            ("processor".to_owned(), self.cpu.clone()),
            ("cores".to_owned(), self.cores.to_string()),
            ("kernel".to_owned(), self.kernel.clone()),
        ]
    }
}
