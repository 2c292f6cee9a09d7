//! `cargo run -p xtask -- tidy | pictures | sbom | test [--without-peers] | mutate-syncs [PART] |
//! rfc-sections FILE...`.
use anyhow::{Context, Result, bail};
use std::process::ExitCode;

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("tidy") => tidy(),
        Some("pictures") => {
            xtask::pictures::write(&xtask::workspace_root())?;
            Ok(ExitCode::SUCCESS)
        }
        Some("test") => test(arguments.next().as_deref()),
        Some("mutate-syncs") => mutate_syncs(&arguments.next().unwrap_or_default()),
        Some("sbom") => {
            let bill = xtask::sbom::bill_of_materials(&xtask::workspace_root())?;
            println!("{}", serde_json::to_string_pretty(&bill)?);
            Ok(ExitCode::SUCCESS)
        }
        Some("rfc-sections") => {
            for file in arguments {
                write_section_list(&file)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        _ => bail!(
            "usage: cargo run -p xtask -- tidy | pictures | sbom | test [--without-peers] | \
             mutate-syncs [PART] | rfc-sections RFC-TEXT..."
        ),
    }
}

fn tidy() -> Result<ExitCode> {
    let problems = xtask::tidy::check(&xtask::workspace_root())?;
    for problem in &problems {
        println!("{problem}");
    }
    println!("tidy: {} problem(s)", problems.len());
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the test programs of the workspace side by side.
fn test(option: Option<&str>) -> Result<ExitCode> {
    let with_peers = match option {
        None => true,
        Some("--without-peers") => false,
        Some(other) => bail!("test has no option {other}"),
    };
    let passed = xtask::test_programs::run(&xtask::workspace_root(), with_peers)?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Removes one sync at a time, of those whose file or text contains `part`: a test must fail
/// without each.
fn mutate_syncs(part: &str) -> Result<ExitCode> {
    let all_detected = xtask::syncs::run::mutate(&xtask::workspace_root(), part)?;
    Ok(if all_detected { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads `rfcNNNN.txt` and writes the numbers of its sections to `xtask/rfc-sections/`.
fn write_section_list(file: &str) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
    let name = std::path::Path::new(file).file_name().context("a file name")?;
    let to = xtask::rfc::lists_folder(&xtask::workspace_root()).join(name);
    std::fs::write(&to, xtask::rfc::sections_of(&text).join("\n") + "\n")
        .with_context(|| format!("writing {}", to.display()))
}
