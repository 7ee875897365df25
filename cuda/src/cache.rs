//! Compiled kernels on disk, in the user's own folder.
//!
//! An entry is named by the hash of all that it is made of, and starts with the hash of its contents: one that is cut short, altered or of
//! another program is as if it were not there.

use crate::Unit;
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

/// A folder that belongs to the user and nobody else may enter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The user's folder: `$XDG_CACHE_HOME/dtrc/cuda`, or `~/.cache/dtrc/cuda`.
    pub fn of_user() -> Result<Cache, String> {
        let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let base = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|h| h.join(".cache")));
        let base = base.ok_or("kernels are not cached: neither XDG_CACHE_HOME nor HOME is set")?;
        Cache::open(&base.join("dtrc/cuda"))
    }

    /// A cache in `folder`, which is made if need be. The error is a note: nothing but speed depends on it.
    pub fn open(folder: &Path) -> Result<Cache, String> {
        let refuse = |what: String| format!("kernels are not cached: {}: {what}", folder.display());
        fs::create_dir_all(folder).map_err(|e| refuse(e.to_string()))?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt, PermissionsExt};
            let probe = tempfile::tempfile_in(folder).map_err(|e| refuse(e.to_string()))?;
            let (own, of) = (
                probe.metadata().map_err(|e| refuse(e.to_string()))?.uid(),
                fs::symlink_metadata(folder).map_err(|e| refuse(e.to_string()))?,
            );
            if !of.is_dir() || of.uid() != own {
                return Err(refuse("it belongs to another user".to_owned()));
            }
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
                .map_err(|e| refuse(e.to_string()))?;
        }
        Ok(Cache { folder: folder.to_owned() })
    }

    /// The name of a unit's entry for an architecture and a compiler.
    pub fn key(unit: &Unit, architecture: u32, compiler: (u32, u32)) -> String {
        let mut h = blake3::Hasher::new();
        h.update(unit.hash().as_bytes());
        for n in [architecture, compiler.0, compiler.1] {
            h.update(&n.to_le_bytes());
        }
        h.finalize().to_hex().to_string()
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.cubin"))
    }

    /// An entry, if it is whole.
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        let bytes = fs::read(self.path(key)).ok()?;
        let (hash, contents) = bytes.split_first_chunk::<32>()?;
        (Cache::seal(key, contents) == *hash).then(|| contents.to_vec())
    }

    /// Writes an entry aside and renames it into place. The error is a note.
    pub fn put(&self, key: &str, contents: &[u8]) -> Result<(), String> {
        let write = || -> std::io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
            file.write_all(Cache::seal(key, contents).as_bytes())?;
            file.write_all(contents)?;
            file.persist(self.path(key))?;
            Ok(())
        };
        write().map_err(|e| format!("kernels are not cached: {}: {e}", self.folder.display()))
    }

    fn seal(key: &str, contents: &[u8]) -> blake3::Hash {
        let mut h = blake3::Hasher::new();
        h.update(key.as_bytes());
        h.update(contents);
        h.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_entries_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(&dir.path().join("a/b")).unwrap();
        assert_eq!(cache.get("k"), None);
        cache.put("k", b"cubin").unwrap();
        assert_eq!(cache.get("k").as_deref(), Some(&b"cubin"[..]));
        // Another program's entry, a changed one, one that was cut short.
        fs::copy(cache.path("k"), cache.path("l")).unwrap();
        assert_eq!(cache.get("l"), None);
        let whole = fs::read(cache.path("k")).unwrap();
        let mut changed = whole.clone();
        changed[33] ^= 1;
        fs::write(cache.path("k"), &changed).unwrap();
        assert_eq!(cache.get("k"), None);
        fs::write(cache.path("k"), &whole[..20]).unwrap();
        assert_eq!(cache.get("k"), None);
    }

    #[cfg(unix)]
    #[test]
    fn nobody_else_may_enter() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("cache");
        Cache::open(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn what_cannot_be_written_is_a_note() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(Cache::open(&file).unwrap_err().starts_with("kernels are not cached: "));
    }
}
