//! Powers and remainders.

use super::{
    binary::{Wrapping, broadcast_facts, same_dtype, set_summed, zip},
    extreme::gradient_type,
    lanes::{map, zip_of, zip3},
};
use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Float, Math},
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, rules},
};
use graph::{Attrs, DType, Literal, TensorType};

/// a to the power of b, one dtype. Integer powers are by repeated multiplication; a negative exponent truncates 1 / a^|b|.
pub struct Pow;

/// a^b for integers, wrapping.
fn power_of_int<T: Wrapping>(a: T, b: T) -> T {
    let (zero, one) = (T::saturating(0), T::saturating(1));
    if b < zero {
        // 1 / a^|b|: nonzero for 1 and -1 only.
        let odd = b.fmod(T::saturating(2)) != zero;
        return match a {
            _ if a == one => one,
            _ if a.add(one) == zero => {
                if odd {
                    a
                } else {
                    one
                }
            }
            _ => zero,
        };
    }
    let (mut result, mut square, mut n) = (one, a, b);
    while n > zero {
        if n.fmod(T::saturating(2)) != zero {
            result = result.mul(square);
        }
        square = square.mul(square);
        n = n.div(T::saturating(2));
    }
    result
}

/// a^b, computed in 64 bits.
fn power<T: Math>(a: T, b: T) -> T {
    T::of(libm::pow(a.to_f64(), b.to_f64()))
}

fn float_kernel<T: Math + Wrapping>(s: &Signature<'_>) -> Result<CpuKernel, OpError> {
    let general = zip::<T, T>(s, power::<T>)?;
    if s.input(1)?.shape.elements() != Some(1) {
        return Ok(general);
    }
    // One exponent for all: the common ones without a power.
    let square = map::<T, T>(|x: T| Wrapping::mul(x, x));
    let cube = map::<T, T>(|x: T| Wrapping::mul(Wrapping::mul(x, x), x));
    let root = map::<T, T>(|x: T| Float::sqrt(x));
    let inverse = map::<T, T>(|x: T| Wrapping::div(T::ONE, x));
    Ok(Box::new(move |io| match io.input::<T>(1)[0].to_f64() {
        2.0 => square(io),
        3.0 => cube(io),
        0.5 => root(io),
        -1.0 => inverse(io),
        _ => general(io),
    }))
}

/// Whether the exponent is a constant with which a power is exact multiplication, division or square root.
fn exact_exponent(exponent: Option<&Literal>) -> bool {
    exponent.is_some_and(|l| l.len() == 1 && matches!(l.to_floats()[0], 2.0 | 3.0 | 0.5 | -1.0))
}

impl OpDef for Pow {
    fn name(&self) -> &'static str {
        "Pow"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Pow" => pow, "Mod" => modulo]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        same_dtype(s)
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (a, b, dy) = (g.input(0)?, g.input(1)?, g.cotangent0()?);
        if g.needs(0) {
            let d = g.b.call("PowGrad", &[a, b, dy])?;
            set_summed(g, 0, d)?;
        }
        if g.needs(1) {
            let y = g.output(0);
            let d = g.b.call("PowExponentGrad", &[a, y, dy])?;
            set_summed(g, 1, d)?;
        }
        Ok(())
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let int = s.opt_input(0).is_some_and(|t| t.dtype.is_int());
        let folds = int || exact_exponent(s.constants.get(1).copied().flatten());
        Facts { folds, ..broadcast_facts(s) }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        match s.input(0)?.dtype {
            DType::F32 => float_kernel::<f32>(s),
            DType::F64 => float_kernel::<f64>(s),
            d => crate::for_number!(d, self.name(), T => zip::<T, T>(s, power_of_int::<T>)),
        }
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("Pow", Attrs::new())
    }

    fn cases(&self) -> Vec<Case> {
        let base = |shape: &[usize]| CaseInput::float(shape, Fill::Uniform(0.3, 2.0));
        let mut cases = vec![
            Case::new("same shape", Attrs::new(), &[&[], &[2, 3]]).input(0, base(&[2, 3])),
            Case::new("row of exponents", Attrs::new(), &[&[], &[3]]).input(0, base(&[4, 3])),
            Case::new("row of bases", Attrs::new(), &[&[], &[4, 3]]).input(0, base(&[3])),
        ];
        for e in [2.0, 3.0, 0.5, -1.0, 1.7] {
            let exponent = CaseInput::float(&[], Fill::Values(vec![e]));
            cases.push(
                Case::new("one exponent", Attrs::new(), &[])
                    .input(0, base(&[2, 3]))
                    .input(1, CaseInput { constant: true, ..exponent.fixed() }),
            );
        }
        let ints = |lo, hi| CaseInput::ints(DType::I64, &[2, 3], lo, hi);
        cases.push(Case::new("integers", Attrs::new(), &[]).input(0, ints(-4, 5)).input(1, ints(-3, 6)));
        cases
    }
}

