//! Softmax and its logarithm, with gradients from the outputs.

use super::along::{Along, same_type};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{
        CpuKernel, Io,
        columns::{self, Extent, Row},
        half::is_half,
        lanes,
        math::Math,
        par::Shared,
    },
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, normalize_axis, rules},
};
use graph::{Attrs, Dim, Shape, TensorType};

/// e^x divided by its sum along `axis`. Attribute `to`, if given: the dtype of 16 bits in which the result of a float32 or 16-bit x is
/// stored.
pub struct Softmax;

/// The natural logarithm of [`Softmax`].
pub struct LogSoftmax;

/// dx = y (dy - Σ y dy) along `axis`. Inputs: y, dy.
pub struct SoftmaxGrad;

/// dx = dy - e^y Σ dy along `axis`. Inputs: y, dy.
pub struct LogSoftmaxGrad;

fn import(cx: &mut ImportCx<'_, '_>, op: &str) -> Result<(), OpError> {
    let t = cx.ty(0)?;
    let rank = t.shape.rank();
    let default = if cx.opset >= 13 { -1 } else { 1 };
    let axis = normalize_axis(cx.attrs.int_or("axis", default)?, rank)?;
    let x = cx.input(0)?;
    // Before opset 13 all axes from `axis` on were one.
    let one = Dim::constant(1);
    if cx.opset >= 13 || t.shape.0[axis + 1..].iter().all(|d| *d == one) {
        let y = cx.b.op(op, Attrs::new().with("axis", axis as i64), &[x])?;
        cx.set(0, y);
        return Ok(());
    }
    let mut flat = t.shape.0[..axis].to_vec();
    flat.push(t.shape.0[axis..].iter().fold(one, |n, d| n.mul(d)));
    let x = cx.b.reshape(x, &Shape(flat))?;
    let y = cx.b.op(op, Attrs::new().with("axis", axis as i64), &[x])?;
    let y = cx.b.reshape(y, &t.shape)?;
    cx.set(0, y);
    Ok(())
}

fn infer(s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
    let out = crate::elementwise::unary::float_input(s)?;
    let axis = s.attrs.int("axis")?;
    if normalize_axis(axis, out[0].shape.rank())? as i64 != axis {
        return Err(OpError::invalid(format!("axis {axis} must not be negative")));
    }
    Ok(out)
}

fn infer_grad(s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
    same_type(s.input(0)?, s.input(1)?, "output and cotangent")?;
    infer(s)
}

fn gradient(g: &mut GradCx<'_, '_>, op: &str) -> Result<(), OpError> {
    // Exporters put 0 for a softmax of which nothing is left by a mask; its row has no gradient, as in PyTorch's attention.
    let (y, dy) = (g.guarded_output(0), g.cotangent0()?);
    let attrs = Attrs::new().with("axis", g.attrs().int("axis")?);
    let dx = g.b.op(op, attrs, &[y, dy])?;
    let dx = g.b.cast(dx, g.ty(0)?.dtype)?;
    g.set(0, dx);
    Ok(())
}

fn work(s: &Signature<'_>, per_element: u64) -> Work {
    let n = s.opt_input(0).and_then(|t| t.shape.elements()).unwrap_or(0);
    Work { flops: n.saturating_mul(per_element), bytes: s.io_bytes(), product: false }
}

fn in_place(pairs: &[(usize, usize)]) -> Facts {
    Facts { overwrites: pairs.to_vec(), ..Facts::default() }
}

fn cases(inputs: usize) -> Vec<Case> {
    let case = |name, axis: i64, shape: &[usize]| {
        let mut c = Case::new(name, Attrs::new().with("axis", axis), &[]);
        for i in 0..inputs {
            c = c.input(i, CaseInput::float(shape, Fill::Uniform(-2.0, 2.0)));
        }
        c
    };
    vec![
        case("last axis", 1, &[3, 5]),
        case("long rows", 1, &[1, 43]),
        case("middle axis", 1, &[2, 3, 4]),
        case("first axis, many columns", 0, &[2, 35]),
        case("vector", 0, &[6]),
        case("empty", 1, &[0, 3]),
    ]
}

