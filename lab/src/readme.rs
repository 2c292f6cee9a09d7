//! Turns a document's shell lines into a script that runs them as written.
//!
//! - A block of `sh` that holds only `lunar serve`, `lunar target` or `lunar switch` commands
//!   starts servers: a single one stays until the next such block; several are alternatives, each
//!   of which is started and stopped.
//! - Any other block of `sh` is run unchanged.
//! - A block of `toml` that begins with a comment like `# lunar.toml` is that file.
//! - An HTML comment that begins with `walk:` is run as well; a reader does not see it. It makes
//!   preparations for the document, or checks its claims.
//! - An HTML comment that begins with `not walked:` gives the reason why the block after it is not
//!   run.

use anyhow::{Result, bail, ensure};

/// Beginning of the script: a line that fails ends the script and is named; servers are started and
/// stopped.
const PRELUDE: &str = r#"set -eEuo pipefail
trap 'echo "this failed: $BASH_COMMAND" >&2; cat server.log >&2 || true' ERR
server=
start() {
    : >server.log
    eval "$1 >>server.log 2>&1 &"
    server=$!
    for ((waited = 0; waited < 300; waited++)); do
        if grep -q "^listening on" server.log; then return 0; fi
        kill -0 "$server"
        sleep 0.1
    done
    return 1
}
stop() {
    [ -n "$server" ] || return 0
    # The document may have ended it, also by SIGKILL.
    kill "$server" 2>/dev/null || true
    wait "$server" || [ "$?" = 137 ]
    server=
}
"#;

/// A part of a document.
#[derive(Debug, Eq, PartialEq)]
enum Part {
    /// A fenced block: its language and its text.
    Block(String, String),
    /// Text of an HTML comment.
    Comment(String),
}

/// Returns the script of the chapter (`## TITLE`) of a document.
///
/// # Errors
/// There is no such chapter, or it holds an unsupported block.
pub fn script(document: &str, title: &str) -> Result<String> {
    let mut script = PRELUDE.to_owned();
    let mut skip = false;
    for part in parts(&chapter(document, title)?) {
        match part {
            Part::Comment(text) => match text.split_once(':') {
                Some(("walk", lines)) => script.push_str(&format!("{}\n", lines.trim())),
                Some(("not walked", _)) => skip = true,
                _ => {}
            },
            Part::Block(..) if std::mem::take(&mut skip) => {}
            Part::Block(language, text) => script.push_str(&step(&language, &text)?),
        }
    }
    ensure!(!skip, "a `not walked` mark without a code block after it");
    script.push_str("stop\necho walked\n");
    Ok(script)
}

fn chapter(document: &str, title: &str) -> Result<String> {
    let heading = format!("## {title}");
    let mut lines = document.lines().skip_while(|line| *line != heading);
    ensure!(lines.next().is_some(), "there is no chapter `{title}`");
    let lines: Vec<_> = lines.take_while(|line| !line.starts_with("## ")).collect();
    Ok(lines.join("\n"))
}

fn parts(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            parts.push(Part::Block(language.to_owned(), block.join("\n")));
        } else if let Some(rest) = line.strip_prefix("<!-- ") {
            let mut comment = rest.to_owned();
            while !comment.ends_with("-->") {
                let Some(line) = lines.next() else { break };
                comment.push('\n');
                comment.push_str(line);
            }
            parts.push(Part::Comment(comment.trim_end_matches("-->").trim().to_owned()));
        }
    }
    parts
}

/// Returns the shell commands for a block.
fn step(language: &str, text: &str) -> Result<String> {
    match language {
        "sh" => {
            let commands = commands(text);
            if !commands.iter().all(|command| is_server(command)) {
                return Ok(format!("{text}\n"));
            }
            let start = |command: &String| format!("start {}\n", quoted(command));
            let starts: Vec<_> = commands.iter().map(start).collect();
            // Alternatives: each server ends before the next starts, and before the block after
            // them.
            let last = if starts.len() > 1 { "stop\n" } else { "" };
            Ok(format!("stop\n{}{last}", starts.join("stop\n")))
        }
        "toml" => {
            let name = text.lines().next().and_then(|line| line.strip_prefix("# "));
            let name = name.filter(|name| name.ends_with(".toml") && !name.contains('/'));
            let Some(name) = name else { return Ok(String::new()) };
            Ok(format!("cat >{name} <<'END OF FILE'\n{text}\nEND OF FILE\n"))
        }
        "text" => Ok(String::new()),
        other => bail!("a code block of unknown language `{other}`"),
    }
}

/// Returns the commands of a block, each on one line, without comments.
fn commands(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

fn is_server(command: &str) -> bool {
    let servers = ["lunar serve ", "lunar target ", "lunar switch --config "];
    servers.iter().any(|server| command.starts_with(server))
}

/// Quotes a text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: files, servers, commands and checks appear in order; blocks that are not walked do not
    /// appear.
    #[test]
    fn a_chapter_becomes_a_script() -> Result<()> {
        let text = "## A\n```sh\nother\n```\n## B\ntext\n```toml\n# b.toml\nx = 1\n```\n\
            ```sh\n# it\nlunar target \\\n  --config b.toml\n```\n<!-- walk: test -f it's -->\n\
            <!-- not walked: long -->\n```sh\nmake\n```\n```sh\nlunar info x |\n  cat\n```\n";
        let script = script(text, "B")?;
        let script = script.strip_prefix(PRELUDE).unwrap_or_default();
        let lines: Vec<_> = script.lines().collect();
        assert_eq!(lines[..4], ["cat >b.toml <<'END OF FILE'", "# b.toml", "x = 1", "END OF FILE"]);
        assert_eq!(lines[4..6], ["stop", "start 'lunar target    --config b.toml'"]);
        assert_eq!(lines[6..], ["test -f it's", "lunar info x |", "  cat", "stop", "echo walked"]);
        Ok(())
    }

    /// Goal: several servers in one block follow one another.
    #[test]
    fn alternatives_follow_one_another() -> Result<()> {
        let made = step("sh", "lunar serve a\nlunar serve 'b c'")?;
        assert_eq!(
            made,
            "stop\nstart 'lunar serve a'\nstop\nstart 'lunar serve '\\''b c'\\'''\nstop\n"
        );
        assert!(step("python", "").is_err() && script("## A\n", "B").is_err());
        Ok(())
    }
}
