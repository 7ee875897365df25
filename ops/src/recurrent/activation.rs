//! Activation functions of recurrent cells: ONNX's table, applied to the rows of a gate, and pulled back from what they gave.
//!
//! Every slope is a function of the result, so that a cell saves its gates and not what went into them.

use crate::{
    OpError,
    cpu::{Math, lanes},
};
use graph::{Attr, Attrs};

/// ONNX's activation functions; which of alpha and beta they take, and the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Relu,
    Tanh,
    Sigmoid,
    Affine,
    LeakyRelu,
    ThresholdedRelu,
    ScaledTanh,
    HardSigmoid,
    Elu,
    Softsign,
    Softplus,
}

impl Kind {
    const ALL: [(&'static str, Kind, Option<f64>, Option<f64>); 11] = [
        ("Relu", Kind::Relu, None, None),
        ("Tanh", Kind::Tanh, None, None),
        ("Sigmoid", Kind::Sigmoid, None, None),
        ("Affine", Kind::Affine, Some(1.0), Some(0.0)),
        ("LeakyRelu", Kind::LeakyRelu, Some(0.01), None),
        ("ThresholdedRelu", Kind::ThresholdedRelu, Some(1.0), None),
        ("ScaledTanh", Kind::ScaledTanh, Some(1.0), Some(1.0)),
        ("HardSigmoid", Kind::HardSigmoid, Some(0.2), Some(0.5)),
        ("Elu", Kind::Elu, Some(1.0), None),
        ("Softsign", Kind::Softsign, None, None),
        ("Softplus", Kind::Softplus, None, None),
    ];

    fn find(name: &str) -> Result<(Kind, Option<f64>, Option<f64>), OpError> {
        // Files write the names in any case.
        let found = Kind::ALL.iter().find(|(n, ..)| n.eq_ignore_ascii_case(name));
        let (_, kind, alpha, beta) = found.ok_or_else(|| {
            let names: Vec<&str> = Kind::ALL.iter().map(|k| k.0).collect();
            OpError::invalid(format!("activation {name:?} is none of {}", names.join(", ")))
        })?;
        Ok((*kind, *alpha, *beta))
    }
}

/// The attributes `activations`, `alphas` and `betas` (one number an activation) of a node with these functions. `alphas` and `betas` give
/// numbers, in order, to the functions that take one; where they end the defaults hold.
pub(super) fn attributes(
    attrs: Attrs,
    names: &[&str],
    alphas: &[f64],
    betas: &[f64],
) -> Result<Attrs, OpError> {
    let (mut alphas, mut betas) = (alphas.iter(), betas.iter());
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for name in names {
        let (_, alpha, beta) = Kind::find(name)?;
        let next = |given: &mut std::slice::Iter<'_, f64>, default: Option<f64>| {
            default.map_or(0.0, |d| given.next().copied().unwrap_or(d))
        };
        a.push(next(&mut alphas, alpha));
        b.push(next(&mut betas, beta));
    }
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    Ok(attrs.with("activations", Attr::Strs(names)).with("alphas", a).with("betas", b))
}

/// One function with its numbers. Its argument is cut to [-clip, clip] first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activation<T> {
    pub(super) kind: Kind,
    pub(super) alpha: T,
    pub(super) beta: T,
    /// Infinite without a cut.
    pub(super) clip: T,
    /// The results at both ends of the cut, where the slope is 0; NaN, which nothing equals, without a cut.
    ends: [T; 2],
}

/// The functions of a node: attributes `activations`, `alphas`, `betas`, `clip` (0 or absent: none).
pub(super) fn activations<T: Math, const N: usize>(attrs: &Attrs) -> Result<[Activation<T>; N], OpError> {
    let names = attrs.opt_strs("activations")?.unwrap_or_default();
    let alphas = attrs.opt_floats("alphas")?.unwrap_or_default();
    let betas = attrs.opt_floats("betas")?.unwrap_or_default();
    let clip = attrs.float_or("clip", 0.0)?;
    if clip.is_nan() || clip < 0.0 {
        return Err(OpError::invalid(format!("clip must not be negative, but is {clip}")));
    }
    if [names.len(), alphas.len(), betas.len()] != [N; 3] {
        return Err(OpError::invalid(format!(
            "{N} activations with one alpha and one beta each are needed, not {names:?} with {alphas:?} and {betas:?}"
        )));
    }
    let mut out = Vec::with_capacity(N);
    for ((name, alpha), beta) in names.iter().zip(alphas).zip(betas) {
        let kind = Kind::find(name)?.0;
        let (alpha, beta) = (T::of(*alpha), T::of(*beta));
        let (clip, ends) = if clip == 0.0 {
            (T::of(f64::INFINITY), [T::of(f64::NAN); 2])
        } else {
            let clip = T::of(clip);
            (clip, [value(kind, alpha, beta, -clip), value(kind, alpha, beta, clip)])
        };
        out.push(Activation { kind, alpha, beta, clip, ends });
    }
    out.try_into().map_err(|_| OpError::invalid("the number of activations"))
}