impl OpDef for Softmax {
    fn name(&self) -> &'static str {
        "Softmax"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Softmax" => |cx| import(cx, "Softmax")]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let mut out = infer(s)?;
        if s.attrs.get("to").is_some() {
            let to = s.attrs.dtype("to")?;
            if !is_half(to) || out[0].dtype.size() > 4 {
                return Err(OpError::invalid(format!(
                    "a result of {} cannot be stored as {to}",
                    out[0].dtype
                )));
            }
            out[0].dtype = to;
        }
        Ok(out)
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        gradient(g, "SoftmaxGrad")
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 20)
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        in_place(&[(0, 0)])
    }

    fn by_sample(&self, s: &Signature<'_>) -> bool {
        s.attrs.int("axis").is_ok_and(|axis| axis > 0)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (along, dtype) = (Along::of(s)?, s.input(0)?.dtype);
        if s.output(0)?.dtype != dtype {
            return Err(OpError::unsupported("Softmax that stores another dtype"));
        }
        crate::for_float!(dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            softmax::<T>(along, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("Softmax", Attrs::new().with("axis", x.sig.attrs.int("axis")?))
    }

    fn cases(&self) -> Vec<Case> {
        cases(1)
    }
}

impl OpDef for LogSoftmax {
    fn name(&self) -> &'static str {
        "LogSoftmax"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["LogSoftmax" => |cx| import(cx, "LogSoftmax")]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        infer(s)
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        gradient(g, "LogSoftmaxGrad")
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 20)
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        in_place(&[(0, 0)])
    }

    fn by_sample(&self, s: &Signature<'_>) -> bool {
        s.attrs.int("axis").is_ok_and(|axis| axis > 0)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let along = Along::of(s)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            log_softmax::<T>(along, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("LogSoftmax", Attrs::new().with("axis", x.sig.attrs.int("axis")?))
    }

    fn cases(&self) -> Vec<Case> {
        cases(1)
    }
}

impl OpDef for SoftmaxGrad {
    fn name(&self) -> &'static str {
        "SoftmaxGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        infer_grad(s)
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 4)
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        in_place(&[(0, 0), (0, 1)])
    }

    fn by_sample(&self, s: &Signature<'_>) -> bool {
        s.attrs.int("axis").is_ok_and(|axis| axis > 0)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let along = Along::of(s)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            pair::<T>(
                along,
                io,
                #[inline(always)]
                |y, dy| y * dy,
                #[inline(always)]
                |y, dy, sum| y * (dy - sum),
            );
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (y, dy) = (x.input(0)?, x.input(1)?);
        x.set(0, y * (dy - (y * dy).sum(&[x.sig.attrs.int("axis")?], true)));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        cases(2)
    }
}

impl OpDef for LogSoftmaxGrad {
    fn name(&self) -> &'static str {
        "LogSoftmaxGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        infer_grad(s)
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 18)
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        in_place(&[(0, 0), (0, 1)])
    }

    fn by_sample(&self, s: &Signature<'_>) -> bool {
        s.attrs.int("axis").is_ok_and(|axis| axis > 0)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let along = Along::of(s)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            pair::<T>(
                along,
                io,
                #[inline(always)]
                |_, dy| dy,
                #[inline(always)]
                |y, dy, sum| dy - y.vexp() * sum,
            );
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (y, dy) = (x.input(0)?, x.input(1)?);
        x.set(0, dy - y.call("Exp") * dy.sum(&[x.sig.attrs.int("axis")?], true));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        cases(2)
    }
}

fn softmax<T: Math>(along: Along, io: &Io<'_>) {
    let (x, y) = (Shared(io.input_ptr::<T>(0).0.cast_mut()), Shared(io.output_ptr::<T>(0).0));
    let n = along.n;
    along.each(
        #[inline(always)]
        |_, rows| {
            let (x, y) = (&x, &y);
            for r in rows {
                // SAFETY: row `r` lies inside both buffers and is this call's only.
                unsafe {
                    let (x, y) = (x.0.add(r * n).cast_const(), y.0.add(r * n));
                    let max = lanes::largest(n, x);
                    lanes::map(
                        n,
                        [x],
                        [y],
                        #[inline(always)]
                        |[v]| [(v - max).vexp()],
                    );
                    let [sum] = lanes::sums(
                        n,
                        [y.cast_const()],
                        #[inline(always)]
                        |v| v,
                    );
                    let scale = T::from_f64(1.0 / sum);
                    lanes::map(
                        n,
                        [y.cast_const()],
                        [y],
                        #[inline(always)]
                        |[v]| [v * scale],
                    );
                }
            }
        },
        #[inline(always)]
        |_, columns| {
            let (x, y) = (&x, &y);
            for c in columns {
                let shape = (n, along.inner, c.width);
                // SAFETY: the columns lie inside both buffers and are this call's only.
                unsafe {
                    let (x, y) = ([x.0.add(c.at).cast_const()], y.0.add(c.at));
                    let (max, sum) = column_sums(shape, x);
                    let scale = sum.map(|s| T::ONE / s);
                    columns::map(
                        shape,
                        x,
                        y,
                        [&max, &scale],
                        #[inline(always)]
                        |[v], [m, s]| (v - m).vexp() * s,
                    );
                }
            }
        },
    );
}

