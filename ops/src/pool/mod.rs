//! Pools: maxima, means and norms over sliding windows.

pub mod average;
pub(crate) mod cuda;
mod export;
mod lp;
pub mod max;
pub(crate) mod regions;
pub mod roi;
pub mod unpool;

use crate::{
    OpError, Signature,
    onnx::ImportCx,
    product::window::{Slide, Window, spatial},
};
use graph::{Attrs, Dim, Shape};

/// The window of a pool, from the attributes `kernel`, `strides`, `pads`, `dilations`; `ceil_mode` 1 rounds the number of windows up.
fn arguments(attrs: &Attrs) -> Result<(Window, bool), OpError> {
    let window = Window::new(attrs, attrs.ints("kernel")?)?;
    let taps = window.kernel.iter().try_fold(1i64, |n, k| n.checked_mul(*k)).filter(|n| *n <= 1 << 24);
    if taps.is_none() {
        return Err(OpError::invalid(format!("the kernel {:?} is too large", window.kernel)));
    }
    Ok((window, attrs.int_or("ceil_mode", 0)? != 0))
}

/// The shape of the pooled tensor.
fn pooled(attrs: &Attrs, x: &Shape) -> Result<Shape, OpError> {
    let (window, ceil) = arguments(attrs)?;
    let space = spatial(x)?;
    if space.len() != window.rank() {
        return Err(OpError::invalid(format!("the kernel {:?} does not fit the axes of {x}", window.kernel)));
    }
    let mut shape = x.0[..2].to_vec();
    for (i, d) in space.iter().enumerate() {
        shape.push(window.pool_count(i, d, ceil)?);
    }
    Ok(Shape(shape))
}

/// The shape that was pooled to `y`: with the spatial extents of attribute `size`. Refuses a `y` that they are not pooled to.
fn unpooled(attrs: &Attrs, y: &Shape) -> Result<Shape, OpError> {
    let size = attrs.ints("size")?;
    if spatial(y)?.len() != size.len() || size.iter().any(|n| *n < 0) {
        return Err(OpError::invalid(format!("size {size:?} does not fit {y}")));
    }
    let x = Shape(y.0[..2].iter().cloned().chain(size.iter().map(|n| Dim::constant(*n))).collect());
    let expected = pooled(attrs, &x)?;
    if &expected != y {
        return Err(OpError::invalid(format!("{x} is pooled to {expected}, not {y}")));
    }
    Ok(x)
}

/// The attributes of a pool's gradient: those of the pool and the spatial extents of its input.
fn gradient_attrs(attrs: &Attrs, x: &Shape) -> Result<Attrs, OpError> {
    let size = crate::fixed(x, "the shape of a pool's input")?;
    Ok(attrs.clone().with("size", size[2..].iter().map(|n| *n as i64).collect::<Vec<_>>()))
}

/// Planes (images times channels), and how one of them slides, with the extents of `large` and `small`.
fn slide(s: &Signature<'_>, large: &[usize], small: &[usize]) -> Result<(usize, Slide), OpError> {
    let (window, _) = arguments(s.attrs)?;
    Ok((large[0] * large[1], Slide::new(&window, &large[2..], &small[2..])))
}

/// The canonical attributes of an ONNX pool.
fn import_window(cx: &ImportCx<'_, '_>) -> Result<Attrs, OpError> {
    let x = cx.ty(0)?.shape;
    let kernel = cx.attrs.ints("kernel_shape")?.to_vec();
    let space = spatial(&x)?;
    if space.len() != kernel.len() {
        return Err(OpError::invalid(format!("kernel_shape {kernel:?} does not fit the axes of {x}")));
    }
    let window = Window::import(cx, &kernel, space)?;
    let ceil = cx.attrs.int_or("ceil_mode", 0)? != 0;
    Ok(window.attrs().with("kernel", kernel).with("ceil_mode", ceil))
}

use max::position_type;

/// Canonical attributes for cases.
fn window_attrs(kernel: &[i64], strides: &[i64], pads: &[i64], dilations: &[i64], ceil: bool) -> Attrs {
    Attrs::new()
        .with("kernel", kernel)
        .with("strides", strides)
        .with("pads", pads)
        .with("dilations", dilations)
        .with("ceil_mode", ceil)
}
