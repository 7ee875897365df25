//! An array on disk that is read in pieces: npy files, and npz entries (stored ones in place, packed ones from an unpacked temporary
//! copy), so that a data set is never loaded whole.

use super::{DataError, npy, npy::ArrayType};
use std::{
    fs::File,
    io::{BufReader, Read, Seek, SeekFrom},
    path::Path,
};
use zip::{CompressionMethod, ZipArchive};

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
        Array::at(file, 0, label.clone())
    }

    /// Opens every array of an npz archive, in the archive's order: (name, array).
    pub fn open_npz(path: &Path) -> Result<Vec<(String, Array)>, DataError> {
        let fail = |what: String| DataError { file: path.display().to_string(), what };
        let open = || File::open(path).map_err(|e| fail(e.to_string()));
        let mut zip =
            ZipArchive::new(BufReader::new(open()?)).map_err(|e| fail(format!("not an npz archive: {e}")))?;
        let mut out = Vec::new();
        for i in 0..zip.len() {
            let mut entry = zip.by_index(i).map_err(|e| fail(e.to_string()))?;
            let name = entry.name().strip_suffix(".npy").unwrap_or(entry.name()).to_owned();
            let label = format!("{}[{name}]", path.display());
            let array = if entry.compression() == CompressionMethod::Stored {
                Array::at(open()?, entry.data_start(), label)?
            } else {
                let mut unpacked =
                    tempfile::tempfile().map_err(|e| fail(format!("no room to unpack {name}: {e}")))?;
                std::io::copy(&mut entry, &mut unpacked)
                    .map_err(|e| fail(format!("unpacking {name}: {e}")))?;
                Array::at(unpacked, 0, label)?
            };
            out.push((name, array));
        }
        Ok(out)
    }

    fn at(mut file: File, start: u64, label: String) -> Result<Array, DataError> {
        let fail = |e: std::io::Error| DataError { file: label.clone(), what: e.to_string() };
        file.seek(SeekFrom::Start(start)).map_err(fail)?;
        let mut counted = Counted { inner: &mut file, read: 0 };
        let ty = npy::read_header(&mut counted, &label)?;
        let offset = start + counted.read;
        let size = file.metadata().map_err(fail)?.len();
        let needed = ty.bytes().and_then(|b| b.checked_add(offset));
        if needed.is_none_or(|n| n > size) {
            let what = format!("truncated: its shape {:?} needs more bytes than the file has", ty.shape);
            return Err(DataError { file: label, what });
        }
        Ok(Array { ty, label, file, offset })
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
