//! Layout of the operands of attention.

use super::{COLUMNS, ROWS};
use crate::{
    OpError, Signature,
    cpu::half::is_half,
    export::{Export, Term},
    loss::same_shape,
};
use graph::{Attrs, DType, Dim, Shape, TensorType};

/// Names of the attributes that say which operand has its rows before its heads.
pub(super) const SWAPPED: [&str; 4] = ["q_swapped", "k_swapped", "v_swapped", "y_swapped"];

/// Leading axes (heads last), rows and columns of an operand.
pub(super) type Parts = (Shape, Dim, Dim);

/// Splits a shape `[.., heads, rows, columns]`, or `[.., rows, heads, columns]` if it is swapped.
pub(super) fn split(shape: &Shape, swapped: bool) -> Result<Parts, OpError> {
    let Some((lead, [a, b])) = shape.0.split_last_chunk::<2>() else {
        return Err(OpError::invalid(format!("operands of attention have rows and columns, not {shape}")));
    };
    let (mut lead, mut rows) = (lead.to_vec(), a.clone());
    if swapped {
        let heads = lead
            .last_mut()
            .ok_or_else(|| OpError::invalid(format!("{shape} has no heads to swap with its rows")))?;
        std::mem::swap(heads, &mut rows);
    }
    Ok((Shape(lead), rows, b.clone()))
}

/// The inverse of [`split`].
pub(super) fn join((lead, rows, columns): &Parts, swapped: bool) -> Shape {
    let mut dims = lead.0.clone();
    dims.push(rows.clone());
    if swapped {
        let n = dims.len();
        dims.swap(n - 2, n - 1);
    }
    dims.push(columns.clone());
    Shape(dims)
}

/// Which operands (q, k, v, y) have their rows before their heads.
pub(super) fn swapped(attrs: &Attrs) -> Result<[bool; 4], OpError> {
    let mut out = [false; 4];
    for (o, name) in out.iter_mut().zip(SWAPPED) {
        *o = match attrs.int_or(name, 0)? {
            0 => false,
            1 => true,
            n => return Err(OpError::invalid(format!("{name} must be 0 or 1, not {n}"))),
        };
    }
    Ok(out)
}

/// What scores become that a boolean mask leaves out.
pub(super) fn fill(s: &Signature<'_>) -> Result<Option<f64>, OpError> {
    Ok(s.attrs.get("fill").map(|_| s.attrs.float_or("fill", 0.0)).transpose()?)
}

/// Whether probabilities that are NaN count as 0.
pub(super) fn guarded(attrs: &Attrs) -> Result<bool, OpError> {
    match attrs.int_or("guarded", 0)? {
        0 => Ok(false),
        1 => Ok(true),
        n => Err(OpError::invalid(format!("guarded must be 0 or 1, not {n}"))),
    }
}

/// Types of y and of the log-sum-exp of its rows, from q, k, v and an optional mask at these inputs. With 16-bit floats the log-sum-exp is
/// float32, and the mask may be.
pub(super) fn infer(s: &Signature<'_>, mask: usize) -> Result<[TensorType; 2], OpError> {
    let (q, k, v) = (s.input(0)?, s.input(1)?, s.input(2)?);
    let swap = swapped(s.attrs)?;
    if !q.dtype.is_float() {
        return Err(OpError::invalid(format!("attention is floating-point, not {}", q.dtype)));
    }
    let kept = fill(s)?.is_some();
    if kept != s.opt_input(mask).is_some_and(|m| m.dtype == DType::Bool) {
        return Err(OpError::invalid(
            "a boolean mask, and no other, has `fill`, the score of what it leaves out",
        ));
    }
    let float32 = |t: &TensorType| kept || is_half(q.dtype) && t.dtype == DType::F32;
    let dtypes = [Some(k), Some(v), s.opt_input(mask).filter(|t| !float32(t))];
    if dtypes.iter().flatten().any(|t| t.dtype != q.dtype) {
        return Err(OpError::invalid(format!("keys, values and mask must be {} like the queries", q.dtype)));
    }
    let [pq, pk, pv] = [(q, swap[0]), (k, swap[1]), (v, swap[2])].map(|(t, w)| split(&t.shape, w));
    let (pq, pk, pv) = (pq?, pk?, pv?);
    same_shape(&pq.0, &pk.0, "leading axes of queries and keys")?;
    same_shape(&pq.0, &pv.0, "leading axes of queries and values")?;
    let vector = |d: &Dim| Shape(vec![d.clone()]);
    same_shape(&vector(&pq.2), &vector(&pk.2), "columns of queries and keys")?;
    same_shape(&vector(&pk.1), &vector(&pv.1), "rows of keys and values")?;
    if pk.1.as_const() == Some(0) {
        return Err(OpError::invalid("there are no keys to attend to"));
    }
    let mut rows = pq.0.clone();
    rows.0.push(pq.1.clone());
    let mut scores = rows.clone();
    scores.0.push(pk.1.clone());
    if let Some(m) = s.opt_input(mask) {
        let spread = crate::elementwise::binary::broadcast(&scores, &m.shape)?;
        same_shape(&scores, &spread, "the mask must spread over the scores")?;
    }
    s.attrs.float_or("scale", 1.0)?;
    guarded(s.attrs)?;
    let y = join(&(pq.0, pq.1, pv.2), swap[3]);
    let sums = if is_half(q.dtype) { DType::F32 } else { q.dtype };
    Ok([TensorType { dtype: q.dtype, shape: y }, TensorType { dtype: sums, shape: rows }])
}

