//! ONNX operators whose output shape depends on the data: NonZero, Compress, Unique. Read where the data are constants.

use crate::{
    OpError,
    onnx::{ImportCx, normalize_axis},
};
use graph::{Attrs, DType, Dim, Literal, Shape};
use std::sync::Arc;

/// NonZero of a constant: the coordinates of its elements that are not 0, one row an axis.
pub(super) fn import_non_zero(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let x = cx
        .opt_literal(0, "the number of elements that are not 0")?
        .ok_or_else(|| OpError::invalid("input 0 is missing"))?;
    let (rank, count) = (x.shape().len().max(1), x.non_zero().count());
    cx.b.room((8 * rank * count) as u64)?;
    let indices = literal(DType::I64, vec![rank as u64, count as u64], non_zero(&x, count))?;
    let v = cx.b.constant(indices);
    cx.set(0, v);
    Ok(())
}

/// The coordinates of the `count` elements that are not 0, a row an axis (a scalar counts as a vector), as bytes.
fn non_zero(x: &Literal, count: usize) -> Arc<[u8]> {
    let dims: Vec<usize> =
        if x.shape().is_empty() { vec![1] } else { x.shape().iter().map(|d| *d as usize).collect() };
    let mut columns = dims.iter().enumerate().flat_map(|(a, n)| {
        let inner: usize = dims[a + 1..].iter().product();
        x.non_zero().map(move |i| (i / inner % n) as i64)
    });
    listed(dims.len() * count, &mut columns)
}

/// So many integers as bytes, in one allocation.
fn listed(count: usize, numbers: &mut dyn Iterator<Item = i64>) -> Arc<[u8]> {
    let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, 8 * count).collect();
    if let Some(bytes) = Arc::get_mut(&mut bytes) {
        bytes.chunks_exact_mut(8).zip(numbers).for_each(|(b, n)| b.copy_from_slice(&n.to_le_bytes()));
    }
    bytes
}

/// Compress by a constant condition: a gather of the positions where it is true.
pub(super) fn import_compress(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let condition = cx
        .opt_literal(1, "the number of elements that are kept")?
        .ok_or_else(|| OpError::invalid("the condition (input 1) is missing"))?;
    let count = condition.non_zero().count();
    cx.b.room(8 * count as u64)?;
    let kept = listed(count, &mut condition.non_zero().map(|i| i as i64));
    let last = condition.non_zero().last();
    let (mut x, shape) = (cx.input(0)?, cx.ty(0)?.shape);
    let axis = match cx.attrs.opt_int("axis")? {
        Some(axis) => normalize_axis(axis, shape.rank())?,
        None => {
            let flat = Shape(vec![shape.0.iter().fold(Dim::constant(1), |p, d| p.mul(d))]);
            x = cx.b.reshape(x, &flat)?;
            0
        }
    };
    if let (Some(n), Some(last)) = (cx.b.ty(x).shape.0[axis].as_const(), last)
        && last as i64 >= n
    {
        return Err(OpError::invalid(format!("the condition keeps element {last} of {n}")));
    }
    let indices = cx.b.constant(literal(DType::I64, vec![count as u64], kept)?);
    let y = cx.b.op("Gather", Attrs::new().with("axis", axis as i64), &[x, indices])?;
    cx.set(0, y);
    Ok(())
}

/// Unique of a constant: the distinct elements (or slices along an axis), where each first stands, which each position holds, and how
/// often each occurs.
pub(super) fn import_unique(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let x = cx
        .opt_literal(0, "the number of distinct elements")?
        .ok_or_else(|| OpError::invalid("input 0 is missing"))?;
    let axis = match cx.attrs.opt_int("axis")? {
        Some(axis) => Some(normalize_axis(axis, x.shape().len())?),
        None => None,
    };
    // Keys, and for each slice its place in the order, its group and what comes out of it.
    cx.b.room((8 * x.len()).saturating_add(48 * axis.map_or(x.len(), |a| x.shape()[a] as usize)) as u64)?;
    let u = unique(&x, axis, cx.attrs.int_or("sorted", 1)? != 0)?;
    // A gather of the input, so that the distinct elements have a gradient.
    let mut from = cx.input(0)?;
    if axis.is_none() {
        from = cx.b.reshape(from, &Shape::from(&[x.len()][..]))?;
    }
    let first = cx.b.constant(Literal::ints(&u.first));
    let v = cx.b.op("Gather", Attrs::new().with("axis", axis.unwrap_or(0) as i64), &[from, first])?;
    cx.set(0, v);
    for (i, list) in [u.first, u.inverse, u.counts].iter().enumerate() {
        let v = cx.b.constant(Literal::ints(list));
        cx.set(i + 1, v);
    }
    Ok(())
}

