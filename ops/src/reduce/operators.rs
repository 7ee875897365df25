//! ReduceSum and its kin. Attributes: `axes` (sorted, not negative) and `keepdims` (whether they stay as extent 1).

use super::{
    engine::{Memory, Read, Reducer, reduce},
    space::Space,
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{
        CpuKernel, Element, Float, Math,
        half::{self, is_half},
    },
    elementwise::binary::Wrapping,
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, normalize_axes, rules},
};
use graph::{Attrs, DType, Dim, Shape, TensorType, ValueId};

/// Numbers with a type in which many of them are added up.
pub(super) trait Accumulate: Wrapping {
    /// That type.
    type Wide: Wrapping;
    fn widen(self) -> Self::Wide;
    fn narrow(w: Self::Wide) -> Self;
}

macro_rules! accumulate {
    ($($t:ty => $w:ty),*) => {$(
        impl Accumulate for $t {
            type Wide = $w;
            #[inline(always)]
            fn widen(self) -> $w { self as $w }
            #[inline(always)]
            fn narrow(w: $w) -> $t { w as $t }
        }
    )*};
}
accumulate!(f32 => f64, f64 => f64, i8 => i8, i16 => i16, i32 => i32, i64 => i64, u8 => u8, u16 => u16, u32 => u32, u64 => u64);

/// How an element enters a sum.
pub(super) trait Term<T>: Copy + Send + Sync + 'static {
    fn term(&self, x: T, context: T) -> T;
}

/// A sum of terms, then a function of it.
#[derive(Clone, Copy)]
pub(super) struct Sum<M, F>(pub(super) M, pub(super) F);

impl<T, M, F> Reducer<T> for Sum<M, F>
where
    T: Accumulate,
    M: Term<T>,
    F: Fn(T::Wide, T) -> T + Copy + Send + Sync + 'static,
{
    type Wide = T::Wide;

    #[inline(always)]
    fn start(&self) -> T {
        T::from_f64(0.0)
    }

    #[inline(always)]
    fn one(&self, x: T, context: T) -> T {
        self.0.term(x, context)
    }

    #[inline(always)]
    fn merge(&self, a: T, b: T) -> T {
        a.add(b)
    }

    #[inline(always)]
    fn lift(&self, lane: T) -> T::Wide {
        lane.widen()
    }

    #[inline(always)]
    fn join(&self, a: T::Wide, b: T::Wide) -> T::Wide {
        a.add(b)
    }

    #[inline(always)]
    fn finish(&self, w: T::Wide, context: T) -> T {
        (self.1)(w, context)
    }
}

