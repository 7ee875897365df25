//! Batch normalisation, backward: one fused operator for each forward one.

use super::{
    batchnorm::{eps, work},
    channels::{Channels, column_sums, infer_channels, lanes_of, load, takes_halves},
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Float, Io, columns, half::Stored, lanes, lanes::LANES, par, par::Shared},
    export::Export,
    loss::same_shape,
};
use graph::{Attrs, TensorType};

/// The gradient of [`super::batchnorm::BatchNormTraining`].
///
/// Inputs: x, scale, mean, 1 / deviation, and the cotangents of y, mean, variance and 1 / deviation (each optional). Outputs: dx, dscale,
/// dbias.
pub struct BatchNormGrad;

impl OpDef for BatchNormGrad {
    fn name(&self) -> &'static str {
        "BatchNormGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let mut params = vec![(1, "scale"), (2, "mean"), (3, "1 / deviation")];
        let names = ["the cotangent of mean", "the cotangent of variance", "the cotangent of 1 / deviation"];
        params.extend((5..8).zip(names).filter(|(i, _)| s.opt_input(*i).is_some()));
        let (x, channel) = infer_channels(s, 0, &params)?;
        if let Some(dy) = s.opt_input(4) {
            same_cotangent(&x, dy)?;
        }
        Ok(vec![x, channel.clone(), channel])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 10)
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let mut overwrites = vec![(0, 0)];
        if s.opt_input(4).is_some() {
            overwrites.push((0, 4));
        }
        Facts { overwrites, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let d = Channels::new(&s.dims(0)?);
        takes_halves(s.input(0)?.dtype, s.input(1)?.dtype, d, self.name())?;
        crate::for_stored!(s.input(0)?.dtype, self.name(), S => Ok(Box::new(move |io: &Io<'_>| {
            backward::<S>(d, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        // As the kernel: dx = dy * a - constant - (x - mean) * slope.
        let (v, dims) = (x.input(0)?, x.dims(0)?);
        let (line, axes) = super::channels::line_and_axes(&dims);
        let channel = |i: usize| x.opt(i).map(|t| t.reshape(&line));
        let [scale, mean, inverse] = [1, 2, 3].map(|i| x.input(i).map(|t| t.reshape(&line)));
        let (scale, mean, inverse) = (scale?, mean?, inverse?);
        let d = v - mean;
        let zero = scale * 0.0;
        let (sum, product) = match x.opt(4) {
            Some(dy) => (dy.sum(&axes, true), (dy * d).sum(&axes, true)),
            None => (zero, zero),
        };
        let d_scale = product * inverse;
        let mut first = sum * scale;
        let mut second = d_scale * scale;
        if let Some(d_mean) = channel(5) {
            first = first - d_mean / inverse;
        }
        if let Some(d_inverse) = channel(7) {
            second = second + d_inverse * inverse;
        }
        if let Some(d_var) = channel(6) {
            second = second - d_var * 2.0 / (inverse * inverse);
        }
        let count = dims[0] * dims[2..].iter().product::<usize>();
        let share = inverse / count as f64;
        let rest = -(share * first) - d * (share * inverse * second);
        x.set(0, x.opt(4).map_or(rest, |dy| dy * (scale * inverse) + rest));
        x.set(1, d_scale.reshape(&[dims[1]]));
        x.set(2, sum.reshape(&[dims[1]]));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, x: &[usize]| {
            let c = [x[1]];
            Case::new(name, Attrs::new(), &[x, &c, &c, &c, x])
                .input(3, CaseInput::float(&c, Fill::Uniform(0.5, 2.0)))
        };
        let channel = CaseInput::float(&[3], Fill::Uniform(-1.0, 1.0));
        let mut statistics = case("only statistics", &[2, 3, 4]).input(5, channel.clone()).input(6, channel);
        statistics.inputs[4] = None;
        vec![
            case("images", &[2, 3, 2, 4]),
            case("vectors", &[5, 3]),
            case("many channels", &[2, 33]),
            statistics,
        ]
    }
}

/// Refuses a cotangent that is not of its tensor's type.
pub(super) fn same_cotangent(x: &TensorType, dy: &TensorType) -> Result<(), OpError> {
    if x.dtype != dy.dtype {
        return Err(OpError::invalid(format!("the cotangent must be {}, not {}", x.dtype, dy.dtype)));
    }
    same_shape(&x.shape, &dy.shape, "the cotangent")
}

/// What the gradient to x is made of in one channel: dx = dy * a - constant - (x - mean) * slope.
struct Line {
    a: f64,
    constant: f64,
    slope: f64,
}

impl Line {
    /// From Σ dy, d scale = Σ dy (x - mean) / deviation, and the cotangents of mean, variance and 1 / deviation.
    #[inline(always)]
    fn new(count: f64, scale: f64, inverse: f64, sum: f64, d_scale: f64, d: [f64; 3]) -> Line {
        let [d_mean, d_var, d_inverse] = d;
        let first = sum * scale - d_mean / inverse;
        let second = d_scale * scale + d_inverse * inverse - 2.0 * d_var / (inverse * inverse);
        let share = inverse / count;
        Line { a: scale * inverse, constant: share * first, slope: share * inverse * second }
    }
}

fn backward<S: Stored>(d: Channels, io: &Io<'_>) {
    backward_with::<S, S::Work>(d, io);
}

fn backward_with<S: Stored<Work = T>, T: Float>(d: Channels, io: &Io<'_>) {
    let [scale, mean, inverse] = [1, 2, 3].map(|i| io.input::<T>(i));
    let statistics = [5, 6, 7].map(|i| io.has(i).then(|| io.input::<T>(i)));
    let cotangents = |c: usize| statistics.map(|s| s.map_or(0.0, |s| s[c].to_f64()));
    let x = Shared(io.input_ptr::<S>(0).0.cast_mut());
    let has_dy = io.has(4);
    // Without a cotangent of y, x stands for it with a factor of 0.
    let dy = if has_dy { Shared(io.input_ptr::<S>(4).0.cast_mut()) } else { x };
    let dx = Shared(io.output_ptr::<S>(0).0);
    let [d_scale_out, d_bias_out] = [1, 2].map(|i| Shared(io.output_ptr::<T>(i).0));
    let count = d.count() as f64;
    let of = T::from_f64;
    d.each(
        #[inline(always)]
        |range| {
            let (x, dy, dx, d_scale_out, d_bias_out) = (&x, &dy, &dx, &d_scale_out, &d_bias_out);
            for c in range {
                // SAFETY: channel `c` of all tensors is this call's only.
                unsafe {
                    let from = [x.0.cast_const(), dy.0.cast_const()];
                    let m = mean[c];
                    let (mut sum, mut product) = (0.0, 0.0);
                    if has_dy {
                        [sum, product] = d.sums(
                            c,
                            from,
                            #[inline(always)]
                            |[v, g]| [g, g * (v - m)],
                        );
                    }
                    let i = inverse[c].to_f64();
                    let line = Line::new(count, scale[c].to_f64(), i, sum, product * i, cotangents(c));
                    let (a, constant, slope) = (of(line.a), of(line.constant), of(line.slope));
                    if has_dy {
                        d.map(
                            c,
                            from,
                            dx.0,
                            #[inline(always)]
                            |[v, g]| g * a - constant - (v - m) * slope,
                        );
                    } else {
                        d.map(
                            c,
                            [from[0]],
                            dx.0,
                            #[inline(always)]
                            |[v]| -constant - (v - m) * slope,
                        );
                    }
                    *d_scale_out.0.add(c) = of(product * i);
                    *d_bias_out.0.add(c) = of(sum);
                }
            }
        },
        #[inline(always)]
        |range| {
            let (x, dy, dx, d_scale_out, d_bias_out) = (&x, &dy, &dx, &d_scale_out, &d_bias_out);
            for g in range {
                let (first, extent) = d.group(g);
                let width = extent.2;
                // SAFETY: the group's channels of all tensors are this call's only.
                // One element a channel: never 16-bit floats.
                unsafe {
                    let from = [x, dy].map(|p| p.0.add(first).cast_const().cast::<T>());
                    let m = load(mean, first, width);
                    let (mut sum, mut product) = ([0.0; LANES], [0.0; LANES]);
                    if has_dy {
                        sum = column_sums(
                            extent,
                            [from[1]],
                            [],
                            #[inline(always)]
                            |[g], []| g,
                        );
                        product = column_sums(
                            extent,
                            from,
                            [&m],
                            #[inline(always)]
                            |[v, g], [m]| g * (v - m),
                        );
                    }
                    let line = |l: usize| {
                        let c = first + l.min(width - 1);
                        let i = inverse[c].to_f64();
                        Line::new(count, scale[c].to_f64(), i, sum[l], product[l] * i, cotangents(c))
                    };
                    let a = lanes_of(|l| of(line(l).a));
                    let constant = lanes_of(|l| of(line(l).constant));
                    let slope = lanes_of(|l| of(line(l).slope));
                    let out = dx.0.add(first).cast::<T>();
                    if has_dy {
                        columns::map(
                            extent,
                            from,
                            out,
                            [&m, &a, &constant, &slope],
                            #[inline(always)]
                            |[v, g], [m, a, constant, slope]| g * a - constant - (v - m) * slope,
                        );
                    } else {
                        columns::map(
                            extent,
                            [from[0]],
                            out,
                            [&m, &constant, &slope],
                            #[inline(always)]
                            |[v], [m, constant, slope]| -constant - (v - m) * slope,
                        );
                    }
                    for l in 0..width {
                        let i = inverse[first + l].to_f64();
                        *d_scale_out.0.add(first + l) = of(product[l] * i);
                        *d_bias_out.0.add(first + l) = of(sum[l]);
                    }
                }
            }
        },
    );
}

/// The gradient of [`super::batchnorm::BatchNormInference`].
///
/// Inputs: x (left out when only dx is asked for), scale, mean, variance, dy. Outputs: dx, and with x also dscale, dbias, dmean, dvar.
/// Attribute: `eps`.
pub struct BatchNormInferenceGrad;

impl OpDef for BatchNormInferenceGrad {
    fn name(&self) -> &'static str {
        "BatchNormInferenceGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        eps(s.attrs)?;
        let (dy, channel) = infer_channels(s, 4, &[(1, "scale"), (2, "mean"), (3, "variance")])?;
        match s.opt_input(0) {
            None => Ok(vec![dy]),
            Some(x) => {
                same_cotangent(x, &dy)?;
                Ok(vec![x.clone(), channel.clone(), channel.clone(), channel.clone(), channel])
            }
        }
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, if s.opt_input(0).is_some() { 5 } else { 1 })
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let overwrites = if s.opt_input(0).is_some() { vec![(0, 0), (0, 4)] } else { vec![(0, 4)] };
        Facts { overwrites, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (d, eps, full) = (Channels::new(&s.dims(4)?), eps(s.attrs)?, s.opt_input(0).is_some());
        crate::for_float!(s.input(4)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            if full {
                frozen_full::<T>(d, eps, io);
            } else {
                frozen_x::<T>(d, eps, io);
            }
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (dy, dims, eps) = (x.input(4)?, x.dims(4)?, eps(x.sig.attrs)?);
        let (line, axes) = super::channels::line_and_axes(&dims);
        let (scale, mean) = (x.input(1)?.reshape(&line), x.input(2)?.reshape(&line));
        let inverse = 1.0 / (x.input(3)?.reshape(&line) + eps).call("Sqrt");
        let a = scale * inverse;
        x.set(0, dy * a);
        if let Some(v) = x.opt(0) {
            let (sum, product) = (dy.sum(&axes, true), (dy * (v - mean)).sum(&axes, true));
            let d_var = product * scale * (inverse * inverse * inverse) * -0.5;
            for (i, d) in [product * inverse, sum, -(sum * a), d_var].into_iter().enumerate() {
                x.set(i + 1, d.reshape(&[dims[1]]));
            }
        }
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, x: &[usize]| {
            let c = [x[1]];
            Case::new(name, Attrs::new().with("eps", 1e-3), &[x, &c, &c, &c, x])
                .input(3, CaseInput::float(&c, Fill::Uniform(0.5, 2.0)))
        };
        let without = |mut c: Case| {
            c.inputs[0] = None;
            c
        };
        vec![
            case("images", &[2, 3, 2, 4]),
            case("vectors", &[5, 3]),
            without(case("only dx", &[2, 3, 4])),
            without(case("only dx, vectors", &[2, 35])),
        ]
    }
}

/// dx alone: dy scaled channel by channel.
fn frozen_x<T: Float>(d: Channels, eps: f64, io: &Io<'_>) {
    let (scale, var) = (io.input::<T>(1), io.input::<T>(3));
    let (dy, dx) = (Shared(io.input_ptr::<T>(4).0.cast_mut()), Shared(io.output_ptr::<T>(0).0));
    let e = T::from_f64(eps);
    lanes::each(
        d.n,
        (par::GRAIN / (d.c * d.s).max(1)).max(1),
        #[inline(always)]
        |range| {
            let (dy, dx) = (&dy, &dx);
            for n in range {
                let at = n * d.c * d.s;
                // SAFETY: sample `n` of both tensors is this call's only; parameters have `c` elements.
                unsafe {
                    let (from, to) = (dy.0.add(at).cast_const(), dx.0.add(at));
                    if d.s == 1 {
                        let x = [from, scale.as_ptr(), var.as_ptr()];
                        lanes::map(
                            d.c,
                            x,
                            [to],
                            #[inline(always)]
                            |[g, s, v]| [g * (s * (T::ONE / (v + e).sqrt()))],
                        );
                        continue;
                    }
                    for c in 0..d.c {
                        let a = scale[c] * (T::ONE / (var[c] + e).sqrt());
                        let (from, to) = (from.add(c * d.s), to.add(c * d.s));
                        lanes::map(
                            d.s,
                            [from],
                            [to],
                            #[inline(always)]
                            |[g]| [g * a],
                        );
                    }
                }
            }
        },
    );
}

fn frozen_full<T: Float + Stored<Work = T>>(d: Channels, eps: f64, io: &Io<'_>) {
    let [scale, mean, var] = [1, 2, 3].map(|i| io.input::<T>(i));
    let [x, dy] = [0, 4].map(|i| Shared(io.input_ptr::<T>(i).0.cast_mut()));
    let out = [0, 1, 2, 3, 4].map(|i| Shared(io.output_ptr::<T>(i).0));
    let e = T::from_f64(eps);
    // Stores the four gradients of channel `c`, given Σ dy and Σ dy (x - mean).
    let finish = |c: usize, sum: f64, product: f64| {
        let out = &out;
        let a = scale[c] * (T::ONE / (var[c] + e).sqrt());
        let inverse = 1.0 / (var[c].to_f64() + eps).sqrt();
        let d_var = -0.5 * product * scale[c].to_f64() * inverse * inverse * inverse;
        let values = [product * inverse, sum, -sum * a.to_f64(), d_var];
        for (o, v) in out[1..].iter().zip(values) {
            // SAFETY: element `c` of each output is written once.
            unsafe { *o.0.add(c) = T::from_f64(v) };
        }
        a
    };
    d.each(
        #[inline(always)]
        |range| {
            let (x, dy, dx) = (&x, &dy, &out[0]);
            for c in range {
                // SAFETY: channel `c` of all tensors is this call's only.
                unsafe {
                    let from = [x.0.cast_const(), dy.0.cast_const()];
                    let m = mean[c];
                    let [sum, product] = d.sums(
                        c,
                        from,
                        #[inline(always)]
                        |[v, g]| [g, g * (v - m)],
                    );
                    let a = finish(c, sum, product);
                    d.map(
                        c,
                        [from[1]],
                        dx.0,
                        #[inline(always)]
                        |[g]| g * a,
                    );
                }
            }
        },
        #[inline(always)]
        |range| {
            let (x, dy, dx) = (&x, &dy, &out[0]);
            for g in range {
                let (first, extent) = d.group(g);
                // SAFETY: the group's channels of all tensors are this call's only.
                unsafe {
                    let from = [x, dy].map(|p| p.0.add(first).cast_const());
                    let m = load(mean, first, extent.2);
                    let sum = column_sums(
                        extent,
                        [from[1]],
                        [],
                        #[inline(always)]
                        |[g], []| g,
                    );
                    let product = column_sums(
                        extent,
                        from,
                        [&m],
                        #[inline(always)]
                        |[v, g], [m]| g * (v - m),
                    );
                    let mut a = [T::ZERO; LANES];
                    for l in 0..extent.2 {
                        a[l] = finish(first + l, sum[l], product[l]);
                    }
                    let out = dx.0.add(first);
                    columns::map(
                        extent,
                        [from[1]],
                        out,
                        [&a],
                        #[inline(always)]
                        |[g], [a]| g * a,
                    );
                }
            }
        },
    );
}
