//! From `TensorProto` to a tensor's type and the place of its elements.
//!
//! Nothing large is read here: the elements of a tensor are small and were parsed with the model, or they lie in the model file or in a
//! file beside it and are read when somebody asks ([`super::weights`]).

use super::{
    external,
    narrow::Narrow,
    weights::Source,
    wire::{Cut, DataField},
};
use graph::{DType, Literal, TensorType};
use half::{bf16, f16};
use onnx_protobuf as pb;
use protobuf::Enum;
use std::path::Path;

/// Largest tensor that is believed, in bytes (16 TiB).
pub const MAX_BYTES: u64 = 1 << 44;

/// A tensor of the model.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<u64>,
    /// Where the elements are.
    pub source: Source,
    /// How they are stored there, if not as elements of `dtype`.
    pub narrow: Option<Narrow>,
}

impl Tensor {
    /// A tensor of this type, whose shape is known, with equal elements of these bytes.
    pub fn filled(ty: &TensorType, element: Vec<u8>) -> Tensor {
        let shape = ty.shape.fixed().unwrap_or_default().into_iter().map(|d| d as u64).collect();
        Tensor { dtype: ty.dtype, shape, source: Source::Fill(element), narrow: None }
    }

    /// Its type.
    pub fn ty(&self) -> TensorType {
        TensorType::new(self.dtype, &self.shape)
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> u64 {
        self.elements() * self.dtype.size()
    }
}

/// The element type of an ONNX type number, or what is wrong with it.
pub fn dtype(number: i32) -> Result<DType, String> {
    use pb::tensor_proto::DataType;
    Ok(match DataType::from_i32(number) {
        Some(DataType::FLOAT) => DType::F32,
        Some(DataType::DOUBLE) => DType::F64,
        Some(DataType::FLOAT16) => DType::F16,
        Some(DataType::BFLOAT16) => DType::BF16,
        Some(DataType::INT8) => DType::I8,
        Some(DataType::INT16) => DType::I16,
        Some(DataType::INT32) => DType::I32,
        Some(DataType::INT64) => DType::I64,
        Some(DataType::UINT8) => DType::U8,
        Some(DataType::UINT16) => DType::U16,
        Some(DataType::UINT32) => DType::U32,
        Some(DataType::UINT64) => DType::U64,
        Some(DataType::BOOL) => DType::Bool,
        Some(DataType::UNDEFINED) => return Err("it has no element type".to_owned()),
        Some(other) => return Err(format!("element type {other:?} is not supported")),
        None => return Err(format!("element type {number} is unknown")),
    })
}

/// Reads a tensor's header and small elements; checks that as many elements are given as its shape asks for. `folder` is where external
/// data lies.
pub fn tensor(t: &pb::TensorProto, cuts: &[Cut], folder: Option<&Path>) -> Result<Tensor, String> {
    let narrow = Narrow::of(t.data_type);
    let dtype = narrow.map_or_else(|| dtype(t.data_type), |n| Ok(n.wide()))?;
    let shape = t
        .dims
        .iter()
        .map(|d| u64::try_from(*d).map_err(|_| format!("extent {d} is negative")))
        .collect::<Result<Vec<u64>, String>>()?;
    // Overflow is looked for without zero extents too, so that later products of some of the extents are safe.
    let bytes = shape
        .iter()
        .map(|d| (*d).max(1))
        .try_fold(dtype.size(), u64::checked_mul)
        .filter(|b| *b <= MAX_BYTES)
        .ok_or_else(|| format!("shape {shape:?} is too large"))?;
    let elements = if shape.contains(&0) { 0 } else { bytes / dtype.size() };
    // Narrow elements lie in the file as bytes.
    let (stored, elements) = narrow.map_or((dtype, elements), |n| (DType::U8, n.stored_bytes(elements)));
    let fields = [
        !t.raw_data.is_empty(),
        !t.float_data.is_empty(),
        !t.int32_data.is_empty(),
        !t.int64_data.is_empty(),
        !t.double_data.is_empty(),
        !t.uint64_data.is_empty(),
        t.segment.is_some(),
    ];
    if t.data_location.value() == pb::tensor_proto::DataLocation::EXTERNAL.value() {
        if fields.contains(&true) {
            return Err("it has elements both inline and in an external file".to_owned());
        }
        let source = external::locate(&t.external_data, elements * stored.size(), folder)?;
        return Ok(Tensor { dtype, shape, source, narrow });
    }
    if fields.iter().filter(|f| **f).count() > 1 {
        return Err("its elements are given twice".to_owned());
    }
    if let Some(segment) = t.segment.as_ref() {
        let cut = usize::try_from(segment.begin).ok().and_then(|n| cuts.get(n.checked_sub(1)?));
        let cut = *cut.ok_or("its elements cannot be found")?;
        check_field(cut.field, stored)?;
        if let Some(size) = fixed_size(cut.field, stored) {
            expect(elements * size, cut.len, "bytes")?;
        }
        return Ok(Tensor { dtype, shape, source: Source::Inline(cut), narrow });
    }
    let literal = parsed(t, stored, elements)?;
    let literal_shape = if narrow.is_some() { vec![elements] } else { shape.clone() };
    let literal = Literal::new(stored, literal_shape, literal).map_err(|e| e.to_string())?;
    Ok(Tensor { dtype, shape, source: Source::Literal(literal), narrow })
}

/// Bytes of one element as the field has it; `None` for varints.
pub fn fixed_size(field: DataField, dtype: DType) -> Option<u64> {
    match field {
        DataField::Raw => Some(dtype.size()),
        DataField::Float => Some(4),
        DataField::Double => Some(8),
        DataField::Int32 | DataField::Int64 | DataField::Uint64 => None,
    }
}

/// Whether a field may hold elements of a type.
fn check_field(field: DataField, dtype: DType) -> Result<(), String> {
    let fits = match field {
        DataField::Raw => true,
        DataField::Float => dtype == DType::F32,
        DataField::Double => dtype == DType::F64,
        DataField::Int64 => dtype == DType::I64,
        DataField::Uint64 => matches!(dtype, DType::U64 | DType::U32),
        DataField::Int32 => !matches!(dtype, DType::F32 | DType::F64 | DType::I64 | DType::U64 | DType::U32),
    };
    if fits { Ok(()) } else { Err(format!("elements of type {dtype} stand in a field for another type")) }
}

fn expect(expected: u64, found: u64, what: &str) -> Result<(), String> {
    if expected == found {
        return Ok(());
    }
    Err(format!("its shape asks for {expected} {what}, but {found} are given"))
}

/// The little-endian elements that protobuf has parsed.
fn parsed(t: &pb::TensorProto, dtype: DType, elements: u64) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    if !t.raw_data.is_empty() {
        expect(elements * dtype.size(), t.raw_data.len() as u64, "bytes")?;
        out.extend_from_slice(&t.raw_data);
        normalize(dtype, &mut out);
        return Ok(out);
    }
    let (field, count) = if !t.float_data.is_empty() {
        (DataField::Float, t.float_data.len())
    } else if !t.double_data.is_empty() {
        (DataField::Double, t.double_data.len())
    } else if !t.int64_data.is_empty() {
        (DataField::Int64, t.int64_data.len())
    } else if !t.uint64_data.is_empty() {
        (DataField::Uint64, t.uint64_data.len())
    } else {
        (DataField::Int32, t.int32_data.len())
    };
    expect(elements, count as u64, "elements")?;
    if count == 0 {
        return Ok(out);
    }
    check_field(field, dtype)?;
    match field {
        DataField::Float => out.extend(t.float_data.iter().flat_map(|x| x.to_le_bytes())),
        DataField::Double => out.extend(t.double_data.iter().flat_map(|x| x.to_le_bytes())),
        DataField::Int64 => t.int64_data.iter().for_each(|x| push_varint(dtype, *x as u64, &mut out)),
        DataField::Uint64 => t.uint64_data.iter().for_each(|x| push_varint(dtype, *x, &mut out)),
        DataField::Int32 | DataField::Raw => {
            t.int32_data.iter().for_each(|x| push_varint(dtype, i64::from(*x) as u64, &mut out));
        }
    }
    Ok(out)
}

