//! The geometry of a reduction: which elements meet in which output, and in how many slices.

use super::engine::COLUMNS;

/// Slices and tasks that a reduction is cut into at most when it has few outputs.
const PIECES: usize = 64;
/// Elements a slice has at least.
const SLICE: usize = 1 << 15;

/// A reduction over a row-major tensor. Adjacent axes of one kind are merged, so the innermost run of elements is either reduced or kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Space {
    /// Extents and strides of kept axes, outermost first, without a kept run.
    kept: Vec<[usize; 2]>,
    /// Extents and strides of reduced axes, outermost first, without a reduced run.
    reduced: Vec<[usize; 2]>,
    /// Elements of the innermost run.
    pub(super) run: usize,
    /// Whether the innermost run is reduced.
    pub(super) run_reduced: bool,
    /// Combinations of kept indices without a kept run.
    pub(super) groups: usize,
    /// Combinations of reduced indices without a reduced run.
    pub(super) rows: usize,
    /// Parts that the reduced indices of one output are cut into.
    pub(super) slices: usize,
    /// Rows of a slice (kept run), or elements (reduced run).
    pub(super) slice: usize,
}

impl Space {
    /// The reduction of a tensor of shape `dims` over `axes` (valid, sorted).
    pub(super) fn new(dims: &[usize], axes: &[i64]) -> Space {
        let mut merged: Vec<(usize, bool)> = Vec::new();
        for (i, &n) in dims.iter().enumerate() {
            let is_reduced = axes.contains(&(i as i64));
            match merged.last_mut() {
                _ if n == 1 => {}
                Some((m, kind)) if *kind == is_reduced => *m *= n,
                _ => merged.push((n, is_reduced)),
            }
        }
        let (run, run_reduced) = merged.pop().unwrap_or((1, true));
        let mut step = run;
        let (mut kept, mut reduced) = (Vec::new(), Vec::new());
        for (n, is_reduced) in merged.into_iter().rev() {
            if is_reduced { &mut reduced } else { &mut kept }.insert(0, [n, step]);
            step *= n;
        }
        let count = |axes: &[[usize; 2]]| axes.iter().map(|a| a[0]).product::<usize>();
        let (groups, rows) = (count(&kept), count(&reduced));
        let mut space = Space { kept, reduced, run, run_reduced, groups, rows, slices: 1, slice: 0 };
        let length = if run_reduced { rows * run } else { rows };
        let elements = if run_reduced { length } else { rows * run.min(COLUMNS) };
        let wanted = (elements / SLICE).min(PIECES / space.tasks().max(1)).max(1);
        space.slice = length.div_ceil(wanted).max(1);
        space.slices = length.div_ceil(space.slice).max(1);
        space
    }

    /// Number of outputs.
    pub(super) fn outputs(&self) -> usize {
        if self.run_reduced { self.groups } else { self.groups * self.run }
    }

    /// Number of outputs, or of blocks of neighbouring outputs, that are computed at once.
    pub(super) fn tasks(&self) -> usize {
        if self.run_reduced { self.groups } else { self.groups * self.run.div_ceil(COLUMNS) }
    }

    /// Elements that meet in one output.
    pub(super) fn count(&self) -> usize {
        if self.run_reduced { self.rows * self.run } else { self.rows }
    }

    /// Where group `g` starts.
    pub(super) fn group(&self, g: usize) -> usize {
        offset(&self.kept, g)
    }

    /// Where row `r` starts, from the group's start.
    pub(super) fn row(&self, r: usize) -> usize {
        match self.reduced.as_slice() {
            [] => 0,
            [[_, step]] => r * step,
            axes => offset(axes, r),
        }
    }

    /// Scratch bytes for the results of slices.
    pub(super) fn workspace(&self) -> u64 {
        if self.slices == 1 { 0 } else { (self.outputs() * self.slices) as u64 * 8 }
    }
}

fn offset(axes: &[[usize; 2]], mut i: usize) -> usize {
    let mut at = 0;
    for [n, step] in axes.iter().rev() {
        at += i % n * step;
        i /= n;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_of_one_kind_merge() {
        let s = Space::new(&[8, 3, 5, 7], &[0, 2, 3]);
        assert_eq!((s.groups, s.rows, s.run, s.run_reduced), (3, 8, 35, true));
        assert_eq!((s.group(2), s.row(7)), (70, 7 * 105));
        let s = Space::new(&[8, 1, 5], &[0]);
        assert_eq!((s.groups, s.rows, s.run, s.run_reduced, s.outputs()), (1, 8, 5, false, 5));
        let s = Space::new(&[2, 3, 4, 5], &[0, 2]);
        assert_eq!((s.groups, s.rows, s.run, s.run_reduced), (3, 8, 5, false));
        assert_eq!(s.row(5), 60 + 5, "index (1, 1) of axes 0 and 2");
        let s = Space::new(&[], &[]);
        assert_eq!((s.outputs(), s.count()), (1, 1));
    }

    #[test]
    fn only_large_reductions_to_few_outputs_are_sliced() {
        assert_eq!(Space::new(&[1000, 1000], &[1]).slices, 1);
        assert_eq!(Space::new(&[100, 10], &[0]).slices, 1);
        let all = Space::new(&[1 << 22], &[0]);
        assert_eq!((all.slices, all.slice), (64, 1 << 16));
        let columns = Space::new(&[1 << 20, 10], &[0]);
        assert!(columns.slices > 1 && columns.workspace() == columns.slices as u64 * 80);
    }
}
