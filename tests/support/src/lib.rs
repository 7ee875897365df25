//! What tests of every crate share: finding what they need beside the repository, and saying so where it is not there.
//!
//! A crate of its own, without dependencies, so that the crates at the bottom of the workspace can use it in their tests.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

/// Says loudly that the running test is skipped because `what` is not there. Where `CI` is set nothing may be skipped.
///
/// # Panics
///
/// If `CI` is set.
pub fn skipped(what: &str) {
    assert!(std::env::var_os("CI").is_none(), "{what}");
    tell(&format!("SKIPPED: {what}\n"));
}

/// Prints past the test harness, which shows nothing of what a passing test prints; at once, as other tests print, too.
fn tell(line: &str) {
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Writes what a test found beside passing, in Markdown, to `target/reports/NAME.md`, and prints the summary, one line, past the test
/// harness. To be called before the test fails, so that it can be read then.
///
/// # Panics
///
/// If the file cannot be written.
pub fn report(name: &str, summary: &str, table: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/reports");
    fs::create_dir_all(&folder).expect("target can be written");
    fs::write(folder.join(name).with_extension("md"), format!("# {summary}\n\n{table}"))
        .expect("target can be written");
    tell(&format!("REPORT: {summary} (target/reports/{name}.md)\n"));
}

/// A file or folder of the handed data: below `DTRC_DATA`, or below a `shared/data` beside the repository or above it. `None`, after
/// [saying so](skipped), if it is nowhere.
///
/// # Panics
///
/// If `CI` is set and it is nowhere.
pub fn data(part: &str) -> Option<PathBuf> {
    let given = std::env::var_os("DTRC_DATA").map(PathBuf::from);
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("shared/data"));
    let found = given.into_iter().chain(above).map(|folder| folder.join(part)).find(|path| path.exists());
    if found.is_none() {
        skipped(&format!("{part} is missing in the data folder: set DTRC_DATA to it"));
    }
    found
}
