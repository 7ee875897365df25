//! The k largest or smallest elements along an axis.

use super::{Combine, for_numeric};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{
        CpuKernel,
        par::{self, GRAIN, Shared},
    },
    export::Export,
    grad::GradCx,
    movement::{around, axis_attr, generate::zeros},
    onnx::{ImportCx, OnnxRule, normalize_axis, rules},
};
use graph::{Attrs, DType, TensorType};

/// Outputs the `k` largest (or smallest) elements along `axis`, best first, and their positions (i64). Of equals the first comes first; a
/// NaN counts as larger than any number.
pub struct TopK;

impl OpDef for TopK {
    fn name(&self) -> &'static str {
        "TopK"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["TopK" => import]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = s.input(0)?;
        let axis = axis_attr(s, "axis", x.shape.rank())?;
        s.attrs.int("largest")?;
        if x.dtype == DType::Bool {
            return Err(OpError::invalid("booleans have no order"));
        }
        let (k, dim) = (s.attrs.int("k")?, &x.shape.0[axis]);
        let n = dim.as_const().ok_or_else(|| OpError::Dynamic(format!("the extent {dim} of the lines")))?;
        if k < 0 || k > n {
            return Err(OpError::invalid(format!("k is {k}, the lines have {n} elements")));
        }
        let mut values = x.clone();
        values.shape.0[axis] = (k as usize).into();
        let positions = TensorType { dtype: DType::I64, shape: values.shape.clone() };
        Ok(vec![values, positions])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        if let (Some(dy), true) = (g.cotangent(0), g.needs(0)) {
            let attrs = Attrs::new().with("axis", g.attrs().int("axis")?).with("reduction", "add");
            let (ty, positions) = (g.ty(0)?, g.output(1));
            let zero = zeros(g.b, &ty)?;
            let dx = g.b.op("ScatterElements", attrs, &[zero, positions, dy])?;
            g.set(0, dx);
        }
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let n = s.opt_input(0).and_then(|t| t.shape.elements()).unwrap_or(0);
        let k = s.attrs.int_or("k", 1).unwrap_or(1).max(1) as u64;
        Work { flops: n.saturating_mul(1 + u64::from(k.ilog2())), bytes: s.io_bytes(), product: false }
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { once: true, folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let dims = s.dims(0)?;
        let around = around(&dims, axis_attr(s, "axis", dims.len())?);
        let k = usize::try_from(s.attrs.int("k")?).ok().filter(|k| *k <= around.1);
        let k = k.ok_or_else(|| OpError::invalid("k does not fit the lines"))?;
        let largest = s.attrs.int("largest")? != 0;
        for_numeric!(s.input(0)?.dtype, self.name(), T => Ok(if largest {
            select::<T>(around, k, |a, b| a > b || (a.nan() && !b.nan()))
        } else {
            select::<T>(around, k, |a, b| a < b || (!a.nan() && b.nan()))
        }))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let attrs = x.sig.attrs;
        let k = x.ints(&[attrs.int("k")?]);
        let attrs = Attrs::new().with("axis", attrs.int("axis")?).with("largest", attrs.int("largest")?);
        x.same_of("TopK", &[Some(x.input(0)?), Some(k)], attrs)
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, shape: &[usize], axis: i64, k: i64, largest: bool| {
            Case::new(name, attrs(axis, k, largest), &[])
                .input(0, CaseInput::float(shape, Fill::Distinct { spacing: 0.1 }))
        };
        vec![
            case("largest of rows", &[3, 7], 1, 3, true),
            case("smallest of columns", &[6, 2], 0, 2, false),
            case("channels", &[2, 4, 3], 1, 2, true),
            case("all, sorted", &[9], 0, 9, true),
            case("none", &[2, 3], 1, 0, true),
        ]
    }
}

fn attrs(axis: i64, k: i64, largest: bool) -> Attrs {
    Attrs::new().with("axis", axis).with("k", k).with("largest", largest)
}

fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let x = cx.input(0)?;
    let axis = normalize_axis(cx.attrs.int_or("axis", -1)?, cx.ty(0)?.shape.rank())?;
    let k = match cx.attrs.opt_int("k")? {
        Some(k) => k,
        None => match cx.opt_ints(1, "k")?.as_deref() {
            Some([k]) => *k,
            _ => return Err(OpError::invalid("k (input 1) must be one integer")),
        },
    };
    let largest = cx.attrs.int_or("largest", 1)? != 0;
    // The order is unspecified if `sorted` is 0, so the sorted one is right too.
    for (i, v) in cx.b.emit("TopK", attrs(axis as i64, k, largest), &[Some(x)])?.into_iter().enumerate() {
        cx.set(i, v);
    }
    Ok(())
}

/// One line of both outputs, used as a heap with the worst element at its root.
struct Heap<T> {
    values: *mut T,
    positions: *mut i64,
    step: usize,
}

impl<T: Combine> Heap<T> {
    /// # Safety
    ///
    /// Slot `i` is inside both lines.
    #[inline(always)]
    unsafe fn get(&self, i: usize) -> (T, i64) {
        // SAFETY: by this function's contract.
        unsafe { (*self.values.add(i * self.step), *self.positions.add(i * self.step)) }
    }

    /// # Safety
    ///
    /// Slot `i` is inside both lines.
    #[inline(always)]
    unsafe fn set(&self, i: usize, (v, p): (T, i64)) {
        // SAFETY: by this function's contract.
        unsafe {
            *self.values.add(i * self.step) = v;
            *self.positions.add(i * self.step) = p;
        }
    }

    /// Puts `item` at slot `i` of a heap of `len` slots whose subtrees below `i` are heaps.
    ///
    /// # Safety
    ///
    /// Both lines hold `len` written slots.
    unsafe fn sift(
        &self,
        mut i: usize,
        len: usize,
        item: (T, i64),
        worse: &impl Fn((T, i64), (T, i64)) -> bool,
    ) {
        // SAFETY: all slots are below `len`.
        unsafe {
            loop {
                let mut child = 2 * i + 1;
                if child >= len {
                    break;
                }
                if child + 1 < len && worse(self.get(child + 1), self.get(child)) {
                    child += 1;
                }
                if !worse(self.get(child), item) {
                    break;
                }
                self.set(i, self.get(child));
                i = child;
            }
            self.set(i, item);
        }
    }
}

fn select<T: Combine>(
    (outer, n, inner): (usize, usize, usize),
    k: usize,
    better: impl Fn(T, T) -> bool + Send + Sync + Copy + 'static,
) -> CpuKernel {
    Box::new(move |io| {
        if k == 0 {
            return Ok(());
        }
        let x = io.input::<T>(0);
        let (values, positions) = (Shared(io.output_ptr::<T>(0).0), Shared(io.output_ptr::<i64>(1).0));
        let worse = |a: (T, i64), b: (T, i64)| better(b.0, a.0) || (!better(a.0, b.0) && a.1 > b.1);
        par::ranges(outer * inner, (GRAIN / n).max(1), |r| {
            let (values, positions) = (&values, &positions);
            for l in r {
                let (o, i) = (l / inner, l % inner);
                let from = |j: usize| (x[(o * n + j) * inner + i], j as i64);
                let at = o * k * inner + i;
                // SAFETY: line `l` of the outputs has `k` slots `inner` apart, touched by this iteration only and written before they
                // are read.
                unsafe {
                    let heap = Heap { values: values.0.add(at), positions: positions.0.add(at), step: inner };
                    (0..k).for_each(|j| heap.set(j, from(j)));
                    for j in (0..k / 2).rev() {
                        heap.sift(j, k, heap.get(j), &worse);
                    }
                    for j in k..n {
                        let item = from(j);
                        if worse(heap.get(0), item) {
                            heap.sift(0, k, item, &worse);
                        }
                    }
                    // The worst goes to the end, again and again: the best ends up first.
                    for len in (1..k).rev() {
                        let (root, end) = (heap.get(0), heap.get(len));
                        heap.sift(0, len, end, &worse);
                        heap.set(len, root);
                    }
                }
            }
        });
        Ok(())
    })
}
