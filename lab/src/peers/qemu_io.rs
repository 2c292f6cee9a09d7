//! QEMU's `qemu-io`: an initiator (by libiscsi), an NFS client (by libnfs) and a user of local
//! files, which is sent one command at a time.

use anyhow::{Context, Result, anyhow, bail};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// Maximum size of the answer to one command.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Maximum time until an idle qemu-io ends.
const END_MAX: Duration = Duration::from_secs(10);
/// Prompt of qemu-io; a blank follows.
const PROMPT: &[u8] = b"qemu-io>";
const PROMPT_LAST: u8 = b'>';
const INSTALL: &str = "apt-get install qemu-utils qemu-block-extra";

/// A running qemu-io, killed when dropped.
#[derive(Debug)]
pub struct QemuIo {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    stderr: ChildStderr,
    name: String,
}

impl QemuIo {
    /// Opens the disk `url` with the cache mode `cache` (`-t`), in the network namespace of another
    /// process if one is named, and waits for the first prompt.
    ///
    /// # Errors
    /// qemu-io is not installed, or cannot open the disk.
    pub async fn open(url: &str, cache: &str, network_of: Option<u32>) -> Result<Self> {
        let network = network_of.map(|pid| format!("--net=/proc/{pid}/ns/net"));
        let by = network.iter().flat_map(|network| ["nsenter", network.as_str(), "--"]);
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .args(by)
            .arg("qemu-io")
            .args(["-f", "raw", "-t", cache, url]);
        Self::start(command, format!("qemu-io on {url}")).await
    }

    /// Starts the program, and waits for the first prompt.
    async fn start(mut command: Command, name: String) -> Result<Self> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let child = command.spawn();
        let mut child = child.context("cannot start qemu-io")?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            bail!("qemu-io has no pipes");
        };
        let mut program = Self { child, stdin, stdout: BufReader::new(stdout), stderr, name };
        program.answer().await?;
        Ok(program)
    }

    /// Sends a command and returns the answer. Commands are sent one at a time: qemu-io reads all
    /// available lines, and then waits for more input before it executes the second one.
    ///
    /// # Errors
    /// qemu-io has ended; the message holds its error output.
    pub async fn ask(&mut self, command: &str) -> Result<String> {
        // If qemu-io has ended, reading the answer fails as well.
        let _ = self.stdin.write_all(format!("{command}\n").as_bytes()).await;
        self.answer().await
    }

    /// Reads the output up to the prompt.
    async fn answer(&mut self) -> Result<String> {
        let mut printed = Vec::new();
        while !printed.ends_with(PROMPT) {
            let read = self.stdout.read_until(PROMPT_LAST, &mut printed).await;
            if !matches!(read, Ok(1..)) || printed.len() > ANSWER_BYTES_MAX {
                return Err(self.failed().await);
            }
        }
        printed.truncate(printed.len() - PROMPT.len());
        Ok(String::from_utf8_lossy(&printed).trim().to_owned())
    }

    /// Ends qemu-io; returns its error output.
    ///
    /// # Errors
    /// qemu-io does not end, or ends with a failure.
    pub async fn end(self) -> Result<String> {
        let Self { mut child, stdin, mut stderr, name, .. } = self;
        drop(stdin);
        match timeout(END_MAX, child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(error_output(&mut stderr).await),
            _ => bail!("{name} failed at exit"),
        }
    }

    /// The reason why qemu-io ended.
    async fn failed(&mut self) -> anyhow::Error {
        let (text, name) = (error_output(&mut self.stderr).await, &self.name);
        match ["Unknown protocol", "failed to execute"].iter().any(|part| text.contains(part)) {
            true => anyhow!("{name}: {text} ({INSTALL})"),
            false => anyhow!("{name}: {text}"),
        }
    }

    /// Description for messages.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Reads the error output of a program that has ended, as one line.
async fn error_output(stderr: &mut ChildStderr) -> String {
    let mut text = String::new();
    let mut stderr = stderr.take(ANSWER_BYTES_MAX as u64);
    let _ = timeout(END_MAX, stderr.read_to_string(&mut text)).await;
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn start(script: &str) -> Result<QemuIo> {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        QemuIo::start(shell, "a script".to_owned()).await
    }

    /// Goal: the output after each command is separate, and the end of the program is an error with
    /// its error output, not a hang.
    #[tokio::test]
    async fn each_command_has_an_answer() -> Result<()> {
        let mut program = start(
            "printf 'qemu-io> '; while read line; do \
             echo \"got <$line>\"; echo more; printf 'qemu-io> '; done; echo bye >&2",
        )
        .await?;
        assert_eq!(program.ask("one").await?, "got <one>\nmore");
        assert_eq!(program.ask("two").await?, "got <two>\nmore");
        assert_eq!(program.end().await?, "bye");
        let mut program = start("printf 'qemu-io> '; read line; echo failed >&2; exit 3").await?;
        let error = program.ask("one").await.expect_err("the program has ended");
        assert_eq!(error.to_string(), "a script: failed");
        assert!(program.end().await.is_err());
        let error = start("echo Unknown protocol >&2").await.expect_err("there is no prompt");
        assert_eq!(error.to_string(), format!("a script: Unknown protocol ({INSTALL})"));
        Ok(())
    }
}
