//! Linear maps that act on each axis by itself: padding by repetition, resizing, and the transposes of both.
//!
//! Along an axis, output coordinate `o` is a weighted sum of a few input coordinates (its taps); the whole map is the product over the
//! axes. Transposing the taps of every axis gives the gradient, in which again each output element is summed by itself in a fixed order,
//! so that nothing is scattered.

use crate::{
    OpError,
    cpu::{Element, Float, par},
    export::{Export, Term},
};

/// The taps of every output coordinate of one axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Taps {
    /// Extent of the input.
    inputs: usize,
    /// Taps of output `o` are `start[o]..start[o + 1]`.
    start: Vec<usize>,
    index: Vec<usize>,
    weight: Vec<f64>,
}

impl Taps {
    /// Output `o` is the weighted sum of `lists[o]`: (input coordinate, weight).
    pub(crate) fn new(inputs: usize, lists: &[Vec<(usize, f64)>]) -> Taps {
        let mut t = Taps { inputs, start: vec![0], index: Vec::new(), weight: Vec::new() };
        for list in lists {
            for (i, w) in list {
                debug_assert!(*i < inputs);
                t.index.push(*i);
                t.weight.push(*w);
            }
            t.start.push(t.index.len());
        }
        t
    }

    /// Output `o` is input `at[o]`.
    pub(crate) fn pick(inputs: usize, at: Vec<usize>) -> Taps {
        debug_assert!(at.iter().all(|i| *i < inputs));
        Taps { inputs, start: (0..=at.len()).collect(), weight: vec![1.0; at.len()], index: at }
    }

    /// Every output is the input of the same coordinate.
    pub(crate) fn identity(n: usize) -> Taps {
        Taps::pick(n, (0..n).collect())
    }

    /// The transposed map: taps in the order of this map's outputs.
    pub(crate) fn transposed(&self) -> Taps {
        let mut lists = vec![Vec::new(); self.inputs];
        for o in 0..self.outputs() {
            for t in self.start[o]..self.start[o + 1] {
                lists[self.index[t]].push((o, self.weight[t]));
            }
        }
        Taps::new(self.outputs(), &lists)
    }

    /// The map as a matrix, one row an output.
    fn matrix(&self) -> Vec<f64> {
        let mut m = vec![0.0; self.outputs() * self.inputs];
        for o in 0..self.outputs() {
            for t in self.start[o]..self.start[o + 1] {
                m[o * self.inputs + self.index[t]] += self.weight[t];
            }
        }
        m
    }

    /// The first tap of every output, and where they end.
    pub(super) fn starts(&self) -> &[usize] {
        &self.start
    }

    /// Input coordinate and weight of every tap.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.index.iter().copied().zip(self.weight.iter().copied())
    }

    pub(super) fn outputs(&self) -> usize {
        self.start.len() - 1
    }

    pub(super) fn is_identity(&self) -> bool {
        self.inputs == self.outputs()
            && self.index.len() == self.inputs
            && self.start.iter().enumerate().all(|(o, s)| o == *s)
            && self.index.iter().enumerate().all(|(o, i)| o == *i)
            && self.weight.iter().all(|w| *w == 1.0)
    }
}

/// A product of maps over the axes of a tensor; adjacent axes that nothing happens to are merged.
pub(crate) struct Separable {
    axes: Vec<Taps>,
    /// Strides of the input.
    stride: Vec<usize>,
    /// Output rows (runs of the last axis) between neighbours along each axis.
    rows: Vec<usize>,
    last_identity: bool,
}

impl Separable {
    /// The map with these axes, outermost first.
    pub(crate) fn new(all: Vec<Taps>) -> Separable {
        let mut axes: Vec<Taps> = Vec::new();
        for t in all {
            match axes.last_mut() {
                Some(p) if p.is_identity() && t.is_identity() => *p = Taps::identity(p.inputs * t.inputs),
                _ => axes.push(t),
            }
        }
        if axes.is_empty() {
            axes.push(Taps::identity(1));
        }
        let last = axes.len() - 1;
        let (mut stride, mut rows) = (vec![1; axes.len()], vec![1; axes.len()]);
        for a in (0..last).rev() {
            stride[a] = stride[a + 1] * axes[a + 1].inputs;
            rows[a] = if a + 1 == last { 1 } else { rows[a + 1] * axes[a + 1].outputs() };
        }
        let last_identity = axes[last].is_identity();
        Separable { axes, stride, rows, last_identity }
    }

