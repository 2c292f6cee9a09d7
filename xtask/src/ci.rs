//! Tests of `.ci/rustc`, which compiles, checks and documents the crates in `.ci/run`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder that ends with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lunar-ci-{name}-{}", std::process::id()));
        std::fs::create_dir_all(path.join("debug/deps")).unwrap();
        Self(path)
    }

    /// Compiles `source` as the crate `probe`, with `arguments` more than cargo always has.
    fn compile(&self, source: &str, arguments: &[&str]) -> Output {
        let (source_path, built) = (self.0.join("probe.rs"), self.0.join("debug/deps"));
        std::fs::write(&source_path, source).unwrap();
        Command::new(crate::workspace_root().join(".ci/rustc"))
            .args(["rustc", "--crate-name", "probe", "--edition=2024"])
            .arg(&source_path)
            .args(["--error-format=json", "--json=diagnostic-rendered-ansi,artifacts"])
            .args(["--emit=dep-info,metadata,link", "-C", "metadata=1", "--out-dir"])
            .arg(&built)
            .args(arguments)
            .current_dir(crate::workspace_root())
            .output()
            .unwrap()
    }

    fn has(&self, path: impl AsRef<Path>) -> bool {
        self.0.join(path).exists()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A library with nothing to say about it.
const CLEAN: &str = "//! A crate.\n\n/// Returns one.\npub fn one() -> u8 {\n    1\n}\n";
const LIBRARY: &[&str] = &["--crate-type", "lib"];

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Goal: a library is compiled and documented; its tests are compiled only.
#[test]
fn libraries_are_compiled_and_documented() {
    let folder = Folder::new("clean");
    let output = folder.compile(CLEAN, &["--test"]);
    assert!(output.status.success(), "{}", message(&output));
    assert!(folder.has("debug/deps/probe") && !folder.has("doc"));
    let output = folder.compile(CLEAN, LIBRARY);
    assert!(output.status.success(), "{}", message(&output));
    assert!(folder.has("debug/deps/libprobe.rlib") && folder.has("doc/probe/index.html"));
}

/// Goal: warnings of the compiler, of clippy (in tests too) and of rustdoc are errors.
#[test]
fn warnings_are_errors() {
    let folder = Folder::new("warnings");
    let returns = CLEAN.replace("    1\n", "    return 1;\n");
    let unused = CLEAN.replace("    1\n", "    let two = 2;\n    1\n");
    let link = CLEAN.replace("one.", "[`Two`].");
    let cases: [(&str, &[&str], &str); 4] = [
        (&returns, LIBRARY, "clippy::needless_return"),
        (&returns, &["--test"], "clippy::needless_return"),
        (&unused, LIBRARY, "unused_variables"),
        (&link, LIBRARY, "rustdoc::broken_intra_doc_links"),
    ];
    for (source, arguments, lint) in cases {
        let output = folder.compile(source, arguments);
        assert!(!output.status.success(), "no error {lint}");
        assert!(message(&output).contains(lint), "{lint}: {}", message(&output));
    }
}
