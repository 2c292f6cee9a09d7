//! `lunar check`: is this configuration right?

use crate::output::{self, Failure, Format};
use lunar_control::config::{self, settings};
use std::path::PathBuf;

/// Validate a configuration: every problem with its line, its column and what is meant
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar check /etc/lunar/lunar.toml")]
pub struct Check {
    /// The configuration
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Runs it.
///
/// # Errors
/// All that is wrong with the file.
pub fn run(args: &Check, format: Format) -> Result<(), Failure> {
    let configuration = config::load(&args.file)?;
    let targets = configuration.targets.len();
    let luns: usize = configuration.targets.iter().map(|target| target.luns.len()).sum();
    match format {
        Format::Json => output::print_json(&serde_json::json!({
            "valid": true,
            "targets": targets,
            "luns": luns,
            "configuration": settings::json(&configuration),
        })),
        Format::Human => output::print_text(&format!(
            "{}: valid, targets: {targets}, LUNs: {luns}\n",
            args.file.display()
        )),
    }
}
