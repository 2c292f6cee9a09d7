//! The project's own checks and generators: `tidy` (a test), the lists of RFC sections.

pub mod rfc;
pub mod syncs;
pub mod tidy;

use std::path::{Path, PathBuf};

/// The folder of the workspace, known from where this crate stands.
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}
