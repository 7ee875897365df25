//! Local response normalisation: over neighbouring channels.

use super::{batchnorm::work, batchnorm_grad::same_cotangent, channels::Channels};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{
        CpuKernel, Io, Math,
        columns::{self, Row},
        lanes::{self, LANES},
        par,
        par::Shared,
    },
    export::{Export, Term},
    grad::GradCx,
    onnx::{OnnxRule, rules},
};
use graph::{Attrs, TensorType};

/// x / d^beta, d = bias + alpha / size * Σ x² over the `size` channels around each (fewer at the edges).
///
/// Input: x `[N, C, d..]`. Attributes: `size`, `alpha` (1e-4), `beta` (0.75), `bias` (1). For an even size the window reaches one channel
/// further up than down.
pub struct Lrn;

/// The gradient of [`Lrn`]. Inputs: x, dy. Attributes as the forward operator's. Workspace: one tensor.
pub struct LrnGrad;

#[derive(Clone, Copy)]
pub(super) struct Rule {
    /// Channels below and above that count.
    pub(super) down: usize,
    pub(super) up: usize,
    /// alpha / size.
    pub(super) alpha: f64,
    pub(super) beta: f64,
    pub(super) bias: f64,
}

impl Rule {
    pub(super) fn of(a: &Attrs) -> Result<Rule, OpError> {
        let size = a.int("size")?;
        if size < 1 {
            return Err(OpError::invalid(format!("size must be at least 1, not {size}")));
        }
        let down = (size - 1) as usize / 2;
        let alpha = a.float_or("alpha", 1e-4)? / size as f64;
        Ok(Rule {
            down,
            up: size as usize - 1 - down,
            alpha,
            beta: a.float_or("beta", 0.75)?,
            bias: a.float_or("bias", 1.0)?,
        })
    }
}

fn infer(s: &Signature<'_>) -> Result<TensorType, OpError> {
    let x = s.input(0)?;
    if !x.dtype.is_float() || x.shape.rank() < 2 {
        return Err(OpError::invalid(format!("the input must be floating-point [N, C, ..], not {x}")));
    }
    Rule::of(s.attrs)?;
    Ok(x.clone())
}

fn cases(make: impl Fn(&'static str, Attrs, &[usize]) -> Case) -> Vec<Case> {
    let attrs = Attrs::new().with("alpha", 0.5).with("beta", 0.75).with("bias", 1.5);
    vec![
        make("three channels", attrs.clone().with("size", 3i64), &[2, 5, 2, 2]),
        make("even size", attrs.clone().with("size", 4i64), &[1, 6, 5]),
        make("wider than the channels", attrs.clone().with("size", 9i64), &[1, 2, 3]),
        make("vectors", attrs.with("size", 2i64), &[3, 4]),
    ]
}

/// The extents as images, channels, elements.
fn flat(x: &Export<'_>) -> Result<[usize; 3], OpError> {
    let dims = x.dims(0)?;
    Ok([dims[0], dims[1], dims[2..].iter().product()])
}

/// For ONNX, whose own operator runtimes have for images and odd sizes only: x by [`flat`], and d, to which the sums over neighbouring
/// channels are products with a band of ones.
type Divisor<'a> = (Term<'a>, Rule, Term<'a>);

fn divisor<'a>(x: &Export<'a>) -> Result<(Term<'a>, Divisor<'a>), OpError> {
    let (rule, flat) = (Rule::of(x.sig.attrs)?, flat(x)?);
    let (v, c) = (x.input(0)?.reshape(&flat), flat[1]);
    let inside = |i: usize, j: usize| j + rule.down >= i && j <= i + rule.up;
    let band: Vec<f64> = (0..c * c).map(|k| f64::from(u8::from(inside(k / c, k % c)))).collect();
    let band = x.tensor(v.dtype(), &[c, c], &band)?;
    Ok((v, (band.with("MatMul", v * v) * rule.alpha + rule.bias, rule, band)))
}

impl OpDef for Lrn {
    fn name(&self) -> &'static str {
        "LRN"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["LRN" => |cx| {
            let attrs = Attrs::new()
                .with("size", cx.attrs.int("size")?)
                .with("alpha", cx.attrs.float_or("alpha", 1e-4)?)
                .with("beta", cx.attrs.float_or("beta", 0.75)?)
                .with("bias", cx.attrs.float_or("bias", 1.0)?);
            cx.same("LRN", attrs)
        }]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        Ok(vec![infer(s)?])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (x, dy, attrs) = (g.input(0)?, g.cotangent0()?, g.attrs().clone());
        let dx = g.b.op("LrnGrad", attrs, &[x, dy])?;
        g.set(0, dx);
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 50)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (d, rule) = (Channels::new(&s.dims(0)?), Rule::of(s.attrs)?);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            forward::<T>(d, rule, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (v, (d, rule, _)) = divisor(x)?;
        x.set(0, (v * d.with("Pow", -rule.beta)).reshape(&x.dims(0)?));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        cases(|name, attrs, x| {
            Case::new(name, attrs, &[]).input(0, CaseInput::float(x, Fill::Uniform(-2.0, 2.0)))
        })
    }
}

