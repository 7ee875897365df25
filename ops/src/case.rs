//! Test cases that stand beside an operator and are walked by the tests over all operators.

use graph::{Attrs, DType};

/// How the elements of a test input are drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Fill {
    /// Uniform in the range.
    Uniform(f64, f64),
    /// Uniform in the range, but no closer than the margin to any of these points (kinks).
    Avoid {
        /// Range.
        range: (f64, f64),
        /// Points where the operator has a kink.
        points: &'static [f64],
        /// Least distance to a point.
        margin: f64,
    },
    /// Distinct values in random order, `spacing` apart: no ties for maxima.
    Distinct {
        /// Distance between neighbours.
        spacing: f64,
    },
    /// Integers in `[lo, hi)`.
    Ints(i64, i64),
    /// Exactly these values.
    Values(Vec<f64>),
}

impl Fill {
    /// `n` elements, from a source of numbers uniform in [0, 1).
    ///
    /// # Panics
    ///
    /// If the case lists another number of values.
    pub fn draw(&self, n: usize, uniform: &mut dyn FnMut() -> f64) -> Vec<f64> {
        match self {
            Fill::Uniform(lo, hi) => (0..n).map(|_| lo + (hi - lo) * uniform()).collect(),
            Fill::Avoid { range: (lo, hi), points, margin } => {
                let far = |x: f64| points.iter().all(|p| (x - p).abs() >= *margin);
                let mut one = || {
                    loop {
                        let x = lo + (hi - lo) * uniform();
                        if far(x) {
                            return x;
                        }
                    }
                };
                (0..n).map(|_| one()).collect()
            }
            Fill::Distinct { spacing } => {
                let mut v: Vec<f64> = (0..n).map(|i| (i as f64 - n as f64 / 2.0) * spacing).collect();
                for i in (1..n).rev() {
                    v.swap(i, (uniform() * (i + 1) as f64) as usize);
                }
                v
            }
            Fill::Ints(lo, hi) => {
                (0..n).map(|_| (*lo as f64 + (hi - lo) as f64 * uniform()).floor()).collect()
            }
            Fill::Values(v) => {
                assert_eq!(v.len(), n, "a case lists {} values for a shape of {n}", v.len());
                v.clone()
            }
        }
    }
}

/// An input of a test case.
#[derive(Clone, Debug, PartialEq)]
pub struct CaseInput {
    /// Extents.
    pub shape: Vec<usize>,
    /// `None` for the dtype under test (f64 for finite differences, f32 otherwise).
    pub dtype: Option<DType>,
    /// How the elements are drawn.
    pub fill: Fill,
    /// Whether its gradient is compared with finite differences.
    pub differentiate: bool,
    /// Whether it enters the graph as a constant.
    pub constant: bool,
}

/// A case: attributes and inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// What is special about it.
    pub name: &'static str,
    /// Attributes of the node.
    pub attrs: Attrs,
    /// Inputs; `None` for an optional one left out.
    pub inputs: Vec<Option<CaseInput>>,
}

impl Case {
    /// A case with inputs of the dtype under test, uniform in [-1, 1], all differentiated.
    pub fn new(name: &'static str, attrs: Attrs, shapes: &[&[usize]]) -> Case {
        let inputs = shapes.iter().map(|s| Some(CaseInput::float(s, Fill::Uniform(-1.0, 1.0)))).collect();
        Case { name, attrs, inputs }
    }

    /// The same case with input `i` replaced.
    #[must_use]
    pub fn input(mut self, i: usize, input: CaseInput) -> Case {
        if self.inputs.len() <= i {
            self.inputs.resize(i + 1, None);
        }
        self.inputs[i] = Some(input);
        self
    }
}

impl CaseInput {
    /// A floating-point input of the dtype under test.
    pub fn float(shape: &[usize], fill: Fill) -> CaseInput {
        CaseInput { shape: shape.to_vec(), dtype: None, fill, differentiate: true, constant: false }
    }

    /// An integer (or boolean) input, drawn from `[lo, hi)`.
    pub fn ints(dtype: DType, shape: &[usize], lo: i64, hi: i64) -> CaseInput {
        CaseInput {
            shape: shape.to_vec(),
            dtype: Some(dtype),
            fill: Fill::Ints(lo, hi),
            differentiate: false,
            constant: false,
        }
    }

    /// The same input, not differentiated.
    #[must_use]
    pub fn fixed(mut self) -> CaseInput {
        self.differentiate = false;
        self
    }
}
