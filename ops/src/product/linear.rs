//! Gemm: a matrix product with a bias, as linear layers are exported.

use super::{
    gemm::{Mat, multiply_batch, shared},
    matmul::{same_dim, transposed, weight_gradient},
    tiles::Tiles,
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::Case,
    cpu::{
        CpuKernel, Float,
        half::{Stored, is_half},
        par,
    },
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, rules},
};
use graph::{Attrs, DType, Dim, TensorType, ValueId};

/// alpha·op(a)·op(b) + beta·c for matrices; c is optional and broadcasts to the result. Attributes `trans_a`, `trans_b`, `alpha`, `beta`.
pub struct Gemm;

impl OpDef for Gemm {
    fn name(&self) -> &'static str {
        "Gemm"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Gemm" => import]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (a, b) = (s.input(0)?, s.input(1)?);
        let (ta, tb) = transposed(s.attrs)?;
        for name in ["alpha", "beta"] {
            s.attrs.float_or(name, 1.0)?;
        }
        let ([ra, ca], [rb, cb]) = (&a.shape.0[..], &b.shape.0[..]) else {
            return Err(OpError::invalid(format!(
                "the inputs must be matrices, not {} and {}",
                a.shape, b.shape
            )));
        };
        let (m, k) = if ta { (ca, ra) } else { (ra, ca) };
        let (k2, n) = if tb { (cb, rb) } else { (rb, cb) };
        same_dim(k, k2, "inner dimensions")?;
        let bias = s.opt_input(2);
        if a.dtype != b.dtype || bias.is_some_and(|c| c.dtype != a.dtype) || !a.dtype.is_float() {
            return Err(OpError::invalid("the inputs must have one floating-point dtype"));
        }
        if let Some(c) = bias {
            let one = Dim::constant(1);
            if c.shape.rank() > 2 {
                return Err(OpError::invalid(format!("the bias {} has more than two axes", c.shape)));
            }
            for (d, of) in c.shape.0.iter().rev().zip([n, m]) {
                if *d != one {
                    same_dim(d, of, "bias and result")?;
                }
            }
        }
        Ok(vec![TensorType { dtype: a.dtype, shape: graph::Shape(vec![m.clone(), n.clone()]) }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let (ta, tb) = transposed(g.attrs())?;
        let (alpha, beta) = (g.attrs().float_or("alpha", 1.0)?, g.attrs().float_or("beta", 1.0)?);
        let (a, b, dy) = (g.input(0)?, g.input(1)?, g.cotangent0()?);
        if g.needs(0) {
            let da = if ta { g.b.matmul(b, dy, tb, true)? } else { g.b.matmul(dy, b, false, !tb)? };
            let da = scale(g, da, alpha)?;
            g.set(0, da);
        }
        if g.needs(1) {
            let db = weight_gradient(g, a, dy, ta, tb)?;
            let db = scale(g, db, alpha)?;
            g.set(1, db);
        }
        if g.needs(2) {
            let shape = g.ty(2)?.shape;
            let dc = g.b.sum_to(dy, &shape)?;
            let dc = scale(g, dc, beta)?;
            g.set(2, dc);
        }
        Ok(())
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let over = s.outputs.first().is_some_and(|y| s.opt_input(2) == Some(*y));
        let halves = s.opt_input(0).is_some_and(|t| is_half(t.dtype));
        let workspace = match Sizes::new(s) {
            Ok(z) if halves => Tiles::new(1, z.shape).workspace(),
            _ => 0,
        };
        Facts { overwrites: if over { vec![(0, 2)] } else { vec![] }, ..Facts::with_workspace(workspace) }
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        super::matmul::MatMul.work(s)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        match s.input(0)?.dtype {
            DType::F16 => half_kernel::<half::f16>(s),
            DType::BF16 => half_kernel::<half::bf16>(s),
            d => crate::for_float!(d, self.name(), T => kernel::<T>(s)),
        }
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let (attrs, (ta, tb)) = (x.sig.attrs, transposed(x.sig.attrs)?);
        let attrs = Attrs::new()
            .with("alpha", attrs.float_or("alpha", 1.0)?)
            .with("beta", attrs.float_or("beta", 1.0)?)
            .with("transA", ta)
            .with("transB", tb);
        x.same("Gemm", attrs)
    }

    fn cases(&self) -> Vec<Case> {
        let t = |a: bool, b: bool| Attrs::new().with("trans_a", a).with("trans_b", b);
        let scaled = t(true, true).with("alpha", 0.5).with("beta", -2.0);
        vec![
            Case::new("linear layer", t(false, true), &[&[3, 4], &[5, 4], &[5]]),
            Case::new("scaled", scaled.clone(), &[&[4, 3], &[5, 4], &[3, 5]]),
            Case::new("scaled, no bias", scaled, &[&[4, 3], &[5, 4]]),
            Case::new("bias a column", t(false, false), &[&[3, 4], &[4, 2], &[3, 1]]),
            Case::new("bias a row", t(true, false), &[&[4, 3], &[4, 2], &[1, 2]]),
            Case::new("bias a scalar", t(false, false), &[&[3, 4], &[4, 2], &[]]),
            Case::new("bias of beta 0", t(false, false).with("beta", 0.0), &[&[3, 4], &[4, 2], &[2]]),
            Case::new("empty sums", t(false, false), &[&[2, 0], &[0, 3], &[3]]),
        ]
    }
}

fn import(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (alpha, beta) = (cx.attrs.float_or("alpha", 1.0)?, cx.attrs.float_or("beta", 1.0)?);
    let attrs = Attrs::new()
        .with("trans_a", cx.attrs.int_or("transA", 0)? != 0)
        .with("trans_b", cx.attrs.int_or("transB", 0)? != 0);
    let (a, b, c) = (cx.input(0)?, cx.input(1)?, cx.opt_input(2).filter(|_| beta != 0.0));
    let matrices = cx.ty(0)?.shape.rank() == 2 && cx.ty(1)?.shape.rank() == 2;
    let y = match c {
        None if alpha == 1.0 && matrices => cx.b.op("MatMul", attrs, &[a, b])?,
        _ => {
            let attrs = attrs.with("alpha", alpha).with("beta", beta);
            let inputs: Vec<ValueId> = [a, b].into_iter().chain(c).collect();
            cx.b.op("Gemm", attrs, &inputs)?
        }
    };
    cx.set(0, y);
    Ok(())
}

fn scale(g: &mut GradCx<'_, '_>, v: ValueId, by: f64) -> Result<ValueId, OpError> {
    if by == 1.0 {
        return Ok(v);
    }
    let dtype = g.b.ty(v).dtype;
    let by = g.b.scalar(dtype, by);
    g.b.call("Mul", &[v, by])
}

/// A product of fixed sizes.
struct Sizes {
    shape: [usize; 3],
    transposed: (bool, bool),
    leading: [usize; 2],
    alpha: f64,
    beta: f64,
    /// Strides of the bias over rows and columns, 0 where it broadcasts.
    bias: Option<(usize, usize)>,
}

impl Sizes {
    fn new(s: &Signature<'_>) -> Result<Sizes, OpError> {
        let (ta, tb) = transposed(s.attrs)?;
        let (a, y) = (s.dims(0)?, s.out_dims(0)?);
        let (m, n, k) = (y[0], y[1], if ta { a[0] } else { a[1] });
        let (alpha, beta) = (s.attrs.float_or("alpha", 1.0)?, s.attrs.float_or("beta", 1.0)?);
        let bias = match s.opt_input(2).filter(|_| beta != 0.0) {
            None => None,
            Some(_) => {
                let c = s.dims(2)?;
                let (rows, cols) = (if c.len() == 2 { c[0] } else { 1 }, c.last().copied().unwrap_or(1));
                Some((if rows == 1 { 0 } else { cols }, usize::from(cols != 1)))
            }
        };
        let leading = [if ta { m } else { k }, if tb { k } else { n }];
        Ok(Sizes { shape: [m, n, k], transposed: (ta, tb), leading, alpha, beta, bias })
    }
}

fn half_kernel<S: Stored<Work = f32>>(s: &Signature<'_>) -> Result<CpuKernel, OpError> {
    let Sizes { shape, transposed: (ta, tb), leading: [lda, ldb], alpha, beta, bias } = Sizes::new(s)?;
    let (alpha, beta) = (alpha as f32, beta as f32);
    let tiles = Tiles::new(1, shape);
    Ok(Box::new(move |io| {
        let (a, b) = (shared(io.input::<S>(0)), shared(io.input::<S>(1)));
        let y = par::Shared(io.output_ptr::<S>(0).0);
        let c = par::Shared(if bias.is_some() { io.input_ptr::<S>(2).0.cast_mut() } else { y.0 });
        let at = |_| {
            let (a, b, y) = (&a, &b, &y);
            (Mat::new(a.0, lda, ta), Mat::new(b.0, ldb, tb), Mat::rows(y.0, shape[1]))
        };
        let start = |_: usize, [r, col, h, w]: [usize; 4], tile: &mut [f32]| {
            let (c, Some((rs, cs))) = (&c, bias) else { return };
            for (i, tile) in tile.chunks_exact_mut(w).enumerate().take(h) {
                for (j, t) in tile.iter_mut().enumerate() {
                    // SAFETY: element (i, j) of the bias exists by inference; where y is c, the tile is read before it is written.
                    *t = beta * unsafe { *c.0.add((r + i) * rs + (col + j) * cs) }.load();
                }
            }
        };
        // SAFETY: the matrices are the tensors, by inference.
        unsafe { tiles.multiply(alpha, at, bias.is_some().then_some(&start as _), io.workspace::<f32>()) };
        Ok(())
    }))
}

fn kernel<T: Float>(s: &Signature<'_>) -> Result<CpuKernel, OpError> {
    let Sizes { shape: [m, n, k], transposed: (ta, tb), leading: [lda, ldb], alpha, beta, bias } =
        Sizes::new(s)?;
    let (alpha, beta) = (T::from_f64(alpha), T::from_f64(beta));
    Ok(Box::new(move |io| {
        let (a, b) = (shared(io.input::<T>(0)), shared(io.input::<T>(1)));
        let y = par::Shared(io.output_ptr::<T>(0).0);
        let c = par::Shared(if bias.is_some() { io.input_ptr::<T>(2).0.cast_mut() } else { y.0 });
        let at = |_| {
            let (a, b, y) = (&a, &b, &y);
            (Mat::new(a.0, lda, ta), Mat::new(b.0, ldb, tb), Mat::rows(y.0, n))
        };
        let fill = |_: usize, [r, col, h, w]: [usize; 4]| {
            let (c, y) = (&c, &y);
            let Some((rs, cs)) = bias else { return };
            for i in r..r + h {
                // SAFETY: element (i, j) of the bias exists by inference; the tile of y is this task's, and where y is c itself each
                // element is read before it is written.
                unsafe {
                    let (c, y) = (c.0.add(i * rs), y.0.add(i * n));
                    if cs == 1 {
                        (col..col + w).for_each(|j| *y.add(j) = beta * *c.add(j));
                    } else {
                        let v = beta * *c;
                        (col..col + w).for_each(|j| *y.add(j) = v);
                    }
                }
            }
        };
        let keep = if bias.is_some() { T::ONE } else { T::ZERO };
        // SAFETY: the matrices are the tensors, by inference.
        unsafe { multiply_batch(1, [m, n, k], alpha, keep, at, fill) };
        Ok(())
    }))
}
