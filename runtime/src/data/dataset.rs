//! A data set cut into batches of the shapes that a program takes.
//!
//! An array of the input's own shape is one batch, used at every step; an extra leading axis gives a batch each; a longer first axis is
//! cut into batches, the rest left out.

use super::{
    DataError,
    array::Array,
    cut::{Cut, OneHot, cut, labels},
    npz::Npz,
};
use graph::{DType, Literal, TensorType};
use rand::{SeedableRng, seq::SliceRandom};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// An input that a program takes from the data.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
    /// Whether it holds class labels, which may be given one-hot.
    pub label: bool,
    /// How many classes labels are of, where that is known.
    pub classes: Option<u64>,
}

/// The elements of one input in one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchArray {
    /// The input's name.
    pub name: String,
    /// Extents.
    pub shape: Vec<u64>,
    /// Elements, little endian, row-major.
    pub bytes: Vec<u8>,
}

struct Column {
    wanted: Wanted,
    array: Array,
    cut: Cut,
    /// Labels are given with scores for each one, along one of these axes of a batch.
    one_hot: Vec<OneHot>,
    /// Bytes of a batch in the file.
    batch_bytes: u64,
}

/// One file, or one folder of npy files: columns that go together.
struct Part {
    columns: Vec<Column>,
    /// Batches in it; `None` if every column is one batch used always.
    batches: Option<u64>,
    /// Rows of a batch where rows are cut.
    rows: u64,
}

/// A data set.
pub struct Dataset {
    parts: Vec<Part>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// The npz and the npy files of a folder, by name.
fn listed(folder: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), DataError> {
    let fail = |e: std::io::Error| DataError { file: folder.display().to_string(), what: e.to_string() };
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).and_then(|d| d.map(|e| e.map(|e| e.path())).collect()).map_err(fail)?;
    files.sort();
    let with = |ext: &str| {
        files.iter().filter(|f| f.extension().is_some_and(|e| e == ext)).cloned().collect::<Vec<_>>()
    };
    Ok((with("npz"), with("npy")))
}

/// Whether an array is an input's: named like it, or `in:` and its name.
fn is_for(array: &str, input: &str) -> bool {
    array == input || array.strip_prefix("in:") == Some(input)
}

impl Dataset {
    /// Extents of the array of this name in a file or folder (of several files, in the first); `None` if there is none.
    ///
    /// # Errors
    ///
    /// What cannot be read.
    pub fn extents(path: &Path, name: &str) -> Result<Option<Vec<u64>>, DataError> {
        let mut first = path.to_owned();
        if path.is_dir() {
            let (npz, npy) = listed(path)?;
            match npz.into_iter().next() {
                Some(f) => first = f,
                None => {
                    let npy = npy.iter().find(|f| f.file_stem().is_some_and(|s| s == name));
                    return npy.map(|f| Ok(Array::open_npy(f)?.ty.shape)).transpose();
                }
            }
        }
        let arrays = Npz::open(&first)?.arrays()?;
        Ok(arrays.into_iter().find(|(n, _)| is_for(n, name)).map(|(_, a)| a.ty.shape))
    }

    /// Whether an array of these extents gives batches of extents `shape`.
    pub fn fits(given: &[u64], shape: &[u64]) -> bool {
        cut(given, shape).is_some()
    }

    /// Opens a file or folder.
    pub fn open(path: &Path, wanted: &[Wanted]) -> Result<Dataset, DataError> {
        let fail = |what: String| DataError { file: path.display().to_string(), what };
        let mut parts = Vec::new();
        let mut notes = Vec::new();
        if path.is_dir() {
            let (npz, npy) = listed(path)?;
            if npz.is_empty() && npy.is_empty() {
                return Err(fail("no .npz and no .npy file in this folder".to_owned()));
            }
            let is_wanted = |f: &PathBuf| {
                let name = f.file_stem().unwrap_or_default().to_string_lossy();
                wanted.iter().any(|w| is_for(&name, &w.name))
            };
            if let (Some(archive), Some(array)) = (npz.first(), npy.iter().find(|f| is_wanted(f))) {
                return Err(fail(format!(
                    "{} lies beside {}, and one of them would not be read: give a folder of npz files, or one of npy files",
                    array.file_name().unwrap_or_default().display(),
                    archive.file_name().unwrap_or_default().display()
                )));
            }
            for f in &npz {
                parts.push(Part::new(&f.display().to_string(), Npz::open(f)?.arrays()?, wanted, &mut notes)?);
            }
            if npz.is_empty() {
                let mut arrays = Vec::new();
                for f in &npy {
                    let name = f.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
                    arrays.push((name, Array::open_npy(f)?));
                }
                parts.push(Part::new(&path.display().to_string(), arrays, wanted, &mut notes)?);
            }
        } else {
            parts.push(Part::new(
                &path.display().to_string(),
                Npz::open(path)?.arrays()?,
                wanted,
                &mut notes,
            )?);
        }
        if let Some(i) = parts.iter().position(|p| p.batches == Some(0)) {
            return Err(fail(format!("file {} of {} holds less than one batch", i + 1, parts.len())));
        }
        notes.dedup();
        if let [Part { batches: None, .. }] = &parts[..] {
            notes.push(format!("{} holds one batch; it is used at every step", path.display()));
        }
        Ok(Dataset { parts, notes })
    }