macro_rules! terms {
    ($($(#[$doc:meta])* $Term:ident ($bound:ident) |$x:ident, $context:ident| $f:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $Term;

        impl<T: $bound> Term<T> for $Term {
            #[inline(always)]
            fn term(&self, $x: T, $context: T) -> T {
                $f
            }
        }
    )*};
}
terms! {
    /// x.
    Plain(Wrapping) |x, _context| x;
    /// |x|.
    Magnitude(Wrapping) |x, _context| x.abs();
    /// x².
    Square(Wrapping) |x, _context| x.mul(x);
    /// e^(x - context), where the context is finite.
    Shifted(Math) |x, context| (x - finite(context)).vexp();
    /// 1 where x is the context.
    Same(Float) |x, context| if x == context { T::ONE } else { T::ZERO };
}

/// `x`, or 0 if it is infinite or NaN.
#[inline(always)]
fn finite<T: Math>(x: T) -> T {
    if x.vabs() < -T::NEG_INFINITY { x } else { T::ZERO }
}

/// The product.
#[derive(Clone, Copy)]
struct Product;

impl<T: Accumulate> Reducer<T> for Product {
    type Wide = T::Wide;

    #[inline(always)]
    fn start(&self) -> T {
        T::from_f64(1.0)
    }

    #[inline(always)]
    fn one(&self, x: T, _: T) -> T {
        x
    }

    #[inline(always)]
    fn merge(&self, a: T, b: T) -> T {
        a.mul(b)
    }

    #[inline(always)]
    fn lift(&self, lane: T) -> T::Wide {
        lane.widen()
    }

    #[inline(always)]
    fn join(&self, a: T::Wide, b: T::Wide) -> T::Wide {
        a.mul(b)
    }

    #[inline(always)]
    fn finish(&self, w: T::Wide, _: T) -> T {
        T::narrow(w)
    }
}

/// The largest element, or the smallest; `empty` if there is none.
#[derive(Clone, Copy)]
struct Extreme<T, const LARGEST: bool> {
    empty: T,
}

impl<T: Wrapping, const LARGEST: bool> Reducer<T> for Extreme<T, LARGEST> {
    type Wide = T;

    #[inline(always)]
    fn start(&self) -> T {
        self.empty
    }

    #[inline(always)]
    fn one(&self, x: T, _: T) -> T {
        x
    }

    #[inline(always)]
    fn merge(&self, a: T, b: T) -> T {
        if LARGEST { a.greater_of(b) } else { a.lesser_of(b) }
    }

    #[inline(always)]
    fn lift(&self, lane: T) -> T {
        lane
    }

    #[inline(always)]
    fn join(&self, a: T, b: T) -> T {
        Reducer::merge(self, a, b)
    }

    #[inline(always)]
    fn finish(&self, w: T, _: T) -> T {
        w
    }
}

/// A kernel that reduces input 0, of 16-bit floats, with `r`: results are made in the workspace and rounded.
fn half_kernel<S, R>(s: &Signature<'_>, r: R) -> Result<CpuKernel, OpError>
where
    S: half::Stored<Work = f32> + Read<f32>,
    R: Reducer<f32>,
{
    let space = Space::new(&s.dims(0)?, s.attrs.ints("axes")?);
    let outputs = space.outputs();
    let partials = space.workspace() as usize / size_of::<R::Wide>();
    Ok(Box::new(move |io| {
        let room = io.workspace::<R::Wide>();
        let (partials, rest) = room.split_at_mut(partials);
        let y = rest.as_mut_ptr().cast::<f32>();
        let memory = Memory { x: io.input_ptr::<S>(0).0, context: None, y, partials };
        // SAFETY: the space is that of input and output; `half_facts` has room for the outputs behind the partial sums.
        unsafe {
            reduce(&space, r, memory);
            half::Stored::narrow(y.cast_const(), io.output_ptr::<S>(0).0, outputs);
        }
        Ok(())
    }))
}

/// A kernel that reduces input 0 with `r`.
fn kernel<T: Element, R: Reducer<T>>(s: &Signature<'_>, r: R) -> Result<CpuKernel, OpError> {
    let space = Space::new(&s.dims(0)?, s.attrs.ints("axes")?);
    Ok(Box::new(move |io| {
        let memory = Memory {
            x: io.input_ptr::<T>(0).0,
            context: None,
            y: io.output_ptr::<T>(0).0,
            partials: io.workspace::<R::Wide>(),
        };
        // SAFETY: the space is that of input and output; the kernel has them for itself.
        unsafe { reduce(&space, r, memory) };
        Ok(())
    }))
}

fn sum<T: Accumulate>(s: &Signature<'_>) -> Result<CpuKernel, OpError> {
    kernel::<T, _>(s, Sum(Plain, |w: T::Wide, _: T| T::narrow(w)))
}

fn mean<T: Accumulate>(s: &Signature<'_>) -> Result<CpuKernel, OpError> {
    let n = Space::new(&s.dims(0)?, s.attrs.ints("axes")?).count();
    let n = <T::Wide as Wrapping>::saturating(n as i64);
    kernel::<T, _>(s, Sum(Plain, move |w: T::Wide, _: T| T::narrow(w.div(n))))
}

fn extreme<T: Wrapping, const LARGEST: bool>(s: &Signature<'_>) -> Result<CpuKernel, OpError> {
    let empty = match (LARGEST, s.input(0)?.dtype) {
        (true, _) => T::LEAST,
        (false, DType::Bool) => T::from_f64(1.0),
        (false, _) => T::GREATEST,
    };
    kernel::<T, _>(s, Extreme::<T, LARGEST> { empty })
}

/// The maximum into the output first, then the sum of e^(x - maximum).
fn log_sum_exp<T: Math + Accumulate>(s: &Signature<'_>) -> Result<CpuKernel, OpError> {
    let space = Space::new(&s.dims(0)?, s.attrs.ints("axes")?);
    Ok(Box::new(move |io| {
        let (x, y) = (io.input_ptr::<T>(0).0, io.output_ptr::<T>(0).0);
        let largest = Extreme::<T, true> { empty: T::LEAST };
        let sum = Sum(Shifted, |w: T::Wide, max: T| T::narrow(w).vln() + finite(max));
        // SAFETY: the space is that of input and output; the kernel has them for itself.
        unsafe {
            reduce(&space, largest, Memory { x, context: None, y, partials: io.workspace::<T>() });
            reduce(&space, sum, Memory { x, context: Some(y), y, partials: io.workspace::<T::Wide>() });
        }
        Ok(())
    }))
}

/// The output's type, after a check of the attributes.
pub(super) fn infer(s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
    let (t, axes, keep) = (s.input(0)?, s.attrs.ints("axes")?, s.attrs.int("keepdims")? != 0);
    if axes != normalize_axes(axes, t.shape.rank())? {
        return Err(OpError::invalid(format!("axes must be sorted and not negative, not {axes:?}")));
    }
    Ok(vec![TensorType { dtype: t.dtype, shape: reduced(&t.shape, axes, keep) }])
}

fn reduced(shape: &Shape, axes: &[i64], keep: bool) -> Shape {
    let dim = |(i, d): (usize, &Dim)| match axes.contains(&(i as i64)) {
        false => Some(d.clone()),
        true => keep.then(|| Dim::constant(1)),
    };
    Shape(shape.0.iter().enumerate().filter_map(dim).collect())
}

fn facts(s: &Signature<'_>) -> Facts {
    let half = s.opt_input(0).is_some_and(|t| is_half(t.dtype));
    match (s.dims(0), s.attrs.ints("axes")) {
        (Ok(dims), Ok(axes)) => {
            let space = Space::new(&dims, axes);
            // Results of halves are float32 at first.
            let results = if half { (space.outputs() as u64 * 4).next_multiple_of(8) } else { 0 };
            Facts::with_workspace(space.workspace() + results)
        }
        _ => Facts::default(),
    }
}

/// The standard reduction. Over no axes ONNX may not even take the function of the elements.
fn export(x: &Export<'_>, name: &'static str) -> Result<(), OpError> {
    let (v, axes) = (x.input(0)?, x.sig.attrs.ints("axes")?);
    let y = match name {
        "ReduceL1" | "ReduceL2" if axes.is_empty() => v.call("Abs"),
        "ReduceSumSquare" if axes.is_empty() => v * v,
        _ => v.reduce(name, axes, x.sig.attrs.int("keepdims")? != 0),
    };
    x.set(0, y);
    Ok(())
}

/// Rule of an ONNX reduction: axes are an attribute in old opsets and an input in new ones; none means all, or none at all if
/// `noop_with_empty_axes` is set: then the function of the elements (square, absolute value) is still taken.
fn import(cx: &mut ImportCx<'_, '_>, op: &str) -> Result<(), OpError> {
    let x = cx.input(0)?;
    let rank = cx.b.ty(x).shape.rank();
    let axes = cx.ints_attr_or_input("axes", 1)?.unwrap_or_default();
    let keep = cx.attrs.int_or("keepdims", 1)? != 0;
    let over_none = axes.is_empty() && cx.attrs.int_or("noop_with_empty_axes", 0)? != 0;
    if over_none && !matches!(op, "ReduceL1" | "ReduceL2" | "ReduceSumSquare") {
        cx.set(0, x);
        return Ok(());
    }
    let axes = match axes.is_empty() {
        true if over_none => Vec::new(),
        true => (0..rank as i64).collect(),
        false => normalize_axes(&axes, rank)?,
    };
    let y = cx.b.op(op, Attrs::new().with("axes", axes).with("keepdims", keep), &[x])?;
    cx.set(0, y);
    Ok(())
}

/// Rule of ONNX's global pooling: a reduction over all axes but the first two.
fn import_global(cx: &mut ImportCx<'_, '_>, op: &str) -> Result<(), OpError> {
    let x = cx.input(0)?;
    let axes: Vec<i64> = (2..cx.b.ty(x).shape.rank() as i64).collect();
    let y = cx.b.op(op, Attrs::new().with("axes", axes).with("keepdims", true), &[x])?;
    cx.set(0, y);
    Ok(())
}

/// `v`, of the output's shape, with the reduced axes as extent 1.
fn kept(g: &mut GradCx<'_, '_>, v: ValueId) -> Result<ValueId, OpError> {
    let shape = reduced(&g.ty(0)?.shape, g.attrs().ints("axes")?, true);
    g.b.reshape(v, &shape)
}

/// The cotangent with the reduced axes as extent 1.
fn kept_cotangent(g: &mut GradCx<'_, '_>) -> Result<ValueId, OpError> {
    let dy = g.cotangent0()?;
    kept(g, dy)
}

/// Sets the cotangent of the input to `d` broadcast to its shape.
fn set_expanded(g: &mut GradCx<'_, '_>, d: ValueId) -> Result<(), OpError> {
    let shape = g.ty(0)?.shape;
    let dx = g.b.expand(d, &shape)?;
    g.set(0, dx);
    Ok(())
}

fn extreme_gradient(g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
    let (x, y) = (g.input(0)?, g.output(0));
    let (y, dy) = (kept(g, y)?, kept_cotangent(g)?);
    let attrs = Attrs::new().with("axes", g.attrs().ints("axes")?);
    let dx = g.b.op("ReduceExtremeGrad", attrs, &[x, y, dy])?;
    g.set(0, dx);
    Ok(())
}

pub(super) fn cases_of(fill: &Fill) -> Vec<Case> {
    let case = |name, shape: &[usize], axes: &[i64], keep: bool| {
        Case::new(name, Attrs::new().with("axes", axes).with("keepdims", keep), &[])
            .input(0, CaseInput::float(shape, fill.clone()))
    };
    vec![
        case("last axis", &[3, 4], &[1], false),
        case("first axis", &[4, 3], &[0], true),
        case("middle axis", &[2, 3, 4], &[1], false),
        case("outer axes", &[2, 3, 4], &[0, 2], false),
        case("inner axes", &[2, 3, 1, 4], &[1, 2, 3], true),
        case("all", &[3, 5], &[0, 1], false),
        case("none", &[3], &[], true),
        case("scalar", &[], &[], false),
        case("extent 1", &[3, 1], &[1], false),
        case("no outputs", &[0, 3], &[1], false),
    ]
}

/// Cases whose size shows in the order of additions: compared to the bit only.
fn large_cases(dtype: DType) -> Vec<Case> {
    let case = |name, shape: &[usize], axes: &[i64]| {
        let x = CaseInput { dtype: Some(dtype), ..CaseInput::float(shape, Fill::Uniform(0.5, 1.5)).fixed() };
        Case::new(name, Attrs::new().with("axes", axes).with("keepdims", false), &[]).input(0, x)
    };
    vec![
        case("sliced run", &[70_001], &[0]),
        case("sliced columns", &[9_000, 10], &[0]),
        case("several blocks of columns", &[3, 70, 300], &[1]),
    ]
}

macro_rules! reductions {
    ($(
        $(#[$doc:meta])*
        $Op:ident $name:literal, rules $rules:expr, folds $folds:expr, fill $fill:expr,
        gradient |$g:ident| $gradient:expr,
        kernel |$s:ident| $kernel:expr;
    )*) => {$(
        $(#[$doc])*
        pub struct $Op;

        impl OpDef for $Op {
            fn name(&self) -> &'static str {
                $name
            }

            fn onnx(&self) -> &'static [OnnxRule] {
                $rules
            }

            fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
                infer(s)
            }

            fn gradient(&self, $g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
                $gradient
            }

            fn work(&self, s: &Signature<'_>) -> Work {
                let n = s.opt_input(0).and_then(|t| t.shape.elements()).unwrap_or(0);
                Work { flops: n, bytes: s.io_bytes(), product: false }
            }

            fn facts(&self, s: &Signature<'_>) -> Facts {
                let exact = s.opt_input(0).is_some_and(|t| !t.dtype.is_float());
                Facts { folds: $folds || exact, ..facts(s) }
            }

            fn cpu(&self, $s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
                $kernel
            }

            fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
                export(x, $name)
            }

            fn cases(&self) -> Vec<Case> {
                let mut cases = cases_of(&$fill);
                cases.extend(large_cases(DType::F32));
                cases
            }
        }
    )*};
}

