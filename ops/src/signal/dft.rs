//! The discrete Fourier transform along an axis.

use super::{
    fft::{Complex, factors, roots, transform},
    import,
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::Case,
    cpu::{
        CpuKernel, Float, Io,
        par::{self, Shared},
    },
    grad::GradCx,
    movement::{around, axis_attr, count},
    onnx::{OnnxRule, rules},
};
use graph::{Attrs, Literal, TensorType};

/// `scale` times the transform of length `length` along `axis`, the first `bins` results.
///
/// The last axis of input and output holds real part and imaginary part, or the real part alone (`real` for the output). Elements of the
/// input beyond `length` are ignored, missing ones are zero. `inverse` turns the sign in the exponent.
pub struct Dft;

/// Lines are cut into so many pieces at most, each with scratch of its own.
const PIECES: usize = 16;

impl OpDef for Dft {
    fn name(&self) -> &'static str {
        "Dft"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules![
            "DFT" => import::dft,
            "STFT" => import::stft,
            "HannWindow" => import::hann,
            "HammingWindow" => import::hamming,
            "BlackmanWindow" => import::blackman,
            "MelWeightMatrix" => import::mel_weights,
        ]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = s.input(0)?;
        if !x.dtype.is_float() {
            return Err(OpError::invalid(format!("the input must be floating-point, not {}", x.dtype)));
        }
        let rank = x.shape.rank();
        let axis = axis_attr(s, "axis", rank)?;
        let parts = &x.shape.0[rank - 1];
        let parts = parts.as_const().ok_or_else(|| OpError::Dynamic(format!("whether {parts} is 1 or 2")))?;
        if axis + 1 == rank || !(1..=2).contains(&parts) {
            return Err(OpError::invalid(format!(
                "the last axis of {x} must hold real or real and imaginary parts, and not be transformed"
            )));
        }
        let (length, bins) = (s.attrs.int("length")?, s.attrs.int("bins")?);
        if length < 1 || length > i64::from(i32::MAX) || bins < 1 || bins > length {
            return Err(OpError::invalid(format!("{bins} bins of a transform of length {length}")));
        }
        s.attrs.float_or("scale", 1.0)?;
        s.attrs.int_or("inverse", 0)?;
        let mut y = x.clone();
        y.shape.0[axis] = (bins as usize).into();
        y.shape.0[rank - 1] = if s.attrs.int_or("real", 0)? != 0 { 1usize } else { 2 }.into();
        if let Some(dims) = y.shape.fixed() {
            count(&dims, y.dtype)?;
        }
        Ok(vec![y])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        // The adjoint: the other sign, and the same number of elements as the input has.
        let (ty, dy) = (g.ty(0)?, g.cotangent0()?);
        let dims = crate::fixed(&ty.shape, "the shape of the input")?;
        let (axis, length) = (g.attrs().int("axis")?, g.attrs().int("length")?);
        let n = dims[axis as usize] as i64;
        if n == 0 {
            let zero = crate::movement::generate::zeros(g.b, &ty)?;
            g.set(0, zero);
            return Ok(());
        }
        let attrs = attrs(axis, length, n.min(length))
            .with("scale", g.attrs().float_or("scale", 1.0)?)
            .with("inverse", g.attrs().int_or("inverse", 0)? == 0)
            .with("real", dims[dims.len() - 1] == 1);
        let mut dx = g.b.op("Dft", attrs, &[dy])?;
        if n > length {
            let mut pads = vec![0i64; 2 * dims.len()];
            pads[dims.len() + axis as usize] = n - length;
            let zero = Literal::scalar(ty.dtype, 0.0);
            let attrs = Attrs::new().with("pads", pads).with("mode", "constant").with("value", zero);
            dx = g.b.op("Pad", attrs, &[dx])?;
        }
        g.set(0, dx);
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let each = |p: &Plan| (p.length * p.factors.iter().sum::<usize>()) as u64 * 6;
        let flops = Plan::of(s).map_or(0, |p| each(&p).saturating_mul(p.lines() as u64));
        Work { flops, bytes: s.io_bytes(), product: false }
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let size = s.opt_input(0).map_or(0, |t| t.dtype.size());
        Facts::with_workspace(
            Plan::of(s).map_or(0, |p| (p.length + p.pieces() * p.scratch()) as u64 * 2 * size),
        )
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let plan = Plan::of(s)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            plan.run::<T>(io);
            Ok(())
        })))
    }

    fn cases(&self) -> Vec<Case> {
        vec![
            Case::new("complex", attrs(1, 6, 6), &[&[2, 6, 2]]),
            Case::new("real, one-sided", attrs(0, 8, 5), &[&[8, 3, 1]]),
            Case::new(
                "inverse, prime",
                attrs(1, 7, 7).with("inverse", true).with("scale", 1.0 / 7.0),
                &[&[2, 7, 2]],
            ),
            Case::new("padded", attrs(1, 9, 9), &[&[2, 4, 2]]),
            Case::new("cut", attrs(1, 4, 3), &[&[2, 6, 1]]),
            Case::new("to real", attrs(1, 5, 5).with("inverse", true).with("real", true), &[&[2, 3, 2]]),
            Case::new("one element", attrs(0, 1, 1), &[&[1, 2]]),
            Case::new("many lines", attrs(1, 12, 7), &[&[40, 12, 2, 1]]),
            Case::new("no elements", attrs(1, 3, 3), &[&[2, 0, 2]]),
        ]
    }
}

