//! Checkpoints: the state section and where training stands, in one file that is right or is not there.
//!
//! `DTRCCKPT`, the version (u32), the length of the header (u32), the header (JSON), the state tensors in the order of their names, BLAKE3
//! of all before it. Written aside through one staging buffer, synced, renamed; a broken file is never taken for a checkpoint.
//!
//! A checkpoint holds what the plan's training programs read and write, so that plans of the same training step go on from it whatever
//! their budget and whatever they evaluate.

use crate::{RuntimeError, Session};
use ops::Registry;
use plan::{ProgramKind, hex, training_numerics};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
};

const MAGIC: &[u8; 8] = b"DTRCCKPT";
const VERSION: u32 = 2;
/// Bytes copied at a time.
const STAGING: usize = 1 << 20;
/// Longest header that is read.
const HEADER_LIMIT: u32 = 1 << 26;

/// Where training stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cursor {
    /// Updates made so far.
    pub step: u64,
    /// Epoch of the next batch.
    pub epoch: u64,
    /// Next batch in the epoch.
    pub batch: u64,
    /// Seed of the run.
    pub seed: i64,
    /// Seed of the order of the data.
    pub shuffle: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    /// Hash of what decides the bits of training.
    numerics: String,
    cursor: Cursor,
    /// (name, type, bytes) in the order of the file.
    state: Vec<(String, String, u64)>,
}

/// A checkpoint that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system refused.
    #[error("{path}: {error}")]
    Io {
        /// File or folder.
        path: String,
        /// The system's reason.
        error: io::Error,
    },
    /// The file is no checkpoint, or a damaged one.
    #[error("{path}: {what}")]
    Broken {
        /// File.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// The checkpoint belongs to another computation.
    #[error(
        "{path}: made by another training step ({what}): the model, the sizes that --dim or --batch binds, the loss, the optimizer, \
         --freeze, --accumulate, --amp or the version of dtrc differs; give what it was made with, or choose another folder"
    )]
    Other {
        /// File.
        path: String,
        /// What differs.
        what: String,
    },
    /// There are checkpoints, but no whole one.
    #[error(
        "{dir}: none of its {count} checkpoints is whole ({newest}); restore one from a copy, or start anew in another folder"
    )]
    NoneWhole {
        /// Folder.
        dir: String,
        /// How many there are.
        count: usize,
        /// What is wrong with the newest.
        newest: String,
    },
    /// The session refused.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

fn header_of(session: &Session, cursor: &Cursor) -> Header {
    let plan = session.plan();
    let training = plan.programs.iter().filter(|p| p.kind != ProgramKind::Infer);
    let names: BTreeSet<&str> = training.flat_map(|p| &p.graph.states).map(|s| s.name.as_ref()).collect();
    let entry = |e: &plan::StateEntry| (e.name.to_string(), e.ty.to_string(), e.ty.bytes().unwrap_or(0));
    let mut state: Vec<_> = plan.state.iter().filter(|e| names.contains(&*e.name)).map(entry).collect();
    state.sort();
    Header { numerics: hex(&training_numerics(plan, &Registry)), cursor: cursor.clone(), state }
}

/// The file of the checkpoint after `step` updates.
pub fn file(dir: &Path, step: u64) -> PathBuf {
    dir.join(format!("step-{step:010}.ckpt"))
}

/// Writes a checkpoint and removes all but the newest `keep` (0 keeps all). Returns its file.
pub fn save(dir: &Path, session: &Session, cursor: &Cursor, keep: usize) -> Result<PathBuf, CheckpointError> {
    let path = file(dir, cursor.step);
    let fail = |error: io::Error| CheckpointError::Io { path: path.display().to_string(), error };
    fs::create_dir_all(dir).map_err(fail)?;
    let aside = dir.join(format!(".step-{:010}.{}.tmp", cursor.step, std::process::id()));
    let result = write(&aside, session, cursor).and_then(|()| {
        fs::rename(&aside, &path).map_err(fail)?;
        File::open(dir).and_then(|d| d.sync_all()).map_err(fail)
    });
    if let Err(e) = result {
        let _ = fs::remove_file(&aside);
        return Err(e);
    }
    // What killed processes left behind.
    for old in entries(dir, ".step-", ".tmp")? {
        fs::remove_file(&old).map_err(fail)?;
    }
    if keep > 0 {
        // Newer ones are broken, or this step would not have been made again: they must not crowd it out.
        let all: Vec<PathBuf> = list(dir)?.into_iter().filter(|p| *p <= path).collect();
        for old in &all[..all.len().saturating_sub(keep)] {
            fs::remove_file(old).map_err(fail)?;
        }
    }
    Ok(path)
}

fn write(path: &Path, session: &Session, cursor: &Cursor) -> Result<(), CheckpointError> {
    let fail = |error: io::Error| CheckpointError::Io { path: path.display().to_string(), error };
    let header = header_of(session, cursor);
    let text = serde_json::to_vec(&header).map_err(|e| fail(e.into()))?;
    let mut file = File::create(path).map_err(fail)?;
    let mut hasher = blake3::Hasher::new();
    let mut put = |bytes: &[u8]| -> Result<(), CheckpointError> {
        hasher.update(bytes);
        file.write_all(bytes).map_err(fail)
    };
    put(MAGIC)?;
    put(&VERSION.to_le_bytes())?;
    put(&(text.len() as u32).to_le_bytes())?;
    put(&text)?;
    let mut staging = vec![0; STAGING];
    for (name, _, bytes) in &header.state {
        let mut at = 0;
        while at < *bytes {
            let n = (bytes - at).min(STAGING as u64) as usize;
            session.read_state(name, at, &mut staging[..n])?;
            put(&staging[..n])?;
            at += n as u64;
        }
    }
    let hash = *hasher.finalize().as_bytes();
    file.write_all(&hash).map_err(fail)?;
    file.sync_all().map_err(fail)
}

