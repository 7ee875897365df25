//! Axes in another order, and the block rearrangements that are reshapes around it.

use super::{Part, Strided, copy_facts, copy_kernel, moved, row_major};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::Case,
    cpu::CpuKernel,
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, rules},
};
use graph::{Attrs, Shape, TensorType};

/// Output axis `i` is input axis `perm[i]`. A view when only axes of extent 1 move.
pub struct Transpose;

impl OpDef for Transpose {
    fn name(&self) -> &'static str {
        "Transpose"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules![
            "Transpose" => |cx| {
                let x = cx.input(0)?;
                let rank = cx.ty(0)?.shape.rank();
                let perm = match cx.attrs.opt_ints("perm")? {
                    Some(p) => check(p, rank)?.iter().map(|p| *p as i64).collect(),
                    None => (0..rank as i64).rev().collect::<Vec<i64>>(),
                };
                let y = cx.b.transpose(x, &perm)?;
                cx.set(0, y);
                Ok(())
            },
            "DepthToSpace" => import_depth_to_space,
            "SpaceToDepth" => import_space_to_depth,
        ]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = s.input(0)?;
        let perm = check(s.attrs.ints("perm")?, x.shape.rank())?;
        let shape = Shape(perm.iter().map(|p| x.shape.0[*p].clone()).collect());
        Ok(vec![TensorType { dtype: x.dtype, shape }])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let perm = g.attrs().ints("perm")?.to_vec();
        let mut inverse = vec![0i64; perm.len()];
        for (i, p) in perm.iter().enumerate() {
            inverse[*p as usize] = i as i64;
        }
        let dy = g.cotangent0()?;
        let dx = g.b.transpose(dy, &inverse)?;
        g.set(0, dx);
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        moved(&self.facts(s), s)
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        copy_facts(s, copy(s))
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        Ok(copy_kernel(s.input(0)?.dtype, false, vec![Part { input: 0, output: 0, copy: copy(s)? }]))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        x.same("Transpose", Attrs::new().with("perm", x.sig.attrs.ints("perm")?))
    }

    fn cases(&self) -> Vec<Case> {
        let perm = |p: &[i64]| Attrs::new().with("perm", p);
        vec![
            Case::new("matrix", perm(&[1, 0]), &[&[5, 7]]),
            Case::new("whole tiles", perm(&[1, 0]), &[&[16, 32]]),
            Case::new("heads", perm(&[0, 2, 1, 3]), &[&[2, 3, 2, 4]]),
            Case::new("channels last", perm(&[0, 2, 3, 1]), &[&[1, 3, 2, 5]]),
            Case::new("cycle", perm(&[2, 0, 1]), &[&[3, 4, 2]]),
            Case::new("a view", perm(&[1, 0, 2]), &[&[1, 4, 3]]),
            Case::new("empty", perm(&[1, 0]), &[&[0, 3]]),
        ]
    }
}

/// `perm` as indices; an error unless it is a permutation of the axes.
fn check(perm: &[i64], rank: usize) -> Result<Vec<usize>, OpError> {
    let mut seen = vec![false; rank];
    let lawful = perm.len() == rank
        && perm.iter().all(|p| {
            let at = usize::try_from(*p).ok().and_then(|p| seen.get_mut(p));
            at.is_some_and(|s| !std::mem::replace(s, true))
        });
    if !lawful {
        return Err(OpError::invalid(format!("perm {perm:?} is no permutation of {rank} axes")));
    }
    Ok(perm.iter().map(|p| *p as usize).collect())
}

pub(super) fn copy(s: &Signature<'_>) -> Result<Strided, OpError> {
    let dims = s.dims(0)?;
    let perm = check(s.attrs.ints("perm")?, dims.len())?;
    let strides = row_major(&dims);
    let out: Vec<usize> = perm.iter().map(|p| dims[*p]).collect();
    let src: Vec<isize> = perm.iter().map(|p| strides[*p]).collect();
    Ok(Strided::new(&out, &src, &row_major(&out), 0, 0))
}

/// Batch, channels, height, width and block size, all checked.
fn blocks(cx: &ImportCx<'_, '_>) -> Result<([usize; 4], usize), OpError> {
    let shape = cx.ty(0)?.shape;
    let dims = crate::fixed(&shape, "the shape")?;
    let dims: [usize; 4] =
        dims.try_into().map_err(|_| OpError::invalid(format!("the input must have 4 axes, not {shape}")))?;
    let size = cx.attrs.int("blocksize")?;
    match usize::try_from(size) {
        Ok(b) if b > 0 => Ok((dims, b)),
        _ => Err(OpError::invalid(format!("blocksize {size} is not positive"))),
    }
}

fn import_depth_to_space(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let ([n, c, h, w], s) = blocks(cx)?;
    if c % (s * s) != 0 {
        return Err(OpError::invalid(format!("{c} channels do not divide into blocks of {s} x {s}")));
    }
    let k = c / (s * s);
    let (split, perm): ([usize; 6], [i64; 6]) = match cx.attrs.str_or("mode", "DCR")? {
        "DCR" => ([n, s, s, k, h, w], [0, 3, 4, 1, 5, 2]),
        "CRD" => ([n, k, s, s, h, w], [0, 1, 4, 2, 5, 3]),
        mode => return Err(OpError::invalid(format!("mode {mode:?} is neither DCR nor CRD"))),
    };
    regroup(cx, &split, &perm, &[n, k, h * s, w * s])
}

fn import_space_to_depth(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let ([n, c, h, w], s) = blocks(cx)?;
    if h % s != 0 || w % s != 0 {
        return Err(OpError::invalid(format!("{h} x {w} does not divide into blocks of {s} x {s}")));
    }
    let (h, w) = (h / s, w / s);
    // Which comes first among the new channels: the place in the block or the old channel.
    let perm = match cx.attrs.str_or("mode", "DCR")? {
        "DCR" => [0, 3, 5, 1, 2, 4],
        "CRD" => [0, 1, 3, 5, 2, 4],
        m => return Err(OpError::invalid(format!("mode {m:?} is unknown"))),
    };
    regroup(cx, &[n, c, h, s, w, s], &perm, &[n, c * s * s, h, w])
}

fn regroup(cx: &mut ImportCx<'_, '_>, split: &[usize], perm: &[i64], to: &[usize]) -> Result<(), OpError> {
    let x = cx.input(0)?;
    let x = cx.b.reshape(x, &Shape::from(split))?;
    let x = cx.b.transpose(x, perm)?;
    let y = cx.b.reshape(x, &Shape::from(to))?;
    cx.set(0, y);
    Ok(())
}
