//! MatMul: products over the last two axes, batched over the others.

use super::{
    gemm::{Mat, multiply_batch, shared},
    tiles::Tiles,
};
use crate::{
    Builder, Facts, OpDef, OpError, Signature, Work,
    case::Case,
    cpu::{
        CpuKernel, Float,
        half::{Stored, is_half},
        par,
    },
    elementwise::binary::{Wrapping, broadcast},
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, rules},
};
use graph::{Attrs, DType, Dim, Shape, TensorType, ValueDef, ValueId};

/// op(a)·op(b) over the last two axes, where op transposes them if `trans_a` (`trans_b`) is 1; the other axes broadcast. Both inputs
/// have at least two axes.
pub struct MatMul;

impl OpDef for MatMul {
    fn name(&self) -> &'static str {
        "MatMul"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules![
            "MatMul" => import,
            "Einsum" => super::einsum::import,
            "MatMulInteger" => super::integer::matmul,
            "QLinearMatMul" => super::integer::quantized_matmul,
        ]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (a, b) = (s.input(0)?, s.input(1)?);
        if a.dtype != b.dtype {
            return Err(OpError::invalid(format!("input dtypes differ: {} and {}", a.dtype, b.dtype)));
        }
        if a.dtype == DType::Bool {
            return Err(OpError::invalid("booleans cannot be multiplied"));
        }
        let (ta, tb) = transposed(s.attrs)?;
        let (lead_a, [m, k]) = split(&a.shape, ta)?;
        let (lead_b, [k2, n]) = split(&b.shape, tb)?;
        same_dim(&k, &k2, "inner dimensions")?;
        let mut shape = broadcast(&lead_a, &lead_b)?;
        shape.0.extend([m, n]);
        Ok(vec![TensorType { dtype: a.dtype, shape }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (ta, tb) = transposed(g.attrs())?;
        let (a, b, dy) = (g.input(0)?, g.input(1)?, g.cotangent0()?);
        let (sa, sb) = (g.ty(0)?.shape, g.ty(1)?.shape);
        if g.needs(0) {
            let da = if ta { g.b.matmul(b, dy, tb, true)? } else { g.b.matmul(dy, b, false, !tb)? };
            let da = g.b.sum_to(da, &sa)?;
            g.set(0, da);
        }
        if g.needs(1) {
            let single = sb.0[..sb.rank() - 2].iter().all(|d| d.as_const() == Some(1));
            let db = if single && !ta && sa.rank() > 2 && sa.fixed().is_some() {
                // One product over all rows instead of a batch of products and their sum.
                let (rows_a, rows_dy) = (flat(g, a)?, flat(g, dy)?);
                weight_gradient(g, rows_a, rows_dy, false, tb)?
            } else {
                weight_gradient(g, a, dy, ta, tb)?
            };
            let db = if g.b.ty(db).shape.rank() < sb.rank() {
                g.b.reshape(db, &sb)?
            } else {
                g.b.sum_to(db, &sb)?
            };
            g.set(1, db);
        }
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let product = || {
            let k = split(&s.input(0).ok()?.shape, transposed(s.attrs).ok()?.0).ok()?.1[1].as_const()?;
            s.output(0).ok()?.shape.elements()?.checked_mul(2)?.checked_mul(u64::try_from(k).ok()?)
        };
        Work { flops: product().unwrap_or(0), bytes: s.io_bytes(), product: true }
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let halves = s.opt_input(0).is_some_and(|t| is_half(t.dtype));
        match Plan::new(s) {
            Ok(p) if halves => Facts::with_workspace(Tiles::new(p.batch, p.shape).workspace()),
            _ => Facts::default(),
        }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let plan = Plan::new(s)?;
        match s.input(0)?.dtype {
            DType::F32 => Ok(float_kernel::<f32>(plan)),
            DType::F64 => Ok(float_kernel::<f64>(plan)),
            DType::F16 => Ok(half_kernel::<half::f16>(plan)),
            DType::BF16 => Ok(half_kernel::<half::bf16>(plan)),
            DType::I32 => Ok(int_kernel::<i32>(plan)),
            DType::I64 => Ok(int_kernel::<i64>(plan)),
            DType::U32 => Ok(int_kernel::<u32>(plan)),
            DType::U64 => Ok(int_kernel::<u64>(plan)),
            d => Err(OpError::unsupported(format!("MatMul on {d} tensors"))),
        }
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (ta, tb) = transposed(x.sig.attrs)?;
        let side = |i: usize, turned: bool| {
            let v = x.input(i)?;
            Ok::<_, OpError>(if turned { v.turned(x.sig.input(i)?.shape.rank()) } else { v })
        };
        x.set(0, x.call("MatMul", &[side(0, ta)?, side(1, tb)?], Attrs::new()));
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let t = |a: bool, b: bool| Attrs::new().with("trans_a", a).with("trans_b", b);
        vec![
            Case::new("plain", t(false, false), &[&[3, 4], &[4, 5]]),
            Case::new("left transposed", t(true, false), &[&[4, 3], &[4, 5]]),
            Case::new("right transposed", t(false, true), &[&[3, 4], &[5, 4]]),
            Case::new("both transposed", t(true, true), &[&[4, 3], &[5, 4]]),
            Case::new("row times matrix", t(false, false), &[&[1, 6], &[6, 5]]),
            Case::new("matrix times column", t(false, false), &[&[5, 6], &[6, 1]]),
            Case::new("batch", t(false, true), &[&[2, 3, 4], &[2, 5, 4]]),
            Case::new("weight", t(false, false), &[&[2, 3, 4], &[4, 2]]),
            Case::new("weight transposed", t(false, true), &[&[2, 2, 3, 2], &[3, 2]]),
            Case::new("weight, left transposed", t(true, false), &[&[2, 4, 3], &[4, 2]]),
            Case::new("weight with a batch axis of 1", t(false, false), &[&[2, 3, 4], &[1, 4, 2]]),
            Case::new("left shared by the batch", t(true, true), &[&[4, 3], &[2, 5, 4]]),
            Case::new("both broadcast", t(false, false), &[&[2, 1, 2, 3], &[3, 3, 2]]),
            Case::new("no rows", t(false, false), &[&[0, 3], &[3, 2]]),
            Case::new("empty sums", t(false, false), &[&[2, 0], &[0, 3]]),
        ]
    }
}

/// ONNX: a vector on the left is a row, on the right a column, and that axis is dropped from the result.
fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (mut a, mut b) = (cx.input(0)?, cx.input(1)?);
    let (sa, sb) = (cx.ty(0)?.shape, cx.ty(1)?.shape);
    let one = Dim::constant(1);
    if sa.rank() == 1 {
        a = cx.b.reshape(a, &Shape(vec![one.clone(), sa.0[0].clone()]))?;
    }
    if sb.rank() == 1 {
        b = cx.b.reshape(b, &Shape(vec![sb.0[0].clone(), one]))?;
    }
    let ((a, ta), (b, tb)) = (as_it_lies(cx.b, a)?, as_it_lies(cx.b, b)?);
    let mut y = cx.b.matmul(a, b, ta, tb)?;
    let mut shape = cx.b.ty(y).shape.clone();
    if sb.rank() == 1 {
        shape.0.pop();
    }
    if sa.rank() == 1 {
        let row = shape.rank() - if sb.rank() == 1 { 1 } else { 2 };
        shape.0.remove(row);
    }
    y = cx.b.reshape(y, &shape)?;
    cx.set(0, y);
    Ok(())
}

