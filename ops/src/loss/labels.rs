//! Class labels and how rows of losses become one number.

use crate::{
    OpError, Signature,
    cpu::{Float, Io, KernelError},
    export::{Export, Term},
};
use graph::{Attrs, DType, Dim, Shape, TensorType};

/// Labels of either integer type.
#[derive(Clone, Copy)]
pub(super) enum Labels<'a> {
    I32(&'a [i32]),
    I64(&'a [i64]),
}

impl<'a> Labels<'a> {
    pub(super) fn of(io: &'a Io<'_>, i: usize, dtype: DType) -> Labels<'a> {
        if dtype == DType::I32 { Labels::I32(io.input(i)) } else { Labels::I64(io.input(i)) }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Labels::I32(l) => l.len(),
            Labels::I64(l) => l.len(),
        }
    }

    /// The label of line `i`.
    #[inline(always)]
    pub(super) fn get(&self, i: usize) -> i64 {
        match self {
            Labels::I32(l) => i64::from(l[i]),
            Labels::I64(l) => l[i],
        }
    }
}

/// How losses of rows are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reduction {
    None,
    Mean,
    Sum,
}

impl Reduction {
    pub(super) fn of(a: &Attrs) -> Result<Reduction, OpError> {
        match a.str_or("reduction", "mean")? {
            "none" => Ok(Reduction::None),
            "mean" => Ok(Reduction::Mean),
            "sum" => Ok(Reduction::Sum),
            other => Err(OpError::invalid(format!("reduction must be none, mean or sum, not {other:?}"))),
        }
    }
}

/// What a loss knows of its labels: number of classes, label that counts nothing, whether classes have weights.
#[derive(Clone, Copy)]
pub(super) struct Classes {
    pub(super) count: usize,
    pub(super) ignore: Option<i64>,
}

impl Classes {
    pub(super) fn new(count: usize, a: &Attrs) -> Result<Classes, OpError> {
        Ok(Classes { count, ignore: a.opt_int("ignore_index")? })
    }

    /// The class of a label; `None` if it counts nothing.
    #[inline(always)]
    pub(super) fn class(&self, label: i64) -> Option<usize> {
        if Some(label) == self.ignore || label < 0 || label >= self.count as i64 {
            None
        } else {
            Some(label as usize)
        }
    }

    /// Class and weight of a label; `None` if it counts nothing.
    #[inline(always)]
    pub(super) fn weighed<T: Float>(&self, label: i64, weights: Option<&[T]>) -> Option<(usize, T)> {
        let class = self.class(label)?;
        Some((class, weights.map_or(T::ONE, |w| w[class])))
    }

    /// Refuses labels that are no class and not ignored.
    pub(super) fn check(&self, labels: Labels<'_>) -> Result<(), KernelError> {
        let bad = |l: i64| Some(l) != self.ignore && (l < 0 || l >= self.count as i64);
        match (0..labels.len()).find(|i| bad(labels.get(*i))) {
            None => Ok(()),
            Some(row) => Err(KernelError(format!(
                "label {} at row {row} is outside of 0..{}{}",
                labels.get(row),
                self.count,
                self.ignore.map_or_else(String::new, |i| format!(" and is not ignore_index {i}")),
            ))),
        }
    }

    /// The sum of the weights of all labels that count, in the order of rows.
    pub(super) fn total<T: Float>(&self, labels: Labels<'_>, weights: Option<&[T]>) -> f64 {
        let weight = |i| self.weighed(labels.get(i), weights).map_or(0.0, |(_, w)| w.to_f64());
        (0..labels.len()).map(weight).sum()
    }
}

/// The attributes of ONNX's losses.
pub(super) fn exported(x: &Export<'_>) -> Result<Attrs, OpError> {
    let attrs = Attrs::new().with("reduction", x.sig.attrs.str_or("reduction", "mean")?);
    Ok(match x.sig.attrs.opt_int("ignore_index")? {
        Some(i) => attrs.with("ignore_index", i),
        None => attrs,
    })
}

/// What a gradient needs of the labels, written in ONNX.
pub(super) struct Written<'a> {
    /// 1 at each row's class along axis 1.
    pub(super) hot: Term<'a>,
    /// Weight of each row, 0 where the label counts nothing.
    pub(super) weight: Term<'a>,
    axes: Vec<i64>,
}

