//! What the two scatters share: how elements combine, and their gradients.

use crate::{
    OpError, Signature,
    cpu::{
        Element, Io,
        par::{self, GRAIN, Shared},
    },
    grad::GradCx,
    movement::generate::zeros,
};
use graph::{Attrs, DType, ValueId};

/// What a scatter does with the element that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    Replace,
    Add,
    Mul,
    Max,
    Min,
}

impl Reduction {
    /// Attribute `reduction`.
    pub(crate) fn of(s: &Signature<'_>) -> Result<Reduction, OpError> {
        Reduction::named(s.attrs)
    }

    fn named(attrs: &Attrs) -> Result<Reduction, OpError> {
        Ok(match attrs.str_or("reduction", "none")? {
            "none" => Reduction::Replace,
            "add" => Reduction::Add,
            "mul" => Reduction::Mul,
            "max" => Reduction::Max,
            "min" => Reduction::Min,
            r => {
                return Err(OpError::invalid(format!("reduction {r:?} is none of none, add, mul, max, min")));
            }
        })
    }

    /// An error if elements of this dtype cannot be combined.
    pub(crate) fn check(self, dtype: DType) -> Result<(), OpError> {
        if self != Reduction::Replace && dtype == DType::Bool {
            return Err(OpError::unsupported("a reduction of booleans"));
        }
        Ok(())
    }
}

/// Copies input 0 to output 0 if they are not the same memory.
pub(crate) fn copy_unless_same<T: Element>(io: &Io<'_>) {
    let ((x, n), (y, _)) = (io.input_ptr::<T>(0), io.output_ptr::<T>(0));
    if std::ptr::eq(x, y) {
        return;
    }
    let (x, y) = (Shared(x.cast_mut()), Shared(y));
    par::ranges(n, GRAIN, |r| {
        let (x, y) = (&x, &y);
        // SAFETY: input and output have one type; being different buffers they do not overlap; ranges are disjoint.
        unsafe { std::ptr::copy_nonoverlapping(x.0.add(r.start), y.0.add(r.start), r.len()) };
    });
}

/// The gradient of a scatter, given the gather and the scatter (names and attributes) that address the same elements.
///
/// For `mul` the derivative by an update is the product of all others at its place: the product of the factors that are not 0, divided by
/// the update, unless another factor is 0. For `max` and `min` the cotangent is shared evenly among equal winners.
pub(crate) fn scatter_gradient(
    g: &mut GradCx<'_, '_>,
    (gather, gather_attrs): (&str, Attrs),
    (scatter, scatter_attrs): (&str, Attrs),
) -> Result<(), OpError> {
    let reduction = Reduction::named(g.attrs())?;
    let (x, indices, u, y, dy) = (g.input(0)?, g.input(1)?, g.input(2)?, g.output(0), g.cotangent0()?);
    let (needs_x, needs_u) = (g.needs(0), g.needs(2));
    let ty = g.ty(2)?;
    let dtype = ty.dtype;
    let b = &mut *g.b;
    let put = |b: &mut crate::Builder<'_>, to: ValueId, with: ValueId, how: &str| {
        b.op(scatter, scatter_attrs.clone().with("reduction", how), &[to, indices, with])
    };
    let pick =
        |b: &mut crate::Builder<'_>, from: ValueId| b.op(gather, gather_attrs.clone(), &[from, indices]);
    let (mut dx, mut du) = (None, None);
    match reduction {
        Reduction::Replace => {
            if needs_x {
                let zero = zeros(b, &ty)?;
                dx = Some(put(b, dy, zero, "none")?);
            }
            if needs_u {
                du = Some(pick(b, dy)?);
            }
        }
        Reduction::Add => {
            dx = Some(dy);
            if needs_u {
                du = Some(pick(b, dy)?);
            }
        }
        Reduction::Mul => {
            if needs_x {
                dx = Some(put(b, dy, u, "mul")?);
            }
            if needs_u {
                let zero = b.scalar(dtype, 0.0);
                let is_zero = |b: &mut crate::Builder<'_>, v: ValueId| {
                    let m = b.call("Equal", &[v, zero])?;
                    b.cast(m, dtype)
                };
                let (zx, zu) = (is_zero(b, x)?, is_zero(b, u)?);
                let (x1, u1) = (b.call("Add", &[x, zx])?, b.call("Add", &[u, zu])?);
                let product = put(b, x1, u1, "mul")?;
                let zeros_there = put(b, zx, zu, "add")?;
                let scaled = b.call("Mul", &[dy, product])?;
                let (scaled, zeros_there) = (pick(b, scaled)?, pick(b, zeros_there)?);
                let others = b.call("Div", &[scaled, u1])?;
                let counts = b.call("Equal", &[zeros_there, zu])?;
                let counts = b.cast(counts, dtype)?;
                du = Some(b.call("Mul", &[others, counts])?);
            }
        }
        Reduction::Max | Reduction::Min => {
            let there = pick(b, y)?;
            let (wx, wu) = (b.call("Equal", &[x, y])?, b.call("Equal", &[u, there])?);
            let (wx, wu) = (b.cast(wx, dtype)?, b.cast(wu, dtype)?);
            let winners = put(b, wx, wu, "add")?;
            let share = b.call("Div", &[dy, winners])?;
            if needs_x {
                dx = Some(b.call("Mul", &[share, wx])?);
            }
            if needs_u {
                let share = pick(b, share)?;
                du = Some(b.call("Mul", &[share, wu])?);
            }
        }
    }
    if let (Some(dx), true) = (dx, needs_x) {
        g.set(0, dx);
    }
    if let (Some(du), true) = (du, needs_u) {
        g.set(2, du);
    }
    Ok(())
}
