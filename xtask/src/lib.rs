//! Checks and generators of the project: `tidy` (a test), the table of syncs, the lists of RFC
//! sections, the pictures of README.md, and a runner of the test programs.

#[cfg(test)]
mod ci;
pub mod pictures;
pub mod rfc;
pub mod sbom;
pub mod syncs;
pub mod test_programs;
pub mod tidy;

use std::path::{Path, PathBuf};

/// Returns the folder of the workspace, the parent of this crate's folder.
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}
