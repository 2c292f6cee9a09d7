//! Dialogue with a program: sends lines, and reads output up to a prompt.

use crate::process::{Finished, spawn, wait};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// A running program. Dropping it kills it and all processes it has started.
pub struct Dialogue {
    name: String,
    child: Child,
    /// Standard input; `None` after it was closed.
    input: Option<ChildStdin>,
    pieces: Receiver<Vec<u8>>,
    /// Output that was received and not returned yet.
    unread: String,
    started: Instant,
}

impl Dialogue {
    /// Starts `program`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(program: &str, arguments: &[&str]) -> Result<Self> {
        let started = Instant::now();
        let mut child = spawn(program, arguments, Stdio::piped())?;
        let input = child.stdin.take();
        let (sender, pieces) = channel();
        let outputs: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|output| Box::new(output) as _),
            child.stderr.take().map(|output| Box::new(output) as _),
        ];
        for mut output in outputs.into_iter().flatten() {
            let sender = sender.clone();
            thread::spawn(move || {
                let mut piece = vec![0; 4096];
                // An error ends the output as end of file does.
                while let Ok(length @ 1..) = output.read(&mut piece) {
                    if sender.send(piece[..length].to_vec()).is_err() {
                        break;
                    }
                }
            });
        }
        let (name, unread) = (program.to_owned(), String::new());
        Ok(Self { name, child, input, pieces, unread, started })
    }

    /// Sends a line.
    ///
    /// # Errors
    /// The program has ended.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("its input is closed")?;
        writeln!(input, "{line}").with_context(|| format!("{} does not accept input", self.name))
    }

    /// Waits for `prompt`; returns the text of both outputs before it.
    ///
    /// # Errors
    /// The program ended, or `limit` passed; the message holds its output.
    pub fn wait_for(&mut self, prompt: &str, limit: Duration) -> Result<String> {
        let until = Instant::now() + limit;
        loop {
            if let Some(at) = self.unread.find(prompt) {
                let rest = self.unread.split_off(at + prompt.len());
                let mut answer = std::mem::replace(&mut self.unread, rest);
                answer.truncate(at);
                return Ok(answer);
            }
            match self.pieces.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(piece) => self.unread.push_str(&String::from_utf8_lossy(&piece)),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{}: no {prompt:?} within {limit:?}: {}", self.name, self.unread)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("{} ended: {}", self.name, self.unread)
                }
            }
        }
    }

    /// Closes the program's input and waits for its end; kills it after `limit`.
    ///
    /// # Errors
    /// The system does not return the status.
    pub fn finish(mut self, limit: Duration) -> Result<Finished> {
        drop(self.input.take());
        let end = wait(&mut self.child, limit)?;
        let mut stdout = std::mem::take(&mut self.unread);
        while let Ok(piece) = self.pieces.recv_timeout(limit) {
            stdout.push_str(&String::from_utf8_lossy(&piece));
        }
        Ok(Finished { end, stdout, stderr: String::new(), took: self.started.elapsed() })
    }
}

impl Drop for Dialogue {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            drop(self.child.wait());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Goal: the output after each line is separate, and the end of the program is an error, not a
    /// hang.
    #[test]
    fn question_and_answer() -> Result<()> {
        let script =
            "printf '> '; while read line; do echo \"got $line\"; printf '> '; done; echo bye";
        let mut shell = Dialogue::start("sh", &["-c", script])?;
        assert_eq!(shell.wait_for("> ", LIMIT)?, "");
        shell.say("one")?;
        assert_eq!(shell.wait_for("> ", LIMIT)?, "got one\n");
        let late = shell.wait_for("> ", Duration::from_millis(100));
        assert!(late.expect_err("nothing was asked").to_string().contains("within"));
        let finished = shell.finish(LIMIT)?;
        assert!(finished.succeeded());
        assert_eq!(finished.stdout, "bye\n");
        let mut gone = Dialogue::start("true", &[])?;
        assert!(gone.wait_for("> ", LIMIT).is_err());
        Ok(())
    }
}
