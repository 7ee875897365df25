//! Shapes: lists of dimensions.

use crate::{Bindings, Dim};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The extents of a tensor, outermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shape(pub Vec<Dim>);

impl Shape {
    /// The shape of a scalar.
    pub fn scalar() -> Shape {
        Shape(Vec::new())
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The extents, if all are known and none is negative.
    pub fn fixed(&self) -> Option<Vec<usize>> {
        self.0.iter().map(|d| d.as_const().and_then(|n| usize::try_from(n).ok())).collect()
    }

    /// Number of elements, if known and within 64 bits.
    pub fn elements(&self) -> Option<u64> {
        self.0.iter().try_fold(1u64, |n, d| n.checked_mul(u64::try_from(d.as_const()?).ok()?))
    }

    /// The shape with the bound symbols replaced.
    pub fn substitute(&self, bindings: &Bindings) -> Shape {
        Shape(self.0.iter().map(|d| d.substitute(bindings)).collect())
    }
}

impl<D: Into<Dim> + Copy> From<&[D]> for Shape {
    fn from(dims: &[D]) -> Self {
        Shape(dims.iter().map(|d| (*d).into()).collect())
    }
}

impl<D: Into<Dim> + Copy> From<&Vec<D>> for Shape {
    fn from(dims: &Vec<D>) -> Self {
        dims.as_slice().into()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("]")
    }
}