/// ONNX Pow: the result has the base's dtype, the exponent may have another.
fn pow(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    let (ta, tb) = (cx.b.ty(a).dtype, cx.b.ty(b).dtype);
    let y = if ta.is_int() && tb.is_float() {
        let (a, b) = (cx.b.cast(a, DType::F64)?, cx.b.cast(b, DType::F64)?);
        let y = cx.b.call("Pow", &[a, b])?;
        cx.b.cast(y, ta)?
    } else {
        let b = cx.b.cast(b, ta)?;
        cx.b.call("Pow", &[a, b])?
    };
    cx.set(0, y);
    Ok(())
}

/// dy · b · a^(b-1), 0 where b is 0: the gradient of [`Pow`] to a. Inputs a, b, dy.
pub struct PowGrad;

fn base_slope<T: Math>(a: T, b: T, dy: T) -> T {
    if b == T::ZERO { T::ZERO } else { dy * (b * power(a, b - T::ONE)) }
}

fn slope_kernel<T: Math>(s: &Signature<'_>) -> Result<CpuKernel, OpError> {
    let general = zip3::<T, T, T, T>(s, base_slope::<T>)?;
    if s.input(1)?.shape.elements() != Some(1) {
        return Ok(general);
    }
    let square = zip_of::<T, T, T>(s, [0, 2], |a: T, dy: T| dy * (a + a))?;
    let cube = zip_of::<T, T, T>(s, [0, 2], |a: T, dy: T| dy * (T::of(3.0) * (a * a)))?;
    let root = zip_of::<T, T, T>(s, [0, 2], |a: T, dy: T| dy * (T::HALF / Float::sqrt(a)))?;
    let inverse = zip_of::<T, T, T>(s, [0, 2], |a: T, dy: T| -(dy / (a * a)))?;
    Ok(Box::new(move |io| match io.input::<T>(1)[0].to_f64() {
        2.0 => square(io),
        3.0 => cube(io),
        0.5 => root(io),
        -1.0 => inverse(io),
        _ => general(io),
    }))
}

impl OpDef for PowGrad {
    fn name(&self) -> &'static str {
        "PowGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        gradient_type(s)
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        broadcast_facts(s)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_float!(s.input(0)?.dtype, self.name(), T => slope_kernel::<T>(s))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (a, b, dy) = (x.input(0)?, x.input(1)?, x.input(2)?);
        x.set(0, b.equals(0.0).pick(0.0, dy * (b * a.with("Pow", b - 1.0))));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let base = CaseInput::float(&[2, 3], Fill::Uniform(0.3, 2.0));
        let two = CaseInput::float(&[], Fill::Values(vec![2.0]));
        vec![
            Case::new("row", Attrs::new(), &[&[], &[3], &[2, 3]]).input(0, base.clone()),
            Case::new("square", Attrs::new(), &[&[], &[], &[2, 3]]).input(0, base).input(1, two),
        ]
    }
}

/// dy · y · ln a, 0 where a is 0: the gradient of [`Pow`] to b. Inputs a, y, dy.
pub struct PowExponentGrad;

