//! Col2Im: blocks added up to an image, which is a transposed convolution with kernels that pick one element each.

use super::window::Window;
use crate::{OpError, onnx::ImportCx};
use graph::{Attrs, Literal, Shape};

/// Most elements of the kernels, which are a constant.
const MOST: usize = 1 << 22;

pub(super) fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (x, ty) = (cx.input(0)?, cx.ty(0)?);
    let missing = |what: &str| OpError::invalid(format!("{what} is missing"));
    let image = cx.opt_ints(1, "the shape of the image")?.ok_or_else(|| missing("the shape of the image"))?;
    let block =
        cx.opt_ints(2, "the shape of the blocks")?.ok_or_else(|| missing("the shape of the blocks"))?;
    let window = Window::new(cx.attrs, &block)?;
    let dims = crate::fixed(&ty.shape, "the shape of the input")?;
    let &[images, rows, blocks] = &dims[..] else {
        return Err(OpError::invalid(format!("the input must have 3 axes, not {}", ty.shape)));
    };
    let kernel = block.iter().try_fold(1usize, |n, d| n.checked_mul(usize::try_from(*d).ok()?));
    let kernel = kernel.filter(|k| *k > 0 && rows % k == 0 && image.len() == block.len());
    let Some(kernel) = kernel else {
        return Err(OpError::invalid(format!(
            "blocks {block:?} of an image {image:?} do not fit {}",
            ty.shape
        )));
    };
    if rows.checked_mul(kernel).is_none_or(|n| n > MOST) {
        return Err(OpError::unsupported(format!("blocks of shape {block:?} in {rows} rows")));
    }
    let (mut counts, mut extra) = (Vec::new(), Vec::new());
    for (i, n) in image.iter().enumerate() {
        let count = window.count(i, &graph::Dim::constant(*n), false)?.as_const().unwrap_or(0);
        let covered = (count - 1) * window.strides[i] + window.reach(i) - window.begin[i] - window.end[i];
        counts.push(count as usize);
        extra.push(n - covered);
    }
    if counts.iter().product::<usize>() != blocks {
        return Err(OpError::invalid(format!("an image {image:?} has {counts:?} blocks, not {blocks}")));
    }
    let mut ones = vec![0.0; rows * kernel];
    (0..rows).for_each(|r| ones[r * kernel + r % kernel] = 1.0);
    let bytes: Vec<u8> = ones.iter().flat_map(|v| Literal::scalar(ty.dtype, *v).bytes().to_vec()).collect();
    let shape = [rows as u64, 1].into_iter().chain(block.iter().map(|d| *d as u64)).collect();
    let weights = Literal::new(ty.dtype, shape, bytes).map_err(|e| OpError::invalid(e.to_string()))?;
    let weights = cx.b.constant(weights);
    let to: Vec<usize> = [images, rows].into_iter().chain(counts).collect();
    let x = cx.b.reshape(x, &Shape::from(&to))?;
    let attrs: Attrs = window.attrs().with("group", (rows / kernel) as i64).with("output_padding", extra);
    let y = cx.b.op("ConvTranspose", attrs, &[x, weights])?;
    cx.set(0, y);
    Ok(())
}
