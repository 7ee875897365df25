//! PRelu: a rectifier whose slope is learned.

use super::{
    binary::{broadcast, same_dtype, set_summed, zip},
    extreme::gradient_type,
    lanes::zip3,
    unary::float_input,
};
use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Float},
    export::Export,
    grad::GradCx,
    onnx::{OnnxRule, rules},
};
use graph::{Attrs, TensorType};

/// x, or slope·x where x is negative. Inputs x, slope; the slope is broadcast to x.
pub struct PRelu;

impl OpDef for PRelu {
    fn name(&self) -> &'static str {
        "PRelu"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["PRelu" => |cx| cx.same("PRelu", Attrs::new())]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = float_input(s)?.swap_remove(0);
        let slope = s.input(1)?;
        if slope.dtype != x.dtype || broadcast(&x.shape, &slope.shape)? != x.shape {
            return Err(OpError::invalid(format!("the slope, {slope}, does not broadcast to {x}")));
        }
        Ok(vec![x])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (x, slope, dy) = (g.input(0)?, g.input(1)?, g.cotangent0()?);
        if g.needs(0) {
            let d = g.b.call("PReluGrad", &[x, slope, dy])?;
            g.set(0, d);
        }
        if g.needs(1) {
            let d = g.b.call("PReluSlopeGrad", &[x, dy])?;
            set_summed(g, 1, d)?;
        }
        Ok(())
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        super::binary::broadcast_facts(s)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_float!(s.input(0)?.dtype, self.name(), T => {
            zip::<T, T>(s, |x: T, slope: T| if x > T::ZERO { x } else { x * slope })
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("PRelu", Attrs::new())
    }

    fn cases(&self) -> Vec<Case> {
        let x = |shape: &[usize]| {
            CaseInput::float(shape, Fill::Avoid { range: (-1.0, 1.0), points: &[0.0], margin: 0.05 })
        };
        vec![
            Case::new("channel", Attrs::new(), &[&[], &[3, 1]]).input(0, x(&[2, 3, 4])),
            Case::new("shared", Attrs::new(), &[&[], &[1]]).input(0, x(&[2, 5])),
        ]
    }
}

/// The gradient of [`PRelu`] to x. Inputs x, slope, dy.
pub struct PReluGrad;

impl OpDef for PReluGrad {
    fn name(&self) -> &'static str {
        "PReluGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        gradient_type(s)
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        super::binary::broadcast_facts(s)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_float!(s.input(0)?.dtype, self.name(), T => {
            zip3::<T, T, T, T>(s, |x: T, slope: T, dy: T| if x > T::ZERO { dy } else { dy * slope })
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (v, slope, dy) = (x.input(0)?, x.input(1)?, x.input(2)?);
        x.set(0, v.greater(0.0).pick(dy, dy * slope));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        vec![Case::new("channel", Attrs::new(), &[&[2, 3, 4], &[3, 1], &[2, 3, 4]])]
    }
}

/// The gradient of [`PRelu`] to the slope before it is summed. Inputs x, dy.
pub struct PReluSlopeGrad;

impl OpDef for PReluSlopeGrad {
    fn name(&self) -> &'static str {
        "PReluSlopeGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        float_input(s)?;
        same_dtype(s)
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        super::binary::broadcast_facts(s)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        crate::for_float!(s.input(0)?.dtype, self.name(), T => {
            zip::<T, T>(s, |x: T, dy: T| if x > T::ZERO { T::ZERO } else { x * dy })
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (v, dy) = (x.input(0)?, x.input(1)?);
        x.set(0, v.greater(0.0).pick(0.0, v * dy));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        vec![Case::new("both signs", Attrs::new(), &[&[3, 5], &[3, 5]])]
    }
}
