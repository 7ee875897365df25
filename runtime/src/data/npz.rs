//! npz: a zip archive of npy arrays.

use super::{DataError, array::Array, npy};
use graph::{DType, Literal};
use std::{
    fs::File,
    io::{BufReader, BufWriter, ErrorKind, Seek, Write},
    path::{Path, PathBuf},
};
use zip::{CompressionMethod, ZipArchive, ZipWriter, write::SimpleFileOptions};

/// An open archive.
pub struct Npz {
    path: PathBuf,
    archive: ZipArchive<BufReader<File>>,
}

impl Npz {
    /// Opens an archive.
    pub fn open(path: &Path) -> Result<Npz, DataError> {
        let fail = |what: String| DataError { file: path.display().to_string(), what };
        let file = File::open(path).map_err(|e| fail(e.to_string()))?;
        let archive =
            ZipArchive::new(BufReader::new(file)).map_err(|e| fail(format!("not an npz archive: {e}")))?;
        Ok(Npz { path: path.to_owned(), archive })
    }

    /// Names of the arrays, in the archive's order.
    pub fn names(&self) -> Vec<String> {
        self.archive.file_names().map(|n| n.strip_suffix(".npy").unwrap_or(n).to_owned()).collect()
    }

    /// Opens every array, in the archive's order: (name, array).
    pub fn arrays(&mut self) -> Result<Vec<(String, Array)>, DataError> {
        self.names()
            .into_iter()
            .enumerate()
            .map(|(i, name)| Ok((name.clone(), self.array(i, &name)?)))
            .collect()
    }

    /// Reads a whole array.
    pub fn read(&mut self, name: &str) -> Result<Literal, DataError> {
        let names = self.names();
        let at = names.iter().position(|n| n == name).ok_or_else(|| DataError {
            file: self.path.display().to_string(),
            what: format!("no array {name:?}; there are {}", names.join(", ")),
        })?;
        self.array(at, name)?.literal()
    }

    /// Opens entry `i`: a stored one in place, a packed one from an unpacked temporary copy. Either is read through once, because its
    /// checksum covers all of it and batches are read piece by piece later.
    fn array(&mut self, i: usize, name: &str) -> Result<Array, DataError> {
        let label = format!("{}[{name}]", self.path.display());
        let fail = |what: String| DataError { file: label.clone(), what };
        let broken = |e: std::io::Error| match e.kind() {
            ErrorKind::InvalidData
            | ErrorKind::InvalidInput
            | ErrorKind::Other
            | ErrorKind::UnexpectedEof => fail(format!("damaged ({e}): write the file anew")),
            _ => fail(e.to_string()),
        };
        let mut entry = self.archive.by_index(i).map_err(|e| fail(e.to_string()))?;
        if entry.compression() == CompressionMethod::Stored {
            let read = std::io::copy(&mut entry, &mut std::io::sink()).map_err(broken)?;
            let start = entry.data_start();
            let file = File::open(&self.path).map_err(|e| fail(e.to_string()))?;
            return Array::at(file, start, start + read, label.clone());
        }
        let mut unpacked =
            tempfile::tempfile().map_err(|e| fail(format!("no room to unpack it: {e}; set TMPDIR")))?;
        let read = std::io::copy(&mut entry, &mut unpacked).map_err(broken)?;
        Array::at(unpacked, 0, read, label.clone())
    }
}

/// An array to be written: name, element type, extents, elements (little endian, row-major).
pub type Named<'a> = (&'a str, DType, &'a [u64], &'a [u8]);

/// Writes an archive of stored arrays. The same arrays give the same bytes.
///
/// # Errors
///
/// Those of the writer.
pub fn write<'a>(to: impl Write + Seek, arrays: impl IntoIterator<Item = Named<'a>>) -> std::io::Result<()> {
    let mut zip = ZipWriter::new(BufWriter::new(to));
    for (name, dtype, shape, bytes) in arrays {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(bytes.len() >= 1 << 31);
        zip.start_file(format!("{name}.npy"), options)?;
        npy::write_array(&mut zip, dtype, shape, bytes)?;
    }
    zip.finish()?.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let floats: Vec<u8> =
            [1.5f32, -2.0, 0.25, 3.0, 4.0, 5.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let scalar = 7i64.to_le_bytes();
        let half = [0x80, 0x3f];
        let arrays: [Named; 4] = [
            ("x", DType::F32, &[2, 3], &floats),
            ("scope/n", DType::I64, &[], &scalar),
            ("one", DType::BF16, &[1], &half),
            ("empty", DType::U8, &[0, 4], &[]),
        ];
        write(file.as_file(), arrays).unwrap();
        let mut npz = Npz::open(file.path()).unwrap();
        assert_eq!(npz.names(), ["x", "scope/n", "one", "empty"]);
        let x = npz.read("x").unwrap();
        assert_eq!((x.dtype(), x.shape(), x.bytes()), (DType::F32, [2, 3].as_slice(), floats.as_slice()));
        assert_eq!(npz.read("scope/n").unwrap().to_ints(), Some(vec![7]));
        assert_eq!(npz.read("one").unwrap().to_floats(), [1.0]);
        assert_eq!(npz.read("empty").unwrap().shape(), [0, 4]);
        assert!(npz.read("y").unwrap_err().to_string().contains("there are x, scope/n, one, empty"));
    }

    #[test]
    fn every_damaged_byte_of_an_entry_is_found() {
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            let mut whole = std::io::Cursor::new(Vec::new());
            let mut zip = ZipWriter::new(&mut whole);
            for name in ["x", "y"] {
                let options = SimpleFileOptions::default().compression_method(method);
                zip.start_file(format!("{name}.npy"), options).unwrap();
                npy::write_array(&mut zip, DType::F32, &[40], &[5; 160]).unwrap();
            }
            zip.finish().unwrap();
            let whole = whole.into_inner();
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), &whole).unwrap();
            let mut npz = Npz::open(file.path()).unwrap();
            let bounds = |npz: &mut Npz| {
                let entry = npz.archive.by_name("y.npy").unwrap();
                entry.data_start() as usize..(entry.data_start() + entry.compressed_size()) as usize
            };
            assert_eq!(npz.arrays().unwrap().len(), 2);
            for at in bounds(&mut npz) {
                let mut damaged = whole.clone();
                damaged[at] ^= 0x10;
                std::fs::write(file.path(), damaged).unwrap();
                let mut npz = Npz::open(file.path()).unwrap();
                let e = npz.arrays().unwrap_err().to_string();
                assert!(e.contains("[y]: damaged"), "{method:?}, byte {at}: {e}");
                assert!(npz.read("x").is_ok() && npz.read("y").is_err());
            }
        }
    }
}
