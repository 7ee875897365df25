//! Sequences of different lengths, each reversed in place.

use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Element, KernelError, par},
    export::Export,
    grad::GradCx,
    loss::same_shape,
    onnx::{OnnxRule, normalize_axis, rules},
};
use graph::{Attrs, DType, Shape, TensorType};

/// The first `lengths[b]` steps of each sequence of input 0 in reverse order, the others as they are.
///
/// `time_axis` is 0 or 1 and the batch lies on the other of the two; input 1 holds the lengths, i64 `[batch]`.
pub struct ReverseSequence;

impl OpDef for ReverseSequence {
    fn name(&self) -> &'static str {
        "ReverseSequence"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["ReverseSequence" => |cx| {
            let rank = cx.ty(0)?.shape.rank();
            let time = normalize_axis(cx.attrs.int_or("time_axis", 0)?, rank)?;
            let batch = normalize_axis(cx.attrs.int_or("batch_axis", 1)?, rank)?;
            if time + batch != 1 {
                return Err(OpError::invalid(format!("time axis {time} and batch axis {batch} must be 0 and 1")));
            }
            cx.same("ReverseSequence", Attrs::new().with("time_axis", time as i64))
        }]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (x, lengths) = (s.input(0)?, s.input(1)?);
        if x.shape.rank() < 2 {
            return Err(OpError::invalid(format!("the input {x} must have at least 2 axes")));
        }
        let batch = &x.shape.0[1 - time_axis(s)?];
        if lengths.dtype != DType::I64 {
            return Err(OpError::invalid(format!("the lengths are {lengths}, they must be i64[{batch}]")));
        }
        same_shape(&Shape(vec![batch.clone()]), &lengths.shape, "the lengths")?;
        Ok(vec![x.clone()])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (attrs, dy, lengths) = (g.attrs().clone(), g.cotangent0()?, g.input(1)?);
        let dx = g.b.op("ReverseSequence", attrs, &[dy, lengths])?;
        g.set(0, dx);
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        Work { bytes: s.io_bytes(), ..Work::default() }
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { can_fail: true, folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (dims, axis) = (s.dims(0)?, time_axis(s)?);
        let [first, second, ..] = dims[..] else {
            return Err(OpError::invalid("the input must have at least 2 axes"));
        };
        let len = dims[2..].iter().product();
        crate::for_width!(s.input(0)?.dtype, T => Ok(reverse::<T>(first, second, len, axis == 0)))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let time = time_axis(x.sig)? as i64;
        x.same("ReverseSequence", Attrs::new().with("time_axis", time).with("batch_axis", 1 - time))
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, axis: i64, x: &[usize], lengths: &[f64]| {
            let fill = Fill::Values(lengths.to_vec());
            let lengths = CaseInput { fill, ..CaseInput::ints(DType::I64, &[lengths.len()], 0, 1) };
            Case::new(name, Attrs::new().with("time_axis", axis), &[x]).input(1, lengths)
        };
        vec![
            case("time first", 0, &[4, 3], &[4.0, 2.0, 0.0]),
            case("batch first", 1, &[2, 4, 2], &[3.0, 1.0]),
        ]
    }
}

pub(super) fn time_axis(s: &Signature<'_>) -> Result<usize, OpError> {
    match s.attrs.int("time_axis")? {
        0 => Ok(0),
        1 => Ok(1),
        a => Err(OpError::invalid(format!("time_axis {a} is neither 0 nor 1"))),
    }
}

fn reverse<T: Element>(first: usize, second: usize, len: usize, time_first: bool) -> CpuKernel {
    Box::new(move |io| {
        let (x, lengths) = (io.input::<T>(0), io.input::<i64>(1));
        let time = if time_first { first } else { second };
        if let Some((b, n)) = lengths.iter().enumerate().find(|(_, n)| **n < 0 || **n > time as i64) {
            return Err(KernelError(format!("length {n} of sequence {b} is outside of 0 to {time} steps")));
        }
        par::rows(io.output::<T>(0), len, |r, row| {
            let (i, j) = (r / second, r % second);
            let (t, b) = if time_first { (i, j) } else { (j, i) };
            let n = lengths[b] as usize;
            let t = if t < n { n - 1 - t } else { t };
            let at = if time_first { t * second + b } else { b * second + t } * len;
            row.copy_from_slice(&x[at..at + len]);
        });
        Ok(())
    })
}
