//! `cargo run -p interop -- conformance | conformance-tables | suite URL`.
use anyhow::{Result, bail};
use interop::conformance::{ThinDisk, table};
use interop::document::{PATH, SUITE, committed, render, section};
use interop::suite::{Subject, run_all};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["conformance"] => {
            let table = table(&run_all(&mut ThinDisk::start()?)?);
            print!("{table}");
            Ok(std::fs::write(PATH, render(&table)?)?)
        }
        ["conformance-tables"] => {
            Ok(std::fs::write(PATH, render(section(&committed()?, SUITE)?)?)?)
        }
        ["suite", url] => {
            print!("{}", table(&run_all(&mut Foreign(url.to_owned()))?));
            Ok(())
        }
        _ => bail!("usage: cargo run -p interop -- conformance | conformance-tables | suite URL"),
    }
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
