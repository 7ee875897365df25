//! Dropout whose mask is made anew in the backward pass.

use super::{
    check_counters, export, id, import,
    philox::{GROUP, Stream},
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput},
    cpu::{CpuKernel, Element, Float, Io, half::Stored, lanes, par, par::Shared},
    export::Export,
    grad::GradCx,
    onnx::{OnnxRule, rules},
};
use graph::{Attrs, DType, Shape, TensorType};

/// x / (1 - ratio) for the elements that are kept, 0 for the others, each dropped with probability `ratio`.
///
/// Inputs: x, seed (i64 scalar), step (i64 scalar). Attributes: `ratio` in [0, 1], `id` (which random node of the program).
pub struct Dropout;

/// The gradient of [`Dropout`]. Inputs: dy, seed, step. Attributes as the forward operator's.
pub struct DropoutGrad;

/// Which elements [`Dropout`] with the same attributes keeps. Inputs: seed, step. Attributes: those, and `shape`. Output: booleans.
pub struct DropoutMask;

pub(super) fn ratio(s: &Signature<'_>) -> Result<f64, OpError> {
    let ratio = s.attrs.float_or("ratio", 0.5)?;
    if !(0.0..=1.0).contains(&ratio) {
        return Err(OpError::invalid(format!("ratio must be in [0, 1], not {ratio}")));
    }
    Ok(ratio)
}

fn infer(s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
    let x = s.input(0)?;
    if !x.dtype.is_float() {
        return Err(OpError::invalid(format!("the input must be floating-point, not {}", x.dtype)));
    }
    check_counters(s, 1)?;
    ratio(s)?;
    id(s)?;
    Ok(vec![x.clone()])
}

fn cases() -> Vec<Case> {
    let scalar = |v: i64| CaseInput::ints(DType::I64, &[], v, v + 1);
    let case = |name, ratio: f64, shape: &[usize]| {
        let attrs = Attrs::new().with("ratio", ratio).with("id", 5i64);
        Case::new(name, attrs, &[shape]).input(1, scalar(42)).input(2, scalar(3))
    };
    vec![case("half", 0.5, &[5, 9]), case("few", 0.1, &[60]), case("all", 1.0, &[4]), case("none", 0.0, &[4])]
}

fn prepare(s: &Signature<'_>, name: &str) -> Result<CpuKernel, OpError> {
    let (ratio, id) = (ratio(s)?, id(s)?);
    crate::for_stored!(s.input(0)?.dtype, name, S => Ok(Box::new(move |io: &Io<'_>| {
        scale_kept::<S>(ratio, Stream::of(io, 1, id), io);
        Ok(())
    })))
}

fn facts() -> Facts {
    Facts { overwrites: vec![(0, 0)], ..Facts::default() }
}

/// Random integers are some 20 operations an element.
fn work(s: &Signature<'_>) -> Work {
    let n = s.outputs.first().and_then(|t| t.shape.elements()).unwrap_or(0);
    Work { flops: n.saturating_mul(20), bytes: s.io_bytes(), product: false }
}

impl OpDef for Dropout {
    fn name(&self) -> &'static str {
        "Dropout"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Dropout" => import::dropout]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        infer(s)
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (dy, seed, step) = (g.cotangent0()?, g.input(1)?, g.input(2)?);
        let attrs = g.attrs().clone();
        let dx = g.b.op("DropoutGrad", attrs, &[dy, seed, step])?;
        g.set(0, dx);
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s)
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        facts()
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        prepare(s, self.name())
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        export::scaled(x)
    }

    fn cases(&self) -> Vec<Case> {
        cases()
    }
}

impl OpDef for DropoutGrad {
    fn name(&self) -> &'static str {
        "DropoutGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        infer(s)
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s)
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        facts()
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        prepare(s, self.name())
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        export::scaled(x)
    }

    fn cases(&self) -> Vec<Case> {
        cases()
    }
}

/// Words below this are dropped; `None`: all are.
pub(super) fn threshold(ratio: f64) -> Option<u32> {
    u32::try_from((ratio * 4_294_967_296.0).round() as u64).ok()
}

fn scale_kept<S: Stored>(ratio: f64, stream: Stream, io: &Io<'_>) {
    let zero = S::Work::ZERO;
    let Some(threshold) = threshold(ratio) else {
        io.output::<S>(0).fill(S::store(zero));
        return;
    };
    let scale = S::Work::from_f64(1.0 / (1.0 - ratio));
    let (x, n) = io.input_ptr::<S>(0);
    let (x, y) = (Shared(x.cast_mut()), Shared(io.output_ptr::<S>(0).0));
    lanes::each(
        n.div_ceil(GROUP),
        par::GRAIN / GROUP,
        #[inline(always)]
        |range| {
            let (x, y) = (&x, &y);
            for group in range {
                let words = stream.group(group);
                let at = group * GROUP;
                let kept =
                    |v: S, word: u32| S::store(if word >= threshold { v.load() * scale } else { zero });
                // SAFETY: the group's elements are this call's only, and loaded before they are stored.
                unsafe {
                    let (x, y) = (x.0.add(at), y.0.add(at));
                    if at + GROUP <= n {
                        let v = x.cast::<[S; GROUP]>().read_unaligned();
                        let mut out = [S::store(zero); GROUP];
                        for l in 0..GROUP {
                            out[l] = kept(v[l], words[l]);
                        }
                        y.cast::<[S; GROUP]>().write_unaligned(out);
                    } else {
                        for (l, word) in words.iter().enumerate().take(n - at) {
                            *y.add(l) = kept(*x.add(l), *word);
                        }
                    }
                }
            }
        },
    );
}

impl OpDef for DropoutMask {
    fn name(&self) -> &'static str {
        "DropoutMask"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        check_counters(s, 0)?;
        ratio(s)?;
        id(s)?;
        Ok(vec![TensorType { dtype: DType::Bool, shape: shape(s)? }])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (threshold, id) = (threshold(ratio(s)?), id(s)?);
        Ok(Box::new(move |io| {
            let stream = Stream::of(io, 0, id);
            par::rows(io.output::<u8>(0), 1, |i, kept| {
                kept[0] = u8::from(threshold.is_some_and(|t| stream.word(i) >= t));
            });
            Ok(())
        }))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        export::mask(x)
    }

    fn cases(&self) -> Vec<Case> {
        let scalar = |v: i64| CaseInput::ints(DType::I64, &[], v, v + 1);
        let attrs = Attrs::new().with("ratio", 0.5).with("id", 5i64).with("shape", vec![5, 9]);
        vec![Case::new("half", attrs, &[]).input(0, scalar(42)).input(1, scalar(3))]
    }
}

/// The attribute `shape`.
pub(super) fn shape(s: &Signature<'_>) -> Result<Shape, OpError> {
    let dims = s.attrs.ints("shape")?;
    let shape = dims.iter().map(|d| usize::try_from(*d).ok()).collect::<Option<Vec<usize>>>();
    let shape = shape.map(|d| Shape::from(&d)).filter(|s| s.elements().is_some());
    shape.ok_or_else(|| OpError::invalid(format!("{dims:?} is no shape of a tensor")))
}
