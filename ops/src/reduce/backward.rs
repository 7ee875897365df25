//! Gradients of reductions that are not compositions.

use super::{
    engine::{Memory, reduce},
    operators::{Accumulate, Same, Sum},
    space::Space,
};
use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Float, par},
    elementwise::lanes::Broadcast3,
    export::Export,
    onnx::normalize_axes,
};
use graph::{Attrs, TensorType};

/// The type of input 0, if the other inputs have its dtype and shape with `axes` as extent 1.
fn infer(s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
    let (t, axes) = (s.input(0)?, s.attrs.ints("axes")?);
    if !t.dtype.is_float() || axes != normalize_axes(axes, t.shape.rank())? {
        return Err(OpError::invalid(format!("{t} cannot be reduced over {axes:?}")));
    }
    let mut kept = t.clone();
    axes.iter().for_each(|a| kept.shape.0[*a as usize] = graph::Dim::constant(1));
    for i in 1..s.inputs.len() {
        if s.input(i)? != &kept {
            return Err(OpError::invalid(format!("input {i} must be {kept}, not {}", s.input(i)?)));
        }
    }
    Ok(vec![t.clone()])
}

fn space(s: &Signature<'_>) -> Result<Space, OpError> {
    Ok(Space::new(&s.dims(0)?, s.attrs.ints("axes")?))
}

/// dy over the number of equals where x is y, else 0: the gradient of ReduceMax and ReduceMin. Attribute `axes`; inputs x, and y and dy
/// with the reduced axes as extent 1.
pub struct ReduceExtremeGrad;

/// Shares of each output go to the end of the workspace, the results of slices to its start.
fn extreme_kernel<T: Float + Accumulate<Wide = f64>>(s: &Signature<'_>) -> Result<CpuKernel, OpError> {
    let space = space(s)?;
    let (x, y) = (s.dims(0)?, s.dims(1)?);
    let broadcast = Broadcast3::new([&x, &y, &y], &x);
    Ok(Box::new(move |io| {
        let (x, y, dy) = (io.input_ptr::<T>(0).0, io.input_ptr::<T>(1).0, io.input_ptr::<T>(2).0);
        let workspace = io.workspace::<f64>();
        let (shares, partials) = workspace.split_at_mut(space.outputs());
        let shares = shares.as_mut_ptr().cast::<T>();
        let count = Sum(Same, |w: f64, _: T| T::from_f64(w));
        // SAFETY: the sizes are those of the space; shares have 8 bytes each in a workspace that is the kernel's own.
        unsafe {
            reduce(&space, count, Memory { x, context: Some(y), y: shares, partials });
            for o in 0..space.outputs() {
                *shares.add(o) = *dy.add(o) / *shares.add(o);
            }
            broadcast.run((x, y, shares.cast_const()), io.output_ptr::<T>(0).0, &|x: T, y: T, share: T| {
                if x == y { share } else { T::ZERO }
            });
        }
        Ok(())
    }))
}

impl OpDef for ReduceExtremeGrad {
    fn name(&self) -> &'static str {
        "ReduceExtremeGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        if s.inputs.len() != 3 {
            return Err(OpError::invalid("three inputs are needed"));
        }
        infer(s)
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let workspace = space(s).map_or(0, |p| p.workspace() + 8 * p.outputs() as u64);
        Facts { overwrites: vec![(0, 0)], ..Facts::with_workspace(workspace) }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_float!(s.input(0)?.dtype, self.name(), T => extreme_kernel::<T>(s))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (v, y, dy) = (x.input(0)?, x.input(1)?, x.input(2)?);
        let won = v.equals(y);
        let count = won.cast(v.dtype()).sum(x.sig.attrs.ints("axes")?, true);
        x.set(0, won.pick(dy / count, 0.0));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let axes = |a: &[i64]| Attrs::new().with("axes", a);
        let small = |shape: &[usize]| CaseInput::float(shape, Fill::Ints(0, 3));
        vec![
            Case::new("ties in columns", axes(&[0]), &[&[], &[], &[1, 3]])
                .input(0, small(&[5, 3]))
                .input(1, small(&[1, 3])),
            Case::new("ties in runs", axes(&[0, 2]), &[&[], &[], &[1, 3, 1]])
                .input(0, small(&[2, 3, 4]))
                .input(1, small(&[1, 3, 1])),
            Case::new("sliced", axes(&[0]), &[&[], &[], &[1]])
                .input(0, small(&[70_000]))
                .input(1, small(&[1])),
        ]
    }
}

/// dy times the product of the other elements: the gradient of ReduceProd, right for zeros too. Attribute `axes`; inputs x, and dy with
/// the reduced axes as extent 1.
pub struct ReduceProdGrad;

/// For each output the products of the elements before each one, then times those after it.
fn product_kernel<T: Float>(s: &Signature<'_>) -> Result<CpuKernel, OpError> {
    let space = space(s)?;
    Ok(Box::new(move |io| {
        let (x, dy) = (io.input::<T>(0), io.input::<T>(1));
        let dx = par::Shared(io.output_ptr::<T>(0).0);
        let count = space.count();
        par::ranges(space.outputs(), (par::GRAIN / count.max(1)).max(1), |outputs| {
            let dx = &dx;
            for o in outputs {
                let at = |j: usize| match space.run_reduced {
                    true => space.group(o) + space.row(j / space.run) + j % space.run,
                    false => space.group(o / space.run) + o % space.run + space.row(j),
                };
                let mut before = 1.0;
                for j in 0..count {
                    // SAFETY: each element belongs to one output.
                    unsafe { *dx.0.add(at(j)) = T::from_f64(before) };
                    before *= x[at(j)].to_f64();
                }
                let mut after = dy[o].to_f64();
                for j in (0..count).rev() {
                    // SAFETY: as above.
                    unsafe { *dx.0.add(at(j)) = T::from_f64((*dx.0.add(at(j))).to_f64() * after) };
                    after *= x[at(j)].to_f64();
                }
            }
        });
        Ok(())
    }))
}

impl OpDef for ReduceProdGrad {
    fn name(&self) -> &'static str {
        "ReduceProdGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        if s.inputs.len() != 2 {
            return Err(OpError::invalid("two inputs are needed"));
        }
        infer(s)
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_float!(s.input(0)?.dtype, self.name(), T => product_kernel::<T>(s))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        // The product of the elements that are not 0, divided by the element unless another one is 0.
        let (v, dy) = (x.input(0)?, x.input(1)?);
        let axes = x.sig.attrs.ints("axes")?;
        let zero = v.equals(0.0);
        let product = zero.pick(1.0, v).reduce("ReduceProd", axes, true);
        let zeros = zero.cast(v.dtype()).sum(axes, true);
        let at_zero = zeros.equals(1.0).pick(product, 0.0);
        let elsewhere = zeros.equals(0.0).pick(product / zero.pick(1.0, v), 0.0);
        x.set(0, dy * zero.pick(at_zero, elsewhere));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let axes = |a: &[i64]| Attrs::new().with("axes", a);
        let x = |shape: &[usize]| CaseInput::float(shape, Fill::Ints(-1, 3));
        vec![
            Case::new("columns", axes(&[0]), &[&[], &[1, 3]]).input(0, x(&[4, 3])),
            Case::new("runs", axes(&[0, 2]), &[&[], &[1, 3, 1]]).input(0, x(&[2, 3, 2])),
        ]
    }
}
