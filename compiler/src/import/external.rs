//! Tensor elements in files beside the model.
//!
//! A location is a relative path that stays inside of the model's folder, also after symbolic links are followed. The file may be absent
//! while compiling; whoever reads elements checks again.

use super::weights::Source;
use onnx_protobuf as pb;
use std::{
    fs,
    path::{Component, Path, PathBuf},
};

/// Where the external data entries of a tensor of `bytes` bytes point.
pub fn locate(
    entries: &[pb::StringStringEntryProto],
    bytes: u64,
    folder: Option<&Path>,
) -> Result<Source, String> {
    let get = |key: &str| entries.iter().find(|e| e.key == key).map(|e| e.value.as_str());
    let number = |key: &str| match get(key) {
        None => Ok(None),
        Some(text) => {
            text.trim().parse::<u64>().map(Some).map_err(|_| format!("external {key} {text:?} is no number"))
        }
    };
    let location = get("location").ok_or("its external data has no location")?;
    let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
    if let Some(length) = length
        && length != bytes
    {
        return Err(format!("its shape asks for {bytes} bytes, but its external data has {length}"));
    }
    let end = offset.checked_add(bytes).ok_or_else(|| format!("external offset {offset} is too large"))?;
    let path = relative(location)?;
    if let Some(file) = resolve(&path, folder)? {
        let found = fs::metadata(&file).map_err(|e| format!("external file {location:?}: {e}"))?;
        if !found.is_file() {
            return Err(format!("external data {location:?} is not a file"));
        }
        if found.len() < end {
            return Err(format!(
                "external file {location:?} has {} bytes, but the tensor lies at {offset} to {end}",
                found.len()
            ));
        }
    }
    Ok(Source::External { path, offset, len: bytes })
}

/// The location as a path, if it can only lead into the folder.
pub fn relative(location: &str) -> Result<PathBuf, String> {
    let mut path = PathBuf::new();
    for c in Path::new(location).components() {
        match c {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(format!("external location {location:?} leads out of the model's folder"));
            }
        }
    }
    if path.as_os_str().is_empty() || location.contains('\0') {
        return Err(format!("external location {location:?} is no file name"));
    }
    Ok(path)
}

/// The file of a relative location, links followed; `None` if there is none (yet).
pub fn resolve(path: &Path, folder: Option<&Path>) -> Result<Option<PathBuf>, String> {
    let Some(folder) = folder else { return Ok(None) };
    let root = folder.canonicalize().map_err(|e| format!("folder {}: {e}", folder.display()))?;
    match root.join(path).canonicalize() {
        Ok(file) if file.starts_with(&root) => Ok(Some(file)),
        Ok(_) => {
            Err(format!("external location {path:?} leads out of the model's folder by a symbolic link"))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("external file {path:?}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(pairs: &[(&str, &str)]) -> Vec<pb::StringStringEntryProto> {
        let entry = |(k, v): &(&str, &str)| {
            let mut e = pb::StringStringEntryProto::new();
            e.key = (*k).to_owned();
            e.value = (*v).to_owned();
            e
        };
        pairs.iter().map(entry).collect()
    }

    #[test]
    fn locations_stay_inside_of_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("model");
        fs::create_dir(&folder).unwrap();
        fs::write(dir.path().join("secret"), [0; 64]).unwrap();
        fs::write(folder.join("w"), [0; 64]).unwrap();
        let at = |location: &str| locate(&entries(&[("location", location)]), 16, Some(&folder));
        assert!(at("w").is_ok());
        assert!(at("./w").is_ok());
        assert!(at("absent").is_ok());
        for bad in ["../secret", "/etc/passwd", "a/../../secret", "", ".", "w/../../secret", "x\0y"] {
            assert!(at(bad).is_err(), "{bad:?}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("../secret", folder.join("link")).unwrap();
            assert!(at("link").unwrap_err().contains("symbolic link"));
            std::os::unix::fs::symlink("..", folder.join("up")).unwrap();
            assert!(at("up/secret").unwrap_err().contains("symbolic link"));
        }
        assert!(at("").is_err());
        let folder_as_file = locate(&entries(&[("location", "sub")]), 16, Some(dir.path()));
        assert!(folder_as_file.is_ok());
        assert!(locate(&entries(&[("location", "model")]), 16, Some(dir.path())).is_err());
    }

    #[test]
    fn offset_and_length_are_honoured() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("w"), [0; 64]).unwrap();
        let at = |offset: &str, length: &str, bytes| {
            let e = entries(&[("location", "w"), ("offset", offset), ("length", length)]);
            locate(&e, bytes, Some(dir.path()))
        };
        assert!(at("48", "16", 16).is_ok());
        assert!(at("49", "16", 16).unwrap_err().contains("has 64 bytes"));
        assert!(at("0", "12", 16).unwrap_err().contains("asks for 16 bytes"));
        assert!(at("-1", "16", 16).is_err());
        assert!(at("18446744073709551615", "16", 16).is_err());
    }
}
