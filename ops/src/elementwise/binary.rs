//! Elementwise operators of two inputs, with numpy broadcasting.

use crate::{
    Facts, OpDef, OpError, Signature,
    case::Case,
    cpu::{CpuKernel, Element, par},
    grad::GradCx,
    onnx::{OnnxRule, rules},
};
use graph::{Attrs, Dim, Shape, TensorType};

/// a + b.
pub struct Add;

impl OpDef for Add {
    fn name(&self) -> &'static str {
        "Add"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Add" => |cx| cx.same("Add", Attrs::new())]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        same_dtype(s)
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let dy = g.cotangent0()?;
        for i in 0..2 {
            if g.needs(i) {
                let shape = g.ty(i)?.shape;
                let d = g.b.sum_to(dy, &shape)?;
                g.set(i, d);
            }
        }
        Ok(())
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        Facts { folds: true, ..broadcast_facts(s) }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_number!(s.input(0)?.dtype, self.name(), T => zip::<T, T>(s, |a, b| Wrapping::add(a, b)))
    }

    fn cases(&self) -> Vec<Case> {
        broadcast_cases()
    }
}

/// a * b.
pub struct Mul;

impl OpDef for Mul {
    fn name(&self) -> &'static str {
        "Mul"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Mul" => |cx| cx.same("Mul", Attrs::new())]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        same_dtype(s)
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let dy = g.cotangent0()?;
        for i in 0..2 {
            if g.needs(i) {
                let other = g.input(1 - i)?;
                let shape = g.ty(i)?.shape;
                let d = g.b.call("Mul", &[dy, other])?;
                let d = g.b.sum_to(d, &shape)?;
                g.set(i, d);
            }
        }
        Ok(())
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        Facts { folds: true, ..broadcast_facts(s) }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_number!(s.input(0)?.dtype, self.name(), T => zip::<T, T>(s, |a, b| Wrapping::mul(a, b)))
    }

    fn cases(&self) -> Vec<Case> {
        broadcast_cases()
    }
}

/// Arithmetic that wraps for integers and is IEEE for floats.
pub(crate) trait Wrapping: Element {
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
}

macro_rules! wrapping {
    (int: $($i:ty),*; float: $($f:ty),*) => {
        $(impl Wrapping for $i {
            #[inline(always)]
            fn add(self, b: Self) -> Self { self.wrapping_add(b) }
            #[inline(always)]
            fn sub(self, b: Self) -> Self { self.wrapping_sub(b) }
            #[inline(always)]
            fn mul(self, b: Self) -> Self { self.wrapping_mul(b) }
        })*
        $(impl Wrapping for $f {
            #[inline(always)]
            fn add(self, b: Self) -> Self { self + b }
            #[inline(always)]
            fn sub(self, b: Self) -> Self { self - b }
            #[inline(always)]
            fn mul(self, b: Self) -> Self { self * b }
        })*
    };
}
wrapping!(int: i8, i16, i32, i64, u8, u16, u32, u64; float: f32, f64);

/// The broadcast of two shapes, or an error naming the axis that differs.
pub(crate) fn broadcast(a: &Shape, b: &Shape) -> Result<Shape, OpError> {
    let rank = a.rank().max(b.rank());
    let one = Dim::constant(1);
    let at = |s: &Shape, i: usize| {
        (i + s.rank()).checked_sub(rank).map_or_else(|| one.clone(), |j| s.0[j].clone())
    };
    let mut out = Vec::with_capacity(rank);
    for i in 0..rank {
        let (x, y) = (at(a, i), at(b, i));
        out.push(if x == y || y == one {
            x
        } else if x == one {
            y
        } else if x.as_const().is_some() && y.as_const().is_some() {
            return Err(OpError::invalid(format!(
                "shapes {a} and {b} do not broadcast: axis {i} is {x} and {y}"
            )));
        } else {
            return Err(OpError::Dynamic(format!("whether {x} equals {y} (shapes {a} and {b})")));
        });
    }
    Ok(Shape(out))
}

/// The type of an elementwise result whose inputs have one dtype.
pub(crate) fn same_dtype(s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
    let (a, b) = (s.input(0)?, s.input(1)?);
    if a.dtype != b.dtype {
        return Err(OpError::invalid(format!("input dtypes differ: {} and {}", a.dtype, b.dtype)));
    }
    Ok(vec![TensorType { dtype: a.dtype, shape: broadcast(&a.shape, &b.shape)? }])
}

/// An input of the output's type may be overwritten.
pub(crate) fn broadcast_facts(s: &Signature<'_>) -> Facts {
    let same = |i: &usize| s.outputs.first().is_some_and(|o| s.inputs[*i] == Some(*o));
    Facts { overwrites: (0..s.inputs.len()).filter(same).map(|i| (0, i)).collect(), ..Facts::default() }
}

