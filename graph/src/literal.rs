//! Tensors whose elements are part of the program: shapes, axes, small constants.

use crate::DType;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A tensor with its elements, little endian, row-major.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Raw")]
pub struct Literal {
    dtype: DType,
    shape: Vec<u64>,
    bytes: Arc<[u8]>,
}

/// What a file holds: nothing says that the bytes are as many as the shape asks for.
#[derive(Deserialize)]
#[serde(rename = "Literal")]
struct Raw {
    dtype: DType,
    shape: Vec<u64>,
    bytes: Arc<[u8]>,
}

impl TryFrom<Raw> for Literal {
    type Error = LiteralError;

    fn try_from(raw: Raw) -> Result<Literal, LiteralError> {
        Literal::new(raw.dtype, raw.shape, raw.bytes)
    }
}

/// Why a literal cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LiteralError {
    /// The number of bytes does not follow from shape and dtype.
    #[error("{dtype} tensor of shape {shape:?} needs {expected} bytes, but {found} are given")]
    Size {
        /// Element type.
        dtype: DType,
        /// Extents.
        shape: Vec<u64>,
        /// Bytes that the shape asks for.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The shape has more elements than 64 bits can count.
    #[error("tensor of shape {0:?} is too large")]
    TooLarge(Vec<u64>),
}

impl Literal {
    /// A tensor from its little-endian bytes.
    pub fn new(dtype: DType, shape: Vec<u64>, bytes: impl Into<Arc<[u8]>>) -> Result<Literal, LiteralError> {
        let bytes = bytes.into();
        let expected = shape
            .iter()
            .try_fold(dtype.size(), |n, d| n.checked_mul(*d))
            .ok_or_else(|| LiteralError::TooLarge(shape.clone()))?;
        if expected != bytes.len() as u64 {
            return Err(LiteralError::Size { dtype, shape, expected, found: bytes.len() as u64 });
        }
        Ok(Literal { dtype, shape, bytes })
    }

    /// A vector of 64-bit integers, shape `[n]`.
    pub fn ints(values: &[i64]) -> Literal {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Literal { dtype: DType::I64, shape: vec![values.len() as u64], bytes: bytes.into() }
    }

    /// A scalar of any dtype, converted from `value` (rounded to the dtype; booleans are `value != 0`).
    pub fn scalar(dtype: DType, value: f64) -> Literal {
        Literal { dtype, shape: Vec::new(), bytes: encode(dtype, value).into() }
    }

    /// A tensor with every element `value`, converted as in [`Literal::scalar`].
    pub fn filled(dtype: DType, shape: Vec<u64>, value: f64) -> Result<Literal, LiteralError> {
        let n = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d)).filter(|n| *n <= 1 << 32);
        let n = n.ok_or_else(|| LiteralError::TooLarge(shape.clone()))?;
        Literal::new(dtype, shape, encode(dtype, value).repeat(n as usize))
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Elements, little endian, row-major.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size() as usize
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The elements as integers; `None` for floating-point dtypes or values beyond `i64`.
    pub fn to_ints(&self) -> Option<Vec<i64>> {
        let get = |b: &[u8]| -> Option<i64> {
            Some(match self.dtype {
                DType::I8 => i64::from(b[0] as i8),
                DType::U8 | DType::Bool => i64::from(b[0]),
                DType::I16 => i64::from(i16::from_le_bytes(b.try_into().ok()?)),
                DType::U16 => i64::from(u16::from_le_bytes(b.try_into().ok()?)),
                DType::I32 => i64::from(i32::from_le_bytes(b.try_into().ok()?)),
                DType::U32 => i64::from(u32::from_le_bytes(b.try_into().ok()?)),
                DType::I64 => i64::from_le_bytes(b.try_into().ok()?),
                DType::U64 => i64::try_from(u64::from_le_bytes(b.try_into().ok()?)).ok()?,
                DType::F32 | DType::F64 | DType::F16 | DType::BF16 => return None,
            })
        };
        self.bytes.chunks_exact(self.dtype.size() as usize).map(get).collect()
    }

    /// The elements as 64-bit floats (integers beyond 2^53 are rounded).
    pub fn to_floats(&self) -> Vec<f64> {
        let get = |b: &[u8]| match self.dtype {
            DType::F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            DType::F64 => f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            DType::F16 => f64::from(f16::from_le_bytes([b[0], b[1]])),
            DType::BF16 => f64::from(bf16::from_le_bytes([b[0], b[1]])),
            _ => 0.0,
        };
        if self.dtype.is_float() {
            return self.bytes.chunks_exact(self.dtype.size() as usize).map(get).collect();
        }
        match self.to_ints() {
            Some(ints) => ints.into_iter().map(|i| i as f64).collect(),
            // Only u64 values above i64::MAX come here.
            None => self
                .bytes
                .chunks_exact(8)
                .map(|b| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f64)
                .collect(),
        }
    }

    /// Positions of the elements that are not 0, in order.
    pub fn non_zero(&self) -> impl Iterator<Item = usize> + '_ {
        // Both zeros of a float are 0.
        let sign = if self.dtype.is_float() { 0x7f } else { 0xff };
        let is_not = move |b: &[u8]| match b {
            [rest @ .., last] => last & sign != 0 || rest.iter().any(|b| *b != 0),
            [] => false,
        };
        let all = self.bytes.chunks_exact(self.dtype.size() as usize).enumerate();
        all.filter(move |(_, b)| is_not(b)).map(|(i, _)| i)
    }

    /// The same elements under another shape of equal size.
    pub fn reshaped(&self, shape: Vec<u64>) -> Result<Literal, LiteralError> {
        Literal::new(self.dtype, shape, self.bytes.clone())
    }
}

fn encode(dtype: DType, v: f64) -> Vec<u8> {
    match dtype {
        DType::F32 => (v as f32).to_le_bytes().to_vec(),
        DType::F64 => v.to_le_bytes().to_vec(),
        DType::F16 => f16::from_f64(v).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(v).to_le_bytes().to_vec(),
        DType::I8 => (v as i8).to_le_bytes().to_vec(),
        DType::I16 => (v as i16).to_le_bytes().to_vec(),
        DType::I32 => (v as i32).to_le_bytes().to_vec(),
        DType::I64 => (v as i64).to_le_bytes().to_vec(),
        DType::U8 => (v as u8).to_le_bytes().to_vec(),
        DType::U16 => (v as u16).to_le_bytes().to_vec(),
        DType::U32 => (v as u32).to_le_bytes().to_vec(),
        DType::U64 => (v as u64).to_le_bytes().to_vec(),
        DType::Bool => vec![u8::from(v != 0.0)],
    }
}

impl std::fmt::Debug for Literal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)?;
        if self.len() <= 16 {
            write!(f, "{:?}", self.to_floats())?;
        }
        Ok(())
    }
}
