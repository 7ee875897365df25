//! The event trace by which two simulators are compared: one event a line, hashed.
//!
//! `C<tensor>` first execution (the op's first output), `R<tensor>` repeated one (the output asked for), `E<root>` eviction by the
//! heuristic, `X<root>` eviction of the dead, `P<root>` pin. Lines are joined by single newlines, none at the end.

use std::io::{self, Write};

use sha2::{Digest, Sha256};

use crate::world::{Cause, Event};

/// An event as its line; `None` for one that the reference does not know.
pub fn trace_line(event: &Event) -> Option<String> {
    Some(match *event {
        Event::Execute { target, first: true, .. } => format!("C{target}"),
        Event::Execute { target, first: false, .. } => format!("R{target}"),
        Event::Drop { root, cause: Cause::Chosen, .. } => format!("E{root}"),
        Event::Drop { root, cause: Cause::Dead | Cause::Gone, .. } => format!("X{root}"),
        Event::Pin { root, .. } => format!("P{root}"),
        Event::Forget { .. } => return None,
    })
}

/// Writes the lines of a trace.
///
/// # Errors
/// Those of the writer.
pub fn write_trace(events: &[Event], mut to: impl Write) -> io::Result<()> {
    for (index, line) in events.iter().filter_map(trace_line).enumerate() {
        let separator = if index == 0 { "" } else { "\n" };
        write!(to, "{separator}{line}")?;
    }
    Ok(())
}

/// SHA-256 of the trace, in lower-case hexadecimal.
pub fn trace_sha256(events: &[Event]) -> String {
    let mut hash = Sha256::new();
    for (index, line) in events.iter().filter_map(trace_line).enumerate() {
        if index > 0 {
            hash.update("\n");
        }
        hash.update(line);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