impl<'a> Written<'a> {
    /// Each row's share of the cotangent.
    pub(super) fn share(&self, x: &Export<'a>, dy: Term<'a>) -> Result<Term<'a>, OpError> {
        let total = || self.weight.sum(&self.axes, false);
        let dy = if Reduction::of(x.sig.attrs)? == Reduction::Mean { dy / total() } else { dy };
        Ok(self.weight * dy)
    }
}

/// See [`Written`]; labels that are no class count nothing.
pub(super) fn written<'a>(
    x: &Export<'a>,
    labels: Term<'a>,
    classes: usize,
    weights: Option<Term<'a>>,
    dtype: DType,
) -> Result<Written<'a>, OpError> {
    let rank = x.sig.inputs.iter().flatten().find(|t| matches!(t.dtype, DType::I32 | DType::I64));
    let rank = rank.map_or(1, |t| t.shape.rank() as i64);
    let labels = labels.cast(DType::I64);
    let mut counts = labels.at_least(0.0).and(labels.less(classes as f64));
    if let Some(ignore) = x.sig.attrs.opt_int("ignore_index")? {
        counts = counts.and(labels.equals(ignore as f64).call("Not"));
    }
    let class = counts.pick(labels, 0.0);
    let weight = counts.cast(dtype);
    let weight = weights.map_or(weight, |w| weight * x.call("Gather", &[w, class], Attrs::new()));
    let depth = x.number(DType::I64, classes as f64);
    let values = x.tensor(dtype, &[2], &[0.0, 1.0])?;
    let inputs = [Some(class), Some(depth), Some(values)];
    let hot = x.node("OneHot", &inputs, Attrs::new().with("axis", 1), &[dtype])[0];
    Ok(Written { hot, weight, axes: (0..rank).collect() })
}

/// Checks scores `[N, C, d..]`, labels `[N, d..]` and optional weights `[C]` at these inputs; returns the type of a row of losses.
pub(super) fn infer_rows(
    s: &Signature<'_>,
    (scores, labels, weights): (usize, usize, usize),
) -> Result<TensorType, OpError> {
    let (x, l) = (s.input(scores)?, s.input(labels)?);
    if !x.dtype.is_float() {
        return Err(OpError::invalid(format!("scores must be floating-point, not {}", x.dtype)));
    }
    if x.shape.rank() < 2 {
        return Err(OpError::invalid(format!("scores must be [N, C, ..], not {}", x.shape)));
    }
    let mut rows = x.shape.clone();
    let classes = rows.0.remove(1);
    same_shape(&rows, &l.shape, "labels must be the scores' shape without the class axis")?;
    check_labels(l)?;
    if let Some(w) = s.opt_input(weights) {
        if w.dtype != x.dtype {
            return Err(OpError::invalid(format!("weights must be {} like the scores", x.dtype)));
        }
        same_shape(&Shape(vec![classes]), &w.shape, "one weight a class")?;
    }
    Reduction::of(s.attrs)?;
    s.attrs.opt_int("ignore_index")?;
    Ok(TensorType { dtype: x.dtype, shape: rows })
}

/// Refuses labels that are no integers.
pub(super) fn check_labels(l: &TensorType) -> Result<(), OpError> {
    match l.dtype {
        DType::I32 | DType::I64 => Ok(()),
        d => Err(OpError::invalid(format!("labels must be i32 or i64, not {d}"))),
    }
}

/// Refuses shapes that differ, or may.
pub(crate) fn same_shape(want: &Shape, got: &Shape, what: &str) -> Result<(), OpError> {
    if want == got {
        return Ok(());
    }
    let differ = |(a, b): (&Dim, &Dim)| a != b && a.as_const().is_some() && b.as_const().is_some();
    if want.rank() != got.rank() || want.0.iter().zip(&got.0).any(differ) {
        return Err(OpError::invalid(format!("{what}: expected {want}, found {got}")));
    }
    Err(OpError::Dynamic(format!("whether {got} equals {want}")))
}

/// The type of a loss over rows of type `rows`.
pub(super) fn reduced(rows: &TensorType, reduction: Reduction) -> TensorType {
    match reduction {
        Reduction::None => rows.clone(),
        _ => TensorType { dtype: rows.dtype, shape: Shape::scalar() },
    }
}
