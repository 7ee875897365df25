//! Normalisation to length 1, and to mean 0 and deviation 1 without parameters.

use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Io, Math, columns, lanes, par::Shared},
    export::Export,
    grad::GradCx,
    loss::{Along, same_shape},
    onnx::{ImportCx, OnnxRule, normalize_axes, normalize_axis, rules},
};
use graph::{Attrs, Dim, TensorType};

/// x divided by its p-norm along `axis`; 0 where the norm is 0.
///
/// Input: x. Outputs: y, and the norm with extent 1 at the axis. Attributes: `axis` (not negative), `p` (1 or 2).
pub struct LpNormalization;

/// The gradient of [`LpNormalization`]: (dy - (Σ y dy - norm · dnorm) · d norm / dx) / norm. Inputs: y, norm, dy, optional cotangent of the
/// norm. Attributes as the forward operator's.
pub struct LpNormalizationGrad;

/// The types of the input and of its norms; the attributes are checked.
fn types(s: &Signature<'_>) -> Result<[TensorType; 2], OpError> {
    let x = s.input(0)?;
    if !x.dtype.is_float() {
        return Err(OpError::invalid(format!("the input must be floating-point, not {}", x.dtype)));
    }
    let axis = s.attrs.int("axis")?;
    let at = normalize_axis(axis, x.shape.rank())?;
    if at as i64 != axis {
        return Err(OpError::invalid(format!("axis {axis} must not be negative")));
    }
    let p = s.attrs.int("p")?;
    if p != 1 && p != 2 {
        return Err(OpError::invalid(format!("p must be 1 or 2, not {p}")));
    }
    let mut norm = x.clone();
    norm.shape.0[at] = Dim::constant(1);
    Ok([x.clone(), norm])
}

