//! Upper and lower triangles of matrices.

use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::Case,
    cpu::{
        CpuKernel, Element,
        par::{self, GRAIN, Shared},
    },
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, rules},
};
use graph::{Attrs, DType, TensorType};

/// The last two axes with zeros below (`upper`) or above diagonal `k`.
pub struct Trilu;

impl OpDef for Trilu {
    fn name(&self) -> &'static str {
        "Trilu"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Trilu" => import]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = s.input(0)?;
        s.attrs.int("upper")?;
        s.attrs.int("k")?;
        if x.shape.rank() < 2 {
            return Err(OpError::invalid(format!("the input {x} must have at least 2 axes")));
        }
        Ok(vec![x.clone()])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (attrs, dy) = (g.attrs().clone(), g.cotangent0()?);
        let dx = g.b.op("Trilu", attrs, &[dy])?;
        g.set(0, dx);
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        Work { bytes: s.io_bytes(), ..Work::default() }
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { overwrites: vec![(0, 0)], folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let dims = s.dims(0)?;
        let [.., rows, cols] = dims[..] else {
            return Err(OpError::invalid("the input must have at least 2 axes"));
        };
        let all = dims.iter().product::<usize>() / cols.max(1);
        let (upper, k) = (s.attrs.int("upper")? != 0, s.attrs.int("k")?);
        crate::for_width!(s.input(0)?.dtype, T => Ok(triangle::<T>(all, rows, cols, upper, k)))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let k = x.number(DType::I64, x.sig.attrs.int("k")? as f64);
        let attrs = Attrs::new().with("upper", x.sig.attrs.int("upper")?);
        x.same_of("Trilu", &[Some(x.input(0)?), Some(k)], attrs)
    }

    fn cases(&self) -> Vec<Case> {
        let of = |upper: bool, k: i64| Attrs::new().with("upper", upper).with("k", k);
        vec![
            Case::new("upper", of(true, 0), &[&[3, 4]]),
            Case::new("lower", of(false, 0), &[&[4, 3]]),
            Case::new("upper, shifted up", of(true, 2), &[&[2, 3, 3]]),
            Case::new("lower, shifted down", of(false, -1), &[&[3, 3]]),
            Case::new("far outside", of(false, 9), &[&[2, 2]]),
            Case::new("empty", of(true, 0), &[&[2, 0, 3]]),
        ]
    }
}

fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let x = cx.input(0)?;
    let k = match cx.opt_ints(1, "k")?.as_deref() {
        None => 0,
        Some([k]) => *k,
        Some(_) => return Err(OpError::invalid("k (input 1) must be one integer")),
    };
    let upper = cx.attrs.int_or("upper", 1)?;
    let y = cx.b.op("Trilu", Attrs::new().with("upper", upper != 0).with("k", k), &[x])?;
    cx.set(0, y);
    Ok(())
}

/// `all` rows of `cols` elements, `rows` of them a matrix.
fn triangle<T: Element>(all: usize, rows: usize, cols: usize, upper: bool, k: i64) -> CpuKernel {
    Box::new(move |io| {
        if cols == 0 {
            return Ok(());
        }
        let (x, y) = (Shared(io.input_ptr::<T>(0).0.cast_mut()), Shared(io.output_ptr::<T>(0).0));
        let same = std::ptr::eq(x.0, y.0);
        par::ranges(all, (GRAIN / cols).max(1), |r| {
            let (x, y) = (&x, &y);
            for row in r {
                // The diagonal's column in this row, and one past it for the lower triangle.
                let diagonal = (row % rows) as i128 + i128::from(k) + i128::from(!upper);
                let cut = diagonal.clamp(0, cols as i128) as usize;
                let (keep, zero) = if upper { (cut..cols, 0..cut) } else { (0..cut, cut..cols) };
                let at = row * cols;
                // SAFETY: rows are inside both tensors; the output's are disjoint and, unless the tensors are one, apart from the input.
                unsafe {
                    if !same {
                        let from = x.0.add(at + keep.start);
                        std::ptr::copy_nonoverlapping(from, y.0.add(at + keep.start), keep.len());
                    }
                    std::ptr::write_bytes(y.0.add(at + zero.start), 0, zero.len());
                }
            }
        });
        Ok(())
    })
}
