//! Tensors made from attributes and shapes alone: constants, ranges, identity matrices, shapes as tensors.
//!
//! Importing evaluates them where they are small; only large ones become nodes.

use super::{count, extents_attr, fill};
use crate::{
    Builder, Facts, OpDef, OpError, Signature, Work,
    case::Case,
    cpu::{CpuKernel, Element, par},
    elementwise::binary::Wrapping,
    export::Export,
    onnx::{ImportCx, OnnxRule, onnx_dtype, rules},
};
use graph::{Attr, Attrs, DType, Literal, TensorType, ValueId};

/// Largest tensor that becomes a constant, in bytes.
const SMALL: u64 = 1 << 16;

/// Attribute `value` (a scalar literal) everywhere in a tensor of attribute `shape`. No inputs.
pub struct Fill;

impl OpDef for Fill {
    fn name(&self) -> &'static str {
        "Fill"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["ConstantOfShape" => import_constant_of_shape, "Constant" => import_constant]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (shape, value) = (extents_attr(s, "shape")?, scalar_attr(s, "value")?);
        count(&shape, value.dtype())?;
        Ok(vec![TensorType::new(value.dtype(), &shape)])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        Work { bytes: s.io_bytes(), ..Work::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let value = scalar_attr(s, "value")?;
        crate::for_width!(value.dtype(), T => {
            let x: T = read(value);
            Ok(Box::new(move |io| {
                fill(io.output::<T>(0), x);
                Ok(())
            }))
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let value = scalar_attr(x.sig, "value")?;
        let value = value.reshaped(vec![1]).map_err(|e| OpError::invalid(e.to_string()))?;
        let shape = x.ints(x.sig.attrs.ints("shape")?);
        x.same_of("ConstantOfShape", &[Some(shape)], Attrs::new().with("value", value))
    }

    fn cases(&self) -> Vec<Case> {
        let of = |shape: &[i64], dtype, value| {
            Attrs::new().with("shape", shape).with("value", Literal::scalar(dtype, value))
        };
        vec![
            Case::new("matrix", of(&[3, 4], DType::F32, 1.5), &[]),
            Case::new("booleans", of(&[5], DType::Bool, 1.0), &[]),
            Case::new("scalar", of(&[], DType::I64, -3.0), &[]),
        ]
    }
}

/// `start + i * delta` for `i` in `0..count`; start and delta are scalar literals of one dtype. No inputs.
pub struct Range;

impl OpDef for Range {
    fn name(&self) -> &'static str {
        "Range"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Range" => import_range]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (start, delta) = (scalar_attr(s, "start")?, scalar_attr(s, "delta")?);
        let n = s.attrs.int("count")?;
        let n = usize::try_from(n).map_err(|_| OpError::invalid(format!("count {n} is negative")))?;
        if start.dtype() != delta.dtype() {
            return Err(OpError::invalid("start and delta differ in dtype"));
        }
        count(&[n], start.dtype())?;
        Ok(vec![TensorType::new(start.dtype(), &[n][..])])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (start, delta) = (scalar_attr(s, "start")?, scalar_attr(s, "delta")?);
        crate::for_number!(start.dtype(), self.name(), T => {
            let (start, delta): (T, T) = (read(start), read(delta));
            Ok(Box::new(move |io| {
                let y = io.output::<T>(0);
                let (n, y) = (y.len(), par::Shared(y.as_mut_ptr()));
                par::ranges(n, par::GRAIN, |r| {
                    let y = &y;
                    for i in r {
                        // SAFETY: `i < n`, written once.
                        unsafe { *y.0.add(i) = Wrapping::add(start, Wrapping::mul(T::from_f64(i as f64), delta)) };
                    }
                });
                Ok(())
            }))
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (start, delta) = (scalar_attr(x.sig, "start")?, scalar_attr(x.sig, "delta")?);
        let (dtype, n) = (start.dtype(), x.sig.attrs.int("count")?);
        let number = |l: &Literal| l.reshaped(Vec::new()).map_err(|e| OpError::invalid(e.to_string()));
        let (start, delta) = (number(start)?, number(delta)?);
        // Half a step before the end, so that rounding cannot change the number of elements.
        let steps = if dtype.is_float() { (n as f64 - 0.5).max(0.0) } else { n as f64 };
        let limit = match (start.to_ints(), delta.to_ints()) {
            (Some(a), Some(d)) => Literal::ints(&[a[0].wrapping_add(d[0].wrapping_mul(n))]),
            _ => Literal::scalar(dtype, start.to_floats()[0] + steps * delta.to_floats()[0]),
        };
        let limit = x.constant(number(&limit)?).cast(dtype);
        x.same_of("Range", &[Some(x.constant(start)), Some(limit), Some(x.constant(delta))], Attrs::new())
    }

    fn cases(&self) -> Vec<Case> {
        let of = |dtype, start, delta, n: i64| {
            let lit = |x| Literal::scalar(dtype, x);
            Attrs::new().with("start", lit(start)).with("delta", lit(delta)).with("count", n)
        };
        vec![
            Case::new("integers down", of(DType::I64, 10.0, -3.0, 5), &[]),
            Case::new("floats", of(DType::F32, 1.0, 0.5, 4), &[]),
            Case::new("none", of(DType::I32, 1.0, 1.0, 0), &[]),
        ]
    }
}

/// Ones on diagonal `k` (positive: above the main one) of a `rows` x `cols` matrix of `dtype`, zeros elsewhere. No inputs.
pub struct Eye;

impl OpDef for Eye {
    fn name(&self) -> &'static str {
        "Eye"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["EyeLike" => import_eye_like]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let dtype = s.attrs.dtype("dtype")?;
        s.attrs.int("k")?;
        let side = |name| {
            let n = s.attrs.int(name)?;
            usize::try_from(n).map_err(|_| OpError::invalid(format!("{name} is negative: {n}")))
        };
        let dims = [side("rows")?, side("cols")?];
        count(&dims, dtype)?;
        Ok(vec![TensorType::new(dtype, &dims[..])])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (dtype, k) = (s.attrs.dtype("dtype")?, i128::from(s.attrs.int("k")?));
        let cols = s.out_dims(0)?[1];
        crate::for_width!(dtype, T => {
            let one: T = read(&Literal::scalar(dtype, 1.0));
            Ok(Box::new(move |io| {
                par::rows(io.output::<T>(0), cols, |r, row| {
                    row.fill(0);
                    let at = usize::try_from(r as i128 + k).ok();
                    if let Some(x) = at.and_then(|c| row.get_mut(c)) {
                        *x = one;
                    }
                });
                Ok(())
            }))
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let attrs = x.sig.attrs;
        let like =
            x.zeros(DType::F32, &[attrs.int("rows")?.max(0) as usize, attrs.int("cols")?.max(0) as usize]);
        let code = crate::export::code(attrs.dtype("dtype")?);
        x.same_of("EyeLike", &[Some(like)], Attrs::new().with("dtype", code).with("k", attrs.int("k")?))
    }

    fn cases(&self) -> Vec<Case> {
        let of = |r: i64, c: i64, k: i64, d: DType| {
            Attrs::new().with("rows", r).with("cols", c).with("k", k).with("dtype", d)
        };
        vec![
            Case::new("above", of(3, 4, 1, DType::F32), &[]),
            Case::new("below", of(4, 3, -2, DType::F16), &[]),
            Case::new("outside", of(2, 2, 5, DType::I8), &[]),
        ]
    }
}

/// The extents of the input as an i64 vector: for shapes with named sizes; others are constants after importing.
pub struct ShapeOf;

impl OpDef for ShapeOf {
    fn name(&self) -> &'static str {
        "Shape"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Shape" => import_shape]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        Ok(vec![TensorType::new(DType::I64, &[s.input(0)?.shape.rank()][..])])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, _: &Signature<'_>) -> Work {
        Work::default()
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let dims: Vec<i64> = s.dims(0)?.into_iter().map(|d| d as i64).collect();
        Ok(Box::new(move |io| {
            io.output::<i64>(0).copy_from_slice(&dims);
            Ok(())
        }))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("Shape", Attrs::new())
    }

    fn cases(&self) -> Vec<Case> {
        vec![Case::new("matrix", Attrs::new(), &[&[2, 3]]), Case::new("scalar", Attrs::new(), &[&[]])]
    }
}

/// The number of elements of the input as an i64 scalar; see [`ShapeOf`].
pub struct Size;

impl OpDef for Size {
    fn name(&self) -> &'static str {
        "Size"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Size" => |cx| {
            let v = match cx.ty(0)?.shape.fixed() {
                Some(d) => cx.b.constant(scalar_i64(d.iter().product::<usize>() as i64)?),
                None => { let x = cx.input(0)?; cx.b.call("Size", &[x])? }
            };
            cx.set(0, v);
            Ok(())
        }]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        s.input(0)?;
        Ok(vec![TensorType::new(DType::I64, graph::Shape::scalar())])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, _: &Signature<'_>) -> Work {
        Work::default()
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let n = s.dims(0)?.iter().product::<usize>() as i64;
        Ok(Box::new(move |io| {
            io.output::<i64>(0)[0] = n;
            Ok(())
        }))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("Size", Attrs::new())
    }

