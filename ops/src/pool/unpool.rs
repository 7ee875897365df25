//! MaxUnpool: puts elements back where a max pool took them.

use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, KernelError},
    export::Export,
    grad::GradCx,
    loss::same_shape,
    onnx::{ImportCx, OnnxRule, rules},
};
use graph::{Attrs, DType, Dim, Shape, TensorType};

/// Zeros of attribute `shape` with x at the flat places that the i64 indices name. Indices must differ: where two are equal the later
/// element stays, and gradients are those of distinct places.
pub struct MaxUnpool;

impl OpDef for MaxUnpool {
    fn name(&self) -> &'static str {
        "MaxUnpool"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["MaxUnpool" => import]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (x, i) = (s.input(0)?, s.input(1)?);
        if i.dtype != DType::I64 {
            return Err(OpError::invalid(format!("the indices must be i64, not {i}")));
        }
        same_shape(&x.shape, &i.shape, "the indices")?;
        let shape = s.attrs.ints("shape")?;
        let bytes = shape.iter().try_fold(x.dtype.size(), |n, d| n.checked_mul(u64::try_from(*d).ok()?));
        if bytes.is_none_or(|b| b > i64::MAX as u64) {
            return Err(OpError::invalid(format!("shape {shape:?} is not one of a tensor")));
        }
        Ok(vec![TensorType {
            dtype: x.dtype,
            shape: Shape(shape.iter().map(|d| Dim::constant(*d)).collect()),
        }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (dy, indices) = (g.cotangent0()?, g.input(1)?);
        let all = g.b.ty(dy).shape.elements().and_then(|n| i64::try_from(n).ok());
        let all = all.ok_or_else(|| OpError::invalid("the output is too large"))?;
        let flat = g.b.reshape(dy, &Shape(vec![Dim::constant(all)]))?;
        let dx = g.b.op("Gather", Attrs::new().with("axis", 0i64), &[flat, indices])?;
        g.set(0, dx);
        Ok(())
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { can_fail: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_width!(s.input(0)?.dtype, T => Ok(Box::new(|io| {
            let (x, indices, y) = (io.input::<T>(0), io.input::<i64>(1), io.output::<T>(0));
            let n = y.len();
            y.fill(0);
            for (x, i) in x.iter().zip(indices) {
                match usize::try_from(*i).ok().and_then(|i| y.get_mut(i)) {
                    Some(y) => *y = *x,
                    None => return Err(KernelError(format!("index {i} is outside of {n} elements"))),
                }
            }
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let shape: Vec<usize> = x.sig.attrs.ints("shape")?.iter().map(|d| *d as usize).collect();
        let n: usize = x.dims(0)?.iter().product();
        let v = x.input(0)?;
        let flat = x.zeros(v.dtype(), &[shape.iter().product()]);
        let inputs = [flat, x.input(1)?.reshape(&[n]), v.reshape(&[n])];
        x.set(0, x.call("ScatterElements", &inputs, Attrs::new().with("axis", 0)).reshape(&shape));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let indices = CaseInput {
            shape: vec![1, 1, 2, 2],
            dtype: Some(DType::I64),
            fill: Fill::Values(vec![5.0, 7.0, 12.0, 10.0]),
            differentiate: false,
            constant: false,
        };
        let attrs = Attrs::new().with("shape", &[1i64, 1, 4, 4][..]);
        vec![Case::new("plain", attrs, &[&[1, 1, 2, 2]]).input(1, indices)]
    }
}

fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let x = crate::fixed(&cx.ty(0)?.shape, "the shape of the input")?;
    let kernel = cx.attrs.ints("kernel_shape")?.to_vec();
    let window = crate::product::window::Window::new(cx.attrs, &kernel)?;
    if x.len() != kernel.len() + 2 {
        return Err(OpError::invalid(format!("kernel_shape {kernel:?} does not fit {} axes", x.len())));
    }
    let mut shape: Vec<i64> = x.iter().map(|d| *d as i64).collect();
    for (i, d) in shape[2..].iter_mut().enumerate() {
        *d = (*d - 1) * window.strides[i] + kernel[i] - window.begin[i] - window.end[i];
    }
    if let Some(given) = cx.opt_ints(2, "output_shape")?
        && given != shape
    {
        return Err(OpError::unsupported(format!("output_shape {given:?} where the window gives {shape:?}")));
    }
    let (x, indices) = (cx.input(0)?, cx.input(1)?);
    let y = cx.b.op("MaxUnpool", Attrs::new().with("shape", shape), &[x, indices])?;
    cx.set(0, y);
    Ok(())
}
