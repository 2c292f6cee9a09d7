//! The command lines of our initiators.

use super::cases::{Case, InitiatorProgram};
use crate::peers::lio_guest::{Authentication, MUTUAL_SECRET, MUTUAL_USER, SECRET, USER};
use crate::peers::lunar::binary;
use crate::system::process::{End, Finished, run, run_checked};
use crate::system::scratch::Scratch;
use anyhow::{Result, ensure};
use std::time::Duration;

const SETUP_MAX: Duration = Duration::from_secs(60);
/// Longest run of a client, including logins after lost connections.
const CLIENT_MAX: Duration = Duration::from_secs(300);
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const COPY_JAR: &str = "java/examples/target/lunar-copy.jar";

/// Paths of the programs and of the secrets.
pub struct ClientPrograms {
    lunar: String,
    java: String,
    jar: String,
    secret: String,
    mutual_secret: String,
}

/// The secrets that a client uses.
#[derive(Clone, Copy, Debug)]
pub struct Proof<'a> {
    pub access: Authentication,
    pub secret: &'a str,
    pub mutual_secret: &'a str,
}

impl ClientPrograms {
    /// Finds the programs: `LUNAR_BIN` and `LUNAR_COPY_JAR`, or those of this checkout.
    ///
    /// # Errors
    /// A program is not built.
    pub fn find(scratch: &Scratch) -> Result<Self> {
        let home = run_checked(&format!("{ROOT}/scripts/java"), &[], SETUP_MAX)?;
        let jar = std::env::var("LUNAR_COPY_JAR").unwrap_or(format!("{ROOT}/{COPY_JAR}"));
        ensure!(std::fs::exists(&jar)?, "{jar} is not built (lab/kernel/run builds it)");
        Ok(Self {
            lunar: binary()?,
            java: format!("{}/bin/java", home.trim_end()),
            jar,
            secret: scratch.secret("secret", SECRET)?,
            mutual_secret: scratch.secret("mutual-secret", MUTUAL_SECRET)?,
        })
    }

    /// Returns the right secrets for a target.
    pub fn proof(&self, access: Authentication) -> Proof<'_> {
        Proof { access, secret: &self.secret, mutual_secret: &self.mutual_secret }
    }

    /// Runs `lunar ARGUMENTS`.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn lunar(&self, arguments: &[&str], proof: Proof<'_>) -> Result<Finished> {
        let mut all = arguments.to_vec();
        if proof.access != Authentication::Open {
            all.extend(["--chap-user", USER, "--chap-secret-file", proof.secret]);
        }
        if proof.access == Authentication::Mutual {
            all.extend(["--mutual-chap-user", MUTUAL_USER]);
            all.extend(["--mutual-chap-secret-file", proof.mutual_secret]);
        }
        run(&self.lunar, &all, CLIENT_MAX)
    }

    /// Runs `lunar-copy ARGUMENTS`; the URL names the user, the environment holds the secret.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn lunar_copy(&self, arguments: &[&str], proof: Proof<'_>) -> Result<Finished> {
        let secret = std::fs::read_to_string(proof.secret)?;
        let secret = format!("LUNAR_CHAP_SECRET={secret}");
        let mut all = vec![&*secret, &*self.java, "-jar", &*self.jar];
        if proof.access == Authentication::Mutual {
            all.extend(["--mutual-chap-user", MUTUAL_USER]);
            all.extend(["--mutual-chap-secret-file", proof.mutual_secret]);
        }
        all.extend(arguments);
        run("env", &all, CLIENT_MAX)
    }

    /// Copies a file to a LUN, or a LUN to a file.
    ///
    /// # Errors
    /// The client fails; the message holds its output.
    pub fn copy(&self, case: &Case, from: &str, to: &str) -> Result<()> {
        let connections = case.connections.to_string();
        let (mut all, proof) =
            (vec!["--connections", &connections, from, to], self.proof(case.access));
        let finished = match case.client {
            InitiatorProgram::Rust => {
                all.insert(0, "copy");
                all.push("--verify");
                self.lunar(&all, proof)?
            }
            InitiatorProgram::Java => self.lunar_copy(&all, proof)?,
        };
        succeeded("the copy", &finished)
    }
}

/// Returns the URL of the LUN that a case uses.
pub fn url(case: &Case, address: &str) -> String {
    // The Rust client takes the user from an option.
    let is_named = case.client == InitiatorProgram::Java && case.access != Authentication::Open;
    let user = if is_named { format!("{USER}@") } else { String::new() };
    let query = if case.digests { "?header_digest=crc32c&data_digest=crc32c" } else { "" };
    format!("iscsi://{user}{address}/{}/{}{query}", case.target(), case.lun)
}

/// Checks that a client succeeded.
///
/// # Errors
/// The client failed or took too long; the message holds its output.
pub fn succeeded(what: &str, finished: &Finished) -> Result<()> {
    ensure!(
        finished.end != End::TimedOut,
        "{what} took more than {CLIENT_MAX:?}: {}",
        finished.outputs()
    );
    ensure!(finished.succeeded(), "{what} failed: {}", finished.outputs());
    Ok(())
}
