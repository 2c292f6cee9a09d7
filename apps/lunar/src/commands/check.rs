//! `lunar check`: validates a configuration.

use crate::output::{self, Failure, Format};
use lunar_control::config::{self, settings};
use std::path::PathBuf;

/// Validate a configuration: print every problem with line, column and remedy
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar check /etc/lunar/lunar.toml")]
pub struct Check {
    /// The configuration
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// Returns all problems of the file.
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
