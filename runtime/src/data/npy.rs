//! npy: a header with dtype and shape, then the elements.

use super::DataError;
use graph::DType;
use npyz::{Endianness, NpyHeader, Order, TypeChar};
use std::io::{self, Read, Write};

/// Element type and extents of an array, and how its elements are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayType {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<u64>,
    /// The elements are big endian.
    pub big_endian: bool,
}

impl ArrayType {
    /// Bytes of all elements, if within 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        self.shape.iter().try_fold(self.dtype.size(), |n, d| n.checked_mul(*d))
    }

    /// Makes elements little endian in place.
    pub fn to_little_endian(&self, bytes: &mut [u8]) {
        let size = self.dtype.size() as usize;
        if self.big_endian && size > 1 {
            bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
    }
}

/// Reads a header; the reader stands at the first element afterwards.
pub fn read_header(reader: &mut impl Read, file: &str) -> Result<ArrayType, DataError> {
    let fail = |what: String| DataError { file: file.to_owned(), what };
    let header = NpyHeader::from_reader(reader).map_err(|e| {
        // A broken header is quoted in full, over many lines.
        let why: String = e.to_string().lines().next().unwrap_or_default().chars().take(120).collect();
        fail(format!("not an npy array: {why}"))
    })?;
    let npyz::DType::Plain(ty) = header.dtype() else {
        return Err(fail("a structured array: give plain numbers".to_owned()));
    };
    let dtype = match (ty.type_char(), ty.size_field()) {
        (TypeChar::Bool, 1) => DType::Bool,
        (TypeChar::Float, 2) => DType::F16,
        (TypeChar::Float, 4) => DType::F32,
        (TypeChar::Float, 8) => DType::F64,
        (TypeChar::Int, 1) => DType::I8,
        (TypeChar::Int, 2) => DType::I16,
        (TypeChar::Int, 4) => DType::I32,
        (TypeChar::Int, 8) => DType::I64,
        (TypeChar::Uint, 1) => DType::U8,
        (TypeChar::Uint, 2) => DType::U16,
        (TypeChar::Uint, 4) => DType::U32,
        (TypeChar::Uint, 8) => DType::U64,
        _ => {
            return Err(fail(format!(
                "elements of type {ty} are not supported: give floats, integers or booleans"
            )));
        }
    };
    if header.order() == Order::Fortran && header.shape().len() > 1 {
        return Err(fail("stored column by column: save numpy.ascontiguousarray of it".to_owned()));
    }
    let array =
        ArrayType { dtype, shape: header.shape().to_vec(), big_endian: ty.endianness() == Endianness::Big };
    match array.bytes() {
        Some(_) => Ok(array),
        None => Err(fail(format!("a shape of {:?} is larger than any memory", array.shape))),
    }
}

/// Writes an array: header, then elements (little endian, row-major). bf16, which the format does not know, is written as f32.
///
/// # Errors
///
/// Those of the writer.
pub fn write_array(to: &mut impl Write, dtype: DType, shape: &[u64], bytes: &[u8]) -> io::Result<()> {
    let descr = match dtype {
        DType::F32 | DType::BF16 => "<f4",
        DType::F64 => "<f8",
        DType::F16 => "<f2",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::Bool => "|b1",
    };
    let mut extents: String = shape.iter().map(|d| format!("{d}, ")).collect();
    extents.truncate(extents.trim_end().len() - usize::from(shape.len() > 1));
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({extents}), }}");
    // The elements start at a multiple of 64.
    let length = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.extend(std::iter::repeat_n(' ', length - 1 - header.len()));
    header.push('\n');
    to.write_all(b"\x93NUMPY\x01\x00")?;
    to.write_all(&(length as u16).to_le_bytes())?;
    to.write_all(header.as_bytes())?;
    if dtype != DType::BF16 {
        return to.write_all(bytes);
    }
    let widened: Vec<u8> = bytes.chunks_exact(2).flat_map(|b| [0, 0, b[0], b[1]]).collect();
    to.write_all(&widened)
}
