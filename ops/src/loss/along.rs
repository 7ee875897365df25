//! Walking the lines of a tensor along one axis, whether their elements are adjacent or not.

use crate::{
    OpError, Signature,
    cpu::{
        lanes::{self, LANES},
        par,
    },
    onnx::normalize_axis,
};
use graph::TensorType;

/// A tensor as `outer` × `n` × `inner`, where `n` is the extent of the axis. Line `l` starts at `l / inner * n * inner + l % inner`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Along {
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
}

/// Up to [`LANES`] neighbouring lines: the first one's number, the offset of its first element, how many lines.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    pub line: usize,
    pub at: usize,
    pub width: usize,
}

impl Along {
    pub(crate) fn new(dims: &[usize], axis: usize) -> Along {
        Along {
            outer: dims[..axis].iter().product(),
            n: dims[axis],
            inner: dims[axis + 1..].iter().product(),
        }
    }

    /// Of input 0 along the attribute `axis`.
    pub(crate) fn of(s: &Signature<'_>) -> Result<Along, OpError> {
        let dims = s.dims(0)?;
        let axis = normalize_axis(s.attrs.int("axis")?, dims.len())?;
        Ok(Along::new(&dims, axis))
    }

    /// Pieces of work: rows, or groups of columns.
    fn units(&self) -> usize {
        if self.inner == 1 { self.outer } else { self.outer * self.inner.div_ceil(LANES) }
    }

    /// Units one piece has.
    fn grain(&self) -> usize {
        let unit = if self.inner == 1 { self.n } else { self.n * LANES };
        (par::GRAIN / unit.max(1)).max(1)
    }

    /// Number of pieces in which [`Along::each`] walks the tensor.
    pub(crate) fn pieces(&self) -> usize {
        self.units().div_ceil(self.grain())
    }

    /// Calls `rows(piece, range of rows)` where lines are adjacent elements, otherwise `columns(piece, groups)`. Both closures must be
    /// marked `#[inline(always)]`.
    #[inline(always)]
    pub(crate) fn each(
        &self,
        rows: impl Fn(usize, std::ops::Range<usize>) + Sync,
        columns: impl Fn(usize, &mut dyn Iterator<Item = Columns>) + Sync,
    ) {
        let (me, grain) = (*self, self.grain());
        if me.inner == 1 {
            lanes::each(
                me.outer,
                grain,
                #[inline(always)]
                |r| rows(r.start / grain, r),
            );
            return;
        }
        let groups = me.inner.div_ceil(LANES);
        lanes::each(
            me.units(),
            grain,
            #[inline(always)]
            |r| {
                let piece = r.start / grain;
                let mut all = r.map(|u| {
                    let (o, i) = (u / groups, u % groups * LANES);
                    let at = o * me.n * me.inner + i;
                    Columns { line: o * me.inner + i, at, width: LANES.min(me.inner - i) }
                });
                columns(piece, &mut all);
            },
        );
    }
}

/// Refuses types of different dtype or shape.
pub(super) fn same_type(a: &TensorType, b: &TensorType, what: &str) -> Result<(), OpError> {
    if a != b {
        return Err(OpError::invalid(format!("{what}: {a} and {b} must be one type")));
    }
    Ok(())
}
