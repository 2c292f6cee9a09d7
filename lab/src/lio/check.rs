//! Runs the cases and prints the result of each.

use super::cases::{Case, DISK, InitiatorProgram, NetworkFault, cases};
use super::clients::{ClientPrograms, Proof, succeeded, url};
use crate::peers::lio_guest::kernel_log::{KernelReport, known_faults};
use crate::peers::lio_guest::{Authentication, DISK_BYTES, Guest, PRETENDED_FAULT};
use crate::random::{Random, pattern};
use crate::system::scratch::Scratch;
use crate::wire::cutter::{Cut, Cutter, PduKind};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fmt;
use std::time::Instant;

/// Length of the data that is copied to a LUN.
const COPY_BYTES: usize = 8 << 20;
const BENCH_BYTES: &str = "8M";

/// The guest and the clients that the cases use.
struct Stage {
    guest: Guest,
    clients: ClientPrograms,
    scratch: Scratch,
    /// Reports of the guest's kernel that have been checked.
    reports_checked: usize,
    /// Known faults among the reports of all guests.
    known_faults: usize,
}

/// Runs the cases whose names contain all of `words`, prints the result of each, and returns
/// whether all passed. A case fails if the guest's kernel reports an unknown fault meanwhile.
/// `folder` holds the files that `lab/kernel/fetch` has made.
///
/// # Errors
/// The guest does not start or does not end, its kernel's reports do not reach the console, or no
/// case has such a name.
pub fn main(folder: &str, words: &[String]) -> Result<bool> {
    let scratch = Scratch::new("lio")?;
    let clients = ClientPrograms::find(&scratch)?;
    let guest = Guest::start(folder, &scratch)?;
    println!("lio: LIO of {} at {}", guest.version(), guest.address());
    let mut stage = Stage { guest, clients, scratch, reports_checked: 0, known_faults: 0 };
    let (mut passed, mut failed) = (0, 0);
    for check in Check::all() {
        let name = check.to_string();
        if !words.iter().all(|word| name.contains(word)) {
            continue;
        }
        if !stage.guest.is_running()? {
            println!("lio: the guest ended; starting it again");
            stage.guest = Guest::start(folder, &stage.scratch)?;
            stage.reports_checked = 0;
        }
        let (began, console) = (Instant::now(), stage.guest.console_lines());
        let result = stage.run(&check);
        let reports = stage.check_reports();
        let seconds = began.elapsed().as_secs_f64();
        match result.and_then(|figures| reports.map(|known| figures + &known)) {
            Ok(figures) => {
                passed += 1;
                println!("lio: pass: {name} ({seconds:.1} s){figures}");
            }
            Err(error) => {
                failed += 1;
                let printed = stage.guest.console_after(console);
                println!("lio: FAIL: {name} ({seconds:.1} s): {error:#}\nLIO said:\n{printed}");
            }
        }
    }
    ensure!(passed + failed > 0, "no case has a matching name");
    if stage.guest.is_running()? {
        stage.end()?;
    }
    let known = stage.known_faults;
    println!("lio: {passed} cases passed, {failed} failed; LIO reported {known} known faults");
    Ok(failed == 0)
}

/// A kind of check.
enum Check {
    Discovery,
    Algorithms,
    Refusals(InitiatorProgram),
    /// A row of the table, and its seed.
    Row(Case, u64),
}

impl Check {
    fn all() -> Vec<Self> {
        let mut all = vec![Self::Discovery, Self::Algorithms];
        all.extend([InitiatorProgram::Rust, InitiatorProgram::Java].map(Self::Refusals));
        all.extend(cases().into_iter().zip(1..).map(|(case, seed)| Self::Row(case, seed)));
        all
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Discovery => write!(f, "rust, discovery"),
            Self::Algorithms => write!(f, "rust, CHAP, each algorithm"),
            Self::Refusals(client) => write!(f, "{client}, refusals"),
            Self::Row(case, _) => write!(f, "{case}"),
        }
    }
}

impl Stage {
    /// Returns the reports of the guest's kernel since the last call, but not one that is still
    /// being printed.
    fn new_reports(&mut self) -> Result<Vec<KernelReport>> {
        let is_running = self.guest.is_running()?;
        let mut reports = self.guest.reports();
        reports.pop_if(|last| last.is_cut_short && is_running);
        let new = reports.split_off(self.reports_checked);
        self.reports_checked += new.len();
        self.known_faults += new.iter().filter(|report| report.known.is_some()).count();
        Ok(new)
    }