pub(crate) fn broadcast_cases() -> Vec<Case> {
    vec![
        Case::new("same shape", Attrs::new(), &[&[2, 3], &[2, 3]]),
        Case::new("row", Attrs::new(), &[&[4, 3], &[3]]),
        Case::new("column", Attrs::new(), &[&[4, 1], &[4, 3]]),
        Case::new("channel", Attrs::new(), &[&[2, 3, 4], &[3, 1]]),
        Case::new("both sides", Attrs::new(), &[&[2, 1, 3], &[4, 1]]),
        Case::new("scalar", Attrs::new(), &[&[], &[5]]),
    ]
}

/// How the elements of a broadcast operand follow the output's, with adjacent axes of equal behaviour merged: extents and strides (in
/// elements, 0 where broadcast) of the two operands, outermost first; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    pub(crate) extents: Vec<usize>,
    pub(crate) strides: Vec<[usize; 2]>,
}

impl Walk {
    pub(crate) fn new(a: &[usize], b: &[usize], out: &[usize]) -> Walk {
        let stride = |s: &[usize]| {
            let mut v = vec![0; out.len()];
            let mut step = 1;
            for (i, n) in s.iter().enumerate().rev() {
                v[out.len() - s.len() + i] = if *n == 1 { 0 } else { step };
                step *= n;
            }
            v
        };
        let (sa, sb) = (stride(a), stride(b));
        let mut w = Walk { extents: vec![1], strides: vec![[0, 0]] };
        for (i, &n) in out.iter().enumerate() {
            if n == 1 {
                continue;
            }
            let last = w.extents.len() - 1;
            let s = [sa[i], sb[i]];
            let outer = w.strides[last];
            if w.extents[last] == 1 {
                (w.extents[last], w.strides[last]) = (n, s);
            } else if outer[0] == s[0] * n && outer[1] == s[1] * n {
                (w.extents[last], w.strides[last]) = (w.extents[last] * n, s);
            } else {
                w.extents.push(n);
                w.strides.push(s);
            }
        }
        w
    }

    /// Offsets of both operands at the start of row `row` (a run of the innermost extent).
    pub(crate) fn offsets(&self, mut row: usize) -> [usize; 2] {
        let mut at = [0, 0];
        for i in (0..self.extents.len() - 1).rev() {
            let k = row % self.extents[i];
            row /= self.extents[i];
            at = [at[0] + k * self.strides[i][0], at[1] + k * self.strides[i][1]];
        }
        at
    }
}

/// A kernel that applies `f` to broadcast pairs of elements. The output may be the memory of an input of the same type.
pub(crate) fn zip<T: Element, U: Element>(
    s: &Signature<'_>,
    f: impl Fn(T, T) -> U + Send + Sync + 'static,
) -> Result<CpuKernel, OpError> {
    let out = s.out_dims(0)?;
    let walk = Walk::new(&s.dims(0)?, &s.dims(1)?, &out);
    let n: usize = out.iter().product();
    Ok(Box::new(move |io| {
        if n == 0 {
            return Ok(());
        }
        let (a, b) =
            (par::Shared(io.input_ptr::<T>(0).0.cast_mut()), par::Shared(io.input_ptr::<T>(1).0.cast_mut()));
        let y = par::Shared(io.output_ptr::<U>(0).0);
        let last = walk.extents.len() - 1;
        let (len, [sa, sb]) = (walk.extents[last], walk.strides[last]);
        if last == 0 {
            // SAFETY: offsets stay inside the operands by construction of the walk.
            par::ranges(n, par::GRAIN, |r| unsafe {
                run(&f, (a, r.start * sa, sa), (b, r.start * sb, sb), (y, r.start), r.len())
            });
        } else {
            par::ranges(n / len, (par::GRAIN / len).max(1), |rows| {
                for row in rows {
                    let at = walk.offsets(row);
                    // SAFETY: as above.
                    unsafe { run(&f, (a, at[0], sa), (b, at[1], sb), (y, row * len), len) };
                }
            });
        }
        Ok(())
    }))
}

/// One run of `n` elements; strides are 0 or 1 in the loops that matter, so that they vectorise.
///
/// # Safety
///
/// The run stays inside the three allocations; an output that is an operand's memory has the operand's layout.
#[inline(always)]
unsafe fn run<T: Element, U: Element>(
    f: &impl Fn(T, T) -> U,
    (a, a0, sa): (par::Shared<T>, usize, usize),
    (b, b0, sb): (par::Shared<T>, usize, usize),
    (y, y0): (par::Shared<U>, usize),
    n: usize,
) {
    // SAFETY: by this function's contract.
    unsafe {
        let (a, b, y) = (a.0.add(a0), b.0.add(b0), y.0.add(y0));
        match (sa, sb) {
            (1, 1) => (0..n).for_each(|i| *y.add(i) = f(*a.add(i), *b.add(i))),
            (1, 0) => {
                let b = *b;
                (0..n).for_each(|i| *y.add(i) = f(*a.add(i), b));
            }
            (0, 1) => {
                let a = *a;
                (0..n).for_each(|i| *y.add(i) = f(a, *b.add(i)));
            }
            _ => (0..n).for_each(|i| *y.add(i) = f(*a.add(i * sa), *b.add(i * sb))),
        }
    }
}