impl OpDef for LpNormalization {
    fn name(&self) -> &'static str {
        "LpNormalization"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules![
            "LpNormalization" => |cx| {
                let rank = cx.ty(0)?.shape.rank();
                let axis = normalize_axis(cx.attrs.int_or("axis", -1)?, rank)?;
                let attrs = Attrs::new().with("axis", axis as i64).with("p", cx.attrs.int_or("p", 2)?);
                let x = cx.input(0)?;
                let y = cx.b.op("LpNormalization", attrs, &[x])?;
                cx.set(0, y);
                Ok(())
            },
            "MeanVarianceNormalization" => mean_variance,
        ]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        Ok(types(s)?.to_vec())
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let dy = super::layer::cotangent_or_zeros(g)?;
        let inputs = [Some(g.output(0)), Some(g.output(1)), Some(dy), g.cotangent(1)];
        let attrs = g.attrs().clone();
        let dx = g.b.emit("LpNormalizationGrad", attrs, &inputs)?;
        g.set(0, dx[0]);
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        super::batchnorm::work(s, 3)
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { overwrites: vec![(0, 0)], ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (along, square) = (Along::of(s)?, s.attrs.int("p")? == 2);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            forward::<T>(along, square, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (v, axis) = (x.input(0)?, x.sig.attrs.int("axis")?);
        let norm = v.reduce(if x.sig.attrs.int("p")? == 2 { "ReduceL2" } else { "ReduceL1" }, &[axis], true);
        x.set(0, v * norm.equals(0.0).pick(0.0, 1.0 / norm));
        x.set(1, norm);
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let x = |shape: &[usize]| CaseInput::float(shape, AWAY.clone());
        let case = |name, axis: i64, p: i64, shape: &[usize]| {
            Case::new(name, Attrs::new().with("axis", axis).with("p", p), &[]).input(0, x(shape))
        };
        vec![case("rows", 1, 2, &[3, 5]), case("columns", 1, 2, &[2, 3, 4]), case("absolute", 0, 1, &[4, 3])]
    }
}

/// No element near 0, where the 1-norm has a kink.
const AWAY: Fill = Fill::Avoid { range: (-1.0, 1.0), points: &[0.0], margin: 0.1 };

impl OpDef for LpNormalizationGrad {
    fn name(&self) -> &'static str {
        "LpNormalizationGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let [x, norm] = types(s)?;
        for (i, want, what) in
            [(1, &norm, "the norm"), (2, &x, "the cotangent"), (3, &norm, "the norm's cotangent")]
        {
            match s.opt_input(i) {
                None if i < 3 => return Err(OpError::invalid(format!("{what} (input {i}) is missing"))),
                None => {}
                Some(t) if t.dtype != want.dtype => {
                    return Err(OpError::invalid(format!("{what} must be {}, not {}", want.dtype, t.dtype)));
                }
                Some(t) => same_shape(&want.shape, &t.shape, what)?,
            }
        }
        Ok(vec![x])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        super::batchnorm::work(s, 5)
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { overwrites: vec![(0, 0), (0, 2)], ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (along, square) = (Along::of(s)?, s.attrs.int("p")? == 2);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            backward::<T>(along, square, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (y, norm, dy, axis) = (x.input(0)?, x.input(1)?, x.input(2)?, x.sig.attrs.int("axis")?);
        let mut sum = (y * dy).sum(&[axis], true);
        if let Some(d_norm) = x.opt(3) {
            sum = sum - d_norm * norm;
        }
        let slope = if x.sig.attrs.int("p")? == 2 { y } else { y.call("Sign") };
        x.set(0, (dy - sum * slope) * norm.equals(0.0).pick(0.0, 1.0 / norm));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, axis: i64, p: i64, shape: &[usize]| {
            let mut norm = shape.to_vec();
            norm[axis as usize] = 1;
            let attrs = Attrs::new().with("axis", axis).with("p", p);
            Case::new(name, attrs, &[shape, &norm, shape, &norm])
                .input(1, CaseInput::float(&norm, Fill::Uniform(0.5, 2.0)))
        };
        vec![case("rows", 1, 2, &[3, 5]), case("columns", 1, 1, &[2, 3, 4])]
    }
}

/// 1 / norm, 0 where the norm is 0.
#[inline(always)]
fn inverse<T: Math>(norm: T) -> T {
    if norm == T::ZERO { T::ZERO } else { T::ONE / norm }
}

fn forward<T: Math>(along: Along, square: bool, io: &Io<'_>) {
    let x = Shared(io.input_ptr::<T>(0).0.cast_mut());
    let [y, norms] = [0, 1].map(|i| Shared(io.output_ptr::<T>(i).0));
    let n = along.n;
    along.each(
        #[inline(always)]
        |_, rows| {
            let (x, y, norms) = (&x, &y, &norms);
            for r in rows {
                // SAFETY: row `r` of both tensors and its norm are this call's only.
                unsafe {
                    let (x, y) = (x.0.add(r * n).cast_const(), y.0.add(r * n));
                    let [squares, sum] = lanes::sums(
                        n,
                        [x],
                        #[inline(always)]
                        |[v]| [v * v, v.vabs()],
                    );
                    let norm = T::of(if square { squares.sqrt() } else { sum });
                    let i = inverse(norm);
                    lanes::map(
                        n,
                        [x],
                        [y],
                        #[inline(always)]
                        |[v]| [v * i],
                    );
                    *norms.0.add(r) = norm;
                }
            }
        },
        #[inline(always)]
        |_, groups| {
            let (x, y, norms) = (&x, &y, &norms);
            for c in groups {
                let extent = (n, along.inner, c.width);
                // SAFETY: the columns of both tensors and their norms are this call's only.
                unsafe {
                    let (x, y) = ([x.0.add(c.at).cast_const()], y.0.add(c.at));
                    let sums = columns::sums(
                        extent,
                        x,
                        [],
                        #[inline(always)]
                        |[v], []| if square { v * v } else { v.vabs() },
                    );
                    let norm = sums.map(|s| T::of(if square { s.sqrt() } else { s }));
                    columns::map(
                        extent,
                        x,
                        y,
                        [&norm.map(inverse)],
                        #[inline(always)]
                        |[v], [i]| v * i,
                    );
                    for (l, norm) in norm.iter().enumerate().take(c.width) {
                        *norms.0.add(c.line + l) = *norm;
                    }
                }
            }
        },
    );
}

fn backward<T: Math>(along: Along, square: bool, io: &Io<'_>) {
    let norms = io.input::<T>(1);
    let d_norms = io.has(3).then(|| io.input::<T>(3));
    let [y, dy] = [0, 2].map(|i| Shared(io.input_ptr::<T>(i).0.cast_mut()));
    let dx = Shared(io.output_ptr::<T>(0).0);
    let n = along.n;
    // The norm's derivative by x, from y.
    let slope = |y: T| if square || y == T::ZERO { y } else { T::ONE.with_sign(y) };
    let less = |sum: f64, line: usize| {
        let d = d_norms.map_or(0.0, |d| d[line].to_f64() * norms[line].to_f64());
        T::of(sum - d)
    };
    along.each(
        #[inline(always)]
        |_, rows| {
            let (y, dy, dx) = (&y, &dy, &dx);
            for r in rows {
                // SAFETY: row `r` of the three tensors is this call's only.
                unsafe {
                    let from = [y, dy].map(|p| p.0.add(r * n).cast_const());
                    let [sum] = lanes::sums(
                        n,
                        from,
                        #[inline(always)]
                        |[y, g]| [y * g],
                    );
                    let (sum, i) = (less(sum, r), inverse(norms[r]));
                    lanes::map(
                        n,
                        from,
                        [dx.0.add(r * n)],
                        #[inline(always)]
                        |[y, g]| [(g - sum * slope(y)) * i],
                    );
                }
            }
        },
        #[inline(always)]
        |_, groups| {
            let (y, dy, dx) = (&y, &dy, &dx);
            for c in groups {
                let extent = (n, along.inner, c.width);
                // SAFETY: the columns of the three tensors are this call's only.
                unsafe {
                    let from = [y, dy].map(|p| p.0.add(c.at).cast_const());
                    let sums = columns::sums(
                        extent,
                        from,
                        [],
                        #[inline(always)]
                        |[y, g], []| y * g,
                    );
                    let line = |l: usize| c.line + l.min(c.width - 1);
                    let sum = std::array::from_fn(|l| less(sums[l], line(l)));
                    let i = std::array::from_fn(|l| inverse(norms[line(l)]));
                    columns::map(
                        extent,
                        from,
                        dx.0.add(c.at),
                        [&sum, &i],
                        #[inline(always)]
                        |[y, g], [sum, i]| (g - sum * slope(y)) * i,
                    );
                }
            }
        },
    );
}

/// (x - mean) / (deviation + 1e-9) over the axes, as several operators.
fn mean_variance(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (x, ty) = (cx.input(0)?, cx.ty(0)?);
    let axes = normalize_axes(cx.attrs.opt_ints("axes")?.unwrap_or(&[0, 2, 3]), ty.shape.rank())?;
    let attrs = Attrs::new().with("axes", axes).with("keepdims", true);
    let mean = cx.b.op("ReduceMean", attrs.clone(), &[x])?;
    let centred = cx.b.call("Sub", &[x, mean])?;
    let squares = cx.b.call("Mul", &[centred, centred])?;
    let variance = cx.b.op("ReduceMean", attrs, &[squares])?;
    let deviation = cx.b.call("Sqrt", &[variance])?;
    let least = cx.b.scalar(ty.dtype, 1e-9);
    let deviation = cx.b.call("Add", &[deviation, least])?;
    let y = cx.b.call("Div", &[centred, deviation])?;
    cx.set(0, y);
    Ok(())
}