/// An operand as it lies in memory, and whether the product has to transpose it: exporters write x·Wᵀ and q·kᵀ with a transposed copy,
/// which neither the product nor a gradient needs.
fn as_it_lies(b: &mut Builder<'_>, v: ValueId) -> Result<(ValueId, bool), OpError> {
    let ValueDef::Node { node, .. } = b.graph().value(v).def else { return Ok((v, false)) };
    let node = b.graph().node(node);
    let (true, Some(Some(from))) = (&*node.op == "Transpose", node.inputs.first()) else {
        return Ok((v, false));
    };
    let (from, mut perm) = (*from, node.attrs.ints("perm")?.to_vec());
    let n = perm.len();
    // The last two axes come from axes in the other order.
    if n < 2 || perm[n - 2] < perm[n - 1] {
        return Ok((v, false));
    }
    perm.swap(n - 2, n - 1);
    Ok((b.transpose(from, &perm)?, true))
}

/// The gradient of op(b) in y = op(a)·op(b), as b lies in memory.
pub(super) fn weight_gradient(
    g: &mut GradCx<'_, '_>,
    a: ValueId,
    dy: ValueId,
    ta: bool,
    tb: bool,
) -> Result<ValueId, OpError> {
    if tb { g.b.matmul(dy, a, true, ta) } else { g.b.matmul(a, dy, !ta, false) }
}