    /// Number of batches of an epoch.
    pub fn batches(&self) -> u64 {
        self.parts.iter().map(|p| p.batches.unwrap_or(1)).sum()
    }

    /// The batches of an epoch in order: as they are, or shuffled by a seed (a different order each epoch, the same for the same seed).
    pub fn order(&self, epoch: u64, shuffle: Option<u64>) -> Order {
        let mut batches: Vec<(usize, u64)> = Vec::new();
        let mut rows: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for (i, p) in self.parts.iter().enumerate() {
            batches.extend((0..p.batches.unwrap_or(1)).map(|b| (i, b)));
        }
        if let Some(seed) = shuffle {
            let mut rng =
                rand_chacha::ChaCha8Rng::seed_from_u64(seed ^ epoch.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            batches.shuffle(&mut rng);
            for (i, p) in self.parts.iter().enumerate() {
                if let Some(n) = p.batches.filter(|_| p.rows > 0) {
                    let mut order: Vec<u64> = (0..n * p.rows).collect();
                    order.shuffle(&mut rng);
                    rows.insert(i, order);
                }
            }
        }
        Order { batches, rows }
    }

    /// Reads batch `index` of an order.
    pub fn batch(&mut self, order: &Order, index: u64) -> Result<Vec<BatchArray>, DataError> {
        let (part, batch) = order.batches[index as usize];
        let rows = order.rows.get(&part);
        let p = &mut self.parts[part];
        let n = p.rows;
        p.columns
            .iter_mut()
            .map(|c| {
                let rows = rows.map(|r| &r[(batch * n) as usize..((batch + 1) * n) as usize]);
                let shape = c.wanted.ty.shape.fixed().unwrap_or_default().into_iter().map(|d| d as u64);
                Ok(BatchArray {
                    name: c.wanted.name.clone(),
                    shape: shape.collect(),
                    bytes: c.read(batch, rows)?,
                })
            })
            .collect()
    }
}

/// An order of batches.
#[derive(Clone, Debug)]
pub struct Order {
    batches: Vec<(usize, u64)>,
    rows: BTreeMap<usize, Vec<u64>>,
}

impl Part {
    fn new(
        file: &str,
        mut arrays: Vec<(String, Array)>,
        wanted: &[Wanted],
        notes: &mut Vec<String>,
    ) -> Result<Part, DataError> {
        let fail = |what: String| DataError { file: file.to_owned(), what };
        let names = match &arrays[..] {
            [] => "none".to_owned(),
            all => all.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>().join(", "),
        };
        let mut found = Vec::new();
        for w in wanted {
            // Another input may be called as the marked name of this one.
            let own = arrays.iter().position(|(n, _)| *n == w.name);
            let marked = |n: &str| is_for(n, &w.name) && wanted.iter().all(|other| other.name != n);
            let at = own.or_else(|| arrays.iter().position(|(n, _)| marked(n)));
            let at =
                at.ok_or_else(|| fail(format!("no array {:?} of type {}; there are {names}", w.name, w.ty)))?;
            found.push((w.clone(), arrays.remove(at).1));
        }
        close(&mut found)?;
        let mut columns = Vec::new();
        for (w, array) in found {
            columns.push(Column::new(array, w, notes)?);
        }
        let mut batches: Option<u64> = None;
        // Rows are shuffled one by one only where every array is cut into the same rows; otherwise whole batches are.
        let cuts = columns.iter().filter(|c| c.cut != Cut::Whole);
        let alike = cuts.clone().all(|c| c.cut == Cut::Rows)
            && cuts.clone().zip(cuts.clone().skip(1)).all(|(a, b)| a.rows() == b.rows());
        let rows = if alike { cuts.clone().next().map_or(0, Column::rows) } else { 0 };
        let mut first: Option<(&Column, u64)> = None;
        for c in &columns {
            let n = match c.cut {
                Cut::Whole => continue,
                Cut::Steps => c.array.ty.shape[0],
                Cut::Rows => c.array.ty.shape[0] / c.rows().max(1),
            };
            let rows = |c: &Column| (c.cut == Cut::Rows).then_some(c.array.ty.shape[0]);
            if let Some((other, b)) = first
                && (b != n || rows(other).zip(rows(c)).is_some_and(|(a, b)| a != b))
            {
                let of = |c: &Column| format!("{:?} of shape {:?}", c.wanted.name, c.array.ty.shape);
                let (other, this) = (of(other), of(c));
                return Err(fail(format!(
                    "{other} holds {b} batches, {this} {n}: give as many rows of both"
                )));
            }
            first = first.or(Some((c, n)));
            batches = Some(n);
        }
        if let Some(c) =
            columns.iter().find(|c| c.cut == Cut::Whole).filter(|_| batches.is_some_and(|b| b > 1))
        {
            let what =
                format!("{:?} holds one batch, another array several: give as many of both", c.wanted.name);
            return Err(fail(what));
        }
        Ok(Part { columns, batches, rows })
    }
}

/// Gives inputs of open sizes those of their arrays: an array of as many axes as the input is one batch, one more is an axis of batches. Where
/// the number of rows is fixed and other sizes are open, an array of more rows is cut.
/// A label whose number of axes is open follows the others.
fn close(found: &mut [(Wanted, Array)]) -> Result<(), DataError> {
    let mut sizes: BTreeMap<String, (u64, String)> = BTreeMap::new();
    let mut steps = false;
    // Rows of a batch, and of the array that is cut.
    let mut rows_cut = None;
    for (w, array) in found.iter_mut().filter(|(w, _)| !w.label || w.ty.shape.fixed().is_some()) {
        let given = &array.ty.shape;
        let rank = w.ty.shape.rank();
        steps |= given.len() == rank + 1;
        let rows = rows_of(&w.ty).filter(|n| given.len() == rank && *n < given[0]);
        rows_cut = rows.map(|n| (n, given[0])).or(rows_cut);
        if w.ty.shape.fixed().is_some() {
            continue;
        }
        let fail = |what: String| DataError { file: array.label.clone(), what };
        let batch = match given.len() {
            n if n == rank => &given[..],
            n if n == rank + 1 => &given[1..],
            n => {
                let what = format!(
                    "{n} axes do not fit input {:?} of type {}: give as many, or one more of batches",
                    w.name, w.ty
                );
                return Err(fail(what));
            }
        };
        let mut batch = batch.to_vec();
        if let (Some(rows), Some(n)) = (rows, batch.first_mut()) {
            *n = rows;
        }
        for (d, n) in w.ty.shape.0.iter().zip(&batch) {
            let fits = match (d.as_symbol(), d.as_const()) {
                (Some(s), _) => {
                    let (before, of) = sizes.entry(s.to_string()).or_insert((*n, w.name.clone()));
                    if before != n {
                        let what = format!("size {s} is {n} in {:?}, and {before} in {of:?}", w.name);
                        return Err(fail(what));
                    }
                    true
                }
                (None, Some(c)) => u64::try_from(c) == Ok(*n),
                (None, None) => true,
            };
            if !fits {
                return Err(fail(format!(
                    "shape {batch:?} does not fit input {:?} of type {}",
                    w.name, w.ty
                )));
            }
        }
        w.ty.shape = batch.as_slice().into();
    }
    for (w, array) in found.iter_mut().filter(|(w, _)| w.ty.shape.fixed().is_none()) {
        let given = &array.ty.shape;
        let mut batch = if steps && !given.is_empty() { given[1..].to_vec() } else { given.to_vec() };
        if let (false, Some((rows, of)), Some(n)) = (steps, rows_cut, batch.first_mut())
            && *n == of
        {
            *n = rows;
        }
        w.ty.shape = batch.as_slice().into();
    }
    Ok(())
}

/// Rows of a batch, where their number is fixed and not 0.
fn rows_of(ty: &TensorType) -> Option<u64> {
    let rows = u64::try_from(ty.shape.0.first()?.as_const()?).ok()?;
    (rows > 0).then_some(rows)
}

impl Column {
    fn new(array: Array, wanted: Wanted, notes: &mut Vec<String>) -> Result<Column, DataError> {
        let fail = |what: String| DataError { file: array.label.clone(), what };
        let shape: Option<Vec<u64>> = wanted.ty.shape.fixed().map(|s| s.iter().map(|d| *d as u64).collect());
        let shape = shape.ok_or_else(|| fail(format!("input {:?} has no fixed shape", wanted.name)))?;
        let given = array.ty.shape.clone();
        let (cut, one_hot) =
            if wanted.label { labels(&given, &shape) } else { (cut(&given, &shape), Vec::new()) };
        let cut = cut.ok_or_else(|| {
            fail(format!(
                "shape {given:?} does not fit input {:?} of shape {shape:?}: give one batch of that shape, an extra first axis of batches, \
                 or a longer first axis to cut{}",
                wanted.name,
                if wanted.label && shape.len() > 1 { "; or say with --class-axis where the scores have the classes" } else { "" }
            ))
        })?;
        if let (Some(hot), Some(classes)) = (one_hot.first(), wanted.classes)
            && hot.classes != classes
        {
            return Err(fail(format!(
                "shape {given:?} gives each label {} scores, but there are {classes} classes",
                hot.classes
            )));
        }
        let (from, to) = (array.ty.dtype, wanted.ty.dtype);
        let lossless = from == to || (to == DType::I64 && from.is_int()) || !one_hot.is_empty();
        if !lossless {
            // Whole numbers and truth values are read as they stand: images in bytes, labels of 0 and 1.
            if !to.is_float() {
                return Err(fail(format!("elements are {from}, input {:?} takes {to}", wanted.name)));
            }
            notes.push(format!("{} is {from}; it is converted to {to}", array.label));
        }
        if cut == Cut::Rows && !given[0].is_multiple_of(shape[0]) {
            notes.push(format!(
                "{}: the last {} of {} rows do not fill a batch",
                array.label,
                given[0] % shape[0],
                given[0]
            ));
        }
        let per: u64 = shape.iter().product::<u64>() * one_hot.first().map_or(1, |h| h.classes);
        let batch_bytes = per * from.size();
        Ok(Column { wanted, array, cut, one_hot, batch_bytes })
    }

