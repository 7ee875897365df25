//! Operators that move elements or look at shapes: reshapes, transposes, slices, concatenations, padding, broadcasts.

pub mod concat;
pub(crate) mod cuda;
pub mod expand;
pub mod generate;
pub mod pad;
pub mod reshape;
pub mod reverse;
mod rotary;
pub mod slice;
pub mod split;
mod strided;
pub mod transpose;
pub mod trilu;

use crate::{Facts, OpError, Signature, View, Work, cpu::CpuKernel};
use graph::{DType, Shape};

pub(crate) use strided::{Strided, fill, row_major};

/// Work of an operator that only moves elements: none if its outputs are views.
pub(crate) fn moved(facts: &Facts, s: &Signature<'_>) -> Work {
    let bytes = if facts.views.is_empty() { s.io_bytes() } else { 0 };
    Work { flops: 0, bytes, product: false }
}

/// Facts of an operator that copies input 0 into output 0: exact, and a view if the copy is one run.
pub(crate) fn copy_facts(s: &Signature<'_>, copy: Result<Strided, OpError>) -> Facts {
    let size = s.inputs.first().copied().flatten().map_or(1, |t| t.dtype.size());
    let start = copy.ok().and_then(|c| c.run_start());
    let views = start.map(|at| View { output: 0, input: 0, offset: at as u64 * size });
    Facts { views: views.into_iter().collect(), folds: true, ..Facts::default() }
}

/// A part of an output copied from an input.
pub(crate) struct Part {
    /// Input index.
    pub(crate) input: usize,
    /// Output index.
    pub(crate) output: usize,
    /// Which elements go where.
    pub(crate) copy: Strided,
}

/// A kernel that copies parts; with `zero` output 0 is set to zeros first, otherwise the parts cover the outputs.
pub(crate) fn copy_kernel(dtype: DType, zero: bool, parts: Vec<Part>) -> CpuKernel {
    crate::for_width!(dtype, T => Box::new(move |io| {
        if zero {
            fill(io.output::<T>(0), 0);
        }
        for p in &parts {
            let (x, y) = (io.input_ptr::<T>(p.input).0, io.output_ptr::<T>(p.output).0);
            // SAFETY: the box lies inside input and output by construction from their shapes, and outputs overlap no input.
            unsafe { p.copy.run(x, y) };
        }
        Ok(())
    }))
}

/// Attribute `name` as extents: integers, none negative.
pub(crate) fn extents_attr(s: &Signature<'_>, name: &str) -> Result<Vec<usize>, OpError> {
    s.attrs
        .ints(name)?
        .iter()
        .map(|d| {
            usize::try_from(*d).map_err(|_| OpError::invalid(format!("{name} holds a negative extent: {d}")))
        })
        .collect()
}

/// Attribute `name` as an axis of a tensor of `rank` axes; canonical attributes count from the front.
pub(crate) fn axis_attr(s: &Signature<'_>, name: &str, rank: usize) -> Result<usize, OpError> {
    let axis = s.attrs.int(name)?;
    usize::try_from(axis)
        .ok()
        .filter(|a| *a < rank)
        .ok_or_else(|| OpError::invalid(format!("{name} {axis} is not an axis of a tensor of {rank} axes")))
}

/// The number of elements, refused where it does not fit a 64-bit count of bytes.
pub(crate) fn count(dims: &[usize], dtype: DType) -> Result<usize, OpError> {
    let bytes = dims.iter().try_fold(dtype.size() as usize, |n, d| n.checked_mul(*d));
    let bytes = bytes.filter(|b| isize::try_from(*b).is_ok() || dims.contains(&0));
    match bytes {
        Some(_) => Ok(dims.iter().product()),
        None if dims.contains(&0) => Ok(0),
        None => Err(OpError::invalid(format!("a tensor of shape {} is too large", Shape::from(dims)))),
    }
}

/// Extents before, at and after an axis.
pub(crate) fn around(dims: &[usize], axis: usize) -> (usize, usize, usize) {
    (dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product())
}