/// Appends one element that the file has as a varint. Halves are there as their bits.
pub fn push_varint(dtype: DType, value: u64, out: &mut Vec<u8>) {
    match dtype {
        DType::Bool => out.push(u8::from(value != 0)),
        _ => out.extend_from_slice(&value.to_le_bytes()[..dtype.size() as usize]),
    }
}

/// Makes booleans 0 or 1.
pub fn normalize(dtype: DType, bytes: &mut [u8]) {
    if dtype == DType::Bool {
        bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
}

/// Whether elements are nothing but zeros and very low numbers, as an additive attention mask has them.
pub fn is_mask(dtype: DType, chunk: &[u8]) -> bool {
    let masked = |x: f64| x == 0.0 || x <= -1e4;
    match dtype {
        DType::F32 => {
            chunk.chunks_exact(4).all(|b| masked(f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into()))
        }
        DType::F16 => chunk.chunks_exact(2).all(|b| masked(f16::from_le_bytes([b[0], b[1]]).into())),
        DType::BF16 => chunk.chunks_exact(2).all(|b| masked(bf16::from_le_bytes([b[0], b[1]]).into())),
        DType::F64 => chunk
            .chunks_exact(8)
            .all(|b| masked(f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proto(data_type: i32, dims: &[i64]) -> pb::TensorProto {
        let mut t = pb::TensorProto::new();
        t.data_type = data_type;
        t.dims = dims.to_vec();
        t
    }

    fn literal(t: &pb::TensorProto) -> Literal {
        match tensor(t, &[], None).unwrap().source {
            Source::Literal(l) => l,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_type_comes_from_its_typed_field_and_from_raw_bytes() {
        // ONNX number, element size, field of typed data, values with their expected numbers.
        let cases: &[(i32, &str, &[i64], &[f64])] = &[
            (2, "i32", &[0, 255], &[0.0, 255.0]),
            (3, "i32", &[-128, 127], &[-128.0, 127.0]),
            (4, "i32", &[0, 65535], &[0.0, 65535.0]),
            (5, "i32", &[-32768, 1], &[-32768.0, 1.0]),
            (6, "i32", &[-7, 1 << 30], &[-7.0, 1073741824.0]),
            (7, "i64", &[-7, 1 << 40], &[-7.0, 1099511627776.0]),
            (9, "i32", &[0, 2], &[0.0, 1.0]),
            (10, "i32", &[0x3c00, 0xc000], &[1.0, -2.0]),
            (12, "u64", &[1, 0xffff_ffff], &[1.0, 4294967295.0]),
            (13, "u64", &[1, 5], &[1.0, 5.0]),
            (16, "i32", &[0x3f80, 0xc000], &[1.0, -2.0]),
        ];
        for (number, field, values, expected) in cases {
            let mut t = proto(*number, &[2]);
            match *field {
                "i32" => t.int32_data = values.iter().map(|v| *v as i32).collect(),
                "i64" => t.int64_data = values.to_vec(),
                _ => t.uint64_data = values.iter().map(|v| *v as u64).collect(),
            }
            let typed = literal(&t);
            assert_eq!(typed.to_floats(), *expected, "type {number}");
            let mut raw = proto(*number, &[2]);
            raw.raw_data = typed.bytes().to_vec();
            assert_eq!(literal(&raw), typed);
        }
        let mut t = proto(1, &[2]);
        t.float_data = vec![0.5, -1.0];
        assert_eq!(literal(&t).to_floats(), [0.5, -1.0]);
        let mut t = proto(11, &[2, 1]);
        t.double_data = vec![0.5, -1.0];
        assert_eq!(literal(&t).to_floats(), [0.5, -1.0]);
        assert_eq!(literal(&proto(1, &[0, 3])).shape(), [0, 3]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let error = |t: &pb::TensorProto| tensor(t, &[], None).unwrap_err();
        assert!(error(&proto(1, &[1 << 60])).contains("too large"));
        assert!(error(&proto(1, &[1 << 40, 1 << 40, 0])).contains("too large"));
        assert!(error(&proto(1, &[-1])).contains("negative"));
        assert!(error(&proto(1, &[3])).contains("asks for 3 elements, but 0"));
        assert!(error(&proto(8, &[1])).contains("STRING"));
        assert!(error(&proto(99, &[1])).contains("unknown"));
        let mut t = proto(1, &[1]);
        t.int64_data = vec![1];
        assert!(error(&t).contains("another type"));
        t.float_data = vec![1.0];
        assert!(error(&t).contains("twice"));
        let mut t = proto(1, &[2]);
        t.raw_data = vec![0; 7];
        assert!(error(&t).contains("8 bytes, but 7"));
    }
}
