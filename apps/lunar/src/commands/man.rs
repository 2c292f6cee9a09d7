//! `lunar man`: generates a manual page for each command from its `--help`.

use crate::output::{self, Failure, Format};
use clap::CommandFactory;
use clap_mangen::Man as Page;
use clap_mangen::roff::{Roff, roman};
use std::io;
use std::path::{Path, PathBuf};

/// Write the manual pages, one for each command, into a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    lunar man ~/.local/share/man/man1")]
pub struct Man {
    /// The directory; created if it does not exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The date of the pages [default: none, so that the same version writes the same bytes]
    #[arg(long, value_name = "YYYY-MM-DD", default_value = "", hide_default_value = true)]
    date: String,
}

/// Runs the command.
///
/// # Errors
/// Fails if the directory cannot be written.
pub fn run(args: &Man, format: Format) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::new(format!("cannot write to {}: {error}", args.directory.display()))
            .hint("choose a directory with write permission")
    };
    std::fs::create_dir_all(&args.directory).map_err(failed)?;
    let mut command = crate::Cli::command().disable_help_subcommand(true);
    command.build();
    let mut written = Vec::new();
    write_pages(&command, args, &mut written).map_err(failed)?;
    match format {
        Format::Json => output::print_json(&serde_json::json!({ "files": written })),
        Format::Human => {
            output::print_text(&written.iter().fold(String::new(), |mut all, file| {
                all.push_str(file);
                all.push('\n');
                all
            }))
        }
    }
}

/// Writes the page of `command`, and those of its subcommands.
fn write_pages(command: &clap::Command, args: &Man, written: &mut Vec<String>) -> io::Result<()> {
    let page = Page::new(command.clone())
        .date(&args.date)
        .source(format!("Lunar {}", env!("CARGO_PKG_VERSION")))
        .manual("Lunar");
    let path = args.directory.join(page.get_filename());
    lunar_block::output_file::write(&path, &render(&page, command)?)?;
    written.push(path_text(&path));
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_pages(subcommand, args, written)?;
    }
    Ok(())
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

fn render(page: &Page, command: &clap::Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    common_sections(command).to_writer(&mut text)?;
    // The generator's spacing of value lists causes warnings of mandoc.
    Ok(String::from_utf8_lossy(&text).replace("\n.br\n\n.br\n", "\n.sp\n").into_bytes())
}

/// Returns the pages that the page of a command names at its end.
fn see_also(command: &str) -> &'static str {
    match command {
        "lunar" => "lunar-serve(1), lunar-target(1), lunar-ctl(1), lunar-info(1), lunar.toml(5)",
        "target" | "switch" | "check" | "apply" | "pool" | "ctl" => "lunar(1), lunar.toml(5)",
        _ => "lunar(1)",
    }
}

/// Sections common to all commands, and the examples, whose lines are kept.
fn common_sections(command: &clap::Command) -> Roff {
    let mut page = Roff::new();
    let status = [
        ("0", "Success."),
        ("1", "Failure. One line on standard error describes what failed, why, and what to do."),
        ("2", "Wrong usage. Nothing was done."),
    ];
    page.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in status {
        page.control("TP", []);
        page.text([roman(code)]);
        page.text([roman(meaning)]);
    }
    if let Some(examples) = command.get_after_help() {
        let examples = examples.to_string();
        page.control("SH", ["EXAMPLES"]);
        page.control("nf", []);
        for line in examples.lines().filter(|line| !line.trim_end().ends_with(':')) {
            page.text([roman(line.trim())]);
        }
        page.control("fi", []);
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([roman(see_also(command.get_name()))]);
    page
}
