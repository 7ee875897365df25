//! An array on disk that is read in pieces, so that a data set is never loaded whole.

use super::{DataError, npy, npy::ArrayType};
use graph::Literal;
use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::Path,
};

/// An array with random access to its bytes.
#[derive(Debug)]
pub struct Array {
    /// Element type and extents.
    pub ty: ArrayType,
    /// For messages: the file and the array's name.
    pub label: String,
    file: File,
    offset: u64,
}

impl Array {
    /// Opens an npy file.
    pub fn open_npy(path: &Path) -> Result<Array, DataError> {
        let label = path.display().to_string();
        let fail = |e: std::io::Error| DataError { file: label.clone(), what: e.to_string() };
        let file = File::open(path).map_err(fail)?;
        let end = file.metadata().map_err(fail)?.len();
        Array::at(file, 0, end, label.clone())
    }

    /// An array whose header begins at byte `start` of a file, in which it ends before `end`.
    pub(super) fn at(mut file: File, start: u64, end: u64, label: String) -> Result<Array, DataError> {
        let fail = |e: std::io::Error| DataError { file: label.clone(), what: e.to_string() };
        file.seek(SeekFrom::Start(start)).map_err(fail)?;
        let mut counted = Counted { inner: &mut file, read: 0 };
        let ty = npy::read_header(&mut counted, &label)?;
        let offset = start + counted.read;
        let needed = ty.bytes().and_then(|b| b.checked_add(offset));
        if needed.is_none_or(|n| n > end) {
            let what = format!("truncated: its shape {:?} needs more bytes than there are", ty.shape);
            return Err(DataError { file: label, what });
        }
        Ok(Array { ty, label, file, offset })
    }

    /// The whole array.
    pub fn literal(&mut self) -> Result<Literal, DataError> {
        // As many as the file holds, by [`Array::at`].
        let mut bytes = vec![0; self.ty.bytes().unwrap_or(0) as usize];
        self.read(0, &mut bytes)?;
        Literal::new(self.ty.dtype, self.ty.shape.clone(), bytes)
            .map_err(|e| DataError { file: self.label.clone(), what: e.to_string() })
    }

    /// Reads elements from byte `at` of the array on, little endian. `at` and the length are multiples of the element size.
    pub fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), DataError> {
        let fail = |e: std::io::Error| DataError { file: self.label.clone(), what: e.to_string() };
        self.file.seek(SeekFrom::Start(self.offset + at)).map_err(fail)?;
        self.file.read_exact(out).map_err(fail)?;
        self.ty.to_little_endian(out);
        Ok(())
    }
}

/// Counts what is read.
struct Counted<'a, R> {
    inner: &'a mut R,
    read: u64,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.read += n as u64;
        Ok(n)
    }
}
