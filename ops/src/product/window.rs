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

    /// Number of windows of a pool along an axis. As onnxruntime has it, a window that is longer than the padded axis by less than a stride
    /// still is one: what lies beyond the axis does not count.
    pub(crate) fn pool_count(&self, axis: usize, input: &Dim, ceil: bool) -> Result<Dim, OpError> {
        let pads = self.begin[axis] + self.end[axis];
        let lacks = input.as_const().map_or(0, |n| self.reach(axis) - n - pads);
        if lacks > 0 && lacks < self.strides[axis] && input.as_const() != Some(0) {
            return Ok(Dim::constant(1));
        }
        self.count(axis, input, ceil)
    }

    /// The attributes this window is read from.
    pub(crate) fn attrs(&self) -> Attrs {
        let pads: Vec<i64> = self.begin.iter().chain(&self.end).copied().collect();
        Attrs::new()
            .with("strides", self.strides.clone())
            .with("dilations", self.dilations.clone())
            .with("pads", pads)
    }

    /// The attributes of ONNX's operators.
    pub(crate) fn exported(&self) -> Attrs {
        self.attrs().with("kernel_shape", self.kernel.clone())
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

/// How one plane (the spatial axes of one channel of one image) slides under a window: the *large* side are the window's inputs, the
/// *small* side its positions. Three axes; missing ones in front have extent 1.
#[derive(Clone, Debug)]
pub(crate) struct Slide {
    pub(crate) large: [usize; 3],
    pub(crate) small: [usize; 3],
    pub(crate) kernel: [usize; 3],
    pub(crate) stride: [usize; 3],
    pub(crate) dilation: [usize; 3],
    pub(crate) begin: [usize; 3],
    pub(crate) end: [usize; 3],
    spans: Vec<Span>,
}

/// What a tap joins in every row: its offsets along the outer axes, and first column, count and first element on the large side along
/// the innermost one.
#[derive(Clone, Copy, Debug)]
struct Span {
    z: usize,
    y: usize,
    first: usize,
    count: usize,
    large: usize,
}

/// Elements that one tap joins in a row of the small side: first element and count there, first element on the large side (whose next
/// ones lie the innermost stride apart).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meet {
    pub(crate) small: usize,
    pub(crate) count: usize,
    pub(crate) large: usize,
}

impl Slide {
    pub(crate) fn new(w: &Window, large: &[usize], small: &[usize]) -> Slide {
        let size = |v: &[i64], fill| three(v, fill).map(|x| x as usize);
        let mut slide = Slide {
            large: three(large, 1),
            small: three(small, 1),
            kernel: size(&w.kernel, 1),
            stride: size(&w.strides, 1),
            dilation: size(&w.dilations, 1),
            begin: size(&w.begin, 0),
            end: size(&w.end, 0),
            spans: Vec::new(),
        };
        slide.spans = (0..slide.taps()).map(|t| slide.span(t)).collect();
        slide
    }

    /// Positions of the kernel.
    pub(crate) fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Elements of a plane on the large and on the small side.
    pub(crate) fn planes(&self) -> [usize; 2] {
        [self.large.iter().product(), self.small.iter().product()]
    }

    /// The rows of the small side.
    #[inline(always)]
    pub(crate) fn rows(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let [d, h, _] = self.small;
        (0..d * h).map(move |i| (i / h, i % h))
    }

    /// The kernel position of tap `t`.
    #[inline(always)]
    pub(crate) fn position(&self, t: usize) -> [usize; 3] {
        let [_, kh, kw] = self.kernel;
        [t / (kh * kw), t / kw % kh, t % kw]
    }

    fn span(&self, t: usize) -> Span {
        let k = self.position(t);
        // Columns w with 0 <= w·s + k·dilation - begin < extent.
        let (s, shift) = (self.stride[2], k[2] * self.dilation[2]);
        let first = self.begin[2].saturating_sub(shift).div_ceil(s);
        let end = (self.large[2] + self.begin[2]).saturating_sub(shift).div_ceil(s).min(self.small[2]);
        let count = end.saturating_sub(first);
        let large = if count > 0 { first * s + shift - self.begin[2] } else { 0 };
        Span { z: k[0] * self.dilation[0], y: k[1] * self.dilation[1], first, count, large }
    }

    /// What tap `t` joins in row (d, h) of the small side, if anything inside of the large side.
    #[inline(always)]
    pub(crate) fn meet(&self, t: usize, d: usize, h: usize) -> Option<Meet> {
        let span = self.spans[t];
        let z = (d * self.stride[0] + span.z).wrapping_sub(self.begin[0]);
        let y = (h * self.stride[1] + span.y).wrapping_sub(self.begin[1]);
        if z >= self.large[0] || y >= self.large[1] || span.count == 0 {
            return None;
        }
        Some(Meet {
            small: (d * self.small[1] + h) * self.small[2] + span.first,
            count: span.count,
            large: (z * self.large[1] + y) * self.large[2] + span.large,
        })
    }
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
        let pool = |n: i64, k: i64, stride: i64| {
            let attrs = Attrs::new().with("strides", vec![stride]);
            Window::new(&attrs, &[k]).unwrap().pool_count(0, &Dim::constant(n), false).ok()?.as_const()
        };
        assert_eq!(
            [pool(1, 2, 2), pool(2, 4, 3), pool(1, 2, 1), pool(1, 4, 2)],
            [Some(1), Some(1), None, None]
        );
    }
}
