//! Tensors of random numbers.

use super::{
    check_counters,
    dropout::shape,
    id, import,
    philox::{GROUP, Stream},
};
use crate::{
    OpDef, OpError, Signature, Work,
    case::{Case, CaseInput},
    cpu::{CpuKernel, Io, Math, lanes, par, par::Shared},
    onnx::{OnnxRule, rules},
};
use graph::{Attrs, DType, TensorType};

/// Uniform in [`low`, `high`). Inputs: seed, step (i64 scalars). Attributes: `shape`, `dtype` (f32 or f64), `low` (0), `high` (1), `id`.
pub struct RandomUniform;

/// Normal with `mean` and standard deviation `scale`. Inputs: seed, step (i64 scalars). Attributes: `shape`, `dtype` (f32 or f64), `mean`
/// (0), `scale` (1), `id`.
pub struct RandomNormal;

fn infer(s: &Signature<'_>, numbers: [(&str, f64); 2]) -> Result<Vec<TensorType>, OpError> {
    check_counters(s, 0)?;
    id(s)?;
    for (name, default) in numbers {
        s.attrs.float_or(name, default)?;
    }
    match s.attrs.dtype("dtype")? {
        dtype @ (DType::F32 | DType::F64) => Ok(vec![TensorType { dtype, shape: shape(s)? }]),
        d => Err(OpError::unsupported(format!("random numbers of type {d}"))),
    }
}

fn cases() -> Vec<Case> {
    let scalar = |v: i64| CaseInput::ints(DType::I64, &[], v, v + 1);
    let case = |name, dtype, shape: Vec<i64>| {
        let attrs = Attrs::new().with("shape", shape).with("dtype", dtype).with("id", 9i64);
        Case::new(name, attrs, &[]).input(0, scalar(42)).input(1, scalar(3))
    };
    vec![case("matrix", DType::F32, vec![5, 9]), case("double", DType::F64, vec![33])]
}

/// Random numbers cost some 20 integer operations an element, and what is made of them.
fn work(s: &Signature<'_>, more: u64) -> Work {
    let n = s.outputs.first().and_then(|t| t.shape.elements()).unwrap_or(0);
    Work { flops: n.saturating_mul(20 + more), bytes: s.io_bytes(), product: false }
}

/// Fills output 0 group by group. `f` must be marked `#[inline(always)]`.
fn fill<T: Math>(stream: Stream, io: &Io<'_>, f: impl Fn([u32; GROUP]) -> [T; GROUP] + Sync) {
    let (y, n) = io.output_ptr::<T>(0);
    let y = Shared(y);
    lanes::each(
        n.div_ceil(GROUP),
        par::GRAIN / GROUP,
        #[inline(always)]
        |range| {
            let y = &y;
            for group in range {
                let values = f(stream.group(group));
                let at = group * GROUP;
                // SAFETY: the group's elements are this call's only.
                unsafe {
                    let y = y.0.add(at);
                    if at + GROUP <= n {
                        y.cast::<[T; GROUP]>().write_unaligned(values);
                    } else {
                        values.iter().take(n - at).enumerate().for_each(|(l, v)| *y.add(l) = *v);
                    }
                }
            }
        },
    );
}

/// In [0, 1), a multiple of 2^-24 (of 2^-32 as f64).
#[inline(always)]
fn unit<T: Math>(word: u32) -> T {
    if size_of::<T>() == 4 {
        T::of(f64::from(word >> 8)) * T::of(1.0 / 16_777_216.0)
    } else {
        T::of(f64::from(word)) * T::of(1.0 / 4_294_967_296.0)
    }
}

impl OpDef for RandomUniform {
    fn name(&self) -> &'static str {
        "RandomUniform"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["RandomUniform" => import::uniform, "RandomUniformLike" => import::uniform]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        infer(s, [("low", 0.0), ("high", 1.0)])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 3)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (low, high) = (s.attrs.float_or("low", 0.0)?, s.attrs.float_or("high", 1.0)?);
        let id = id(s)?;
        crate::for_float!(s.output(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            let (low, width) = (low as T, (high - low) as T);
            fill::<T>(Stream::of(io, 0, id), io, #[inline(always)] |words| {
                let mut out = [0.0; GROUP];
                for l in 0..GROUP {
                    out[l] = low + unit::<T>(words[l]) * width;
                }
                out
            });
            Ok(())
        })))
    }

    fn cases(&self) -> Vec<Case> {
        cases()
    }
}

impl OpDef for RandomNormal {
    fn name(&self) -> &'static str {
        "RandomNormal"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["RandomNormal" => import::normal, "RandomNormalLike" => import::normal]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        infer(s, [("mean", 0.0), ("scale", 1.0)])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, 30)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (mean, scale) = (s.attrs.float_or("mean", 0.0)?, s.attrs.float_or("scale", 1.0)?);
        let id = id(s)?;
        crate::for_float!(s.output(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            let (mean, scale) = (mean as T, scale as T);
            fill::<T>(Stream::of(io, 0, id), io, #[inline(always)] |words| {
                // Box and Muller: two uniform numbers make two normal ones.
                let mut out = [0.0; GROUP];
                for l in 0..GROUP / 2 {
                    let u = (words[l] as T + 1.0) * (1.0 / 4_294_967_296.0);
                    let angle = unit::<T>(words[l + GROUP / 2]) * std::f64::consts::TAU as T;
                    let radius = (u.vln() * -2.0).sqrt();
                    out[l] = mean + radius * angle.vcos() * scale;
                    out[l + GROUP / 2] = mean + radius * angle.vsin() * scale;
                }
                out
            });
            Ok(())
        })))
    }

    fn cases(&self) -> Vec<Case> {
        cases()
    }
}
