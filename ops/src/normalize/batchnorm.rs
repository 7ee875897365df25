//! Batch normalisation, forward: with the statistics of the batch, and with running ones.

use super::channels::{Channels, column_sums, infer_channels, lanes_of, load, takes_halves};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Float, Io, columns, half::Stored, lanes, par, par::Shared},
    export::Export,
    grad::GradCx,
    onnx::{OnnxRule, rules},
};
use graph::{Attrs, TensorType};

/// (x - mean) / sqrt(var + eps) * scale + bias with mean and (biased) variance of each channel over the batch.
///
/// Inputs: x `[N, C, d..]`, scale `[C]`, bias `[C]`. Outputs: y, and for each channel mean, variance, 1 / sqrt(var + eps). Attribute:
/// `eps`.
pub struct BatchNormTraining;

impl OpDef for BatchNormTraining {
    fn name(&self) -> &'static str {
        "BatchNormTraining"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (x, channel) = infer_channels(s, 0, &[(1, "scale"), (2, "bias")])?;
        eps(s.attrs)?;
        Ok(vec![x, channel.clone(), channel.clone(), channel])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (x, scale) = (g.input(0)?, g.input(1)?);
        let (mean, inverse) = (g.output(1), g.output(3));
        let cotangents = [0, 1, 2, 3].map(|i| g.cotangent(i));
        let mut inputs = vec![Some(x), Some(scale), Some(mean), Some(inverse)];
        inputs.extend(cotangents);
        let d = g.b.emit("BatchNormGrad", Attrs::new(), &inputs)?;
        for (i, d) in d.into_iter().enumerate() {
            if g.needs(i) {
                g.set(i, d);
            }
        }
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 8)
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { overwrites: vec![(0, 0)], ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (d, eps) = (Channels::new(&s.dims(0)?), eps(s.attrs)?);
        takes_halves(s.input(0)?.dtype, s.input(1)?.dtype, d, self.name())?;
        crate::for_stored!(s.input(0)?.dtype, self.name(), S => Ok(Box::new(move |io: &Io<'_>| {
            train::<S>(d, eps, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (v, dims, eps) = (x.input(0)?, x.dims(0)?, eps(x.sig.attrs)?);
        let (line, axes) = super::channels::line_and_axes(&dims);
        let mean = v.reduce("ReduceMean", &axes, true);
        let d = v - mean;
        let var = (d * d).reduce("ReduceMean", &axes, true);
        let inverse = 1.0 / (var + eps).call("Sqrt");
        x.set(0, d * (x.input(1)?.reshape(&line) * inverse) + x.input(2)?.reshape(&line));
        for (i, s) in [mean, var, inverse].into_iter().enumerate() {
            x.set(i + 1, s.reshape(&[dims[1]]));
        }
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let case =
            |name, x: &[usize]| Case::new(name, Attrs::new().with("eps", 1e-3), &[x, &[x[1]], &[x[1]]]);
        vec![
            case("images", &[2, 3, 2, 4]),
            case("long runs", &[1, 1, 43]),
            case("vectors", &[5, 3]),
            case("many channels", &[2, 33]),
        ]
    }
}

/// The attribute `eps` (1e-5), not negative.
pub(super) fn eps(a: &Attrs) -> Result<f64, OpError> {
    let eps = a.float_or("eps", 1e-5)?;
    if eps.is_nan() || eps < 0.0 {
        return Err(OpError::invalid(format!("eps must not be negative: {eps}")));
    }
    Ok(eps)
}

pub(super) fn work(s: &Signature<'_>, per_element: u64) -> Work {
    let n = s.outputs.first().and_then(|t| t.shape.elements()).unwrap_or(0);
    Work { flops: n.saturating_mul(per_element), bytes: s.io_bytes(), product: false }
}

fn train<S: Stored>(d: Channels, eps: f64, io: &Io<'_>) {
    train_with::<S, S::Work>(d, eps, io);
}

fn train_with<S: Stored<Work = T>, T: Float>(d: Channels, eps: f64, io: &Io<'_>) {
    let (scale, bias) = (io.input::<T>(1), io.input::<T>(2));
    let x = Shared(io.input_ptr::<S>(0).0.cast_mut());
    let y = Shared(io.output_ptr::<S>(0).0);
    let [mean_out, var_out, inv_out] = [1, 2, 3].map(|i| Shared(io.output_ptr::<T>(i).0));
    let count = d.count() as f64;
    // From Σ x, Σ (x - mean)² and Σ (x - mean): what rounding the mean did to the variance is taken back.
    let variance = |squares: f64, rest: f64| ((squares - rest * rest / count) / count).max(0.0);
    d.each(
        #[inline(always)]
        |range| {
            let (x, y, mean_out, var_out, inv_out) = (&x, &y, &mean_out, &var_out, &inv_out);
            for c in range {
                // SAFETY: channel `c` of both tensors and of the statistics is this call's only.
                unsafe {
                    let x = [x.0.cast_const()];
                    let [sum] = d.sums(
                        c,
                        x,
                        #[inline(always)]
                        |v| v,
                    );
                    let mean = T::from_f64(sum / count);
                    let [squares, rest] = d.sums(
                        c,
                        x,
                        #[inline(always)]
                        |[v]| [(v - mean) * (v - mean), v - mean],
                    );
                    let var = variance(squares, rest);
                    let inverse = T::from_f64(1.0 / (var + eps).sqrt());
                    let (a, b) = (scale[c] * inverse, bias[c]);
                    d.map(
                        c,
                        x,
                        y.0,
                        #[inline(always)]
                        |[v]| (v - mean) * a + b,
                    );
                    *mean_out.0.add(c) = mean;
                    *var_out.0.add(c) = T::from_f64(var);
                    *inv_out.0.add(c) = inverse;
                }
            }
        },
        #[inline(always)]
        |range| {
            let (x, y, mean_out, var_out, inv_out) = (&x, &y, &mean_out, &var_out, &inv_out);
            for g in range {
                let (first, extent) = d.group(g);
                let width = extent.2;
                // SAFETY: the group's channels of both tensors and of the statistics are this call's only.
                // One element a channel: never 16-bit floats.
                unsafe {
                    let x = [x.0.add(first).cast_const().cast::<T>()];
                    let sum = column_sums(
                        extent,
                        x,
                        [],
                        #[inline(always)]
                        |[v], []| v,
                    );
                    let mean = lanes_of(|l| T::from_f64(sum[l] / count));
                    let squares = column_sums(
                        extent,
                        x,
                        [&mean],
                        #[inline(always)]
                        |[v], [m]| (v - m) * (v - m),
                    );
                    let rest = column_sums(
                        extent,
                        x,
                        [&mean],
                        #[inline(always)]
                        |[v], [m]| v - m,
                    );
                    let var: [f64; lanes::LANES] = std::array::from_fn(|l| variance(squares[l], rest[l]));
                    let inverse = lanes_of(|l| T::from_f64(1.0 / (var[l] + eps).sqrt()));
                    let scale = load(scale, first, width);
                    let a = lanes_of(|l| scale[l] * inverse[l]);
                    let b = load(bias, first, width);
                    columns::map(
                        extent,
                        x,
                        y.0.add(first).cast(),
                        [&mean, &a, &b],
                        #[inline(always)]
                        |[v], [m, a, b]| (v - m) * a + b,
                    );
                    for l in 0..width {
                        *mean_out.0.add(first + l) = mean[l];
                        *var_out.0.add(first + l) = T::from_f64(var[l]);
                        *inv_out.0.add(first + l) = inverse[l];
                    }
                }
            }
        },
    );
}

/// (x - mean) / sqrt(var + eps) * scale + bias with given statistics.
///
/// Inputs: x `[N, C, d..]`, scale, bias, mean, var `[C]`. Attribute: `eps`.
pub struct BatchNormInference;

impl OpDef for BatchNormInference {
    fn name(&self) -> &'static str {
        "BatchNormInference"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["BatchNormalization" => super::import_batchnorm::import]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        eps(s.attrs)?;
        let params = [(1, "scale"), (2, "bias"), (3, "mean"), (4, "variance")];
        Ok(vec![infer_channels(s, 0, &params)?.0])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        // The gradient to x alone does not need x.
        let full = (1..5).any(|i| g.needs(i));
        let x = if full { Some(g.input(0)?) } else { None };
        let inputs = [x, g.opt_input(1), g.opt_input(3), g.opt_input(4), Some(g.cotangent0()?)];
        let attrs = g.attrs().clone();
        let d = g.b.emit("BatchNormInferenceGrad", attrs, &inputs)?;
        for (i, d) in d.into_iter().enumerate() {
            if g.needs(i) {
                g.set(i, d);
            }
        }
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 3)
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { overwrites: vec![(0, 0)], ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (d, eps) = (Channels::new(&s.dims(0)?), eps(s.attrs)?);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            infer_kernel::<T>(d, eps, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("BatchNormalization", Attrs::new().with("epsilon", eps(x.sig.attrs)?))
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, x: &[usize]| {
            let c = [x[1]];
            Case::new(name, Attrs::new().with("eps", 1e-3), &[x, &c, &c, &c, &c])
                .input(4, CaseInput::float(&c, Fill::Uniform(0.5, 2.0)))
        };
        let mut frozen = case("only x", &[2, 3, 4]);
        for i in frozen.inputs.iter_mut().skip(1).flatten() {
            i.differentiate = false;
        }
        vec![case("images", &[2, 3, 2, 2]), case("vectors", &[3, 4]), case("many channels", &[2, 33]), frozen]
    }
}

fn infer_kernel<T: Float>(d: Channels, eps: f64, io: &Io<'_>) {
    let [scale, bias, mean, var] = [1, 2, 3, 4].map(|i| io.input::<T>(i));
    let (x, y) = (Shared(io.input_ptr::<T>(0).0.cast_mut()), Shared(io.output_ptr::<T>(0).0));
    let e = T::from_f64(eps);
    if d.s == 1 {
        lanes::each(
            d.n,
            (par::GRAIN / d.c.max(1)).max(1),
            #[inline(always)]
            |range| {
                let (x, y) = (&x, &y);
                for n in range {
                    // SAFETY: row `n` of both tensors is this call's only; parameters have `c` elements.
                    unsafe {
                        let row = x.0.add(n * d.c).cast_const();
                        let from = [row, mean.as_ptr(), var.as_ptr(), scale.as_ptr(), bias.as_ptr()];
                        lanes::map(
                            d.c,
                            from,
                            [y.0.add(n * d.c)],
                            #[inline(always)]
                            |[v, m, var, s, b]| [(v - m) * (s * (T::ONE / (var + e).sqrt())) + b],
                        );
                    }
                }
            },
        );
        return;
    }
    lanes::each(
        d.n * d.c,
        (par::GRAIN / d.s.max(1)).max(1),
        #[inline(always)]
        |range| {
            let (x, y) = (&x, &y);
            for r in range {
                let c = r % d.c;
                let (m, a, b) = (mean[c], scale[c] * (T::ONE / (var[c] + e).sqrt()), bias[c]);
                // SAFETY: run `r` of both tensors is this call's only.
                unsafe {
                    let from = [x.0.add(r * d.s).cast_const()];
                    lanes::map(
                        d.s,
                        from,
                        [y.0.add(r * d.s)],
                        #[inline(always)]
                        |[v]| [(v - m) * a + b],
                    );
                }
            }
        },
    );
}