/// All rows of a batch of matrices as one matrix.
fn flat(g: &mut GradCx<'_, '_>, v: ValueId) -> Result<ValueId, OpError> {
    let shape = g.b.ty(v).shape.clone();
    let (cols, lead) = shape.0.split_last().ok_or_else(|| OpError::invalid("a scalar has no rows"))?;
    let rows = lead.iter().fold(Dim::constant(1), |n, d| n.mul(d));
    g.b.reshape(v, &Shape(vec![rows, cols.clone()]))
}

/// The attributes `trans_a` and `trans_b`.
pub(super) fn transposed(attrs: &Attrs) -> Result<(bool, bool), OpError> {
    let flag = |name: &str| match attrs.int_or(name, 0)? {
        0 => Ok(false),
        1 => Ok(true),
        n => Err(OpError::invalid(format!("{name} must be 0 or 1, not {n}"))),
    };
    Ok((flag("trans_a")?, flag("trans_b")?))
}

/// Leading axes, and rows and columns after transposing.
fn split(shape: &Shape, transposed: bool) -> Result<(Shape, [Dim; 2]), OpError> {
    let Some((lead, [r, c])) = shape.0.split_last_chunk::<2>() else {
        return Err(OpError::invalid(format!("the inputs must have at least two axes, not {shape}")));
    };
    let [r, c] = [r.clone(), c.clone()];
    Ok((Shape(lead.to_vec()), if transposed { [c, r] } else { [r, c] }))
}

/// Refuses sizes that differ or are not known to be equal.
pub(crate) fn same_dim(a: &Dim, b: &Dim, what: &str) -> Result<(), OpError> {
    if a == b {
        Ok(())
    } else if a.as_const().is_some() && b.as_const().is_some() {
        Err(OpError::invalid(format!("{what} differ: {a} and {b}")))
    } else {
        Err(OpError::Dynamic(format!("whether {a} equals {b} ({what})")))
    }
}

/// A batch of products with fixed sizes.
pub(super) struct Plan {
    pub(super) batch: usize,
    pub(super) shape: [usize; 3],
    pub(super) ta: bool,
    pub(super) tb: bool,
    /// Extents of the batch axes, and how many matrices apart their entries lie in a and b (0 where broadcast).
    pub(super) axes: Vec<(usize, [usize; 2])>,
}

impl Plan {
    pub(super) fn new(s: &Signature<'_>) -> Result<Plan, OpError> {
        let (a, b, y) = (s.dims(0)?, s.dims(1)?, s.out_dims(0)?);
        let (ta, tb) = transposed(s.attrs)?;
        let rank = y.len() - 2;
        let (mut m, n) = (y[rank], y[rank + 1]);
        let k = if ta { a[a.len() - 2] } else { a[a.len() - 1] };
        let (mut sa, mut sb) = (1, 1);
        let mut axes = Vec::new();
        for i in (0..rank).rev() {
            let extent = |d: &[usize]| (i + d.len()).checked_sub(y.len()).map_or(1, |j| d[j]);
            let (ea, eb) = (extent(&a), extent(&b));
            axes.push((y[i], [if ea == 1 { 0 } else { sa }, if eb == 1 { 0 } else { sb }]));
            (sa, sb) = (sa * ea, sb * eb);
        }
        axes.reverse();
        let mut batch: usize = y[..rank].iter().product();
        // One product over all rows where the right side is shared and the rows of the left lie in order.
        if !ta && sb == 1 && sa == batch {
            m *= batch;
            batch = 1;
            axes.clear();
        }
        Ok(Plan { batch, shape: [m, n, k], ta, tb, axes })
    }

