//! Element types that only files have: 8-bit floats and 4-bit integers.
//!
//! No operator computes with them. What a file stores in them is widened to a type of the graph that holds every one of their values
//! exactly, when the elements are read.

use onnx_protobuf::tensor_proto::DataType;
use protobuf::Enum;

/// How the file stores the elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Narrow {
    /// An 8-bit float.
    Float8(Float8),
    /// Signed 4-bit integers, two in a byte, the first in the low half.
    Int4,
    /// As [`Narrow::Int4`], unsigned.
    Uint4,
}

/// An 8-bit float format: a sign, `8 - 1 - mantissa` bits of exponent, a mantissa.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Float8 {
    /// Bits of the mantissa.
    mantissa: u32,
    /// What is subtracted from the exponent.
    bias: i32,
    /// What has no finite value.
    special: Special,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Special {
    /// The greatest exponent: infinities and NaN, as in wider formats.
    Exponent,
    /// All bits but the sign: NaN. No infinities.
    AllOnes,
    /// The bits of a negative zero: NaN. No infinities.
    NegativeZero,
}

impl Narrow {
    /// The type of an ONNX type number, if it is one of these.
    pub fn of(number: i32) -> Option<Narrow> {
        let float = |mantissa, bias, special| Some(Narrow::Float8(Float8 { mantissa, bias, special }));
        match DataType::from_i32(number)? {
            DataType::FLOAT8E4M3FN => float(3, 7, Special::AllOnes),
            DataType::FLOAT8E4M3FNUZ => float(3, 8, Special::NegativeZero),
            DataType::FLOAT8E5M2 => float(2, 15, Special::Exponent),
            DataType::FLOAT8E5M2FNUZ => float(2, 16, Special::NegativeZero),
            DataType::INT4 => Some(Narrow::Int4),
            DataType::UINT4 => Some(Narrow::Uint4),
            _ => None,
        }
    }

    /// The element type that elements are widened to.
    pub fn wide(self) -> graph::DType {
        match self {
            Narrow::Float8(_) => graph::DType::F32,
            Narrow::Int4 => graph::DType::I8,
            Narrow::Uint4 => graph::DType::U8,
        }
    }

    /// Bytes that the file has for so many elements.
    pub fn stored_bytes(self, elements: u64) -> u64 {
        match self {
            Narrow::Float8(_) => elements,
            Narrow::Int4 | Narrow::Uint4 => elements.div_ceil(2),
        }
    }

    /// Appends the elements of one stored byte, little endian: one or, in 4 bits, two.
    pub fn widen(self, byte: u8, out: &mut Vec<u8>) {
        match self {
            Narrow::Float8(f) => out.extend_from_slice(&f.value(byte).to_le_bytes()),
            Narrow::Int4 => out.extend([byte << 4, byte].map(|b| ((b as i8) >> 4) as u8)),
            Narrow::Uint4 => out.extend([byte & 0xf, byte >> 4]),
        }
    }
}

impl Float8 {
    fn value(self, byte: u8) -> f32 {
        let (negative, magnitude) = (byte >= 0x80, i32::from(byte & 0x7f));
        let (exponent, fraction) = (magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1));
        let nan = match self.special {
            Special::Exponent if exponent == 0x7f >> self.mantissa => {
                let infinity = if negative { f32::NEG_INFINITY } else { f32::INFINITY };
                return if fraction == 0 { infinity } else { f32::NAN };
            }
            Special::Exponent => false,
            Special::AllOnes => magnitude == 0x7f,
            Special::NegativeZero => byte == 0x80,
        };
        if nan {
            return f32::NAN;
        }
        // Below the least exponent numbers lose their leading one instead of their scale.
        let leading = if exponent == 0 { 0 } else { 1 << self.mantissa };
        let scale = exponent.max(1) - self.bias - self.mantissa as i32;
        let value = (leading + fraction) as f32 * 2f32.powi(scale);
        if negative { -value } else { value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All 256 values of a format; what the `ml_dtypes` package says of a few of them.
    fn values(number: i32) -> Vec<f32> {
        let Some(Narrow::Float8(f)) = Narrow::of(number) else { panic!("{number} is no 8-bit float") };
        (0..=255).map(|b| f.value(b)).collect()
    }

    #[test]
    fn floats_of_8_bits() {
        // ONNX number, (bits, value).
        let cases: &[(i32, &[(usize, f32)])] = &[
            (17, &[(0, 0.0), (1, 2f32.powi(-9)), (8, 0.015625), (0x38, 1.0), (0x7e, 448.0), (0xc1, -2.25)]),
            (18, &[(0, 0.0), (1, 2f32.powi(-10)), (0x40, 1.0), (0x7f, 240.0), (0xff, -240.0)]),
            (19, &[(1, 2f32.powi(-16)), (0x3c, 1.0), (0x7b, 57344.0), (0x7c, f32::INFINITY), (0xc2, -3.0)]),
            (20, &[(1, 2f32.powi(-17)), (0x40, 1.0), (0x7f, 57344.0), (0xff, -57344.0)]),
        ];
        for (number, expected) in cases {
            let values = values(*number);
            expected.iter().for_each(|(bits, x)| assert_eq!(values[*bits], *x, "{number}: {bits:#x}"));
            // Every positive number is greater than the one before it.
            let finite = values[..0x80].iter().take_while(|x| x.is_finite());
            assert!(finite.clone().zip(finite.skip(1)).all(|(a, b)| a < b));
        }
        assert!(values(17)[0x7f].is_nan() && values(17)[0xff].is_nan() && values(17)[0x80] == 0.0);
        assert!(values(18)[0x80].is_nan() && values(20)[0x80].is_nan());
        assert!(values(19)[0x7d].is_nan() && values(19)[0xfc] == f32::NEG_INFINITY);
    }

    #[test]
    fn integers_of_4_bits() {
        let widened = |n: Narrow, byte: u8| {
            let mut out = Vec::new();
            n.widen(byte, &mut out);
            out
        };
        assert_eq!(widened(Narrow::Uint4, 0xf2), [2, 15]);
        assert_eq!(widened(Narrow::Int4, 0xf2), [2, 0xff]);
        assert_eq!(widened(Narrow::Int4, 0x78), [0xf8, 7]);
        assert_eq!((Narrow::Int4.stored_bytes(5), Narrow::Int4.stored_bytes(0)), (3, 0));
    }
}
