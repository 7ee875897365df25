//! npz: a zip archive of npy arrays.

use super::{DataError, npy};
use graph::Literal;
use std::{
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
};
use zip::ZipArchive;

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
