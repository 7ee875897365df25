//! Overlapping frames of a signal.

use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::Case,
    cpu::{
        CpuKernel, Element, Float,
        par::{self, Shared},
    },
    grad::GradCx,
    movement::count,
};
use graph::{Attrs, TensorType};

/// Frames of `length` elements that begin `step` apart along axis 1 of `[batch, n, parts]`: `[batch, frames, length, parts]`. What is left
/// at the end and fills no frame is dropped.
pub struct Frame;

/// The gradient of [`Frame`]: every element of a signal of `total` elements is the sum over the frames that hold it, first frame first.
pub struct FrameGrad;

/// Frame length, step.
pub(super) fn sizes(s: &Signature<'_>) -> Result<(usize, usize), OpError> {
    let (length, step) = (s.attrs.int("length")?, s.attrs.int("step")?);
    match (usize::try_from(length), usize::try_from(step)) {
        (Ok(length), Ok(step)) if length > 0 && step > 0 => Ok((length, step)),
        _ => Err(OpError::invalid(format!("frames of {length} elements, {step} apart"))),
    }
}

/// How many frames a signal of `n` elements has.
fn frames_of(n: usize, length: usize, step: usize) -> Result<usize, OpError> {
    match n.checked_sub(length) {
        Some(rest) => Ok(rest / step + 1),
        None => Err(OpError::invalid(format!("a frame of {length} elements is longer than the signal, {n}"))),
    }
}

impl OpDef for Frame {
    fn name(&self) -> &'static str {
        "Frame"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = s.input(0)?;
        let (length, step) = sizes(s)?;
        let [batch, n, parts] = &x.shape.0[..] else {
            return Err(OpError::invalid(format!("the signal must have 3 axes, not {}", x.shape)));
        };
        let n = n.as_const().ok_or_else(|| OpError::Dynamic(format!("the length {n} of the signal")))?;
        let frames = frames_of(n as usize, length, step)?;
        let shape = graph::Shape(vec![batch.clone(), frames.into(), length.into(), parts.clone()]);
        if let Some(dims) = shape.fixed() {
            count(&dims, x.dtype)?;
        }
        Ok(vec![TensorType { dtype: x.dtype, shape }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let total = crate::fixed(&g.ty(0)?.shape, "the shape of the signal")?[1];
        let attrs = g.attrs().clone().with("total", total as i64);
        let dy = g.cotangent0()?;
        let dx = g.b.op("FrameGrad", attrs, &[dy])?;
        g.set(0, dx);
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        Work { bytes: s.io_bytes(), ..Work::default() }
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (dims, (length, step)) = (s.dims(0)?, sizes(s)?);
        let (n, parts) = (dims[1], dims[2]);
        // A step beyond the end is never taken.
        let step = step.min(n.max(1));
        let frames = frames_of(n, length, step)?;
        crate::for_width!(s.input(0)?.dtype, T => Ok(frame::<T>(frames, length * parts, step * parts, n * parts)))
    }

    fn cases(&self) -> Vec<Case> {
        vec![
            Case::new("overlapping", attrs(4, 2), &[&[2, 9, 1]]),
            Case::new("apart, complex", attrs(2, 3), &[&[2, 8, 2]]),
            Case::new("one frame", attrs(5, 1), &[&[1, 5, 1]]),
        ]
    }
}

/// The attributes of frames.
pub(super) fn attrs(length: i64, step: i64) -> Attrs {
    Attrs::new().with("length", length).with("step", step)
}

fn frame<T: Element>(frames: usize, len: usize, step: usize, n: usize) -> CpuKernel {
    Box::new(move |io| {
        let x = io.input::<T>(0);
        par::rows(io.output::<T>(0), len, |row, y| {
            let from = row / frames * n + row % frames * step;
            y.copy_from_slice(&x[from..from + len]);
        });
        Ok(())
    })
}

impl OpDef for FrameGrad {
    fn name(&self) -> &'static str {
        "FrameGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let dy = s.input(0)?;
        let (length, step) = sizes(s)?;
        let total = s.attrs.int("total")?;
        let total =
            usize::try_from(total).map_err(|_| OpError::invalid(format!("a signal of {total} elements")))?;
        let dims = crate::fixed(&dy.shape, "the shape of the frames")?;
        let frames = frames_of(total, length, step)?;
        if !dy.dtype.is_float() || dims.len() != 4 || dims[1..3] != [frames, length] {
            return Err(OpError::invalid(format!("{dy} are not {frames} frames of {length} floats")));
        }
        count(&[dims[0], total, dims[3]], dy.dtype)?;
        Ok(vec![TensorType::new(dy.dtype, &[dims[0], total, dims[3]][..])])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (dims, (length, step), total) = (s.dims(0)?, sizes(s)?, s.out_dims(0)?[1]);
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(add::<T>([dims[1], length, dims[3]], step, total)))
    }

    fn cases(&self) -> Vec<Case> {
        vec![
            Case::new("overlapping", attrs(4, 2).with("total", 9i64), &[&[2, 3, 4, 1]]),
            Case::new("apart, complex", attrs(2, 3).with("total", 8i64), &[&[2, 3, 2, 2]]),
        ]
    }
}

fn add<T: Float>([frames, length, parts]: [usize; 3], step: usize, total: usize) -> CpuKernel {
    Box::new(move |io| {
        let (dy, y) = (io.input::<T>(0), io.output::<T>(0));
        let (rows, dx) = (y.len() / parts.max(1), Shared(y.as_mut_ptr()));
        par::ranges(rows, par::GRAIN / parts.max(1), |r| {
            let dx = &dx;
            for row in r {
                let (b, t) = (row / total, row % total);
                // Frames that begin at most `length - 1` elements before, and that exist.
                let first = (t + 1).saturating_sub(length).div_ceil(step);
                let last = (t / step + 1).min(frames);
                for p in 0..parts {
                    let sum = (first..last).fold(T::ZERO, |sum, f| {
                        sum + dy[((b * frames + f) * length + t - f * step) * parts + p]
                    });
                    // SAFETY: inside the output, written once.
                    unsafe { *dx.0.add(row * parts + p) = sum };
                }
            }
        });
        Ok(())
    })
}