    /// Checks that the guest runs and that its kernel has reported known faults only, and returns
    /// how many of them.
    fn check_reports(&mut self) -> Result<String> {
        let new = self.new_reports()?;
        let unknown = new.iter().find(|report| report.known.is_none());
        if let Some(report) = unknown {
            bail!("the kernel reports a fault: {}", report.lines.join("\n"));
        }
        ensure!(self.guest.is_running()?, "the guest has ended");
        let mut text = String::new();
        for fault in known_faults() {
            let count = new.iter().filter(|report| report.known == Some(fault)).count();
            if count > 0 {
                text += &format!(", known fault of LIO: {fault} ({count})");
            }
        }
        Ok(text)
    }

    /// Checks that a report of the kernel would have been detected, and ends the guest.
    fn end(&mut self) -> Result<()> {
        // Reports since the last case.
        self.check_reports()?;
        self.guest.provoke_report()?;
        let new = self.new_reports()?;
        let unknown: Vec<_> = new.iter().filter(|report| report.known.is_none()).collect();
        ensure!(
            unknown.len() == 1 && unknown[0].lines == [PRETENDED_FAULT],
            "other lines than the pretended fault were reported as faults: {unknown:?}"
        );
        println!("lio: a pretended fault of the kernel was seen");
        self.guest.stop()?;
        let late = self.new_reports()?;
        ensure!(late.iter().all(|report| report.known.is_some()), "at the end: {late:?}");
        Ok(())
    }

    fn run(&self, check: &Check) -> Result<String> {
        match check {
            Check::Discovery => self.discover(),
            Check::Algorithms => self.each_algorithm(),
            Check::Refusals(client) => self.refusals(*client),
            Check::Row(case, seed) => self.play(case, *seed),
        }
    }

    fn play(&self, case: &Case, seed: u64) -> Result<String> {
        let cutter = Cutter::to(&self.guest.address())?;
        let url = url(case, &cutter.address().to_string());
        let mut random = Random::new(seed);
        let mut play = || {
            self.write(case, &url, &cutter, &mut random)?;
            self.read(case, &url, &cutter, &mut random)?;
            if case.client == InitiatorProgram::Rust {
                self.bench(case, &url)
            } else {
                Ok(String::new())
            }
        };
        let figures = play().with_context(|| format!("seed {seed}, {:?}", cutter.counts()))?;
        let counts = cutter.counts();
        let (most, cuts) = (counts.logged_in_most, counts.cuts());
        let (wanted, is_cut) = (u32::from(case.connections), case.network != NetworkFault::Sound);
        // The relay may notice the end of a session only after the next one has logged in.
        let has_all = if is_cut { most >= wanted } else { most == wanted };
        ensure!(has_all, "{most} connections of {wanted} were logged in");
        ensure!((cuts > 0) == is_cut, "{counts:?}");
        Ok(if cuts > 0 { format!("{figures}, {cuts} breaks") } else { figures })
    }

    /// Copies a file to the LUN and checks that the LUN holds it.
    fn write(&self, case: &Case, url: &str, cutter: &Cutter, random: &mut Random) -> Result<()> {
        let source = self.scratch.pattern("source", random.next_u64(), COPY_BYTES)?;
        let flip = case.flip(random, PduKind::DataOutSolicited);
        flip.into_iter().for_each(|flip| cutter.flip(flip));
        cutter.arm_in_sequence(case.cuts_of_writes(random));
        self.clients.copy(case, &source, url).context("writing")?;
        all_came_about(cutter).context("writing")?;
        if case.lun == DISK {
            self.is_on_disk(&source)?;
        }
        Ok(())
    }

    /// Compares the beginning of LUN 0, read without an initiator, with a file.
    fn is_on_disk(&self, source: &str) -> Result<()> {
        let mut disk = std::fs::read(self.guest.disk())?;
        let source = std::fs::read(source)?;
        disk.truncate(source.len());
        let differs = source.iter().zip(&disk).position(|(wanted, is)| wanted != is);
        ensure!(differs.is_none(), "LUN 0 differs from the written data from byte {differs:?}");
        Ok(())
    }

    /// Copies the LUN to a file and compares the file with the content of the LUN.
    fn read(&self, case: &Case, url: &str, cutter: &Cutter, random: &mut Random) -> Result<()> {
        let flip = case.flip(random, PduKind::DataIn);
        let (wanted, seed) = (self.scratch.path("source"), random.next_u64());
        if case.lun == DISK {
            // New content that no client has written.
            std::fs::write(self.guest.disk(), pattern(seed, DISK_BYTES))?;
        }
        let file = self.scratch.path("back");
        drop(std::fs::remove_file(&file));
        flip.into_iter().for_each(|flip| cutter.flip(flip));
        cutter.arm_in_sequence(case.cuts_of_reads(random));
        self.clients.copy(case, url, &file).context("reading")?;
        all_came_about(cutter).context("reading")?;
        let wanted =
            if case.lun == DISK { pattern(seed, DISK_BYTES) } else { std::fs::read(wanted)? };
        let read = std::fs::read(&file)?;
        ensure!(read.len() == DISK_BYTES, "{} bytes were read", read.len());
        let differs = wanted.iter().zip(&read).position(|(wanted, is)| wanted != is);
        ensure!(differs.is_none(), "the read data differs from byte {differs:?}");
        Ok(())
    }

