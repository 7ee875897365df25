//! Elements picked and put along one axis by an index for each element: GatherElements, ScatterElements.

use super::{Combine, Indices, Reduction, for_numeric, index_input, scatter_gradient};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{
        CpuKernel, Element,
        par::{self, GRAIN, Shared},
    },
    export::Export,
    grad::GradCx,
    loss::same_shape,
    movement::{axis_attr, generate::zeros, row_major},
    onnx::{OnnxRule, normalize_axis, rules},
};
use graph::{Attrs, DType, TensorType};

/// `y[.., k, ..] = x[.., indices[.., k, ..], ..]` along `axis`; the output has the shape of the indices.
pub struct GatherElements;

impl OpDef for GatherElements {
    fn name(&self) -> &'static str {
        "GatherElements"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["GatherElements" => |cx| {
            let axis = normalize_axis(cx.attrs.int_or("axis", 0)?, cx.ty(0)?.shape.rank())?;
            cx.same("GatherElements", Attrs::new().with("axis", axis as i64))
        }]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (x, indices) = (s.input(0)?, index_input(s, 1)?);
        inside(s, x, indices)?;
        Ok(vec![TensorType { dtype: x.dtype, shape: indices.shape.clone() }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        if g.needs(0) {
            let attrs = g.attrs().clone().with("reduction", "add");
            let (indices, dy, ty) = (g.input(1)?, g.cotangent0()?, g.ty(0)?);
            let zero = zeros(g.b, &ty)?;
            let dx = g.b.op("ScatterElements", attrs, &[zero, indices, dy])?;
            g.set(0, dx);
        }
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        Work { flops: 0, bytes: s.io_bytes(), product: false }
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { can_fail: true, folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let lines = Lines::new(s)?;
        let index = index_input(s, 1)?.dtype;
        crate::for_width!(s.input(0)?.dtype, T => Ok(gather::<T>(lines, index)))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("GatherElements", Attrs::new().with("axis", x.sig.attrs.int("axis")?))
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, axis: i64, x: &[usize], indices: &[usize]| {
            let n = x[axis as usize] as i64;
            let attrs = Attrs::new().with("axis", axis);
            Case::new(name, attrs, &[x]).input(1, CaseInput::ints(DType::I64, indices, -n, n))
        };
        vec![
            case("last axis", 1, &[3, 4], &[3, 6]),
            case("first axis, part of the rest", 0, &[4, 5], &[3, 2]),
            case("middle axis", 1, &[2, 3, 2], &[2, 5, 2]),
            case("none", 0, &[3, 2], &[0, 2]),
        ]
    }
}

/// Input 0 with the elements of input 2 put along `axis` at the indices in input 1, in row-major order along each line.
///
/// `reduction` says what happens to the element there: `none` (replaced; indices must not repeat), `add`, `mul`, `max`, `min`.
pub struct ScatterElements;

impl OpDef for ScatterElements {
    fn name(&self) -> &'static str {
        "ScatterElements"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["ScatterElements" => import, "Scatter" => import]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (x, indices, updates) = (s.input(0)?, index_input(s, 1)?, s.input(2)?);
        inside(s, x, indices)?;
        if updates.dtype != x.dtype {
            return Err(OpError::invalid(format!("updates are {updates}, the input {x}")));
        }
        same_shape(&indices.shape, &updates.shape, "updates")?;
        Reduction::of(s)?.check(x.dtype)?;
        Ok(vec![x.clone()])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let axis = Attrs::new().with("axis", g.attrs().int("axis")?);
        scatter_gradient(g, ("GatherElements", axis.clone()), ("ScatterElements", axis))
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let updates = s.opt_input(2).and_then(|t| t.shape.elements()).unwrap_or(0);
        Work { flops: updates, bytes: s.io_bytes(), product: false }
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { overwrites: vec![(0, 0)], can_fail: true, folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let lines = Lines::new(s)?;
        let (dtype, index) = (s.input(0)?.dtype, index_input(s, 1)?.dtype);
        let reduction = Reduction::of(s)?;
        if reduction == Reduction::Replace {
            return crate::for_width!(dtype, T => Ok(scatter::<T>(lines, index, |_, u| u)));
        }
        for_numeric!(dtype, self.name(), T => Ok(match reduction {
            Reduction::Replace | Reduction::Add => scatter::<T>(lines, index, Combine::sum),
            Reduction::Mul => scatter::<T>(lines, index, Combine::product),
            Reduction::Max => scatter::<T>(lines, index, Combine::maximum),
            Reduction::Min => scatter::<T>(lines, index, Combine::minimum),
        }))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let attrs = x.sig.attrs;
        let reduction = attrs.str_or("reduction", "none")?;
        x.same("ScatterElements", Attrs::new().with("axis", attrs.int("axis")?).with("reduction", reduction))
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, reduction: &str, axis: i64, x: &[usize], updates: &[usize]| {
            let n = x[axis as usize] as i64;
            let attrs = Attrs::new().with("axis", axis).with("reduction", reduction);
            Case::new(name, attrs, &[x, &[], updates]).input(1, CaseInput::ints(DType::I64, updates, -n, n))
        };
        let distinct = CaseInput {
            fill: Fill::Values(vec![2.0, 0.0, -1.0, 0.0, 1.0, 3.0]),
            ..CaseInput::ints(DType::I64, &[2, 3], 0, 4)
        };
        let spread = |shape: &[usize]| CaseInput::float(shape, Fill::Distinct { spacing: 0.1 });
        vec![
            case("replace", "none", 1, &[2, 4], &[2, 3]).input(1, distinct),
            case("add, repeated", "add", 0, &[3, 4], &[5, 3]),
            case("multiply, repeated", "mul", 1, &[2, 3], &[2, 5]),
            case("maximum", "max", 1, &[2, 3], &[2, 4]).input(0, spread(&[2, 3])).input(2, spread(&[2, 4])),
            case("minimum", "min", 0, &[3, 2], &[4, 2]).input(0, spread(&[3, 2])).input(2, spread(&[4, 2])),
            case("none", "add", 0, &[3, 2], &[0, 2]),
        ]
    }
}

fn import(cx: &mut crate::onnx::ImportCx<'_, '_>) -> Result<(), OpError> {
    let axis = normalize_axis(cx.attrs.int_or("axis", 0)?, cx.ty(0)?.shape.rank())?;
    let reduction = cx.attrs.str_or("reduction", "none")?.to_owned();
    cx.same("ScatterElements", Attrs::new().with("axis", axis as i64).with("reduction", reduction))
}

/// Checks that the indices fit the input: as many axes, and no longer than it along all but `axis`.
fn inside(s: &Signature<'_>, x: &TensorType, indices: &TensorType) -> Result<(), OpError> {
    let axis = axis_attr(s, "axis", x.shape.rank())?;
    if indices.shape.rank() != x.shape.rank() {
        return Err(OpError::invalid(format!("indices are {indices}, the input {x}: their ranks differ")));
    }
    for (a, (i, d)) in indices.shape.0.iter().zip(&x.shape.0).enumerate() {
        if a == axis || i == d {
            continue;
        }
        match (i.as_const(), d.as_const()) {
            (Some(i), Some(d)) if i <= d => {}
            (Some(_), Some(_)) => {
                return Err(OpError::invalid(format!(
                    "indices {indices} are longer than {x} along axis {a}"
                )));
            }
            _ => return Err(OpError::Dynamic(format!("whether {i} is at most {d}"))),
        }
    }
    Ok(())
}

/// The lines along the axis: where they start and how they step in the indices and in the input.
pub(super) struct Lines {
    /// Extents of the other axes of the indices, with strides of indices and input.
    pub(super) others: Vec<(usize, usize, usize)>,
    pub(super) count: usize,
    /// Indices a line.
    pub(super) len: usize,
    pub(super) index_step: usize,
    pub(super) data_step: usize,
    /// Extent of the input along the axis.
    pub(super) n: usize,
}

impl Lines {
    pub(super) fn new(s: &Signature<'_>) -> Result<Lines, OpError> {
        let (data, index) = (s.dims(0)?, s.dims(1)?);
        let axis = axis_attr(s, "axis", data.len())?;
        let strides = |d: &[usize]| row_major(d).into_iter().map(|s| s as usize).collect::<Vec<_>>();
        let (ds, is) = (strides(&data), strides(&index));
        let others: Vec<_> =
            (0..data.len()).filter(|a| *a != axis).map(|a| (index[a], is[a], ds[a])).collect();
        let count = others.iter().map(|o| o.0).product();
        Ok(Lines {
            others,
            count,
            len: index[axis],
            index_step: is[axis],
            data_step: ds[axis],
            n: data[axis],
        })
    }

    /// Where line `l` starts in the indices and in the input.
    fn start(&self, mut l: usize) -> (usize, usize) {
        let mut at = (0, 0);
        for (n, is, ds) in self.others.iter().rev() {
            let k = l % n;
            l /= n;
            at = (at.0 + k * is, at.1 + k * ds);
        }
        at
    }

    fn grain(&self) -> usize {
        (GRAIN / self.len.max(1)).max(1)
    }
}

fn gather<T: Element>(lines: Lines, index: DType) -> CpuKernel {
    Box::new(move |io| {
        let indices = Indices::of(io, 1, index);
        indices.check(|_| lines.n)?;
        let (x, y) = (io.input::<T>(0), Shared(io.output_ptr::<T>(0).0));
        par::ranges(lines.count, lines.grain(), |r| {
            let y = &y;
            for l in r {
                let (i0, d0) = lines.start(l);
                for k in 0..lines.len {
                    let at = i0 + k * lines.index_step;
                    let from = d0 + indices.get(at, lines.n) * lines.data_step;
                    // SAFETY: output and indices have one shape, and lines are disjoint.
                    unsafe { *y.0.add(at) = x[from] };
                }
            }
        });
        Ok(())
    })
}

fn scatter<T: Element>(
    lines: Lines,
    index: DType,
    f: impl Fn(T, T) -> T + Send + Sync + 'static,
) -> CpuKernel {
    Box::new(move |io| {
        let indices = Indices::of(io, 1, index);
        indices.check(|_| lines.n)?;
        super::copy_unless_same::<T>(io);
        let (updates, y) = (io.input::<T>(2), Shared(io.output_ptr::<T>(0).0));
        par::ranges(lines.count, lines.grain(), |r| {
            let y = &y;
            for l in r {
                let (i0, d0) = lines.start(l);
                for k in 0..lines.len {
                    let at = i0 + k * lines.index_step;
                    let to = d0 + indices.get(at, lines.n) * lines.data_step;
                    // SAFETY: the index is checked, the other coordinates are inside; lines of the output are disjoint.
                    unsafe { *y.0.add(to) = f(*y.0.add(to), updates[at]) };
                }
            }
        });
        Ok(())
    })
}
