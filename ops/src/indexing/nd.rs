//! Slices picked and put by index tuples: GatherND, ScatterND.

use super::{Combine, Indices, Reduction, for_numeric, index_input, scatter_gradient};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{
        CpuKernel, Element, KernelError,
        par::{self, GRAIN, Shared},
    },
    export::Export,
    grad::GradCx,
    loss::same_shape,
    movement::generate::zeros,
    onnx::{OnnxRule, rules},
};
use graph::{Attrs, DType, Dim, Shape, TensorType};

/// Slices of input 0 at the tuples along the last axis of input 1; the first `batch_dims` axes belong to both.
pub struct GatherND;

impl OpDef for GatherND {
    fn name(&self) -> &'static str {
        "GatherND"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["GatherND" => |cx| {
            let batch = cx.attrs.int_or("batch_dims", 0)?;
            cx.same("GatherND", Attrs::new().with("batch_dims", batch))
        }]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (x, indices) = (s.input(0)?, index_input(s, 1)?);
        Ok(vec![TensorType { dtype: x.dtype, shape: slices(s, &x.shape, &indices.shape)? }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        if g.needs(0) {
            let attrs = g.attrs().clone().with("reduction", "add");
            let (indices, dy, ty) = (g.input(1)?, g.cotangent0()?, g.ty(0)?);
            let zero = zeros(g.b, &ty)?;
            let dx = g.b.op("ScatterND", attrs, &[zero, indices, dy])?;
            g.set(0, dx);
        }
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let picked = s.outputs.first().and_then(|t| t.bytes()).unwrap_or(0);
        Work { bytes: picked.saturating_mul(2), ..Work::default() }
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { can_fail: true, folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let rows = Rows::new(s)?;
        let index = index_input(s, 1)?.dtype;
        crate::for_width!(s.input(0)?.dtype, T => Ok(gather::<T>(rows, index)))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let at = x.input(1)?.cast(DType::I64);
        let attrs = Attrs::new().with("batch_dims", x.sig.attrs.int("batch_dims")?);
        x.same_of("GatherND", &[Some(x.input(0)?), Some(at)], attrs)
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, batch: i64, x: &[usize], indices: &[usize], n: i64| {
            let attrs = Attrs::new().with("batch_dims", batch);
            Case::new(name, attrs, &[x]).input(1, CaseInput::ints(DType::I64, indices, -n, n))
        };
        vec![
            case("elements", 0, &[3, 3], &[4, 2], 3),
            case("slices, repeated", 0, &[3, 4], &[2, 3, 1], 3),
            case("batches", 1, &[2, 3, 2], &[2, 4, 1], 3),
            case("batches of elements", 1, &[2, 3, 3], &[2, 2], 3),
        ]
    }
}

/// Input 0 with the slices of input 2 put at the tuples along the last axis of input 1, in row-major order of the tuples.
///
/// `reduction` as for ScatterElements; the first `batch_dims` axes belong to all (ONNX: 0).
pub struct ScatterND;

impl OpDef for ScatterND {
    fn name(&self) -> &'static str {
        "ScatterND"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["ScatterND" => |cx| {
            let reduction = cx.attrs.str_or("reduction", "none")?.to_owned();
            cx.same("ScatterND", Attrs::new().with("reduction", reduction).with("batch_dims", 0))
        }]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (x, indices, updates) = (s.input(0)?, index_input(s, 1)?, s.input(2)?);
        let want = slices(s, &x.shape, &indices.shape)?;
        if updates.dtype != x.dtype {
            return Err(OpError::invalid(format!("updates are {updates}, the slices {}{want}", x.dtype)));
        }
        same_shape(&want, &updates.shape, "updates")?;
        Reduction::of(s)?.check(x.dtype)?;
        Ok(vec![x.clone()])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let batch = Attrs::new().with("batch_dims", g.attrs().int("batch_dims")?);
        scatter_gradient(g, ("GatherND", batch.clone()), ("ScatterND", batch))
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let updates = s.opt_input(2).and_then(|t| t.shape.elements()).unwrap_or(0);
        Work { flops: updates, bytes: s.io_bytes(), product: false }
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { overwrites: vec![(0, 0)], can_fail: true, folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let rows = Rows::new(s)?;
        let (dtype, index) = (s.input(0)?.dtype, index_input(s, 1)?.dtype);
        let reduction = Reduction::of(s)?;
        if reduction == Reduction::Replace {
            return crate::for_width!(dtype, T => Ok(scatter::<T>(rows, index, |_, u| u)));
        }
        for_numeric!(dtype, self.name(), T => Ok(match reduction {
            Reduction::Replace | Reduction::Add => scatter::<T>(rows, index, Combine::sum),
            Reduction::Mul => scatter::<T>(rows, index, Combine::product),
            Reduction::Max => scatter::<T>(rows, index, Combine::maximum),
            Reduction::Min => scatter::<T>(rows, index, Combine::minimum),
        }))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let mut at = x.input(1)?.cast(DType::I64);
        let batch = x.sig.attrs.int("batch_dims")? as usize;
        if batch > 0 {
            // ONNX has no batch axes here: their coordinates become part of the tuples.
            let mut dims = x.dims(1)?;
            let lead = dims.len() - 1;
            dims[lead] = batch;
            let count: usize = dims[..lead].iter().product();
            let inner = |a: usize| dims[a + 1..lead].iter().product::<usize>();
            let coordinates = (0..count).flat_map(|i| (0..batch).map(move |a| (i, a)));
            let elements: Vec<f64> = coordinates.map(|(i, a)| (i / inner(a) % dims[a]) as f64).collect();
            let own = x.tensor(DType::I64, &dims, &elements)?;
            at = x.call("Concat", &[own, at], Attrs::new().with("axis", -1));
        }
        let attrs = Attrs::new().with("reduction", x.sig.attrs.str_or("reduction", "none")?);
        x.same_of("ScatterND", &[Some(x.input(0)?), Some(at), Some(x.input(2)?)], attrs)
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, reduction: &str, batch: i64, x: &[usize], indices: &[usize], updates: &[usize]| {
            let attrs = Attrs::new().with("batch_dims", batch).with("reduction", reduction);
            Case::new(name, attrs, &[x, &[], updates]).input(1, CaseInput::ints(DType::I64, indices, -3, 3))
        };
        let distinct = CaseInput {
            fill: Fill::Values(vec![2.0, 0.0, -3.0, 1.0, 1.0, -1.0]),
            ..CaseInput::ints(DType::I64, &[3, 2], 0, 3)
        };
        let spread = |shape: &[usize]| CaseInput::float(shape, Fill::Distinct { spacing: 0.1 });
        vec![
            case("replace elements", "none", 0, &[3, 3], &[3, 2], &[3]).input(1, distinct),
            case("add slices, repeated", "add", 0, &[3, 4], &[5, 1], &[5, 4]),
            case("add in batches", "add", 1, &[2, 3, 2], &[2, 4, 1], &[2, 4, 2]),
            case("multiply, repeated", "mul", 0, &[3, 2], &[4, 1], &[4, 2]),
            case("maximum", "max", 0, &[3, 2], &[4, 1], &[4, 2])
                .input(0, spread(&[3, 2]))
                .input(2, spread(&[4, 2])),
            case("minimum", "min", 0, &[3], &[5, 1], &[5]).input(0, spread(&[3])).input(2, spread(&[5])),
        ]
    }
}

fn batch_dims(s: &Signature<'_>, most: usize) -> Result<usize, OpError> {
    let b = s.attrs.int("batch_dims")?;
    usize::try_from(b)
        .ok()
        .filter(|b| *b <= most)
        .ok_or_else(|| OpError::invalid(format!("batch_dims {b} does not fit the indices (at most {most})")))
}

/// The shape of the slices that tuples pick: tuples' axes, then what a tuple leaves of the input's.
fn slices(s: &Signature<'_>, x: &Shape, indices: &Shape) -> Result<Shape, OpError> {
    let Some((len, tuples)) = indices.0.split_last() else {
        return Err(OpError::invalid("indices must have at least one axis"));
    };
    let batch = batch_dims(s, tuples.len())?;
    let len =
        len.as_const().ok_or_else(|| OpError::Dynamic(format!("the length {len} of the index tuples")))?;
    let len = usize::try_from(len).ok().filter(|n| *n > 0 && batch + n <= x.rank()).ok_or_else(|| {
        OpError::invalid(format!("tuples of {len} indices do not fit {x} with {batch} batch axes"))
    })?;
    if let Some((a, b)) = x.0.iter().zip(&indices.0).take(batch).find(|(a, b)| a != b) {
        let both = (a.as_const(), b.as_const());
        return Err(match both {
            (Some(_), Some(_)) => OpError::invalid(format!("batch axes of {x} and {indices} differ")),
            _ => OpError::Dynamic(format!("whether {a} equals {b}")),
        });
    }
    Ok(Shape(tuples.iter().chain(&x.0[batch + len..]).cloned().collect::<Vec<Dim>>()))
}

/// The input as batches of rows, addressed by tuples.
pub(super) struct Rows {
    pub(super) batches: usize,
    /// Tuples a batch.
    pub(super) tuples: usize,
    /// Extents that a tuple addresses.
    pub(super) extents: Vec<usize>,
    /// Rows a batch: the product of the extents.
    pub(super) rows: usize,
    /// Elements a row.
    pub(super) len: usize,
}

impl Rows {
    pub(super) fn new(s: &Signature<'_>) -> Result<Rows, OpError> {
        let (data, index) = (s.dims(0)?, s.dims(1)?);
        slices(s, &Shape::from(&data), &Shape::from(&index))?;
        let (tuple, outer) = index.split_last().ok_or_else(|| OpError::invalid("indices are a scalar"))?;
        let batch = batch_dims(s, outer.len())?;
        let extents = data[batch..batch + tuple].to_vec();
        Ok(Rows {
            batches: data[..batch].iter().product(),
            tuples: outer[batch..].iter().product(),
            rows: extents.iter().product(),
            extents,
            len: data[batch + tuple..].iter().product(),
        })
    }

    fn check(&self, indices: Indices<'_>) -> Result<(), KernelError> {
        let k = self.extents.len();
        indices.check(|i| self.extents[i % k])
    }

    /// Row, counted over all batches, that tuple `t`, counted over all batches, addresses.
    #[inline(always)]
    fn row(&self, indices: Indices<'_>, t: usize) -> usize {
        let k = self.extents.len();
        let at = self.extents.iter().enumerate();
        let row = at.fold(0, |row, (i, n)| row * n + indices.get(t * k + i, *n));
        t / self.tuples * self.rows + row
    }
}

fn gather<T: Element>(rows: Rows, index: DType) -> CpuKernel {
    Box::new(move |io| {
        let indices = Indices::of(io, 1, index);
        rows.check(indices)?;
        let x = io.input::<T>(0);
        par::rows(io.output::<T>(0), rows.len, |t, out| {
            let at = rows.row(indices, t) * rows.len;
            out.copy_from_slice(&x[at..at + rows.len]);
        });
        Ok(())
    })
}

/// Columns that one piece of a scatter handles.
const COLUMNS: usize = 256;

fn scatter<T: Element>(rows: Rows, index: DType, f: impl Fn(T, T) -> T + Send + Sync + 'static) -> CpuKernel {
    Box::new(move |io| {
        let indices = Indices::of(io, 1, index);
        rows.check(indices)?;
        super::copy_unless_same::<T>(io);
        let (updates, y) = (io.input::<T>(2), Shared(io.output_ptr::<T>(0).0));
        let blocks = rows.len.div_ceil(COLUMNS);
        let grain = (GRAIN / (rows.tuples * rows.len.min(COLUMNS)).max(1)).max(1);
        par::ranges(rows.batches * blocks, grain, |r| {
            let y = &y;
            for p in r {
                let (batch, block) = (p / blocks, p % blocks);
                let columns = block * COLUMNS..((block + 1) * COLUMNS).min(rows.len);
                for t in batch * rows.tuples..(batch + 1) * rows.tuples {
                    let (to, from) = (rows.row(indices, t) * rows.len, t * rows.len);
                    // SAFETY: indices are checked; pieces have batches or columns of their own.
                    let out = unsafe { y.slice(to + columns.start..to + columns.end) };
                    let new = &updates[from + columns.start..from + columns.end];
                    out.iter_mut().zip(new).for_each(|(y, u)| *y = f(*y, *u));
                }
            }
        });
        Ok(())
    })
}