impl OpDef for PowExponentGrad {
    fn name(&self) -> &'static str {
        "PowExponentGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        gradient_type(s)
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        broadcast_facts(s)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_float!(s.input(0)?.dtype, self.name(), T => {
            zip3::<T, T, T, T>(s, |a: T, y: T, dy: T| if a == T::ZERO { T::ZERO } else { dy * (y * a.vln()) })
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (a, y, dy) = (x.input(0)?, x.input(1)?, x.input(2)?);
        x.set(0, a.equals(0.0).pick(0.0, dy * (y * a.call("Log"))));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let base = CaseInput::float(&[3], Fill::Uniform(0.3, 2.0));
        vec![Case::new("row", Attrs::new(), &[&[], &[2, 3], &[2, 3]]).input(0, base)]
    }
}

/// The remainder of a / b; attribute `fmod`: with the sign of a (1) or of b (0).
pub struct Mod;

impl OpDef for Mod {
    fn name(&self) -> &'static str {
        "Mod"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        s.attrs.int("fmod")?;
        same_dtype(s)
    }

    /// With q the quotient, truncated or rounded down, y = a - q·b: da = dy, db = -q·dy.
    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (a, b, y, dy) = (g.input(0)?, g.input(1)?, g.output(0), g.cotangent0()?);
        if g.needs(0) {
            set_summed(g, 0, dy)?;
        }
        if g.needs(1) {
            let whole = g.b.call("Sub", &[y, a])?;
            let quotient = g.b.call("Div", &[whole, b])?;
            let d = g.b.call("Mul", &[dy, quotient])?;
            set_summed(g, 1, d)?;
        }
        Ok(())
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        Facts { folds: true, ..broadcast_facts(s) }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let fmod = s.attrs.int("fmod")? != 0;
        crate::for_number!(s.input(0)?.dtype, self.name(), T => if fmod {
            zip::<T, T>(s, <T as Wrapping>::fmod)
        } else {
            zip::<T, T>(s, <T as Wrapping>::modulo)
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (a, b) = (x.input(0)?, x.input(1)?);
        let fmod = x.sig.attrs.int("fmod")? != 0;
        let y = if a.dtype().is_float() && !fmod {
            // ONNX has the divisor's sign for integers only.
            let r = x.call("Mod", &[a, b], Attrs::new().with("fmod", 1));
            let turned = r.equals(0.0).pick(0.0, (r * b).less(0.0).pick(b, 0.0));
            r + turned
        } else {
            super::binary::guarded(x, a, b, "Mod", Attrs::new().with("fmod", fmod))
        };
        x.set(0, y);
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        // Quotients stay away from integers, where the remainder jumps.
        let a = CaseInput::float(&[2, 2], Fill::Values(vec![2.3, -3.4, 5.7, 0.4]));
        let b = CaseInput::float(&[2], Fill::Values(vec![1.0, -1.5]));
        let ints = |lo, hi| CaseInput::ints(DType::I64, &[2, 3], lo, hi);
        let mode = |m: i64| Attrs::new().with("fmod", m);
        vec![
            Case::new("floats", mode(1), &[]).input(0, a.clone()).input(1, b.clone()),
            Case::new("floats, sign of the divisor", mode(0), &[]).input(0, a).input(1, b),
            Case::new("sign of the dividend", mode(1), &[]).input(0, ints(-9, 9)).input(1, ints(-4, 5)),
            Case::new("sign of the divisor", mode(0), &[]).input(0, ints(-9, 9)).input(1, ints(-4, 5)),
        ]
    }
}

fn modulo(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    cx.same("Mod", Attrs::new().with("fmod", cx.attrs.int_or("fmod", 0)? != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_powers() {
        for (a, b, want) in
            [(2i32, 10, 1024), (-3, 3, -27), (5, 0, 1), (0, 0, 1), (2, -1, 0), (-1, -3, -1), (1, -9, 1)]
        {
            assert_eq!(power_of_int(a, b), want, "{a}^{b}");
        }
        assert_eq!(power_of_int(3u8, 4), 81);
    }

    #[test]
    fn negative_bases_have_real_integer_powers() {
        assert_eq!(power(-2.0f32, 3.0), -8.0);
        assert!(power(-2.0f64, 0.5).is_nan());
        assert_eq!(base_slope(0.0f64, 0.0, 1.0), 0.0);
    }
}