/// Whether axis 0 of all operands is one in front of heads and rows, also of the mask at input `mask`.
pub(super) fn has_batch(s: &Signature<'_>, mask: usize) -> bool {
    let rank = s.opt_input(0).map_or(0, |q| q.shape.rank());
    rank > 3 && s.opt_input(mask).is_none_or(|m| m.shape.rank() == rank)
}

/// Where the matrices of an operand lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    heads: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    swapped: bool,
}

impl Operand {
    fn new(shape: &Shape, swapped: bool) -> Result<Operand, OpError> {
        let (lead, rows, columns) = split(shape, swapped)?;
        let mut all = lead.clone();
        all.0.extend([rows, columns]);
        let dims = crate::def::fixed(&all, "the shape of an operand")?;
        let (n, heads) = (dims.len(), if lead.rank() == 0 { 1 } else { dims[dims.len() - 3] });
        Ok(Operand { heads, rows: dims[n - 2], columns: dims[n - 1], swapped })
    }

    /// Offset of the first element of matrix `i`.
    pub(super) fn at(&self, i: usize) -> usize {
        let size = self.rows * self.columns;
        if self.swapped {
            i / self.heads * self.heads * size + i % self.heads * self.columns
        } else {
            i * size
        }
    }

    /// Heads, rows, columns, and whether rows stand before heads.
    pub(super) fn layout(&self) -> [usize; 4] {
        [self.heads, self.rows, self.columns, self.swapped.into()]
    }

    /// Elements from one row to the next.
    pub(super) fn stride(&self) -> usize {
        if self.swapped { self.heads * self.columns } else { self.columns }
    }
}

/// A mask spread over the scores: (extent, stride) of the leading axes, and strides of rows and columns.
#[derive(Clone, Debug)]
pub(super) struct Mask {
    axes: Vec<(usize, usize)>,
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) fill: Option<f64>,
}

impl Mask {
    /// (extent, stride) of the leading axes.
    pub(super) fn axes(&self) -> &[(usize, usize)] {
        &self.axes
    }

    /// Offset of the mask of matrix `i`.
    pub(super) fn at(&self, mut i: usize) -> usize {
        let mut at = 0;
        for (extent, stride) in self.axes.iter().rev() {
            at += i % extent * stride;
            i /= extent;
        }
        at
    }
}

/// Attention of fixed sizes.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) matrices: usize,
    pub(super) q: Operand,
    pub(super) k: Operand,
    pub(super) v: Operand,
    pub(super) y: Operand,
    pub(super) mask: Option<Mask>,
    pub(super) scale: f64,
    pub(super) guarded: bool,
}

impl Plan {
    pub(super) fn new(s: &Signature<'_>, mask: usize) -> Result<Plan, OpError> {
        let [y, rows] = infer(s, mask)?;
        let swap = swapped(s.attrs)?;
        let operand = |i: usize| Operand::new(&s.input(i)?.shape, swap[i]);
        let (q, k, v) = (operand(0)?, operand(1)?, operand(2)?);
        let lead = crate::def::fixed(&rows.shape, "the shape of the queries")?;
        let lead = &lead[..lead.len() - 1];
        let mask = match s.opt_input(mask) {
            None => None,
            Some(m) => {
                let dims = crate::def::fixed(&m.shape, "the shape of the mask")?;
                let (mut stride, mut strides) = (1, Vec::new());
                for d in dims.iter().rev() {
                    strides.push(if *d == 1 { 0 } else { stride });
                    stride *= d;
                }
                let of = |back: usize| strides.get(back).copied().unwrap_or(0);
                let axes = lead.iter().enumerate().map(|(i, d)| (*d, of(lead.len() + 1 - i))).collect();
                Some(Mask { axes, row: of(1), column: of(0), fill: fill(s)? })
            }
        };
        let scale = s.attrs.float_or("scale", 1.0)?;
        let y = Operand::new(&y.shape, swap[3])?;
        let guarded = guarded(s.attrs)?;
        Ok(Plan { matrices: lead.iter().product(), q, k, v, y, mask, scale, guarded })
    }

    /// Rows and columns of a tile.
    pub(super) fn tile(&self) -> [usize; 2] {
        [ROWS.min(self.q.rows), COLUMNS.min(self.k.rows)]
    }

    /// The number of scores.
    pub(super) fn scores(&self) -> u64 {
        (self.matrices as u64).saturating_mul(self.q.rows as u64).saturating_mul(self.k.rows as u64)
    }
}

/// An operand in ONNX with its heads before its rows.
pub(super) fn straight<'a>(v: Term<'a>, rank: usize, swapped: bool) -> Term<'a> {
    if !swapped {
        return v;
    }
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(rank - 3, rank - 2);
    v.transpose(&perm)
}

/// q, k and v in ONNX, heads first, the scores with their mask, and the mask if it is boolean.
pub(super) type Exported<'a> = ([Term<'a>; 3], Term<'a>, Option<Term<'a>>);

/// What ONNX needs of attention, forward and backward.
pub(super) fn exported<'a>(x: &Export<'a>, mask: usize) -> Result<Exported<'a>, OpError> {
    let swap = swapped(x.sig.attrs)?;
    let rank = x.sig.input(0)?.shape.rank();
    let [q, k, v] = [0, 1, 2].map(|i| Ok::<_, OpError>(straight(x.input(i)?, rank, swap[i])));
    let (q, k, v) = (q?, k?, v?);
    let scores = x.call("MatMul", &[q, k.turned(rank)], Attrs::new()) * x.sig.attrs.float_or("scale", 1.0)?;
    Ok(match (x.opt(mask), fill(x.sig)?) {
        (Some(keep), Some(fill)) => ([q, k, v], keep.pick(scores, fill), Some(keep)),
        (mask, _) => ([q, k, v], mask.map_or(scores, |m| scores + m), None),
    })
}
