//! A part's results: items by name in a file that is written after each of them.
//!
//! An item that is done stays done, as long as this program and the device are the same. The one that runs when the deadline comes is
//! written down as cut beforehand; it gets another try in the next run, and no third one: then it says so. A try counts if at least half
//! of the run's time was left for it.

use crate::device::Described;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How often an item may be begun.
const TRIES: u32 = 2;

/// The time that a run has.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    end: Instant,
    whole: Duration,
}

impl Clock {
    /// So many seconds from now.
    pub fn seconds(n: u64) -> Clock {
        let whole = Duration::from_secs(n);
        Clock { end: Instant::now() + whole, whole }
    }

    /// What is left.
    pub fn left(self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}

/// How an item ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It held, or was measured.
    Done,
    /// It did not hold, or broke off.
    Failed,
    /// The deadline came while it ran.
    Cut,
    /// It cannot be run; the note says why.
    NotRun,
}

/// One result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// How it ended.
    pub state: State,
    /// How often it was begun.
    pub tries: u32,
    /// How long it took.
    pub seconds: f64,
    /// Why, where it is not done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// What was measured.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub figures: Value,
}

/// What an item gives.
pub enum Outcome {
    /// It held; figures.
    Held(Value),
    /// It did not; why, with figures.
    Broke(String, Value),
    /// It cannot be run here; why.
    Not(String),
    /// It stopped because the time is over; it may go on in another run.
    OutOfTime,
}

/// The file's contents.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// Version of this form.
    pub schema: u32,
    /// The part, with its model.
    pub part: String,
    /// Hash of the program that made them.
    pub build: String,
    /// The device they were made on.
    pub device: Described,
    /// By name.
    pub items: BTreeMap<String, Item>,
    /// Items that no run has come to yet.
    pub left: Vec<String>,
}

/// A part that is being run.
pub struct Part {
    path: PathBuf,
    clock: Clock,
    /// Stands before the names of items.
    prefix: String,
    /// An item ran out of time: none is begun after it.
    over: bool,
    /// What will be written.
    pub results: Results,
}

impl Part {
    /// Opens a part's file: results of another program or device are put aside.
    pub fn open(folder: &Path, name: &str, device: Described, clock: Clock) -> Result<Part, String> {
        let folder = folder.join("results");
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let path = folder.join(format!("{name}.json"));
        let build = build()?;
        let before: Option<Results> =
            fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str(&text).ok());
        let mut results = Results {
            schema: 1,
            part: name.to_owned(),
            build,
            device,
            items: BTreeMap::new(),
            left: Vec::new(),
        };
        match before {
            Some(b) if b.build == results.build && b.device.name == results.device.name => {
                results.items = b.items;
            }
            Some(_) => {
                let aside = path.with_extension("before.json");
                fs::rename(&path, &aside).map_err(|e| format!("{}: {e}", aside.display()))?;
            }
            None => {}
        }
        Ok(Part { path, clock, prefix: String::new(), over: false, results })
    }

    /// The time that this run has.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// An item's figures, if it is done.
    pub fn figures(&self, name: &str) -> Option<&Value> {
        self.results.items.get(name).filter(|i| i.state == State::Done).map(|i| &i.figures)
    }

    /// Items that fail, or that had all their tries.
    pub fn failed(&self) -> usize {
        self.results.items.values().filter(|i| i.state == State::Failed || i.state == State::Cut).count()
    }

    /// Runs items whose names begin with a prefix.
    pub fn under(
        &mut self,
        prefix: &str,
        run: impl FnOnce(&mut Part) -> Result<(), String>,
    ) -> Result<(), String> {
        let before = std::mem::replace(&mut self.prefix, prefix.to_owned());
        let done = run(self);
        self.prefix = before;
        done
    }

    /// Runs an item unless it is done. A panic in it is a failure.
    pub fn item(&mut self, name: &str, run: impl FnOnce() -> Outcome) -> Result<(), String> {
        let name = &*format!("{}{name}", self.prefix);
        let tries = match self.results.items.get(name) {
            Some(i) if i.state == State::Cut && i.tries < TRIES => i.tries,
            Some(_) => return Ok(()),
            None => 0,
        };
        if self.over || self.clock.left().is_zero() {
            self.results.left.push(name.to_owned());
            return Ok(());
        }
        let tries = tries + u32::from(self.clock.left() * 2 >= self.clock.whole);
        let note = format!(
            "the deadline came while it ran{}",
            if tries < TRIES {
                ""
            } else {
                ", and it is not tried again: give a longer one, and remove it here"
            }
        );
        let cut = Item { state: State::Cut, tries, seconds: 0.0, note, figures: Value::Null };
        self.results.items.insert(name.to_owned(), cut.clone());
        self.write()?;
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|e| {
            let text = e.downcast_ref::<String>().cloned();
            let text = text.or_else(|| e.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Outcome::Broke(format!("panic: {}", text.unwrap_or_default()), Value::Null)
        });
        let (state, note, figures) = match outcome {
            Outcome::Held(figures) => (State::Done, String::new(), figures),
            Outcome::Broke(note, figures) => (State::Failed, note, figures),
            Outcome::Not(note) => (State::NotRun, note, Value::Null),
            Outcome::OutOfTime => {
                self.over = true;
                self.results.left.push(name.to_owned());
                self.results.items.insert(name.to_owned(), cut);
                return self.write();
            }
        };
        let seconds = (start.elapsed().as_secs_f64() * 1e3).round() / 1e3;
        eprintln!(
            "{} {name}: {state:?} in {seconds} s{}{note}",
            self.results.part,
            if note.is_empty() { "" } else { ": " }
        );
        self.results.items.insert(name.to_owned(), Item { state, tries, seconds, note, figures });
        self.write()
    }

    /// Writes the file at the end of a run.
    pub fn close(&mut self) -> Result<(), String> {
        self.write()
    }

    fn write(&self) -> Result<(), String> {
        let text = serde_json::to_string_pretty(&self.results).map_err(|e| e.to_string())?;
        write_aside(&self.path, text.as_bytes())
    }
}