fn log_softmax<T: Math>(along: Along, io: &Io<'_>) {
    let (x, y) = (Shared(io.input_ptr::<T>(0).0.cast_mut()), Shared(io.output_ptr::<T>(0).0));
    let n = along.n;
    along.each(
        #[inline(always)]
        |_, rows| {
            let (x, y) = (&x, &y);
            for r in rows {
                // SAFETY: row `r` lies inside both buffers and is this call's only.
                unsafe {
                    let (x, y) = (x.0.add(r * n).cast_const(), y.0.add(r * n));
                    let (max, log) = row_log_sum(n, x);
                    lanes::map(
                        n,
                        [x],
                        [y],
                        #[inline(always)]
                        |[v]| [(v - max) - log],
                    );
                }
            }
        },
        #[inline(always)]
        |_, columns| {
            let (x, y) = (&x, &y);
            for c in columns {
                let shape = (n, along.inner, c.width);
                // SAFETY: the columns lie inside both buffers and are this call's only.
                unsafe {
                    let (x, y) = ([x.0.add(c.at).cast_const()], y.0.add(c.at));
                    let (max, sum) = column_sums(shape, x);
                    let log = sum.map(Math::vln);
                    columns::map(
                        shape,
                        x,
                        y,
                        [&max, &log],
                        #[inline(always)]
                        |[v], [m, l]| (v - m) - l,
                    );
                }
            }
        },
    );
}

/// The largest element m of a row and ln Σ e^(x - m).
///
/// # Safety
///
/// `x` points to `n` readable elements.
#[inline(always)]
pub(super) unsafe fn row_log_sum<T: Math>(n: usize, x: *const T) -> (T, T) {
    // SAFETY: by this function's contract.
    unsafe {
        let max = lanes::largest(n, x);
        let [sum] = lanes::sums(
            n,
            [x],
            #[inline(always)]
            |[v]| [(v - max).vexp()],
        );
        (max, T::from_f64(libm::log(sum)))
    }
}

/// The largest element m of each column and Σ e^(x - m).
///
/// # Safety
///
/// As [`columns::fold`].
#[inline(always)]
pub(super) unsafe fn column_sums<T: Math>(shape: Extent, x: [*const T; 1]) -> (Row<T>, Row<T>) {
    // SAFETY: by this function's contract.
    unsafe {
        let max = columns::fold(
            shape,
            x,
            T::NEG_INFINITY,
            [],
            #[inline(always)]
            |m, [v], []| v.larger(m),
        );
        let sum = columns::fold(
            shape,
            x,
            T::ZERO,
            [&max],
            #[inline(always)]
            |s, [v], [m]| s + (v - m).vexp(),
        );
        (max, sum)
    }
}

/// dx = f(y, dy, Σ term(y, dy)) along the axis.
#[inline(always)]
fn pair<T: Math>(
    along: Along,
    io: &Io<'_>,
    term: impl Fn(T, T) -> T + Sync,
    f: impl Fn(T, T, T) -> T + Sync,
) {
    let [y, dy] = [0, 1].map(|i| Shared(io.input_ptr::<T>(i).0.cast_mut()));
    let dx = Shared(io.output_ptr::<T>(0).0);
    let n = along.n;
    along.each(
        #[inline(always)]
        |_, rows| {
            let (y, dy, dx) = (&y, &dy, &dx);
            for r in rows {
                // SAFETY: row `r` lies inside the three buffers and is this call's only.
                unsafe {
                    let x = [y, dy].map(|p| p.0.add(r * n).cast_const());
                    let [sum] = lanes::sums(
                        n,
                        x,
                        #[inline(always)]
                        |[y, dy]| [term(y, dy)],
                    );
                    let sum = T::from_f64(sum);
                    lanes::map(
                        n,
                        x,
                        [dx.0.add(r * n)],
                        #[inline(always)]
                        |[y, dy]| [f(y, dy, sum)],
                    );
                }
            }
        },
        #[inline(always)]
        |_, columns| {
            let (y, dy, dx) = (&y, &dy, &dx);
            for c in columns {
                let shape = (n, along.inner, c.width);
                // SAFETY: the columns lie inside the three buffers and are this call's only.
                unsafe {
                    let x = [y, dy].map(|p| p.0.add(c.at).cast_const());
                    let sum = columns::fold(
                        shape,
                        x,
                        T::ZERO,
                        [],
                        #[inline(always)]
                        |s, [y, dy], []| s + term(y, dy),
                    );
                    let out = dx.0.add(c.at);
                    columns::map(
                        shape,
                        x,
                        out,
                        [&sum],
                        #[inline(always)]
                        |[y, dy], [s]| f(y, dy, s),
                    );
                }
            }
        },
    );
}