    fn cases(&self) -> Vec<Case> {
        vec![Case::new("matrix", Attrs::new(), &[&[2, 3]]), Case::new("empty", Attrs::new(), &[&[0, 3]])]
    }
}

/// Zeros of a fixed type.
pub(crate) fn zeros(b: &mut Builder<'_>, ty: &TensorType) -> Result<ValueId, OpError> {
    let shape = crate::builder::shape_attr(&ty.shape)?;
    b.op("Fill", Attrs::new().with("shape", shape).with("value", Literal::scalar(ty.dtype, 0.0)), &[])
}

/// An operator without inputs, evaluated now if its result is small.
fn generate(b: &mut Builder<'_>, op: &dyn OpDef, attrs: Attrs) -> Result<ValueId, OpError> {
    let none = Signature { attrs: &attrs, inputs: vec![], constants: vec![], outputs: vec![] };
    let types = op.infer(&none)?;
    if types[0].bytes().is_some_and(|n| n <= SMALL) {
        let s = Signature { outputs: types.iter().collect(), ..none };
        let mut literals = crate::cpu::evaluate(op, &s, &[])?;
        return Ok(b.constant(literals.remove(0)));
    }
    b.op(op.name(), attrs, &[])
}

pub(super) fn scalar_attr<'a>(s: &Signature<'a>, name: &str) -> Result<&'a Literal, OpError> {
    let l = s.attrs.opt_tensor(name)?.ok_or_else(|| OpError::invalid(format!("{name} is missing")))?;
    if l.len() != 1 {
        return Err(OpError::invalid(format!("{name} must be one element")));
    }
    Ok(l)
}

