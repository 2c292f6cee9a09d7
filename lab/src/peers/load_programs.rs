//! Load generators as processes of their own: `lunar bench`, and one on libiscsi (lab/libiscsi).

use crate::peers::lunar::release_binary;
use crate::system::process::pinned;
use anyhow::{Context, Result, ensure};
use lunar_load::split_mix_64;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Time that a client may take beyond the time that it measures.
const OVERTIME_SECONDS: f64 = 100.0;

/// Work of a client in one round.
pub struct LoadRequest<'a> {
    /// URL of the LUN.
    pub url: &'a str,
    /// `rand-read`, `rand-write`, `read` or `write`.
    pub pattern: &'a str,
    /// Bytes of a request.
    pub io_bytes: u64,
    /// Requests in flight at once.
    pub depth: u16,
    /// Bytes from the beginning of the disk that are used.
    pub range_bytes: u64,
    /// Time of the measurement.
    pub seconds: f64,
    /// Time before it.
    pub warm_up: f64,
    /// Seed of random offsets.
    pub seed: u64,
}

/// Measurements of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Requests a second.
    pub iops: f64,
    /// Processor time of its whole process for each request, in microseconds.
    pub cpu_micros: f64,
    /// Percentiles 50, 99 and 99.9 of the time that requests took, in microseconds.
    pub latency_micros: [f64; 3],
}

/// Both clients, already built.
pub struct LoadPrograms {
    lunar: Option<PathBuf>,
    libiscsi: Option<PathBuf>,
    core: Option<u16>,
    threads: u16,
}

impl LoadPrograms {
    /// Builds both clients; they run on one core if one is named.
    ///
    /// # Errors
    /// One of them cannot be built.
    pub fn new(core: Option<u16>, threads: u16) -> Result<Self> {
        Ok(Self { lunar: Some(release_binary()?), libiscsi: Some(build()?), core, threads })
    }

    /// Builds the generator alone.
    ///
    /// # Errors
    /// The generator cannot be built.
    pub fn generator(core: Option<u16>) -> Result<Self> {
        Ok(Self { lunar: None, libiscsi: Some(build()?), core, threads: 1 })
    }

    /// Uses a given build of `lunar` alone, with one thread.
    pub fn of_build(core: Option<u16>, lunar: &Path) -> Self {
        Self { lunar: Some(lunar.to_owned()), libiscsi: None, core, threads: 1 }
    }

    /// Runs `lunar bench`.
    ///
    /// # Errors
    /// The client fails, or takes too long.
    pub fn lunar(&self, request: &LoadRequest<'_>) -> Result<Sample> {
        let threads = self.threads.to_string();
        let size = request.range_bytes.to_string();
        let own = ["--size", &size, "--threads", &threads, "--rounds", "1", "--json"];
        let lunar = self.lunar.as_ref().context("lunar was not built")?;
        let document = self.run(lunar, &["bench"], &own, request)?;
        let result = &document["results"][0];
        sample(&result["iops"]["median"], &result["client_cpu_us_per_request"]["median"], result)
    }

    /// Runs the generator on libiscsi.
    ///
    /// # Errors
    /// The client fails, or takes too long.
    pub fn libiscsi(&self, request: &LoadRequest<'_>) -> Result<Sample> {
        let range = request.range_bytes.to_string();
        let libiscsi = self.libiscsi.as_ref().context("the generator was not built")?;
        let result = self.run(libiscsi, &[], &["--range", &range], request)?;
        sample(&result["iops"], &result["client_cpu_us_per_request"], &result)
    }

    /// Runs a client with its own arguments and those that both clients share.
    fn run(
        &self,
        of: &Path,
        first: &[&str],
        own: &[&str],
        request: &LoadRequest<'_>,
    ) -> Result<Value> {
        let limit = request.seconds + request.warm_up + OVERTIME_SECONDS;
        let program = pinned(self.core, of);
        let output = Command::new("timeout")
            .args(["--kill-after", "5", &limit.to_string()])
            .arg(program.get_program())
            .args(program.get_args())
            .args(first)
            .args(["--pattern", request.pattern])
            .args(["--io-size", &request.io_bytes.to_string()])
            .args(["--depth", &request.depth.to_string()])
            .args(["--seconds", &request.seconds.to_string()])
            .args(["--warm-up", &request.warm_up.to_string()])
            .args(["--seed", &request.seed.to_string()])
            .args(own)
            .arg(request.url)
            .output()
            .context("running timeout")?;
        let printed = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}: {printed}", of.display(), output.status);
        serde_json::from_slice(&output.stdout).with_context(|| of.display().to_string())
    }
}

fn sample(iops: &Value, cpu_micros: &Value, result: &Value) -> Result<Sample> {
    let number =
        |value: &Value| value.as_f64().context("the output of a client contains no figure");
    let latency = &result["latency_us"];
    let sample = Sample {
        iops: number(iops)?,
        cpu_micros: number(cpu_micros)?,
        latency_micros: [
            number(&latency["p50"])?,
            number(&latency["p99"])?,
            number(&latency["p99_9"])?,
        ],
    };
    ensure!(
        sample.iops > 0.0 && sample.cpu_micros > 0.0,
        "a client completed no requests: {sample:?}"
    );
    Ok(sample)
}

/// Builds the generator beside this program.
fn build() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let into = own.parent().context("the program has no parent directory")?.join("libiscsi-load");
    build_generator(&into, &["-O2", "-Wall", "-Wextra"])?;
    Ok(into)
}

/// Returns the data that the generator on libiscsi writes to a offset with `--verify`.
pub fn generator_data(seed: u64, offset: usize, bytes: usize) -> Vec<u8> {
    let key = split_mix_64(seed, offset as u64);
    let words = (0..bytes as u64).step_by(size_of::<u64>()).map(|at| key.wrapping_add(at));
    words.flat_map(u64::to_le_bytes).collect()
}

/// Builds the generator on libiscsi with these options of `cc`.
///
/// # Errors
/// The compiler or the library is missing, or the source does not compile.
pub fn build_generator(into: &Path, options: &[&str]) -> Result<()> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/libiscsi/load.c");
    let output = Command::new("cc")
        .arg("-std=c11")
        .args(options)
        .arg("-o")
        .arg(into)
        .args([source, "-liscsi"])
        .output()
        .context("running cc: apt-get install gcc libc6-dev libiscsi-dev")?;
    let printed = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cc {source} (apt-get install libiscsi-dev):\n{printed}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Goal: figures are read from their members, and missing ones are errors.
    #[test]
    fn samples() -> Result<()> {
        let result = json!({"latency_us": {"p50": 1.0, "p99": 2.0, "p99_9": 3.0}});
        let taken = sample(&json!(100.0), &json!(7.5), &result)?;
        let latency_micros = [1.0, 2.0, 3.0];
        assert_eq!(taken, Sample { iops: 100.0, cpu_micros: 7.5, latency_micros });
        assert!(sample(&json!(100.0), &Value::Null, &result).is_err());
        assert!(sample(&json!(0.0), &json!(7.5), &result).is_err());
        assert!(sample(&json!(100.0), &json!(7.5), &json!({})).is_err());
        Ok(())
    }
}