/// The checkpoints of a folder, oldest first.
pub fn list(dir: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    entries(dir, "step-", ".ckpt")
}

/// Files of a folder by name, in order.
fn entries(dir: &Path, begins: &str, ends: &str) -> Result<Vec<PathBuf>, CheckpointError> {
    let fail = |error: io::Error| CheckpointError::Io { path: dir.display().to_string(), error };
    let mut out = Vec::new();
    for e in fs::read_dir(dir).map_err(fail)? {
        let path = e.map_err(fail)?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if name.starts_with(begins) && name.ends_with(ends) {
            out.push(path);
        }
    }
    out.sort();
    Ok(out)
}

/// Restores the newest checkpoint that is whole, `None` if the folder has none at all. Also returns what is wrong with broken ones that
/// were skipped.
///
/// # Errors
///
/// All are broken, or the newest whole one belongs to another training step.
pub fn resume(dir: &Path, session: &mut Session) -> Result<(Option<Cursor>, Vec<String>), CheckpointError> {
    let mut broken = Vec::new();
    if !dir.exists() {
        return Ok((None, broken));
    }
    let all = list(dir)?;
    for path in all.iter().rev() {
        // Checked whole before the first byte of state changes.
        match verify(path) {
            Ok(header) => {
                restore(path, &header, session)?;
                return Ok((Some(header.cursor), broken));
            }
            Err(e @ CheckpointError::Broken { .. }) => broken.push(e.to_string()),
            Err(e) => return Err(e),
        }
    }
    match broken.first() {
        Some(newest) => Err(CheckpointError::NoneWhole {
            dir: dir.display().to_string(),
            count: all.len(),
            newest: newest.clone(),
        }),
        None => Ok((None, broken)),
    }
}

fn open(path: &Path) -> Result<(BufReader<File>, u64), CheckpointError> {
    let fail = |error: io::Error| CheckpointError::Io { path: path.display().to_string(), error };
    let file = File::open(path).map_err(fail)?;
    let len = file.metadata().map_err(fail)?.len();
    Ok((BufReader::with_capacity(STAGING, file), len))
}

/// Reads and checks a whole file.
fn verify(path: &Path) -> Result<Header, CheckpointError> {
    let io_fail = |error: io::Error| CheckpointError::Io { path: path.display().to_string(), error };
    let broken =
        |what: &str| CheckpointError::Broken { path: path.display().to_string(), what: what.to_owned() };
    let (mut r, len) = open(path)?;
    if len < 48 {
        return Err(broken("too short for a checkpoint"));
    }
    let mut hasher = blake3::Hasher::new();
    let mut left = len - 32;
    let mut buffer = vec![0; STAGING];
    while left > 0 {
        let n = left.min(STAGING as u64) as usize;
        r.read_exact(&mut buffer[..n]).map_err(io_fail)?;
        hasher.update(&buffer[..n]);
        left -= n as u64;
    }
    let mut hash = [0; 32];
    r.read_exact(&mut hash).map_err(io_fail)?;
    if *hasher.finalize().as_bytes() != hash {
        return Err(broken("damaged or truncated: its checksum differs"));
    }
    let (mut r, _) = open(path)?;
    read_header(&mut r, path)
}

fn read_header(r: &mut impl Read, path: &Path) -> Result<Header, CheckpointError> {
    let io_fail = |error: io::Error| CheckpointError::Io { path: path.display().to_string(), error };
    let broken = |what: String| CheckpointError::Broken { path: path.display().to_string(), what };
    let mut fixed = [0; 16];
    r.read_exact(&mut fixed).map_err(io_fail)?;
    if &fixed[..8] != MAGIC {
        return Err(broken("not a checkpoint".to_owned()));
    }
    let version = u32::from_le_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]);
    let length = u32::from_le_bytes([fixed[12], fixed[13], fixed[14], fixed[15]]);
    if version != VERSION || length > HEADER_LIMIT {
        return Err(broken(format!("checkpoint version {version} cannot be read by this dtrc")));
    }
    let mut text = vec![0; length as usize];
    r.read_exact(&mut text).map_err(io_fail)?;
    serde_json::from_slice(&text).map_err(|e| broken(e.to_string()))
}

fn restore(path: &Path, header: &Header, session: &mut Session) -> Result<(), CheckpointError> {
    let other = |what: String| CheckpointError::Other { path: path.display().to_string(), what };
    let io_fail = |error: io::Error| CheckpointError::Io { path: path.display().to_string(), error };
    let here = header_of(session, &header.cursor);
    if here.numerics != header.numerics {
        return Err(other("numerics".to_owned()));
    }
    if here.state != header.state {
        return Err(other("state tensors".to_owned()));
    }
    let (mut r, _) = open(path)?;
    read_header(&mut r, path)?;
    let mut staging = vec![0; STAGING];
    for (name, _, bytes) in &header.state {
        let mut at = 0;
        while at < *bytes {
            let n = (bytes - at).min(STAGING as u64) as usize;
            r.read_exact(&mut staging[..n]).map_err(io_fail)?;
            session.write_state(name, at, &staging[..n])?;
            at += n as u64;
        }
    }
    Ok(())
}
