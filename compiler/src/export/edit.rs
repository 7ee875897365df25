//! A copy of a file with other bytes in some places, written aside and renamed when it is whole.
//!
//! Elements that come from elsewhere are streamed into the copy: neither the file nor a tensor is ever in memory as a whole.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// Most bytes that are asked for at once.
const CHUNK: usize = 1 << 18;

/// What stands in the place of removed bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Insert {
    /// These bytes.
    Bytes(Vec<u8>),
    /// All elements of a tensor.
    State {
        /// Its name.
        name: String,
        /// Their bytes.
        len: u64,
    },
}

impl Insert {
    /// Bytes that are written.
    pub fn len(&self) -> u64 {
        match self {
            Insert::Bytes(b) => b.len() as u64,
            Insert::State { len, .. } => *len,
        }
    }
}

/// `remove` bytes from `at` on make room for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// First byte of the source.
    pub at: u64,
    /// Bytes of the source that are left out.
    pub remove: u64,
    /// What is written there.
    pub insert: Insert,
}

impl Edit {
    /// Bytes by which the copy grows.
    pub fn delta(&self) -> i64 {
        self.insert.len() as i64 - self.remove as i64
    }
}

/// Gives bytes of a tensor: name, first byte, where to put them.
pub type ReadState<'a> = &'a mut dyn FnMut(&str, u64, &mut [u8]) -> Result<(), String>;

/// Why a copy was not written.
#[derive(Debug)]
pub enum EditError {
    /// Reading the source or writing the copy failed.
    Io(io::Error),
    /// A tensor was not given.
    State {
        /// Its name.
        name: String,
        /// Why.
        what: String,
    },
}

impl From<io::Error> for EditError {
    fn from(e: io::Error) -> Self {
        EditError::Io(e)
    }
}

/// Links to follow before they are taken for a circle, as in Linux.
const MOST_LINKS: usize = 40;

/// A file written aside; removed unless it is put in its place.
pub struct Aside {
    path: PathBuf,
    target: PathBuf,
    placed: bool,
}

impl Drop for Aside {
    fn drop(&mut self) {
        if !self.placed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Aside {
    /// A new file that will be `target`, or what `target` links to.
    ///
    /// # Errors
    ///
    /// What the system says; that something stands there which is no regular file, such as a device or a pipe.
    pub fn create(target: &Path) -> io::Result<(Aside, File)> {
        let target = &followed(target)?;
        if target.exists() && !target.is_file() {
            return Err(io::Error::other("this is not a regular file"));
        }
        let mut name = std::ffi::OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(format!(".{}.tmp", std::process::id()));
        let path = target.with_file_name(name);
        let file = File::create(&path)?;
        Ok((Aside { path, target: target.to_owned(), placed: false }, file))
    }

    /// Renames it to its name and makes that last.
    pub fn place(mut self) -> io::Result<()> {
        fs::rename(&self.path, &self.target)?;
        self.placed = true;
        let dir = self.target.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(dir)?.sync_all()
    }
}

/// Where links lead, so that renaming replaces the file and not the link.
fn followed(target: &Path) -> io::Result<PathBuf> {
    let mut at = target.to_owned();
    for _ in 0..MOST_LINKS {
        if !at.is_symlink() {
            return Ok(at);
        }
        at = at.with_file_name(fs::read_link(&at)?);
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Writes a copy of `source` (nothing if there is none) beside `target`, with the edits in the order of their positions.
pub fn copy(
    source: Option<&Path>,
    len: u64,
    edits: &[Edit],
    target: &Path,
    state: ReadState<'_>,
) -> Result<Aside, EditError> {
    let mut source = source.map(File::open).transpose()?;
    if source.as_ref().map_or(Ok(0), |s| s.metadata().map(|m| m.len()))? != len {
        return Err(io::Error::other("the model changed while it was trained").into());
    }
    let (aside, file) = Aside::create(target)?;
    let mut out = BufWriter::with_capacity(CHUNK, file);
    let mut pos = 0;
    for e in edits {
        let Some(between) = e.at.checked_sub(pos) else {
            return Err(io::Error::other("two changes of the same bytes").into());
        };
        keep(source.as_mut(), pos, between, &mut out)?;
        pos = e.at + e.remove;
        match &e.insert {
            Insert::Bytes(b) => out.write_all(b)?,
            Insert::State { name, len } => {
                let mut buffer = vec![0; (*len).min(CHUNK as u64) as usize];
                let mut at = 0;
                while at < *len {
                    let n = (*len - at).min(CHUNK as u64) as usize;
                    state(name, at, &mut buffer[..n])
                        .map_err(|what| EditError::State { name: name.clone(), what })?;
                    out.write_all(&buffer[..n])?;
                    at += n as u64;
                }
            }
        }
    }
    keep(source.as_mut(), pos, len.saturating_sub(pos), &mut out)?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(aside)
}

/// Copies bytes of the source as they are.
fn keep(source: Option<&mut File>, from: u64, bytes: u64, out: &mut impl Write) -> io::Result<()> {
    let Some(source) = source.filter(|_| bytes > 0) else { return Ok(()) };
    source.seek(SeekFrom::Start(from))?;
    if io::copy(&mut source.take(bytes), out)? != bytes {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file changed while it was read"));
    }
    Ok(())
}