    /// Rows of a batch.
    fn rows(&self) -> u64 {
        self.wanted.ty.shape.0.first().and_then(|d| d.as_const()).map_or(1, |n| n.max(0) as u64)
    }

    fn read(&mut self, batch: u64, rows: Option<&[u64]>) -> Result<Vec<u8>, DataError> {
        let mut bytes = vec![0; self.batch_bytes as usize];
        match (self.cut, rows) {
            (Cut::Whole, _) => self.array.read(0, &mut bytes)?,
            (Cut::Rows, Some(rows)) => {
                let row = self.batch_bytes as usize / rows.len().max(1);
                for (r, chunk) in rows.iter().zip(bytes.chunks_exact_mut(row.max(1))) {
                    self.array.read(r * row as u64, chunk)?;
                }
            }
            _ => self.array.read(batch * self.batch_bytes, &mut bytes)?,
        }
        self.convert(bytes)
    }

    fn convert(&self, bytes: Vec<u8>) -> Result<Vec<u8>, DataError> {
        let (from, to) = (self.array.ty.dtype, self.wanted.ty.dtype);
        if from == to && self.one_hot.is_empty() {
            return Ok(bytes);
        }
        let fail = |what: String| DataError { file: self.array.label.clone(), what };
        let n = bytes.len() as u64 / from.size();
        let literal = Literal::new(from, vec![n], bytes).map_err(|e| fail(e.to_string()))?;
        if let Some(usual) = self.one_hot.first() {
            let scores = literal.to_floats();
            let labels = self.one_hot.iter().find_map(|h| h.labels(&scores).ok());
            let labels = labels.map_or_else(|| usual.labels(&scores), Ok).map_err(|row| {
                fail(format!("row {row} of the batch is not one-hot: one element must be 1, all others 0"))
            })?;
            return Ok(labels.iter().flat_map(|l| Literal::scalar(to, *l as f64).bytes().to_vec()).collect());
        }
        if to == DType::I64 && from.is_int() {
            let ints = literal.to_ints().ok_or_else(|| {
                fail("an element is 2^63 or more, too large for a label or index".to_owned())
            })?;
            return Ok(ints.iter().flat_map(|i| i.to_le_bytes()).collect());
        }
        Ok(literal.to_floats().iter().flat_map(|x| Literal::scalar(to, *x).bytes().to_vec()).collect())
    }
}