reductions! {
    /// The sum.
    ReduceSum "ReduceSum",
    rules rules!["ReduceSum" => |cx| import(cx, "ReduceSum"), "ReduceLogSum" => |cx| {
        import(cx, "ReduceSum")?;
        if let Some(Some(sum)) = cx.outputs.first().copied() {
            let y = cx.b.call("Log", &[sum])?;
            cx.set(0, y);
        }
        Ok(())
    }],
    folds false, fill Fill::Uniform(-1.0, 1.0),
    gradient |g| {
        let dy = kept_cotangent(g)?;
        set_expanded(g, dy)
    },
    kernel |s| match s.input(0)?.dtype {
        DType::F16 => half_kernel::<::half::f16, _>(s, Sum(Plain, |w: f64, _: f32| w as f32)),
        DType::BF16 => half_kernel::<::half::bf16, _>(s, Sum(Plain, |w: f64, _: f32| w as f32)),
        d => crate::for_number!(d, "ReduceSum", T => sum::<T>(s)),
    };

    /// The mean; integers are truncated.
    ReduceMean "ReduceMean",
    rules rules![
        "ReduceMean" => |cx| import(cx, "ReduceMean"),
        "GlobalAveragePool" => |cx| import_global(cx, "ReduceMean"),
    ],
    folds false, fill Fill::Uniform(-1.0, 1.0),
    gradient |g| {
        let dy = kept_cotangent(g)?;
        let (dims, axes) = (g.ty(0)?.shape, g.attrs().ints("axes")?.to_vec());
        let dims = crate::fixed(&dims, "the shape of the input")?;
        let n: usize = axes.iter().map(|a| dims[*a as usize]).product();
        let dtype = g.b.ty(dy).dtype;
        let n = g.b.scalar(dtype, n as f64);
        let d = g.b.call("Div", &[dy, n])?;
        set_expanded(g, d)
    },
    kernel |s| crate::for_number!(s.input(0)?.dtype, "ReduceMean", T => mean::<T>(s));

    /// The largest element, NaN if there is one; of none the least value. The gradient is shared evenly by equal largest elements.
    ReduceMax "ReduceMax",
    rules rules![
        "ReduceMax" => |cx| import(cx, "ReduceMax"),
        "GlobalMaxPool" => |cx| import_global(cx, "ReduceMax"),
    ],
    folds true, fill Fill::Distinct { spacing: 0.1 },
    gradient |g| extreme_gradient(g),
    kernel |s| match s.input(0)?.dtype {
        DType::Bool => extreme::<u8, true>(s),
        d => crate::for_number!(d, "ReduceMax", T => extreme::<T, true>(s)),
    };

    /// The smallest element, NaN if there is one; of none the greatest value. The gradient is shared evenly by equal smallest elements.
    ReduceMin "ReduceMin", rules rules!["ReduceMin" => |cx| import(cx, "ReduceMin")],
    folds true, fill Fill::Distinct { spacing: 0.1 },
    gradient |g| extreme_gradient(g),
    kernel |s| match s.input(0)?.dtype {
        DType::Bool => extreme::<u8, false>(s),
        d => crate::for_number!(d, "ReduceMin", T => extreme::<T, false>(s)),
    };

    /// The product.
    ReduceProd "ReduceProd", rules rules!["ReduceProd" => |cx| import(cx, "ReduceProd")],
    folds false, fill Fill::Avoid { range: (-1.5, 1.5), points: &[0.0], margin: 0.3 },
    gradient |g| {
        let (x, dy) = (g.input(0)?, kept_cotangent(g)?);
        let attrs = Attrs::new().with("axes", g.attrs().ints("axes")?);
        let dx = g.b.op("ReduceProdGrad", attrs, &[x, dy])?;
        g.set(0, dx);
        Ok(())
    },
    kernel |s| crate::for_number!(s.input(0)?.dtype, "ReduceProd", T => kernel::<T, _>(s, Product));

    /// The sum of magnitudes.
    ReduceL1 "ReduceL1", rules rules!["ReduceL1" => |cx| import(cx, "ReduceL1")],
    folds false, fill Fill::Avoid { range: (-1.0, 1.0), points: &[0.0], margin: 0.05 },
    gradient |g| {
        let (x, dy) = (g.input(0)?, kept_cotangent(g)?);
        let dx = g.b.call("AbsGrad", &[x, dy])?;
        g.set(0, dx);
        Ok(())
    },
    kernel |s| crate::for_float!(s.input(0)?.dtype, "ReduceL1", T => {
        kernel::<T, _>(s, Sum(Magnitude, |w: f64, _: T| T::narrow(w)))
    });

    /// The square root of the sum of squares; its gradient at 0 is 0.
    ReduceL2 "ReduceL2", rules rules!["ReduceL2" => |cx| import(cx, "ReduceL2")],
    folds false, fill Fill::Uniform(-1.0, 1.0),
    gradient |g| {
        let (x, y) = (g.input(0)?, g.output(0));
        let (y, dy) = (kept(g, y)?, kept_cotangent(g)?);
        let dtype = g.b.ty(y).dtype;
        let zero = g.b.scalar(dtype, 0.0);
        let at_zero = g.b.call("Equal", &[y, zero])?;
        let ratio = g.b.call("Div", &[dy, y])?;
        let ratio = g.b.call("Where", &[at_zero, zero, ratio])?;
        let dx = g.b.call("Mul", &[x, ratio])?;
        g.set(0, dx);
        Ok(())
    },
    kernel |s| crate::for_float!(s.input(0)?.dtype, "ReduceL2", T => {
        kernel::<T, _>(s, Sum(Square, |w: f64, _: T| T::narrow(w.sqrt())))
    });

    /// The sum of squares.
    ReduceSumSquare "ReduceSumSquare", rules rules!["ReduceSumSquare" => |cx| import(cx, "ReduceSumSquare")],
    folds false, fill Fill::Uniform(-1.0, 1.0),
    gradient |g| {
        let (x, dy) = (g.input(0)?, kept_cotangent(g)?);
        let twice = g.b.call("Add", &[dy, dy])?;
        let dx = g.b.call("Mul", &[x, twice])?;
        g.set(0, dx);
        Ok(())
    },
    kernel |s| crate::for_number!(s.input(0)?.dtype, "ReduceSumSquare", T => {
        kernel::<T, _>(s, Sum(Square, |w: <T as Accumulate>::Wide, _: T| <T as Accumulate>::narrow(w)))
    });

    /// The logarithm of the sum of exponentials.
    ReduceLogSumExp "ReduceLogSumExp", rules rules!["ReduceLogSumExp" => |cx| import(cx, "ReduceLogSumExp")],
    folds false, fill Fill::Uniform(-2.0, 2.0),
    gradient |g| {
        let (x, y) = (g.input(0)?, g.output(0));
        let (y, dy) = (kept(g, y)?, kept_cotangent(g)?);
        // Divided by their own sum, as y is rounded: near 1e9 its last place is 64.
        let below = g.b.call("Sub", &[x, y])?;
        let share = g.b.call("Exp", &[below])?;
        let attrs = Attrs::new().with("axes", g.attrs().ints("axes")?).with("keepdims", true);
        let sum = g.b.op("ReduceSum", attrs, &[share])?;
        let factor = g.b.call("Div", &[dy, sum])?;
        let dx = g.b.call("Mul", &[share, factor])?;
        g.set(0, dx);
        Ok(())
    },
    kernel |s| crate::for_float!(s.input(0)?.dtype, "ReduceLogSumExp", T => log_sum_exp::<T>(s));
}
