//! AffineGrid: evenly spaced points of an image, moved by an affine map each image has of its own.

use crate::{OpError, onnx::ImportCx};
use graph::{Literal, Shape};

/// Most points of a grid, which is a constant.
const MOST: usize = 1 << 22;

/// AffineGrid of a known size: one product of the points with the maps.
pub(super) fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (theta, ty) = (cx.input(0)?, cx.ty(0)?);
    let size =
        cx.opt_ints(1, "the size of the grid")?.ok_or_else(|| OpError::invalid("the size is missing"))?;
    let maps = crate::fixed(&ty.shape, "the shape of the maps")?;
    let extents: Option<Vec<usize>> = size.iter().map(|n| usize::try_from(*n).ok()).collect();
    let axes = size.len().saturating_sub(2);
    let Some(extents) = extents.filter(|e| (2..=3).contains(&axes) && maps == [e[0], axes, axes + 1]) else {
        return Err(OpError::invalid(format!("maps of shape {} do not fit the size {size:?}", ty.shape)));
    };
    let space = &extents[2..];
    let points = space.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).filter(|n| *n <= MOST);
    let points = points.ok_or_else(|| OpError::unsupported(format!("a grid of size {size:?}")))?;
    let corners = cx.attrs.int_or("align_corners", 0)? != 0;
    let mut bytes = Vec::new();
    for p in 0..points {
        let mut rest = p;
        // The last axis first, as the maps want it.
        for n in space.iter().rev() {
            let x = coordinate(rest % n, *n, corners);
            bytes.extend_from_slice(Literal::scalar(ty.dtype, x).bytes());
            rest /= n;
        }
        bytes.extend_from_slice(Literal::scalar(ty.dtype, 1.0).bytes());
    }
    let shape = vec![points as u64, axes as u64 + 1];
    let base = Literal::new(ty.dtype, shape, bytes).map_err(|e| OpError::invalid(e.to_string()))?;
    let base = cx.b.constant(base);
    let y = cx.b.matmul(base, theta, false, true)?;
    let shape: Vec<usize> = [extents[0]].iter().chain(space).chain(&[axes]).copied().collect();
    let y = cx.b.reshape(y, &Shape::from(&shape))?;
    cx.set(0, y);
    Ok(())
}

/// Where element `i` of `n` lies between -1 and 1, which are the outer elements' centers (`corners`) or their outer edges.
fn coordinate(i: usize, n: usize, corners: bool) -> f64 {
    match (corners, n) {
        (true, 1) => 0.0,
        (true, _) => 2.0 * i as f64 / (n - 1) as f64 - 1.0,
        (false, _) => (2 * i + 1) as f64 / n as f64 - 1.0,
    }
}
