//! `lunar`: serves disks over iSCSI, and accesses them.

mod administrators;
mod client_lines;
mod commands;
mod device_url;
mod notify;
mod open_files;
mod output;
mod pool_devices;
mod pool_owner;
mod serving;
mod shutdown;
mod storages;

use clap::{Parser, Subcommand};
use commands::progress::LogWriter;
use commands::write;
use commands::{
    apply, bench, check, completions, copy, ctl, discover, info, man, pool, read, serve, switch,
    target,
};
use output::{Failure, Format, Stdout};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, set_parent_process_death_signal, test_kill_process};
use std::process::ExitCode;

/// A storage area network in user space: serve disks over iSCSI, and use them
#[derive(Debug, Parser)]
#[command(name = "lunar", version, after_help = "Example:\n  lunar serve disk.img --size 10G")]
struct Cli {
    /// Print one JSON document instead of text
    #[arg(long, global = true)]
    json: bool,
    /// Exit when the parent process with this PID does; for processes started by the laboratory
    #[arg(long, global = true, hide = true, value_name = "PID")]
    end_with_parent: Option<i32>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Target(target::TargetCommand),
    Switch(switch::SwitchCommand),
    Check(check::Check),
    Apply(apply::ApplyCommand),
    Ctl(ctl::Ctl),
    Discover(discover::Discover),
    Info(info::Info),
    Read(read::ReadCommand),
    Write(write::Write),
    Copy(copy::CopyCommand),
    Bench(bench::BenchCommand),
    Pool(pool::PoolCommand),
    Completions(completions::Completions),
    Man(man::Man),
}

fn main() -> ExitCode {
    start_logging();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return wrong_usage(&error),
    };
    let format = if cli.json { Format::Json } else { Format::Human };
    if let Some(parent) = cli.end_with_parent
        && !end_with(parent)
    {
        return ExitCode::SUCCESS;
    }
    let stdout = if matches!(cli.command, Command::Read(_)) { Stdout::Data } else { Stdout::Text };
    match run(cli.command, format) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => output::report(format, stdout, &failure),
    }
}

/// Makes this process end with its parent; `false`: the parent has ended already, so that no signal
/// will come.
fn end_with(parent: i32) -> bool {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::warn!(
            %error,
            "cannot request a signal at the end of the parent process: this process may outlive it"
        );
    }
    Pid::from_raw(parent).is_none_or(|parent| test_kill_process(parent) != Err(Errno::SRCH))
}

fn run(command: Command, format: Format) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => serve::run(&args, format),
        Command::Target(args) => target::run(&args, format),
        Command::Switch(args) => switch::run(&args, format),
        Command::Check(args) => check::run(&args, format),
        Command::Apply(args) => apply::run(&args, format),
        Command::Ctl(args) => ctl::run(&args, format),
        Command::Discover(args) => discover::run(&args, format),
        Command::Info(args) => info::run(&args, format),
        Command::Read(args) => read::run(&args, format),
        Command::Write(args) => write::run(&args, format),
        Command::Copy(args) => copy::run(&args, format),
        Command::Bench(args) => bench::run(&args, format),
        Command::Pool(args) => pool::run(&args, format),
        Command::Completions(args) => completions::run(&args, format),
        Command::Man(args) => man::run(&args, format),
    }
}

/// Handles errors of the command line: help and version are no errors; everything else is one, in
/// JSON if requested.
fn wrong_usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && std::env::args_os().any(|arg| arg == "--json") {
        let text = error.to_string();
        // Missing arguments are listed in the lines below the first.
        let first_paragraph = text.lines().take_while(|line| !line.is_empty()).map(str::trim);
        let what = first_paragraph.collect::<Vec<_>>().join(" ");
        let failure = Failure::usage(what.trim_start_matches("error: "))
            .hint("see `lunar help` for the commands and their options");
        // The command's name is the first word that is no option.
        let command = std::env::args_os().skip(1).find(|arg| arg != "--json");
        let reads = command.is_some_and(|command| command == "read");
        let stdout = if reads { Stdout::Data } else { Stdout::Text };
        return output::report(Format::Json, stdout, &failure);
    }
    // If the output is closed, the error cannot be reported.
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { output::EXIT_USAGE } else { 0 })
}

/// Default log filter: warnings, changes of the configuration, the raised limit of open files, and
/// the return of storages and of members of pools.
const LOG_DEFAULT: &str = "warn,audit=info,lunar::open_files=info,\
    lunar_control::daemon::waiting=info,lunar_control::daemon::returning_members=info";

/// Starts logging to stderr; RUST_LOG selects the messages.
fn start_logging() {
    let filter = std::env::var("RUST_LOG").unwrap_or_default();
    let filter = if filter.is_empty() { LOG_DEFAULT } else { &filter };
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing_subscriber::filter::LevelFilter::WARN.into())
        .parse_lossy(filter);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| LogWriter)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
}