    /// The axes, outermost first, with strides of the input.
    pub(super) fn axes(&self) -> impl Iterator<Item = (&Taps, &usize)> {
        self.axes.iter().zip(&self.stride)
    }

    /// Applies a map that only picks elements.
    pub(crate) fn pick<T: Element>(&self, x: &[T], y: &mut [T]) {
        let last = self.axes.len() - 1;
        let at = &self.axes[last].index;
        par::rows(y, at.len(), |r, row| {
            let base: usize = (0..last)
                .map(|a| self.axes[a].index[r / self.rows[a] % self.axes[a].outputs()] * self.stride[a])
                .sum();
            let x = &x[base..base + self.axes[last].inputs];
            if self.last_identity {
                row.copy_from_slice(x);
            } else {
                row.iter_mut().zip(at).for_each(|(y, i)| *y = x[*i]);
            }
        });
    }

    /// The weights of each axis in the type of the sums.
    pub(crate) fn weights<T: Float>(&self) -> Vec<Vec<T>> {
        self.axes.iter().map(|t| t.weight.iter().map(|w| T::from_f64(*w)).collect()).collect()
    }

    /// Applies the map; `weights` are those of [`Separable::weights`].
    pub(crate) fn sum<T: Float>(&self, weights: &[Vec<T>], x: &[T], y: &mut [T]) {
        let n = self.axes[self.axes.len() - 1].outputs();
        par::rows(y, n, |r, row| {
            row.fill(T::ZERO);
            self.add_rows(weights, x, r, row, (0, 0, T::ONE));
        });
    }

    /// Adds to output row `r` what the taps of the axes from `axis` on contribute, given the input offset and the product of weights of
    /// the axes before.
    fn add_rows<T: Float>(
        &self,
        weights: &[Vec<T>],
        x: &[T],
        r: usize,
        row: &mut [T],
        (axis, base, weight): (usize, usize, T),
    ) {
        let taps = &self.axes[axis];
        if axis + 1 < self.axes.len() {
            let o = r / self.rows[axis] % taps.outputs();
            for t in taps.start[o]..taps.start[o + 1] {
                let at = base + taps.index[t] * self.stride[axis];
                self.add_rows(weights, x, r, row, (axis + 1, at, weight * weights[axis][t]));
            }
            return;
        }
        let x = &x[base..base + taps.inputs];
        if self.last_identity {
            row.iter_mut().zip(x).for_each(|(y, x)| *y += weight * *x);
            return;
        }
        let own = &weights[axis];
        for (o, y) in row.iter_mut().enumerate() {
            let taps = taps.start[o]..taps.start[o + 1];
            let index = &self.axes[axis].index[taps.clone()];
            let sum = own[taps].iter().zip(index).fold(T::ZERO, |s, (w, i)| s + *w * x[*i]);
            *y += weight * sum;
        }
    }
}

/// The transposed map of every axis as products with matrices in ONNX.
pub(crate) fn written<'a>(x: &Export<'a>, v: Term<'a>, axes: &[Taps]) -> Result<Term<'a>, OpError> {
    let rank = axes.len();
    let mut v = v;
    for (a, taps) in axes.iter().enumerate().filter(|(_, t)| !t.is_identity()) {
        let m = x.tensor(v.dtype(), &[taps.outputs(), taps.inputs], &taps.matrix())?;
        let mut swap: Vec<usize> = (0..rank).collect();
        swap.swap(a, rank - 1);
        v = v.transpose(&swap).with("MatMul", m).transpose(&swap);
    }
    Ok(v)
}

/// One entry of `axes` for each axis of extents `dims`: the map where one is given, otherwise the identity.
pub(crate) fn axes_of(
    dims: &[usize],
    mut map: impl FnMut(usize, usize) -> Result<Option<Taps>, OpError>,
) -> Result<Vec<Taps>, OpError> {
    dims.iter().enumerate().map(|(a, n)| Ok(map(a, *n)?.unwrap_or_else(|| Taps::identity(*n)))).collect()
}
