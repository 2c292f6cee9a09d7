//! `lunar completions`: prints completions of the command line for a shell.

use crate::output::{self, Failure, Format};
use clap::CommandFactory;
use clap_complete::Shell;

/// Print a script that completes this command line in a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    lunar completions bash > ~/.local/share/bash-completion/completions/lunar\n  \
    lunar completions fish > ~/.config/fish/completions/lunar.fish")]
pub struct Completions {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Runs the command.
///
/// # Errors
/// Fails if stdout cannot be written.
pub fn run(args: &Completions, format: Format) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "lunar", &mut script);
    let script = String::from_utf8_lossy(&script);
    match format {
        Format::Json => output::print_json(&serde_json::json!({
            "shell": args.shell.to_string(),
            "script": script,
        })),
        Format::Human => output::print_text(&script),
    }
}
