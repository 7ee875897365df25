//! What the planner's tests share.

use std::path::{Path, PathBuf};

/// A folder of the test data: under `DTRC_DATA`, or under a `shared/data` beside some parent of this crate. Without it the test is
/// skipped loudly, and fails where `CI=true`.
pub(crate) fn data(folder: &str) -> Option<PathBuf> {
    let given = std::env::var_os("DTRC_DATA").map(PathBuf::from);
    let found = given.or_else(|| {
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|a| a.join("shared/data")).find(|p| p.is_dir())
    });
    match found.map(|p| p.join(folder)).filter(|p| p.is_dir()) {
        Some(path) => Some(path),
        None => {
            assert!(std::env::var_os("CI").is_none(), "test data {folder:?} not found");
            // Past the test harness, which shows nothing of what a passing test prints.
            let _ = std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("SKIPPED: test data {folder:?} not found; set DTRC_DATA\n"),
            );
            None
        }
    }
}
