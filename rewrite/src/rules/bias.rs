//! What products take in: transposed operands and biases.

use super::{Effect, Equal, Found, Rule, arg, flags, none, perm, swapped_last};
use crate::space::{Site, Space};
use graph::Attrs;

/// A product reads an operand across instead of a transposed copy of it. The kernel walks it in another way, so roundings may differ.
pub(super) const TRANSPOSE_INTO_PRODUCT: Rule = Rule {
    name: "transpose-into-product",
    effect: Effect::Reassociates,
    stage: None,
    roots: &["MatMul", "Gemm"],
    apply: transpose_into_product,
};

/// A product and a bias for each column are one operator.
pub(super) const BIAS_INTO_PRODUCT: Rule = Rule {
    name: "bias-into-product",
    effect: Effect::Reassociates,
    stage: None,
    roots: &["Add"],
    apply: bias_into_product,
};

fn transpose_into_product(s: &mut Space<'_>, site: &Site) -> Found {
    let mut out = Vec::new();
    for (i, name) in [(0, "trans_a"), (1, "trans_b")] {
        let Some(x) = arg(site, i) else { return none() };
        for t in s.made(x, "Transpose") {
            let (Some(from), Some(p)) = (arg(&t, 0), perm(s, &t)) else { continue };
            let n = p.len();
            // The last two axes of the operand are those of the source in the other order.
            if n < 2 || p[n - 2] < p[n - 1] {
                continue;
            }
            let from = s.transpose(from, &swapped_last(&p))?;
            let (ta, tb) = flags(s, site);
            let turned = if i == 0 { !ta } else { !tb };
            let attrs = s.attrs(site).clone().with(name, turned);
            let op = s.op(site).to_owned();
            let mut args = site.args.clone();
            args[i] = Some(from);
            let tuple = s.tuple(&op, attrs, &args)?;
            out.push(Equal::Tuple(tuple));
        }
    }
    Ok(out)
}

fn bias_into_product(s: &mut Space<'_>, site: &Site) -> Found {
    let (Some(l), Some(r)) = (arg(site, 0), arg(site, 1)) else { return none() };
    let mut out = Vec::new();
    for (product, bias) in [(l, r), (r, l)] {
        for p in s.made(product, "MatMul") {
            let (Some(a), Some(w)) = (arg(&p, 0), arg(&p, 1)) else { continue };
            let (Some(da), Some(dy), Some(db)) = (s.dims(a), s.dims(product), s.dims(bias)) else { continue };
            let columns = dy[dy.len() - 1];
            let (ta, tb) = flags(s, &p);
            if !s.ty(a).dtype.is_float() || db != [columns] || s.shape(w).rank() != 2 || (ta && da.len() > 2)
            {
                continue;
            }
            let depth = da[da.len() - 1];
            let rows: usize = da[..da.len() - 1].iter().product();
            let flat = if da.len() == 2 { a } else { s.reshape(a, &[rows, depth])? };
            let attrs =
                Attrs::new().with("trans_a", ta).with("trans_b", tb).with("alpha", 1.0).with("beta", 1.0);
            let y = s.call("Gemm", attrs, &[flat, w, bias])?;
            out.push(Equal::Tensor(s.reshape(y, &dy)?));
        }
    }
    Ok(out)
}
