//! The rules, one file a theme.
//!
//! The laws of a rule: it holds for every value of its inputs and at every budget; its name is stable, for people read it in reports; it is
//! [`Effect::Exact`] only if all elements keep their bits, signs of zeros included; where the shape of a pattern is there and a condition
//! fails, it says which ([`Miss`]). A rule that runs before the training step is made must not be exact: even where the values stay,
//! another order of gradient contributions is another rounding.

mod attention;
mod bias;
mod cross_entropy;
mod gelu;
mod gradients;
mod movement;
mod normalization;
mod scale;
mod scores;

use crate::{
    Level,
    space::{Site, Space},
};
use egg::Id;
use graph::DType;

/// What a rule may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: every bit stays.
    Exact,
    /// The rounding: sums and products are formed in another order, or by another kernel.
    Reassociates,
}

/// When a rule may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// On the forward graph, before gradients are written.
    Before,
    /// On a whole program.
    After,
}

/// A pattern whose condition fails: which one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Miss(pub String);

/// What a site is equal to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Equal {
    /// Its first output is this tensor.
    Tensor(Id),
    /// All its outputs are those of this tuple.
    Tuple(Id),
}

/// What a rule finds at a site.
pub type Found = Result<Vec<Equal>, Miss>;

/// A rule.
pub struct Rule {
    /// Its name in reports.
    pub name: &'static str,
    /// What it may change.
    pub effect: Effect,
    /// When it runs; `None` for both.
    pub stage: Option<Stage>,
    /// Operators at which its pattern ends.
    pub roots: &'static [&'static str],
    /// Looks at a site.
    pub apply: fn(&mut Space<'_>, &Site) -> Found,
}

impl Rule {
    /// Whether it runs at a level and stage. Nothing exact happens before the training step is made at [`Level::Exact`], see above.
    pub fn applies(&self, level: Level, stage: Stage) -> bool {
        let lawful = level != Level::Exact || (self.effect == Effect::Exact && stage == Stage::After);
        lawful && self.stage.is_none_or(|s| s == stage)
    }
}

/// Every rule, in the order in which they are tried.
pub static RULES: &[Rule] = &[
    movement::CANCEL_TRANSPOSES,
    movement::MERGE_RESHAPES,
    movement::IDLE_MOVEMENT,
    scale::UNIT_SCALE,
    scale::DOUBLE_NEGATION,
    scale::MERGE_SCALES,
    scale::SCALE_INTO_PRODUCT,
    bias::TRANSPOSE_INTO_PRODUCT,
    bias::BIAS_INTO_PRODUCT,
    gradients::ROOT_FROM_OUTPUT,
    gradients::RECIPROCAL_FROM_OUTPUT,
    gradients::RELU_FROM_OUTPUT,
    gradients::LOG_SOFTMAX_FROM_OUTPUT,
    gelu::GELU,
    gelu::SWISH,
    normalization::LAYER_NORMALIZATION,
    normalization::RMS_NORMALIZATION,
    attention::ATTENTION,
    attention::TRANSPOSE_INTO_ATTENTION,
    attention::TRANSPOSE_OUT_OF_ATTENTION,
    cross_entropy::NLL_OF_LOG_SOFTMAX,
    cross_entropy::LINEAR_CROSS_ENTROPY,
];

/// Nothing to see.
fn none() -> Found {
    Ok(Vec::new())
}

/// One equal tensor.
fn one(id: Id) -> Found {
    Ok(vec![Equal::Tensor(id)])
}

/// Input `i` of a site that has it.
fn arg(site: &Site, i: usize) -> Option<Id> {
    site.args.get(i).copied().flatten()
}

/// The other operand of a commutative site of which one is a constant of equal elements, and that number.
fn with_number(space: &Space<'_>, site: &Site) -> Option<(Id, f64)> {
    let (a, b) = (arg(site, 0)?, arg(site, 1)?);
    match (space.number(a), space.number(b)) {
        (_, Some(n)) => Some((a, n)),
        (Some(n), _) => Some((b, n)),
        _ => None,
    }
}

/// `tensor` as number · another: through Mul, and through Div by a number.
fn scaled(space: &Space<'_>, tensor: Id) -> Option<(Id, f64)> {
    // A class that has its own product by 1 says nothing by it.
    let another = |(x, _): &(Id, f64)| !space.same(*x, tensor) && space.ty(*x) == space.ty(tensor);
    let mul = |s: &Site| with_number(space, s).filter(another);
    let div = |s: &Site| {
        let by = space.number(arg(s, 1)?)?;
        Some((arg(s, 0)?, 1.0 / by)).filter(another)
    };
    let found = space.made(tensor, "Mul").iter().find_map(mul);
    found.or_else(|| space.made(tensor, "Div").iter().find_map(div))
}

/// Whether a number is a normal one of a type: neither 0 nor infinite there, and with all its digits.
fn normal(dtype: DType, x: f64) -> bool {
    let (least, most) = match dtype {
        DType::F16 => (2f64.powi(-14), 65504.0),
        // The same exponents, and a significand of 8 bits.
        DType::BF16 => (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX) * (1.0 - 2f64.powi(-8))),
        DType::F32 => (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)),
        _ => (f64::MIN_POSITIVE, f64::MAX),
    };
    (least..=most).contains(&x.abs())
}

/// Whether two numbers agree to single precision.
fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 2e-6 * b.abs()
}

/// The last two axes of a permutation swapped.
fn swapped_last(perm: &[i64]) -> Vec<i64> {
    let mut p = perm.to_vec();
    let n = p.len();
    p.swap(n - 2, n - 1);
    p
}

/// The permutation of a Transpose site.
fn perm(space: &Space<'_>, site: &Site) -> Option<Vec<i64>> {
    space.attrs(site).ints("perm").ok().map(<[i64]>::to_vec)
}

/// Flags of a product: (trans_a, trans_b).
fn flags(space: &Space<'_>, site: &Site) -> (bool, bool) {
    let flag = |name| space.attrs(site).int_or(name, 0) == Ok(1);
    (flag("trans_a"), flag("trans_b"))
}
