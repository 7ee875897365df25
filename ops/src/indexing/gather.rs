//! Slices picked by index along one axis (embedding lookups), and their gradient.

use super::{
    Combine, Indices, for_numeric, index_input,
    selection::{import_compress, import_non_zero, import_unique},
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{
        CpuKernel, Element,
        par::{self, GRAIN, Shared},
    },
    export::Export,
    grad::GradCx,
    movement::{around, axis_attr, count, extents_attr, fill, slice::slice_axis},
    onnx::{ImportCx, OnnxRule, normalize_axis, rules},
};
use graph::{Attrs, DType, Shape, TensorType};

/// Slices of input 0 along `axis` at the indices in input 1, whose shape takes the axis's place. Negative indices count from the end.
pub struct Gather;

impl OpDef for Gather {
    fn name(&self) -> &'static str {
        "Gather"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules![
            "Gather" => import,
            "Compress" => import_compress,
            "NonZero" => import_non_zero,
            "NonMaxSuppression" => super::suppress::import,
            "Unique" => import_unique,
        ]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (x, indices) = (s.input(0)?, index_input(s, 1)?);
        let axis = axis_attr(s, "axis", x.shape.rank())?;
        Ok(vec![TensorType { dtype: x.dtype, shape: picked(&x.shape, axis, &indices.shape) }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        if g.needs(0) {
            let attrs = g.attrs().clone().with("shape", crate::builder::shape_attr(&g.ty(0)?.shape)?);
            let (indices, dy) = (g.input(1)?, g.cotangent0()?);
            let dx = g.b.op("GatherGrad", attrs, &[indices, dy])?;
            g.set(0, dx);
        }
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        // The table is read only where it is picked from.
        let picked = s.outputs.first().and_then(|t| t.bytes()).unwrap_or(0);
        let indices = s.opt_input(1).and_then(|t| t.bytes()).unwrap_or(0);
        Work { bytes: picked.saturating_mul(2).saturating_add(indices), ..Work::default() }
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { can_fail: true, folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let dims = s.dims(0)?;
        let (outer, n, inner) = around(&dims, axis_attr(s, "axis", dims.len())?);
        let (dtype, index) = (s.input(0)?.dtype, index_input(s, 1)?.dtype);
        crate::for_width!(dtype, T => Ok(gather::<T>([outer, n, inner], index)))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("Gather", Attrs::new().with("axis", x.sig.attrs.int("axis")?))
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, axis: i64, x: &[usize], indices: &[usize], n: i64| {
            Case::new(name, Attrs::new().with("axis", axis), &[x])
                .input(1, CaseInput::ints(DType::I64, indices, -n, n))
        };
        vec![
            case("rows", 0, &[5, 4], &[3], 5),
            case("repeated", 0, &[3, 2], &[2, 4], 3),
            case("inner axis", 1, &[2, 4, 3], &[3], 4),
            case("last axis", 1, &[3, 5], &[2, 2], 5),
            case("a scalar index", 0, &[4, 3], &[], 4),
            case("none", 0, &[4, 3], &[0], 4),
            case("narrow", 0, &[4], &[6], 4).input(1, CaseInput::ints(DType::I32, &[6], -4, 4)),
        ]
    }
}

fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (x, indices, shape) = (cx.input(0)?, cx.input(1)?, cx.ty(0)?.shape);
    let axis = normalize_axis(cx.attrs.int_or("axis", 0)?, shape.rank())?;
    // Asked for only where it matters: at run time the question costs something.
    let single = cx.ty(1)?.shape.elements() == Some(1);
    let known = if single { cx.b.literal(indices).and_then(|l| l.to_ints()) } else { None };
    // One known index is a slice, which may be a view and has the cheaper gradient.
    if let (Some([index]), Some(dims)) = (known.as_deref(), shape.fixed()) {
        let n = dims[axis] as i64;
        if *index < -n || *index >= n {
            return Err(OpError::invalid(format!("index {index} is outside of an axis of {n} elements")));
        }
        let start = index.rem_euclid(n);
        let part = slice_axis(cx.b, x, axis, start, start + 1)?;
        let to = picked(&shape, axis, &cx.ty(1)?.shape);
        let y = cx.b.reshape(part, &to)?;
        cx.set(0, y);
        return Ok(());
    }
    cx.same("Gather", Attrs::new().with("axis", axis as i64))
}

/// `shape` with `axis` replaced by the axes of `indices`.
fn picked(shape: &Shape, axis: usize, indices: &Shape) -> Shape {
    let (before, after) = (&shape.0[..axis], &shape.0[axis + 1..]);
    Shape(before.iter().chain(&indices.0).chain(after).cloned().collect())
}

fn gather<T: Element>([outer, n, inner]: [usize; 3], index: DType) -> CpuKernel {
    Box::new(move |io| {
        let indices = Indices::of(io, 1, index);
        indices.check(|_| n)?;
        let (x, y) = (io.input::<T>(0), io.output::<T>(0));
        let m = indices.len();
        if inner == 1 {
            // Single elements: one row of the output for each outer position.
            let cut = GRAIN.min(m.max(1));
            let pieces = m.div_ceil(cut);
            let base = Shared(y.as_mut_ptr());
            par::ranges(outer * pieces, (GRAIN / cut).max(1), |r| {
                let base = &base;
                for p in r {
                    let (o, at) = (p / pieces, p % pieces * cut);
                    let end = (at + cut).min(m);
                    // SAFETY: pieces are disjoint and inside the output.
                    let out = unsafe { base.slice(o * m + at..o * m + end) };
                    let row = &x[o * n..(o + 1) * n];
                    for (y, k) in out.iter_mut().zip(at..end) {
                        *y = row[indices.get(k, n)];
                    }
                }
            });
        } else {
            par::rows(y, inner, |r, row| {
                let at = (r / m * n + indices.get(r % m, n)) * inner;
                row.copy_from_slice(&x[at..at + inner]);
            });
        }
        debug_assert!(x.len() == outer * n * inner);
        Ok(())
    })
}

/// The gradient of [`Gather`]: zeros of the extents `shape`, to which the slices of input 1 are added along `axis` at the indices in
/// input 0, in the order of the indices.
pub struct GatherGrad;

impl OpDef for GatherGrad {
    fn name(&self) -> &'static str {
        "GatherGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (indices, dy) = (index_input(s, 0)?, s.input(1)?);
        let dims = extents_attr(s, "shape")?;
        let axis = axis_attr(s, "axis", dims.len())?;
        count(&dims, dy.dtype)?;
        let shape = Shape::from(&dims);
        let want = picked(&shape, axis, &indices.shape);
        if dy.shape != want {
            return Err(OpError::invalid(format!("input 1 is {}, the picked slices are {want}", dy.shape)));
        }
        Ok(vec![TensorType { dtype: dy.dtype, shape }])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let added = s.opt_input(1).and_then(|t| t.shape.elements()).unwrap_or(0);
        Work { flops: added, bytes: s.io_bytes(), product: false }
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { can_fail: true, folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let dims = extents_attr(s, "shape")?;
        let around = around(&dims, axis_attr(s, "axis", dims.len())?);
        let index = index_input(s, 0)?.dtype;
        for_numeric!(s.input(1)?.dtype, self.name(), T => Ok(gather_grad::<T>(around, index)))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        // Slices are added as elements of a tensor [outer, picked, inner].
        let (indices, dy, shape) = (x.input(0)?, x.input(1)?, extents_attr(x.sig, "shape")?);
        let (outer, n, inner) = around(&shape, axis_attr(x.sig, "axis", shape.len())?);
        let picked: usize = x.dims(0)?.iter().product();
        let at = indices.reshape(&[1, picked, 1]).expand(&[outer, picked, inner]);
        let zeros = x.zeros(dy.dtype(), &[outer, n, inner]);
        let attrs = Attrs::new().with("axis", 1).with("reduction", "add");
        let sum = x.call("ScatterElements", &[zeros, at, dy.reshape(&[outer, picked, inner])], attrs);
        x.set(0, sum.reshape(&shape));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, axis: i64, shape: &[i64], indices: &[usize], dy: &[usize]| {
            let n = shape[axis as usize];
            Case::new(name, Attrs::new().with("axis", axis).with("shape", shape), &[&[], dy])
                .input(0, CaseInput::ints(DType::I64, indices, -n, n))
        };
        let many = CaseInput::float(&[3, 40], Fill::Uniform(-1.0, 1.0));
        vec![
            case("rows", 0, &[5, 4], &[3], &[3, 4]),
            case("repeated", 0, &[3, 2], &[2, 4], &[2, 4, 2]),
            case("last axis", 1, &[3, 5], &[40], &[3, 40]).input(1, many),
            case("none", 0, &[4, 3], &[0], &[0, 3]),
        ]
    }
}

/// Columns that one piece of the gradient sums over.
const COLUMNS: usize = 128;

fn gather_grad<T: Combine>((outer, n, inner): (usize, usize, usize), index: DType) -> CpuKernel {
    Box::new(move |io| {
        let indices = Indices::of(io, 0, index);
        indices.check(|_| n)?;
        let (dy, y) = (io.input::<T>(1), io.output::<T>(0));
        fill(y, T::from_f64(0.0));
        let m = indices.len();
        let blocks = inner.div_ceil(COLUMNS);
        // Where there are few columns, rows are shared out as well: each piece reads all indices and adds those of its rows.
        let parts = if outer * blocks < 8 && m * inner > 8 * GRAIN { 8 } else { 1 };
        let tall = n.div_ceil(parts);
        let base = Shared(y.as_mut_ptr());
        let grain = (GRAIN / (m * COLUMNS.min(inner)).max(1)).max(1);
        par::ranges(outer * blocks * parts, grain, |r| {
            let base = &base;
            for p in r {
                let (part, block, o) = (p % parts, p / parts % blocks, p / parts / blocks);
                let columns = block * COLUMNS..((block + 1) * COLUMNS).min(inner);
                let rows = part * tall..(part + 1) * tall;
                for k in 0..m {
                    let row = indices.get(k, n);
                    if !rows.contains(&row) {
                        continue;
                    }
                    let from = (o * m + k) * inner;
                    let to = (o * n + row) * inner;
                    // SAFETY: pieces have rows or columns of their own, inside the output.
                    let out = unsafe { base.slice(to + columns.start..to + columns.end) };
                    let add = &dy[from + columns.start..from + columns.end];
                    out.iter_mut().zip(add).for_each(|(y, d)| *y = y.sum(*d));
                }
            }
        });
        Ok(())
    })
}
