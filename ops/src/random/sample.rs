//! Random choices by given probabilities.

use super::{check_counters, id, import, philox::Stream};
use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Element, Float, Io, KernelError, par},
    onnx::{OnnxRule, rules},
};
use graph::{Attrs, DType, Dim, Shape, TensorType};

/// 1 with the probability that is the element, else 0. Inputs: probabilities, seed, step (i64 scalars). Attributes: `dtype` of the output,
/// `id`.
pub struct Bernoulli;

/// Classes drawn with probabilities proportional to e^x. Inputs: x `[batch, classes]`, seed, step (i64 scalars). Attributes: `samples`,
/// `dtype` (i32 or i64), `id`. Output: `[batch, samples]`.
pub struct Multinomial;

fn counters(c: Case) -> Case {
    let scalar = |v: i64| CaseInput::ints(DType::I64, &[], v, v + 1);
    c.input(1, scalar(42)).input(2, scalar(3))
}

/// In [0, 1).
fn unit(word: u32) -> f64 {
    f64::from(word) / 4_294_967_296.0
}

impl OpDef for Bernoulli {
    fn name(&self) -> &'static str {
        "Bernoulli"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Bernoulli" => import::bernoulli]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = s.input(0)?;
        if !x.dtype.is_float() {
            return Err(OpError::invalid(format!("probabilities must be floating-point, not {}", x.dtype)));
        }
        check_counters(s, 1)?;
        id(s)?;
        Ok(vec![TensorType { dtype: s.attrs.dtype("dtype")?, shape: x.shape.clone() }])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { once: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (id, to) = (id(s)?, s.output(0)?.dtype);
        if to == DType::Bool {
            return crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(choose::<T, u8>(id)));
        }
        crate::for_float!(s.input(0)?.dtype, self.name(), T => crate::for_number!(to, self.name(), U => Ok(choose::<T, U>(id))))
    }

    fn cases(&self) -> Vec<Case> {
        let attrs = |d: DType| Attrs::new().with("dtype", d).with("id", 1i64);
        let x = CaseInput::float(&[5, 9], Fill::Uniform(0.0, 1.0));
        let case = |name, d| counters(Case::new(name, attrs(d), &[]).input(0, x.clone()));
        vec![case("booleans", DType::Bool), case("floats", DType::F32), case("integers", DType::I64)]
    }
}

fn choose<T: Float, U: Element>(id: u32) -> CpuKernel {
    Box::new(move |io: &Io<'_>| {
        let (x, stream) = (io.input::<T>(0), Stream::of(io, 1, id));
        par::rows(io.output::<U>(0), 1, |i, y| {
            y[0] = U::from_f64(if unit(stream.word(i)) < x[i].to_f64() { 1.0 } else { 0.0 });
        });
        Ok(())
    })
}

impl OpDef for Multinomial {
    fn name(&self) -> &'static str {
        "Multinomial"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Multinomial" => import::multinomial]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = s.input(0)?;
        if !x.dtype.is_float() || x.shape.rank() != 2 {
            return Err(OpError::invalid(format!(
                "the input must be floating-point [batch, classes], not {x}"
            )));
        }
        check_counters(s, 1)?;
        id(s)?;
        let samples = s.attrs.int("samples")?;
        let dtype = s.attrs.dtype("dtype")?;
        if samples < 0 || !matches!(dtype, DType::I32 | DType::I64) {
            return Err(OpError::invalid(format!("{samples} samples of type {dtype} (i32 or i64)")));
        }
        let shape = Shape(vec![x.shape.0[0].clone(), Dim::constant(samples)]);
        Ok(vec![TensorType { dtype, shape }])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { once: true, can_fail: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (dims, out) = (s.dims(0)?, s.out_dims(0)?);
        let (classes, samples, id) = (dims[1], out[1], id(s)?);
        let to = s.output(0)?.dtype;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => if to == DType::I32 {
            Ok(draw::<T, i32>(classes, samples, id))
        } else {
            Ok(draw::<T, i64>(classes, samples, id))
        })
    }

    fn cases(&self) -> Vec<Case> {
        let attrs = Attrs::new().with("dtype", DType::I32).with("id", 1i64).with("samples", 7i64);
        let wide = attrs.clone().with("dtype", DType::I64);
        vec![
            counters(Case::new("rows", attrs, &[&[3, 5]])),
            counters(Case::new("one class", wide, &[&[2, 1]])),
        ]
    }
}

fn draw<T: Float, U: Element>(classes: usize, samples: usize, id: u32) -> CpuKernel {
    Box::new(move |io: &Io<'_>| {
        let (x, y, stream) = (io.input::<T>(0), io.output::<U>(0), Stream::of(io, 1, id));
        if samples == 0 {
            return Ok(());
        }
        for (b, y) in y.chunks_exact_mut(samples).enumerate() {
            let row = &x[b * classes..(b + 1) * classes];
            let max = row.iter().fold(f64::NEG_INFINITY, |m, v| m.max(v.to_f64()));
            let weight = |v: &T| libm::exp(v.to_f64() - max);
            let total: f64 = row.iter().map(weight).sum();
            if !(total > 0.0 && total.is_finite()) {
                return Err(KernelError(format!("row {b} has no probabilities: e^x sums to {total}")));
            }
            for (k, y) in y.iter_mut().enumerate() {
                let target = unit(stream.word(b * samples + k)) * total;
                let mut sum = 0.0;
                let class = row.iter().position(|v| {
                    sum += weight(v);
                    sum > target
                });
                // Rounding may leave the sum a little short of the total.
                *y = U::from_f64(class.unwrap_or(classes - 1) as f64);
            }
        }
        Ok(())
    })
}