    /// Runs `lunar bench`, and returns the requests a second of each pattern.
    fn bench(&self, case: &Case, url: &str) -> Result<String> {
        let connections = case.connections.to_string();
        let arguments = [
            "bench",
            url,
            "--json",
            "--pattern",
            "rand-write,rand-read",
            "--io-size",
            "4K",
            "--depth",
            "16",
            "--connections",
            &connections,
            "--size",
            BENCH_BYTES,
            "--seconds",
            "1",
            "--warm-up",
            "0.2",
            "--rounds",
            "1",
        ];
        let finished = self.clients.lunar(&arguments, self.clients.proof(case.access))?;
        succeeded("the benchmark", &finished)?;
        let report: Value = serde_json::from_str(&finished.stdout)?;
        let results = report["results"].as_array().context("no results")?;
        ensure!(results.len() == 2, "{report}");
        let mut figures = String::new();
        for result in results {
            let rate = result["iops"]["median"].as_f64().unwrap_or_default();
            let pattern = result["pattern"].as_str().unwrap_or_default();
            ensure!(rate > 0.0, "the benchmark completed no requests: {result}");
            figures += &format!(", {pattern} {rate:.0}/s");
        }
        Ok(figures)
    }

    /// Checks that `lunar discover` lists all targets.
    fn discover(&self) -> Result<String> {
        let portal = format!("iscsi://{}", self.guest.address());
        let open = self.clients.proof(Authentication::Open);
        let found = self.clients.lunar(&["discover", &portal], open)?;
        succeeded("discovery", &found)?;
        for access in [Authentication::Open, Authentication::Chap, Authentication::Mutual] {
            let is_listed = found.stdout.lines().any(|line| line == access.target());
            ensure!(is_listed, "{} is missing: {}", access.target(), found.stdout);
        }
        Ok(String::new())
    }

    fn case(client: InitiatorProgram, access: Authentication) -> Case {
        let network = NetworkFault::Sound;
        Case { client, connections: 1, access, digests: false, network, lun: DISK }
    }

    /// Logs in with each CHAP algorithm that both sides support.
    fn each_algorithm(&self) -> Result<String> {
        let url =
            url(&Self::case(InitiatorProgram::Rust, Authentication::Mutual), &self.guest.address());
        for algorithm in ["md5", "sha-1", "sha-256", "sha3-256"] {
            let arguments = ["info", &url, "--chap-algorithm", algorithm];
            let result =
                self.clients.lunar(&arguments, self.clients.proof(Authentication::Mutual))?;
            succeeded(algorithm, &result)?;
            ensure!(result.stdout.contains("LIO-ORG"), "{}", result.stdout);
        }
        Ok(String::new())
    }

    /// Checks that a login with a wrong secret fails, and that a target with a wrong secret is
    /// refused.
    fn refusals(&self, client: InitiatorProgram) -> Result<String> {
        let wrong = self.scratch.secret("wrong", "not-the-secret-at-all")?;
        let small = self.scratch.pattern("small", 1, 1 << 20)?;
        let (right, mutual) =
            (self.clients.proof(Authentication::Chap), self.clients.proof(Authentication::Mutual));
        for (what, url_access, proof) in [
            ("a wrong secret", Authentication::Chap, Proof { secret: &wrong, ..right }),
            (
                "a target's wrong secret",
                Authentication::Mutual,
                Proof { mutual_secret: &wrong, ..mutual },
            ),
        ] {
            let url = url(&Self::case(client, url_access), &self.guest.address());
            let finished = match client {
                InitiatorProgram::Rust => self.clients.lunar(&["copy", &small, &url], proof)?,
                InitiatorProgram::Java => self.clients.lunar_copy(&[&small, &url], proof)?,
            };
            ensure!(finished.end.code() == Some(1), "{what}: {}", finished.outputs());
            let printed = finished.stderr.to_lowercase();
            ensure!(printed.contains("auth") || printed.contains("prove"), "{what}: {printed}");
        }
        Ok(String::new())
    }
}

/// Checks that every cut and every flip has happened.
fn all_came_about(cutter: &Cutter) -> Result<()> {
    let left: Option<Cut> = cutter.active_cut();
    ensure!(left.is_none(), "the connection was not cut at: {left:?}");
    ensure!(!cutter.is_to_flip(), "no bit was flipped");
    Ok(())
}