/// The attributes of a transform.
pub(super) fn attrs(axis: i64, length: i64, bins: i64) -> Attrs {
    Attrs::new().with("axis", axis).with("length", length).with("bins", bins)
}

/// A transform of fixed sizes.
pub(super) struct Plan {
    /// Extents before, at, and between the axis and the last.
    pub(super) outer: usize,
    pub(super) n: usize,
    pub(super) inner: usize,
    /// Numbers of an input and an output element.
    pub(super) parts: [usize; 2],
    pub(super) length: usize,
    pub(super) bins: usize,
    pub(super) positive: bool,
    pub(super) scale: f64,
    pub(super) factors: Vec<usize>,
}

impl Plan {
    pub(super) fn of(s: &Signature<'_>) -> Result<Plan, OpError> {
        let (x, y) = (s.dims(0)?, s.out_dims(0)?);
        let (Some((px, lead)), Some(py)) = (x.split_last(), y.last()) else {
            return Err(OpError::invalid("a scalar has no axis"));
        };
        let axis = axis_attr(s, "axis", x.len())?;
        let (outer, n, inner) = around(lead, axis);
        let length =
            usize::try_from(s.attrs.int("length")?).map_err(|_| OpError::invalid("a negative length"))?;
        Ok(Plan {
            outer,
            n,
            inner,
            parts: [*px, *py],
            length,
            bins: y[axis],
            positive: s.attrs.int_or("inverse", 0)? != 0,
            scale: s.attrs.float_or("scale", 1.0)?,
            factors: factors(length),
        })
    }

    pub(super) fn lines(&self) -> usize {
        self.outer * self.inner
    }

    fn pieces(&self) -> usize {
        self.lines().min(PIECES)
    }

    /// Complex numbers that one piece needs: a line, its transform, one butterfly.
    fn scratch(&self) -> usize {
        2 * self.length + self.factors.last().copied().unwrap_or(1)
    }

    fn run<T: Float>(&self, io: &Io<'_>) {
        let (x, y) = (io.input::<T>(0), Shared(io.output_ptr::<T>(0).0));
        let space = io.workspace::<T>();
        // SAFETY: pairs of numbers are complex numbers, and the workspace has an even number of them.
        let space: &mut [Complex<T>] =
            unsafe { std::slice::from_raw_parts_mut(space.as_mut_ptr().cast(), space.len() / 2) };
        let (roots_of, scratch) = space.split_at_mut(self.length);
        roots(self.positive, roots_of);
        let (w, scratch) = (&*roots_of, Shared(scratch.as_mut_ptr()));
        let (lines, pieces) = (self.lines(), self.pieces());
        let scale = T::from_f64(self.scale);
        par::ranges(pieces, 1, |r| {
            let (y, scratch) = (&y, &scratch);
            for piece in r {
                let own = piece * self.scratch();
                // SAFETY: each piece has scratch of its own.
                let own = unsafe { scratch.slice(own..own + self.scratch()) };
                let (line, rest) = own.split_at_mut(self.length);
                let (out, butterfly) = rest.split_at_mut(self.length);
                for l in piece * lines / pieces..(piece + 1) * lines / pieces {
                    let (o, i) = (l / self.inner, l % self.inner);
                    let [px, py] = self.parts;
                    for (j, v) in line.iter_mut().enumerate() {
                        let at = ((o * self.n + j) * self.inner + i) * px;
                        *v = match (j < self.n, px) {
                            (false, _) => [T::ZERO; 2],
                            (true, 1) => [x[at], T::ZERO],
                            _ => [x[at], x[at + 1]],
                        };
                    }
                    transform(&self.factors, (line, 1), out, (w, 1), butterfly);
                    for (k, v) in out[..self.bins].iter().enumerate() {
                        let at = ((o * self.bins + k) * self.inner + i) * py;
                        // SAFETY: inside the output; every line is written by one piece.
                        unsafe {
                            *y.0.add(at) = v[0] * scale;
                            if py == 2 {
                                *y.0.add(at + 1) = v[1] * scale;
                            }
                        }
                    }
                }
            }
        });
    }
}
