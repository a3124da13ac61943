//! Where a test may put things: cargo's target folder, found from the running test program.

use std::path::{Path, PathBuf};

/// Cargo marks its target folder with this file, wherever the configuration put it.
const MARK: &str = "CACHEDIR.TAG";

pub(crate) fn target() -> PathBuf {
    let marked = |exe: PathBuf| exe.ancestors().find(|folder| folder.join(MARK).is_file()).map(Path::to_path_buf);
    std::env::current_exe()
        .ok()
        .and_then(marked)
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"))
}