    /// Which matrices of a and b enter product `i`.
    fn operands(&self, mut i: usize) -> [usize; 2] {
        let mut at = [0, 0];
        for (extent, stride) in self.axes.iter().rev() {
            let e = i % extent;
            i /= extent;
            at = [at[0] + e * stride[0], at[1] + e * stride[1]];
        }
        at
    }

    /// Row distances of a and b.
    fn leading(&self) -> [usize; 2] {
        let [m, n, k] = self.shape;
        [if self.ta { m } else { k }, if self.tb { k } else { n }]
    }

    /// The operands and the result of product `i`, of tensors that begin at `a`, `b` and `y`.
    fn matrices<T>(
        &self,
        i: usize,
        a: &par::Shared<T>,
        b: &par::Shared<T>,
        y: &par::Shared<T>,
    ) -> (Mat<T>, Mat<T>, Mat<T>) {
        let ([m, n, k], [lda, ldb], [ia, ib]) = (self.shape, self.leading(), self.operands(i));
        (
            Mat::new(a.0.wrapping_add(ia * m * k), lda, self.ta),
            Mat::new(b.0.wrapping_add(ib * k * n), ldb, self.tb),
            Mat::rows(y.0.wrapping_add(i * m * n), n),
        )
    }
}

fn float_kernel<T: Float>(p: Plan) -> CpuKernel {
    Box::new(move |io| {
        let (a, b) = (shared(io.input::<T>(0)), shared(io.input::<T>(1)));
        let y = par::Shared(io.output::<T>(0).as_mut_ptr());
        let at = |i: usize| p.matrices(i, &a, &b, &y);
        // SAFETY: every matrix lies inside its tensor by construction of the plan; outputs are disjoint.
        unsafe { multiply_batch(p.batch, p.shape, T::ONE, T::ZERO, at, |_, _| {}) };
        Ok(())
    })
}

fn half_kernel<S: Stored<Work = f32>>(p: Plan) -> CpuKernel {
    let tiles = Tiles::new(p.batch, p.shape);
    Box::new(move |io| {
        let (a, b) = (shared(io.input::<S>(0)), shared(io.input::<S>(1)));
        let y = par::Shared(io.output::<S>(0).as_mut_ptr());
        let at = |i: usize| p.matrices(i, &a, &b, &y);
        // SAFETY: every matrix lies inside its tensor by construction of the plan; outputs are disjoint.
        unsafe { tiles.multiply(1.0, at, None, io.workspace::<f32>()) };
        Ok(())
    })
}

fn int_kernel<T: Wrapping>(p: Plan) -> CpuKernel {
    Box::new(move |io| {
        let (a, b) = (io.input::<T>(0), io.input::<T>(1));
        let ([m, n, k], [lda, ldb]) = (p.shape, p.leading());
        par::rows(io.output::<T>(0), n, |row, y| {
            let [ia, ib] = p.operands(row / m);
            let (a, b, i) = (&a[ia * m * k..], &b[ib * k * n..], row % m);
            for (j, y) in y.iter_mut().enumerate() {
                *y = (0..k).fold(T::from_f64(0.0), |sum, x| {
                    let l = if p.ta { a[x * lda + i] } else { a[i * lda + x] };
                    let r = if p.tb { b[j * ldb + x] } else { b[x * ldb + j] };
                    Wrapping::add(sum, Wrapping::mul(l, r))
                });
            }
        });
        Ok(())
    })
}