impl OpDef for LrnGrad {
    fn name(&self) -> &'static str {
        "LrnGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = infer(s)?;
        same_cotangent(&x, s.input(1)?)?;
        Ok(vec![x])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 60)
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        Facts::with_workspace(s.opt_input(0).and_then(TensorType::bytes).unwrap_or(0))
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (d, rule) = (Channels::new(&s.dims(0)?), Rule::of(s.attrs)?);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            backward::<T>(d, rule, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (v, (d, rule, band)) = divisor(x)?;
        let (flat, dims) = (flat(x)?, x.dims(0)?);
        let dy = x.input(1)?.reshape(&flat);
        let scaled = dy * d.with("Pow", -rule.beta);
        let back = band.turned(2).with("MatMul", v * scaled / d);
        x.set(0, (scaled - v * back * (2.0 * rule.alpha * rule.beta)).reshape(&dims));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        cases(|name, attrs, x| Case::new(name, attrs, &[x, x]))
    }
}

/// Calls `f` with the offset and the width of each group of neighbouring places of a sample. `f` must be marked `#[inline(always)]`.
fn places(d: Channels, f: impl Fn(usize, usize) + Sync) {
    let groups = d.s.div_ceil(LANES);
    lanes::each(
        d.n * groups,
        (par::GRAIN / (d.c * LANES).max(1)).max(1),
        #[inline(always)]
        |range| {
            for u in range {
                let place = u % groups * LANES;
                f(u / groups * d.c * d.s + place, LANES.min(d.s - place));
            }
        },
    );
}

/// Σ `f` over the channels `c - down ..= c + up` that there are, at each place of a group.
///
/// # Safety
///
/// `x` points to the group's place in channel 0 of a readable tensor.
#[inline(always)]
unsafe fn window<T: Math>(
    d: Channels,
    (c, down, up, width): (usize, usize, usize, usize),
    x: *const T,
    f: impl Fn(T) -> T,
) -> Row<T> {
    let first = c.saturating_sub(down);
    let last = c.saturating_add(up).min(d.c - 1);
    // SAFETY: channels `first ..= last` are in the tensor.
    unsafe {
        let x = [x.add(first * d.s)];
        columns::fold(
            (last + 1 - first, d.s, width),
            x,
            T::ZERO,
            [],
            #[inline(always)]
            |sum, [v], []| sum + f(v),
        )
    }
}

fn forward<T: Math>(d: Channels, rule: Rule, io: &Io<'_>) {
    let (x, y) = (Shared(io.input_ptr::<T>(0).0.cast_mut()), Shared(io.output_ptr::<T>(0).0));
    let (alpha, bias, power) = (T::of(rule.alpha), T::of(rule.bias), T::of(-rule.beta));
    places(
        d,
        #[inline(always)]
        |at, width| {
            let (x, y) = (&x, &y);
            for c in 0..d.c {
                // SAFETY: the group's places in all channels of both tensors are this call's only.
                unsafe {
                    let x = x.0.add(at).cast_const();
                    let sums = window(
                        d,
                        (c, rule.down, rule.up, width),
                        x,
                        #[inline(always)]
                        |v| v * v,
                    );
                    columns::map(
                        (1, d.s, width),
                        [x.add(c * d.s)],
                        y.0.add(at + c * d.s),
                        [&sums],
                        #[inline(always)]
                        |[v], [s]| v * ((bias + alpha * s).vln() * power).vexp(),
                    );
                }
            }
        },
    );
}

fn backward<T: Math>(d: Channels, rule: Rule, io: &Io<'_>) {
    let [x, dy] = [0, 1].map(|i| Shared(io.input_ptr::<T>(i).0.cast_mut()));
    let dx = Shared(io.output_ptr::<T>(0).0);
    // dy x d^(-beta - 1).
    let terms = Shared(io.workspace::<T>().as_mut_ptr());
    let (alpha, bias, power) = (T::of(rule.alpha), T::of(rule.bias), T::of(-rule.beta));
    let twice = T::of(2.0 * rule.alpha * rule.beta);
    places(
        d,
        #[inline(always)]
        |at, width| {
            let (x, dy, dx, terms) = (&x, &dy, &dx, &terms);
            // SAFETY: the group's places in all channels of the tensors and the workspace are this call's only.
            unsafe {
                let [x, dy] = [x, dy].map(|p| p.0.add(at).cast_const());
                let (dx, terms) = (dx.0.add(at), terms.0.add(at));
                for c in 0..d.c {
                    let sums = window(
                        d,
                        (c, rule.down, rule.up, width),
                        x,
                        #[inline(always)]
                        |v| v * v,
                    );
                    let extent = (1, d.s, width);
                    let k = c * d.s;
                    columns::map(
                        extent,
                        [dy.add(k)],
                        dx.add(k),
                        [&sums],
                        #[inline(always)]
                        |[g], [s]| g * ((bias + alpha * s).vln() * power).vexp(),
                    );
                    columns::map(
                        extent,
                        [x.add(k), dx.add(k).cast_const()],
                        terms.add(k),
                        [&sums],
                        #[inline(always)]
                        |[v, g], [s]| v * g / (bias + alpha * s),
                    );
                }
                for c in 0..d.c {
                    // The channels in whose windows this one lies.
                    let sums = window(
                        d,
                        (c, rule.up, rule.down, width),
                        terms.cast_const(),
                        #[inline(always)]
                        |v| v,
                    );
                    let k = c * d.s;
                    columns::map(
                        (1, d.s, width),
                        [x.add(k), dx.add(k).cast_const()],
                        dx.add(k),
                        [&sums],
                        #[inline(always)]
                        |[v, g], [s]| g - twice * v * s,
                    );
                }
            }
        },
    );
}