/// Refuses functions whose slope cannot be told from the result.
pub(super) fn check_invertible(attrs: &Attrs) -> Result<(), OpError> {
    let names = attrs.opt_strs("activations")?.unwrap_or_default();
    let alphas = attrs.opt_floats("alphas")?.unwrap_or_default();
    for (name, alpha) in names.iter().zip(alphas) {
        let kind = Kind::find(name)?.0;
        if matches!(kind, Kind::LeakyRelu | Kind::Elu) && *alpha < 0.0 {
            return Err(OpError::unsupported(format!(
                "the gradient of {name} with a negative alpha ({alpha})"
            )));
        }
    }
    Ok(())
}

#[inline(always)]
fn value<T: Math>(kind: Kind, alpha: T, beta: T, x: T) -> T {
    match kind {
        Kind::Relu => x.larger(T::ZERO),
        Kind::Tanh => x.vtanh(),
        Kind::Sigmoid => x.vsigmoid(),
        Kind::Affine => alpha * x + beta,
        Kind::LeakyRelu => {
            if x >= T::ZERO {
                x
            } else {
                alpha * x
            }
        }
        Kind::ThresholdedRelu => {
            if x >= alpha {
                x
            } else {
                T::ZERO
            }
        }
        Kind::ScaledTanh => alpha * (beta * x).vtanh(),
        Kind::HardSigmoid => (alpha * x + beta).larger(T::ZERO).smaller(T::ONE),
        Kind::Elu => {
            if x >= T::ZERO {
                x
            } else {
                alpha * x.vexp_m1()
            }
        }
        Kind::Softsign => x / (T::ONE + x.vabs()),
        Kind::Softplus => x.vsoftplus(),
    }
}

/// The slope where the result is `y`.
#[inline(always)]
fn slope<T: Math>(kind: Kind, alpha: T, beta: T, y: T) -> T {
    let step = |yes: bool, otherwise: T| if yes { T::ONE } else { otherwise };
    match kind {
        Kind::Relu => step(y > T::ZERO, T::ZERO),
        Kind::Tanh => T::ONE - y * y,
        Kind::Sigmoid => y * (T::ONE - y),
        Kind::Affine => alpha,
        Kind::LeakyRelu => step(y >= T::ZERO, alpha),
        Kind::ThresholdedRelu => step(y >= alpha && y != T::ZERO, T::ZERO),
        Kind::ScaledTanh => {
            let t = if alpha == T::ZERO { T::ONE } else { y / alpha };
            alpha * beta * (T::ONE - t * t)
        }
        Kind::HardSigmoid => {
            if y > T::ZERO && y < T::ONE {
                alpha
            } else {
                T::ZERO
            }
        }
        Kind::Elu => step(y >= T::ZERO, y + alpha),
        Kind::Softsign => {
            let d = T::ONE - y.vabs();
            d * d
        }
        Kind::Softplus => -(-y).vexp_m1(),
    }
}

/// Runs the body with `$K` as the kind, each time a constant, so that every function gets a loop of its own.
macro_rules! for_kind {
    ($kind:expr, $K:ident => $body:expr, $($name:ident)*) => {
        match $kind {
            $(Kind::$name => {
                const $K: Kind = Kind::$name;
                $body
            })*
        }
    };
    ($kind:expr, $K:ident => $body:expr) => {
        for_kind!($kind, $K => $body, Relu Tanh Sigmoid Affine LeakyRelu ThresholdedRelu ScaledTanh HardSigmoid Elu
            Softsign Softplus)
    };
}

