//! `cargo run -p interop -- conformance | suite URL`.
use anyhow::{Context, Result, bail};
use interop::conformance::{COMMANDS, SUITE, ThinDisk, table, with_section};
use interop::suite::{Subject, run_all};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["conformance"] => conformance(),
        ["suite", url] => {
            print!("{}", table(&run_all(&mut Foreign(url.to_owned()))?));
            Ok(())
        }
        _ => bail!("usage: cargo run -p interop -- conformance | suite URL"),
    }
}

/// Runs the suite against our own server and writes the table.
fn conformance() -> Result<()> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../CONFORMANCE.md");
    let document = std::fs::read_to_string(path).with_context(|| path.to_owned())?;
    let table = table(&run_all(&mut ThinDisk::start()?)?);
    print!("{table}");
    let document = with_section(&document, SUITE, &table)?;
    let document = with_section(&document, COMMANDS, &scsi::commands::markdown())?;
    Ok(std::fs::write(path, document)?)
}

/// A target that somebody else started; it cannot be reset.
struct Foreign(String);

impl Subject for Foreign {
    fn url(&self) -> String {
        self.0.clone()
    }

    fn reset(&mut self) -> Result<()> {
        Ok(())
    }
}
