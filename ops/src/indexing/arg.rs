//! Positions of extreme elements: ArgMax, ArgMin.

use super::{Combine, for_numeric};
use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, CaseInput, Fill},
    cpu::{
        CpuKernel,
        par::{self, GRAIN, Shared},
    },
    export::Export,
    movement::{around, axis_attr},
    onnx::{ImportCx, OnnxRule, normalize_axis, rules},
};
use graph::{Attrs, DType, Dim, Literal, Shape, TensorType};

/// Position of the largest element along `axis` (i64), the first unless `select_last_index`; a NaN is larger than any number.
pub struct ArgMax;

/// Position of the smallest element along `axis` (i64), the first unless `select_last_index`; a NaN comes before any number.
pub struct ArgMin;

macro_rules! arg_op {
    ($op:ident, $name:literal, $better:expr, $rules:expr) => {
        impl OpDef for $op {
            fn name(&self) -> &'static str {
                $name
            }

            fn onnx(&self) -> &'static [OnnxRule] {
                $rules
            }

            fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
                infer(s)
            }

            fn differentiable(&self) -> bool {
                false
            }

            fn facts(&self, _: &Signature<'_>) -> Facts {
                Facts { once: true, folds: true, ..Facts::default() }
            }

            fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
                let dims = s.dims(0)?;
                let (outer, n, inner) = around(&dims, axis_attr(s, "axis", dims.len())?);
                let last = s.attrs.int("select_last_index")? != 0;
                for_numeric!(s.input(0)?.dtype, $name, T => Ok(search::<T>([outer, n, inner], last, $better)))
            }

            fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
                let a = x.sig.attrs;
                let (axis, keep, last) = (a.int("axis")?, a.int("keepdims")? != 0, a.int("select_last_index")? != 0);
                x.same($name, arg_attrs(axis as usize, keep, last))
            }

            fn cases(&self) -> Vec<Case> {
                cases()
            }
        }
    };
}

arg_op!(
    ArgMax,
    "ArgMax",
    |a, b| a > b || (a.nan() && !b.nan()),
    rules![
        "ArgMax" => |cx| import(cx, "ArgMax"),
        "Hardmax" => import_hardmax,
    ]
);
arg_op!(
    ArgMin,
    "ArgMin",
    |a, b| a < b || (a.nan() && !b.nan()),
    rules![
        "ArgMin" => |cx| import(cx, "ArgMin"),
    ]
);

fn arg_attrs(axis: usize, keep: bool, last: bool) -> Attrs {
    Attrs::new().with("axis", axis as i64).with("keepdims", keep).with("select_last_index", last)
}

fn import(cx: &mut ImportCx<'_, '_>, op: &str) -> Result<(), OpError> {
    let axis = normalize_axis(cx.attrs.int_or("axis", 0)?, cx.ty(0)?.shape.rank())?;
    let flag = |name, default| Ok::<bool, OpError>(cx.attrs.int_or(name, default)? != 0);
    let attrs = arg_attrs(axis, flag("keepdims", 1)?, flag("select_last_index", 0)?);
    cx.same(op, attrs)
}

/// Hardmax is 1 at the first largest element of each line and 0 elsewhere. Before opset 13 the lines are the rows of the input flattened
/// to a matrix.
fn import_hardmax(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    let (mut x, ty) = (cx.input(0)?, cx.ty(0)?);
    let rank = ty.shape.rank();
    let flat = cx.opset < 13;
    let mut axis = normalize_axis(cx.attrs.int_or("axis", if flat { 1 } else { -1 })?, rank)?;
    if flat {
        let product = |dims: &[Dim]| dims.iter().fold(Dim::constant(1), |p, d| p.mul(d));
        let matrix = Shape(vec![product(&ty.shape.0[..axis]), product(&ty.shape.0[axis..])]);
        x = cx.b.reshape(x, &matrix)?;
        axis = 1;
    }
    let dim = cx.b.ty(x).shape.0[axis].clone();
    let depth = dim.as_const().ok_or_else(|| OpError::Dynamic(format!("the extent {dim} of the lines")))?;
    let at = cx.b.op("ArgMax", arg_attrs(axis, false, false), &[x])?;
    let bytes =
        [0.0, 1.0].iter().flat_map(|v| Literal::scalar(ty.dtype, *v).bytes().to_vec()).collect::<Vec<_>>();
    let values = Literal::new(ty.dtype, vec![2], bytes).map_err(|e| OpError::invalid(e.to_string()))?;
    let values = cx.b.constant(values);
    let y = cx.b.op("OneHot", Attrs::new().with("axis", axis as i64).with("depth", depth), &[at, values])?;
    let y = cx.b.reshape(y, &ty.shape)?;
    cx.set(0, y);
    Ok(())
}

fn infer(s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
    let x = s.input(0)?;
    let axis = axis_attr(s, "axis", x.shape.rank())?;
    s.attrs.int("select_last_index")?;
    if x.dtype == DType::Bool {
        return Err(OpError::invalid("booleans have no order"));
    }
    if x.shape.0[axis].as_const() == Some(0) {
        return Err(OpError::invalid(format!("axis {axis} of {x} is empty")));
    }
    let mut shape = x.shape.clone();
    if s.attrs.int("keepdims")? != 0 {
        shape.0[axis] = Dim::constant(1);
    } else {
        shape.0.remove(axis);
    }
    Ok(vec![TensorType { dtype: DType::I64, shape }])
}

fn search<T: Combine>(
    [outer, n, inner]: [usize; 3],
    last: bool,
    better: impl Fn(T, T) -> bool + Send + Sync + 'static,
) -> CpuKernel {
    Box::new(move |io| {
        let (x, y) = (io.input::<T>(0), Shared(io.output_ptr::<i64>(0).0));
        par::ranges(outer * inner, (GRAIN / n).max(1), |r| {
            let y = &y;
            for l in r {
                let base = l / inner * n * inner + l % inner;
                let (mut at, mut best) = (0, x[base]);
                for k in 1..n {
                    let v = x[base + k * inner];
                    if better(v, best) || (last && !better(best, v)) {
                        (at, best) = (k, v);
                    }
                }
                // SAFETY: one element a line.
                unsafe { *y.0.add(l) = at as i64 };
            }
        });
        Ok(())
    })
}

fn cases() -> Vec<Case> {
    let ties = CaseInput::float(&[2, 4], Fill::Values(vec![1.0, 3.0, 3.0, 1.0, 2.0, 2.0, 0.5, 0.5]));
    vec![
        Case::new("rows", arg_attrs(1, false, false), &[&[3, 5]]),
        Case::new("columns kept", arg_attrs(0, true, false), &[&[4, 3]]),
        Case::new("channels", arg_attrs(1, true, false), &[&[2, 3, 4]]),
        Case::new("first of equals", arg_attrs(1, false, false), &[]).input(0, ties.clone()),
        Case::new("last of equals", arg_attrs(1, false, true), &[]).input(0, ties),
        Case::new("no lines", arg_attrs(1, false, false), &[&[0, 3]]),
    ]
}