fn scalar_i64(n: i64) -> Result<Literal, OpError> {
    Literal::ints(&[n]).reshaped(Vec::new()).map_err(|e| OpError::invalid(e.to_string()))
}

/// The one element of a literal as a type of its dtype's size.
pub(crate) fn read<T: Element>(l: &Literal) -> T {
    assert_eq!(l.bytes().len(), size_of::<T>(), "one element of another size");
    // SAFETY: the bytes are there; every bit pattern is a `T`. Literals are little endian, as the platforms that run kernels are.
    unsafe { l.bytes().as_ptr().cast::<T>().read_unaligned() }
}

fn import_constant_of_shape(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let shape = cx.opt_ints(0, "the shape")?.ok_or_else(|| OpError::invalid("the shape is missing"))?;
    let value = cx.attrs.opt_tensor("value")?.cloned().unwrap_or_else(|| Literal::scalar(DType::F32, 0.0));
    let v = generate(cx.b, &Fill, Attrs::new().with("shape", shape).with("value", value))?;
    cx.set(0, v);
    Ok(())
}

fn import_constant(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let attr = ["value", "value_float", "value_int", "value_floats", "value_ints"]
        .iter()
        .find_map(|name| cx.attrs.get(name))
        .ok_or_else(|| OpError::unsupported("a constant of texts or a sparse one"))?;
    let literal = match attr {
        Attr::Tensor(t) => t.clone(),
        Attr::Float(x) => Literal::scalar(DType::F32, *x),
        Attr::Int(n) => scalar_i64(*n)?,
        Attr::Ints(v) => Literal::ints(v),
        Attr::Floats(v) => {
            let bytes: Vec<u8> = v.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
            Literal::new(DType::F32, vec![v.len() as u64], bytes)
                .map_err(|e| OpError::invalid(e.to_string()))?
        }
        _ => return Err(OpError::invalid("the value is no tensor and no number")),
    };
    let v = cx.b.constant(literal);
    cx.set(0, v);
    Ok(())
}

