//! Running sums along an axis.

use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, par},
    elementwise::{binary::Wrapping, unary::number_input},
    export::Export,
    grad::GradCx,
    onnx::{OnnxRule, normalize_axis, rules},
};
use graph::{Attrs, DType, TensorType};

use super::operators::Accumulate;

/// Neighbouring columns that are summed together.
const BLOCK: usize = 64;

/// The sum of the elements up to each one along `axis`; `exclusive`: without the element itself; `reverse`: from the end.
pub struct CumSum;

fn kernel<T: Accumulate>(s: &Signature<'_>) -> Result<CpuKernel, OpError> {
    let (dims, axis) = (s.dims(0)?, s.attrs.int("axis")? as usize);
    let (exclusive, reverse) = (s.attrs.int("exclusive")? != 0, s.attrs.int("reverse")? != 0);
    let (outer, n): (usize, usize) = (dims[..axis].iter().product(), dims[axis]);
    let inner: usize = dims[axis + 1..].iter().product();
    let blocks = inner.div_ceil(BLOCK);
    Ok(Box::new(move |io| {
        let (x, y) = (io.input_ptr::<T>(0).0, par::Shared(io.output_ptr::<T>(0).0));
        let x = par::Shared(x.cast_mut());
        let each = n * inner.min(BLOCK);
        par::ranges(outer * blocks, (par::GRAIN / each.max(1)).max(1), |tasks| {
            let (x, y) = (&x, &y);
            for task in tasks {
                let column = task % blocks * BLOCK;
                let width = BLOCK.min(inner - column);
                let mut sums = [T::from_f64(0.0).widen(); BLOCK];
                for k in 0..n {
                    let k = if reverse { n - 1 - k } else { k };
                    let at = (task / blocks * n + k) * inner + column;
                    for (i, sum) in sums[..width].iter_mut().enumerate() {
                        // SAFETY: inside the tensor; each element is read before it is written, by one task only.
                        unsafe {
                            let before = *sum;
                            *sum = sum.add((*x.0.add(at + i)).widen());
                            *y.0.add(at + i) = T::narrow(if exclusive { before } else { *sum });
                        }
                    }
                }
            }
        });
        Ok(())
    }))
}

impl OpDef for CumSum {
    fn name(&self) -> &'static str {
        "CumSum"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["CumSum" => |cx| {
            let x = cx.input(0)?;
            let rank = cx.b.ty(x).shape.rank();
            let axis = match cx.opt_ints(1, "axis")?.as_deref() {
                Some([axis]) => normalize_axis(*axis, rank)?,
                _ => return Err(OpError::invalid("axis must be one integer")),
            };
            let attrs = Attrs::new()
                .with("axis", axis as i64)
                .with("exclusive", cx.attrs.int_or("exclusive", 0)? != 0)
                .with("reverse", cx.attrs.int_or("reverse", 0)? != 0);
            let y = cx.b.op("CumSum", attrs, &[x])?;
            cx.set(0, y);
            Ok(())
        }]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (axis, rank) = (s.attrs.int("axis")?, s.input(0)?.shape.rank());
        if axis < 0 || axis >= rank as i64 {
            return Err(OpError::invalid(format!("axis {axis} is outside of a tensor of {rank} axes")));
        }
        s.attrs.int("exclusive")?;
        s.attrs.int("reverse")?;
        number_input(s)
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let reverse = g.attrs().int("reverse")? != 0;
        let (attrs, dy) = (g.attrs().clone().with("reverse", !reverse), g.cotangent0()?);
        let dx = g.b.op("CumSum", attrs, &[dy])?;
        g.set(0, dx);
        Ok(())
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let exact = s.opt_input(0).is_some_and(|t| t.dtype.is_int());
        Facts { overwrites: vec![(0, 0)], folds: exact, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_number!(s.input(0)?.dtype, self.name(), T => kernel::<T>(s))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let attrs = x.sig.attrs;
        let axis = x.number(DType::I64, attrs.int("axis")? as f64);
        let flags =
            Attrs::new().with("exclusive", attrs.int("exclusive")?).with("reverse", attrs.int("reverse")?);
        x.same_of("CumSum", &[Some(x.input(0)?), Some(axis)], flags)
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, shape: &[usize], axis: i64, exclusive: bool, reverse: bool| {
            let attrs = Attrs::new().with("axis", axis).with("exclusive", exclusive).with("reverse", reverse);
            Case::new(name, attrs, &[]).input(0, CaseInput::float(shape, Fill::Uniform(-1.0, 1.0)))
        };
        let mut ints = case("integers", &[6], 0, false, false);
        ints.inputs[0] = Some(CaseInput::ints(DType::I64, &[6], -5, 9));
        vec![
            case("vector", &[7], 0, false, false),
            case("first axis", &[3, 4], 0, false, false),
            case("exclusive", &[2, 3, 2], 1, true, false),
            case("reverse", &[2, 5], 1, false, true),
            case("exclusive and reverse", &[2, 5], 1, true, true),
            ints,
        ]
    }
}
