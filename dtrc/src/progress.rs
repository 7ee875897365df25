//! Progress on stderr: a spinner on a terminal, elsewhere a line after five seconds and every thirty from then on.

use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::IsTerminal,
    sync::Mutex,
    time::{Duration, Instant},
};

/// Shows what is going on, after two seconds.
pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    started: Instant,
    /// When a line was last written.
    last: Mutex<Option<Instant>>,
}

impl Progress {
    /// Starts; nothing is shown with `quiet`.
    pub fn new(quiet: bool) -> Progress {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Progress { bar, quiet, started: Instant::now(), last: Mutex::new(None) }
    }

    /// Tells the present state.
    pub fn tell(&self, text: &str) {
        if self.quiet || self.started.elapsed() < Duration::from_secs(2) {
            return;
        }
        match &self.bar {
            Some(bar) => {
                bar.enable_steady_tick(Duration::from_millis(120));
                bar.set_message(text.to_owned());
            }
            None => {
                let Ok(mut last) = self.last.lock() else { return };
                let due = match *last {
                    Some(last) => last.elapsed() >= Duration::from_secs(30),
                    None => self.started.elapsed() >= Duration::from_secs(5),
                };
                if due {
                    *last = Some(Instant::now());
                    eprintln!("[{} s] {text}", self.started.elapsed().as_secs());
                }
            }
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A note for the user, unless quiet.
pub fn note(quiet: bool, text: impl AsRef<str>) {
    if !quiet {
        eprintln!("note: {}", text.as_ref());
    }
}