fn import_range(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let get = |i: usize, what: &str| {
        let l = cx.opt_literal(i, what)?.ok_or_else(|| OpError::invalid(format!("{what} is missing")))?;
        if l.len() == 1 { Ok(l) } else { Err(OpError::invalid(format!("{what} must be a scalar"))) }
    };
    let (start, limit, delta) = (get(0, "the start")?, get(1, "the limit")?, get(2, "the delta")?);
    if start.dtype() != limit.dtype() || start.dtype() != delta.dtype() {
        return Err(OpError::invalid("start, limit and delta differ in dtype"));
    }
    let n = range_count(&start, &limit, &delta)?;
    let scalar = |l: Literal| l.reshaped(Vec::new()).map_err(|e| OpError::invalid(e.to_string()));
    let attrs = Attrs::new().with("start", scalar(start)?).with("delta", scalar(delta)?).with("count", n);
    let v = generate(cx.b, &Range, attrs)?;
    cx.set(0, v);
    Ok(())
}

/// `max(ceil((limit - start) / delta), 0)`.
fn range_count(start: &Literal, limit: &Literal, delta: &Literal) -> Result<i64, OpError> {
    let wide = |l: &Literal| l.to_ints().map(|v| i128::from(v[0]));
    let count = match (wide(start), wide(limit), wide(delta)) {
        (Some(a), Some(b), Some(d)) if d != 0 => {
            let (span, d) = if d > 0 { (b - a, d) } else { (a - b, -d) };
            ((span + d - 1).max(0) / d) as f64
        }
        (None, None, None) => ((limit.to_floats()[0] - start.to_floats()[0]) / delta.to_floats()[0]).ceil(),
        _ => f64::NAN,
    };
    if !count.is_finite() {
        return Err(OpError::invalid("the range has no length (is the delta 0?)"));
    }
    Ok(count.max(0.0) as i64)
}

fn import_eye_like(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let ty = cx.ty(0)?;
    let dims = crate::fixed(&ty.shape, "the shape")?;
    let [rows, cols] = dims.as_slice() else {
        return Err(OpError::invalid(format!("the input must have 2 axes, not {}", ty.shape)));
    };
    let dtype = match cx.attrs.get("dtype") {
        None => ty.dtype,
        Some(Attr::DType(d)) => *d,
        Some(_) => onnx_dtype(cx.attrs.int("dtype")?)?,
    };
    let attrs = Attrs::new()
        .with("rows", *rows as i64)
        .with("cols", *cols as i64)
        .with("k", cx.attrs.int_or("k", 0)?)
        .with("dtype", dtype);
    let v = generate(cx.b, &Eye, attrs)?;
    cx.set(0, v);
    Ok(())
}

fn import_shape(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let shape = cx.ty(0)?.shape;
    let rank = shape.rank() as i64;
    let at = |name, default| {
        let i = cx.attrs.int_or(name, default)?;
        Ok::<i64, OpError>(if i < 0 { i.saturating_add(rank) } else { i }.clamp(0, rank))
    };
    let (start, end) = (at("start", 0)?, at("end", rank)?);
    let end = end.max(start);
    let part: Option<Vec<i64>> = shape.0[start as usize..end as usize].iter().map(|d| d.as_const()).collect();
    let v = match part {
        Some(dims) => cx.b.constant(Literal::ints(&dims)),
        None => {
            let x = cx.input(0)?;
            let all = cx.b.call("Shape", &[x])?;
            super::slice::slice_axis(cx.b, all, 0, start, end)?
        }
    };
    cx.set(0, v);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_as_long_as_onnx_says() {
        let count = |d, a, b, s| {
            let lit = |x| Literal::scalar(d, x);
            range_count(&lit(a), &lit(b), &lit(s))
        };
        assert_eq!(count(DType::I64, 1.0, 5.0, 2.0), Ok(2));
        assert_eq!(count(DType::I32, 10.0, 4.0, -2.0), Ok(3));
        assert_eq!(count(DType::I64, 3.0, 3.0, 1.0), Ok(0));
        assert_eq!(count(DType::I64, 5.0, 1.0, 2.0), Ok(0));
        assert_eq!(count(DType::F32, 0.0, 1.0, 0.25), Ok(4));
        assert_eq!(count(DType::F32, 0.0, 1.1, 0.25), Ok(5));
        assert!(count(DType::I64, 0.0, 1.0, 0.0).is_err());
        assert!(count(DType::F32, 0.0, 1.0, 0.0).is_err());
    }
}
