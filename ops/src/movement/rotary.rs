//! ONNX's RotaryEmbedding: pairs of elements turned by an angle that depends on the position.

use crate::{OpError, onnx::ImportCx};
use graph::{Attrs, Shape, ValueId};

/// RotaryEmbedding of `[batch, heads, positions, size]`, or of `[batch, positions, heads * size]`.
pub(super) fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (mut x, shape) = (cx.input(0)?, cx.ty(0)?.shape);
    let dims = crate::fixed(&shape, "the shape of the input")?;
    // Heads stand before or after the positions; the angles are the same for all.
    let (dims, positions_at) = match dims[..] {
        [batch, heads, positions, size] => ([batch, heads, positions, size], 2),
        [batch, positions, hidden] => {
            let heads = usize::try_from(cx.attrs.int_or("num_heads", 0)?).unwrap_or(0);
            if heads == 0 || hidden % heads != 0 {
                return Err(OpError::invalid(format!("num_heads is {heads}, the input {shape}")));
            }
            ([batch, positions, heads, hidden / heads], 1)
        }
        _ => return Err(OpError::invalid(format!("the input must have 3 or 4 axes, not {shape}"))),
    };
    x = cx.b.reshape(x, &Shape::from(&dims[..]))?;
    let size = dims[3] as i64;
    let turned = match cx.attrs.int_or("rotary_embedding_dim", 0)? {
        0 => size,
        n => n,
    };
    if turned < 2 || turned % 2 != 0 || turned > size {
        return Err(OpError::invalid(format!("{turned} of {size} elements cannot be turned in pairs")));
    }
    let angles = |cx: &mut ImportCx<'_, '_>, i: usize| {
        let mut v = cx.input(i)?;
        if let Some(positions) = cx.opt_input(3) {
            v = cx.b.op("Gather", Attrs::new().with("axis", 0i64), &[v, positions])?;
        }
        let mut at = [dims[0], 1, 1, turned as usize / 2];
        at[positions_at] = dims[positions_at];
        cx.b.reshape(v, &Shape::from(&at[..]))
    };
    let (cosine, sine) = (angles(cx, 1)?, angles(cx, 2)?);
    let rest = if turned < size {
        let parts = split(cx, x, 3, &[turned, size - turned])?;
        x = parts[0];
        Some(parts[1])
    } else {
        None
    };
    let half = turned as usize / 2;
    let [a, b, c, _] = dims;
    let interleaved = cx.attrs.int_or("interleaved", 0)? != 0;
    let pair = if interleaved {
        let apart = cx.b.reshape(x, &Shape::from(&[a, b, c, half, 2][..]))?;
        let parts = split(cx, apart, 4, &[1, 1])?;
        let flat = Shape::from(&[a, b, c, half][..]);
        [cx.b.reshape(parts[0], &flat)?, cx.b.reshape(parts[1], &flat)?]
    } else {
        let parts = split(cx, x, 3, &[half as i64; 2])?;
        [parts[0], parts[1]]
    };
    let mut product = |v: ValueId, by: ValueId| cx.b.call("Mul", &[v, by]);
    let (xc, ys) = (product(pair[0], cosine)?, product(pair[1], sine)?);
    let (xs, yc) = (product(pair[0], sine)?, product(pair[1], cosine)?);
    let mut new = [cx.b.call("Sub", &[xc, ys])?, cx.b.call("Add", &[xs, yc])?];
    let axis = Attrs::new().with("axis", if interleaved { 4i64 } else { 3 });
    if interleaved {
        for v in &mut new {
            *v = cx.b.reshape(*v, &Shape::from(&[a, b, c, half, 1][..]))?;
        }
    }
    let mut y = cx.b.op("Concat", axis, &new)?;
    y = cx.b.reshape(y, &Shape::from(&[a, b, c, 2 * half][..]))?;
    if let Some(rest) = rest {
        y = cx.b.op("Concat", Attrs::new().with("axis", 3i64), &[y, rest])?;
    }
    y = cx.b.reshape(y, &shape)?;
    cx.set(0, y);
    Ok(())
}

fn split(cx: &mut ImportCx<'_, '_>, v: ValueId, axis: i64, cut: &[i64]) -> Result<Vec<ValueId>, OpError> {
    cx.b.emit("Split", Attrs::new().with("axis", axis).with("split", cut), &[Some(v)])
}