impl Activation<f64> {
    /// The function's number, in the order of [`Kind`], and alpha, beta and clip.
    pub(super) fn numbers(&self) -> (i32, [f64; 3]) {
        (self.kind as i32, [self.alpha, self.beta, self.clip])
    }
}

impl<T: Math> Activation<T> {
    /// The function without the cut.
    pub(super) fn uncut(self) -> Activation<T> {
        Activation { clip: T::of(f64::INFINITY), ends: [T::of(f64::NAN); 2], ..self }
    }

    /// Replaces `n` elements by the function of each.
    ///
    /// # Safety
    ///
    /// `x` points to `n` elements that nobody else touches.
    pub(super) unsafe fn apply(&self, n: usize, x: *mut T) {
        let (alpha, beta, clip, x) = (self.alpha, self.beta, self.clip, crate::cpu::par::Shared(x));
        lanes::each(
            n,
            usize::MAX,
            #[inline(always)]
            |_| {
                let x = &x;
                for_kind!(self.kind, K => {
                    // SAFETY: by this function's contract.
                    unsafe {
                        lanes::map(
                            n,
                            [x.0.cast_const()],
                            [x.0],
                            #[inline(always)]
                            |[v]| {
                                let v = if v > clip { clip } else { v };
                                let v = if v < -clip { -clip } else { v };
                                [value(K, alpha, beta, v)]
                            },
                        );
                    }
                });
            },
        );
    }

    /// Multiplies `n` cotangents of results by the slopes where the results are `y`.
    ///
    /// # Safety
    ///
    /// `y` points to `n` readable elements, `d` to `n` that nobody else touches; they do not overlap.
    pub(super) unsafe fn pull(&self, n: usize, y: *const T, d: *mut T) {
        let (alpha, beta, [low, high]) = (self.alpha, self.beta, self.ends);
        let (y, d) = (crate::cpu::par::Shared(y.cast_mut()), crate::cpu::par::Shared(d));
        lanes::each(
            n,
            usize::MAX,
            #[inline(always)]
            |_| {
                let (y, d) = (&y, &d);
                for_kind!(self.kind, K => {
                    // SAFETY: by this function's contract.
                    unsafe {
                        lanes::map(
                            n,
                            [y.0.cast_const(), d.0.cast_const()],
                            [d.0],
                            #[inline(always)]
                            |[y, d]| {
                                let cut = y == low || y == high;
                                [if cut { T::ZERO } else { d * slope(K, alpha, beta, y) }]
                            },
                        );
                    }
                });
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, alphas: &[f64], betas: &[f64], clip: f64) -> Activation<f64> {
        let attrs = attributes(Attrs::new().with("clip", clip), &[name], alphas, betas).unwrap();
        activations::<f64, 1>(&attrs).unwrap()[0]
    }

    /// Slopes from results against differences of the functions themselves, away from their kinks.
    #[test]
    fn slopes_follow_from_results() {
        for (name, kind, ..) in Kind::ALL {
            for (alpha, beta) in [(0.3, 0.7), (1.4, -0.2)] {
                let (alphas, betas) = (vec![alpha; 1], vec![beta; 1]);
                let f = one(name, &alphas, &betas, 1.5);
                for i in -20..=20 {
                    let x = 0.1 * f64::from(i) + 0.033;
                    let mut v = [x - 1e-6, x, x + 1e-6];
                    // SAFETY: three elements of our own.
                    unsafe { f.apply(3, v.as_mut_ptr()) };
                    let mut d = [1.0];
                    // SAFETY: one element each.
                    unsafe { f.pull(1, &v[1], d.as_mut_ptr()) };
                    let want = (v[2] - v[0]) / 2e-6;
                    assert!((d[0] - want).abs() < 1e-5, "{kind:?} {alpha} {beta} at {x}: {} {want}", d[0]);
                }
            }
        }
    }

    #[test]
    fn numbers_go_to_the_functions_that_take_them() {
        let attrs = attributes(Attrs::new(), &["sigmoid", "LeakyRelu", "Affine"], &[0.5], &[]).unwrap();
        assert_eq!(attrs.opt_floats("alphas").unwrap().unwrap(), [0.0, 0.5, 1.0]);
        assert_eq!(attrs.opt_floats("betas").unwrap().unwrap(), [0.0, 0.0, 0.0]);
        assert!(attributes(Attrs::new(), &["Cosine"], &[], &[]).is_err());
        assert!(activations::<f32, 2>(&attrs).is_err());
    }
}
