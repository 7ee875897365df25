//! npz: a zip archive of npy arrays.

use super::{DataError, npy};
use graph::{DType, Literal};
use std::{
    fs::File,
    io::{BufReader, BufWriter, Seek, Write},
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

    fn label(&self, name: &str) -> String {
        format!("{}[{name}]", self.path.display())
    }

    /// Opens an array for reading: its header is read, the reader stands at the elements.
    pub fn array(&mut self, name: &str) -> Result<(npy::ArrayType, impl std::io::Read + '_), DataError> {
        let label = self.label(name);
        let names = self.names().join(", ");
        let missing = |e: zip::result::ZipError| DataError {
            file: label.clone(),
            what: format!("{e}; there are {names}"),
        };
        let mut entry = self.archive.by_name(&format!("{name}.npy")).map_err(missing)?;
        let array = npy::read_header(&mut entry, &label)?;
        Ok((array, entry))
    }

    /// Reads a whole array of at most 2^40 bytes.
    pub fn read(&mut self, name: &str) -> Result<Literal, DataError> {
        let label = self.label(name);
        let names = self.names().join(", ");
        let missing = |e: zip::result::ZipError| DataError {
            file: label.clone(),
            what: format!("{e}; there are {names}"),
        };
        let mut entry = self.archive.by_name(&format!("{name}.npy")).map_err(missing)?;
        npy::read_array(&mut entry, &label, 1 << 40)
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
    }
}
