//! Sliding windows: kernel, strides, dilations and padding of convolutions and pools, read from attributes and from ONNX.

use crate::{OpError, onnx::ImportCx};
use graph::{Attrs, Dim, Shape};

/// Largest number taken for a stride, dilation or padding, so that no product of few of them overflows.
const LIMIT: i64 = 1 << 24;

/// A window over the spatial axes of a tensor [images, channels, spatial..].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) kernel: Vec<i64>,
    pub(crate) strides: Vec<i64>,
    pub(crate) dilations: Vec<i64>,
    /// Padding before each axis.
    pub(crate) begin: Vec<i64>,
    /// Padding after each axis.
    pub(crate) end: Vec<i64>,
}

impl Window {
    /// Reads `strides`, `dilations` (1 where left out) and `pads` (begins, then ends; 0 where left out).
    pub(crate) fn new(attrs: &Attrs, kernel: &[i64]) -> Result<Window, OpError> {
        let rank = kernel.len();
        let list = |name: &str, len: usize, default: i64, least: i64| -> Result<Vec<i64>, OpError> {
            let v = attrs.opt_ints(name)?.map_or_else(|| vec![default; len], <[i64]>::to_vec);
            if v.len() != len || v.iter().any(|x| *x < least || *x > LIMIT) {
                let what = format!("{name} must be {len} numbers of at least {least}, not {v:?}");
                return Err(OpError::invalid(what));
            }
            Ok(v)
        };
        if kernel.iter().any(|k| *k < 1 || *k > LIMIT) {
            return Err(OpError::invalid(format!("the kernel must have positive extents, not {kernel:?}")));
        }
        let pads = list("pads", 2 * rank, 0, 0)?;
        Ok(Window {
            kernel: kernel.to_vec(),
            strides: list("strides", rank, 1, 1)?,
            dilations: list("dilations", rank, 1, 1)?,
            begin: pads[..rank].to_vec(),
            end: pads[rank..].to_vec(),
        })
    }

    /// Number of spatial axes.
    pub(crate) fn rank(&self) -> usize {
        self.kernel.len()
    }

    /// Extent that the kernel covers along an axis.
    pub(crate) fn reach(&self, axis: usize) -> i64 {
        self.dilations[axis] * (self.kernel[axis] - 1) + 1
    }

    /// Number of windows along an axis, rounded down, or up with `ceil`: then windows that would start in the end padding are dropped.
    pub(crate) fn count(&self, axis: usize, input: &Dim, ceil: bool) -> Result<Dim, OpError> {
        let (s, reach) = (self.strides[axis], self.reach(axis));
        let span = input.add(&Dim::constant(self.begin[axis] + self.end[axis] - reach));
        if span.as_const().is_some_and(|n| n < 0) {
            let (b, e) = (self.begin[axis], self.end[axis]);
            return Err(OpError::invalid(format!(
                "the window covers {reach}, more than spatial axis {axis} of {input} with padding {b} and {e}"
            )));
        }
        let stride = Dim::constant(s);
        let steps = if ceil { span.ceil_div(&stride) } else { span.floor_div(&stride) };
        let count = steps.ok_or_else(|| OpError::invalid("a stride is 0"))?.add(&Dim::constant(1));
        if ceil && s > 1 {
            let Some(n) = input.as_const() else {
                return Err(OpError::Dynamic(format!("the number of windows over {input} (ceil_mode)")));
            };
            let last = count.as_const().map_or(0, |c| (c - 1) * s);
            if last >= n + self.begin[axis] {
                return Ok(count.sub(&Dim::constant(1)));
            }
        }
        Ok(count)
    }

    /// The attributes this window is read from.
    pub(crate) fn attrs(&self) -> Attrs {
        let pads: Vec<i64> = self.begin.iter().chain(&self.end).copied().collect();
        Attrs::new()
            .with("strides", self.strides.clone())
            .with("dilations", self.dilations.clone())
            .with("pads", pads)
    }

    /// Reads an ONNX node's window and resolves `auto_pad` for an input of the given spatial extents.
    pub(crate) fn import(cx: &ImportCx<'_, '_>, kernel: &[i64], spatial: &[Dim]) -> Result<Window, OpError> {
        let auto = cx.attrs.str_or("auto_pad", "NOTSET")?.to_owned();
        let mut attrs = cx.attrs.clone();
        if auto != "NOTSET" {
            attrs.0.remove("pads");
        }
        let mut w = Window::new(&attrs, kernel)?;
        let lower = match auto.as_str() {
            "NOTSET" | "VALID" => return Ok(w),
            "SAME_UPPER" => false,
            "SAME_LOWER" => true,
            other => return Err(OpError::invalid(format!("auto_pad {other:?} is not defined"))),
        };
        for (i, extent) in spatial.iter().enumerate().take(w.rank()) {
            let (s, reach) = (w.strides[i], w.reach(i));
            let total = match extent.as_const() {
                Some(n) => ((n + s - 1) / s - 1) * s + reach - n,
                None if s == 1 => reach - 1,
                None => return Err(OpError::Dynamic(format!("the padding of axis {} (auto_pad)", i + 2))),
            }
            .max(0);
            let small = total / 2;
            (w.begin[i], w.end[i]) = if lower { (total - small, small) } else { (small, total - small) };
        }
        Ok(w)
    }
}

/// The spatial axes of [images, channels, spatial..]; at least one, at most three.
pub(crate) fn spatial(shape: &Shape) -> Result<&[Dim], OpError> {
    match shape.0.len() {
        3..=5 => Ok(&shape.0[2..]),
        0..=2 => Err(OpError::invalid(format!("the input must have spatial axes: {shape}"))),
        _ => Err(OpError::unsupported(format!("more than three spatial axes: {shape}"))),
    }
}

/// Up to three numbers as three, `fill` in front.
pub(crate) fn three<T: Copy>(v: &[T], fill: T) -> [T; 3] {
    let mut out = [fill; 3];
    let n = v.len().min(3);
    out[3 - n..].copy_from_slice(&v[v.len() - n..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(n: i64, k: i64, stride: i64, pads: [i64; 2], ceil: bool) -> Option<i64> {
        let attrs = Attrs::new().with("strides", vec![stride]).with("pads", pads.to_vec());
        Window::new(&attrs, &[k]).unwrap().count(0, &Dim::constant(n), ceil).ok()?.as_const()
    }

    #[test]
    fn windows_are_counted_as_onnx_does() {
        assert_eq!(count(7, 3, 2, [1, 1], false), Some(4));
        assert_eq!(count(6, 3, 2, [0, 0], false), Some(2));
        assert_eq!(count(6, 3, 2, [0, 0], true), Some(3));
        // The third window of the rounded-up count would start in the end padding.
        assert_eq!(count(2, 1, 2, [0, 1], true), Some(1));
        assert_eq!(count(2, 5, 1, [1, 1], false), None);
    }
}