struct Unique {
    first: Vec<i64>,
    inverse: Vec<i64>,
    counts: Vec<i64>,
}

fn unique(x: &Literal, axis: Option<usize>, sorted: bool) -> Result<Unique, OpError> {
    let all = vec![x.len() as u64];
    let (dims, axis) = axis.map_or((all, 0), |a| (x.shape().to_vec(), a));
    let n = dims[axis] as usize;
    let outer: usize = dims[..axis].iter().product::<u64>() as usize;
    let inner: usize = dims[axis + 1..].iter().product::<u64>() as usize;
    let keys = ordered(x)?;
    let offsets = |k: usize| (0..outer).flat_map(move |o| (0..inner).map(move |i| (o * n + k) * inner + i));
    let slice = |k: usize| offsets(k).map(|at| keys[at]);
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_unstable_by(|a, b| slice(*a).cmp(slice(*b)).then(a.cmp(b)));
    // Groups of equal slices, each with its first position first: where they begin and end in the order.
    let mut groups: Vec<(usize, usize)> = Vec::new();
    for (at, k) in order.iter().enumerate() {
        match groups.last_mut() {
            Some(g) if slice(order[g.0]).eq(slice(*k)) => g.1 = at + 1,
            _ => groups.push((at, at + 1)),
        }
    }
    drop(keys);
    if !sorted {
        groups.sort_unstable_by_key(|g| order[g.0]);
    }
    let mut inverse = vec![0i64; n];
    for (i, (from, to)) in groups.iter().enumerate() {
        order[*from..*to].iter().for_each(|k| inverse[*k] = i as i64);
    }
    Ok(Unique {
        first: groups.iter().map(|g| order[g.0] as i64).collect(),
        inverse,
        counts: groups.iter().map(|(from, to)| (to - from) as i64).collect(),
    })
}

/// Integers that are ordered as the elements are.
fn ordered(x: &Literal) -> Result<Vec<i64>, OpError> {
    if !x.dtype().is_float() {
        return x.to_ints().ok_or_else(|| OpError::unsupported("unsigned integers beyond 63 bits"));
    }
    let key = |v: f64| {
        // Both zeros are one value.
        let bits = (v + 0.0).to_bits() as i64;
        bits ^ (((bits >> 63) as u64) >> 1) as i64
    };
    Ok(x.to_floats().into_iter().map(key).collect())
}

fn literal(dtype: DType, shape: Vec<u64>, bytes: impl Into<Arc<[u8]>>) -> Result<Literal, OpError> {
    Literal::new(dtype, shape, bytes).map_err(|e| OpError::invalid(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(v: &[f32], shape: &[u64]) -> Literal {
        literal(DType::F32, shape.to_vec(), v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
            .unwrap()
    }

    #[test]
    fn non_zero_lists_coordinates_by_axis() {
        let x = floats(&[1.0, 0.0, 1.0, 1.0], &[2, 2]);
        let bytes: Vec<u8> = [0i64, 1, 1, 0, 0, 1].iter().flat_map(|i| i.to_le_bytes()).collect();
        assert_eq!(*non_zero(&x, 3), *bytes);
        assert!(floats(&[-0.0], &[]).non_zero().next().is_none());
        assert_eq!(*non_zero(&floats(&[], &[0, 3]), 0), []);
    }

    #[test]
    fn unique_elements_sorted_and_in_order_of_appearance() {
        let x = floats(&[2.0, 1.0, -1.0, 1.0, 3.0, 2.0], &[6]);
        let u = unique(&x, None, true).unwrap();
        assert_eq!((u.first, u.inverse), (vec![2, 1, 0, 4], vec![2, 1, 0, 1, 3, 2]));
        assert_eq!(u.counts, [1, 2, 2, 1]);
        let u = unique(&x, None, false).unwrap();
        assert_eq!((u.first, u.inverse), (vec![0, 1, 2, 4], vec![0, 1, 2, 1, 3, 0]));
    }

    #[test]
    fn unique_slices_along_an_axis() {
        let x = floats(&[1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 2.0, 3.0, 4.0], &[3, 3]);
        let u = unique(&x, Some(0), true).unwrap();
        assert_eq!((u.first, u.inverse, u.counts), (vec![0, 2], vec![0, 0, 1], vec![2, 1]));
    }
}