/// Writes a file aside and renames it into place.
pub fn write_aside(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
        file.write_all(bytes)?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|e| format!("{}: {e}", path.display()))
}

/// Hash of this program.
fn build() -> Result<String, String> {
    let path = std::env::current_exe().map_err(|e| e.to_string())?;
    let bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(blake3::hash(&bytes).to_hex()[..16].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn open(folder: &Path, seconds: u64) -> Part {
        let device = Described { name: "d".to_owned(), ..Described::default() };
        Part::open(folder, "p", device, Clock::seconds(seconds)).unwrap()
    }

    #[test]
    fn a_part_goes_on_where_it_was_cut() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = open(dir.path(), 600);
        first.item("a", || Outcome::Held(json!(1))).unwrap();
        first.item("b", || Outcome::Broke("no".to_owned(), json!(2))).unwrap();
        first.item("c", || panic!("oh")).unwrap();
        first.item("d", || Outcome::OutOfTime).unwrap();
        first.item("f", || panic!("there is no time left")).unwrap();
        assert_eq!(first.results.left, ["d", "f"]);
        let mut late = open(dir.path(), 0);
        late.item("d", || Outcome::Held(json!(3))).unwrap();
        late.item("e", || Outcome::Held(json!(4))).unwrap();
        assert_eq!(late.results.left, ["d", "e"]);
        let mut second = open(dir.path(), 600);
        second.item("a", || panic!("done before")).unwrap();
        second.item("d", || Outcome::OutOfTime).unwrap();
        let mut third = open(dir.path(), 600);
        third.item("d", || panic!("it had its tries")).unwrap();
        let states: Vec<State> = third.results.items.values().map(|i| i.state).collect();
        assert_eq!(states, [State::Done, State::Failed, State::Failed, State::Cut]);
        assert!(third.results.items["c"].note.contains("oh"));
        assert!(third.results.items["d"].note.contains("not tried again"));
    }

    #[test]
    fn results_of_another_device_are_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path(), 600).item("a", || Outcome::Held(json!(1))).unwrap();
        let other = Part::open(dir.path(), "p", Described::default(), Clock::seconds(600)).unwrap();
        assert!(other.results.items.is_empty() && dir.path().join("results/p.before.json").exists());
    }
}
