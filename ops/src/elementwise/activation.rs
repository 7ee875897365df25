//! Activation functions: a table of formulas.

use super::{
    binary::broadcast_facts,
    unary::{self, Function, Source, functions, import},
};
use crate::{
    Facts, OpDef, OpError, Signature,
    case::{Case, Fill},
    cpu::{CpuKernel, Math},
    export::Export,
    grad::GradCx,
    onnx::{ImportCx, OnnxRule, rules},
};
use graph::{Attrs, TensorType};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// Uniform in [-2, 2], away from kinks at 0.
const SIGNS: Fill = Fill::Avoid { range: (-2.0, 2.0), points: &[0.0], margin: 0.05 };
const SMOOTH: Fill = Fill::Uniform(-3.0, 3.0);

/// The density of the normal distribution at 0.
const DENSITY: f64 = 0.398_942_280_401_432_7;
/// sqrt(2/pi), and the cubic coefficient of the tanh form of [`Gelu`].
const ROOT: f64 = 0.797_884_560_802_865_4;
const CUBE: f64 = 0.044_715;

functions! {
    /// max(x, 0).
    Relu ReluGrad {} from Output,
    |x| x.larger(T::ZERO),
    |y, dy| if y > T::ZERO { dy } else { T::ZERO },
    SIGNS, &[&[]], rules!["Relu" => import::<Relu>],
    |y, dy| y.greater(0.0).pick(dy, 0.0);

    /// x, or alpha·x where x is negative.
    LeakyRelu LeakyReluGrad { alpha = 0.01 } from Either,
    |x| if x > T::ZERO { x } else { x * alpha },
    |v, dy| if v > T::ZERO { dy } else { dy * alpha },
    SIGNS, &[&[], &[0.3], &[-0.5]], rules!["LeakyRelu" => import::<LeakyRelu>],
    |v, dy| v.greater(0.0).pick(dy, dy * alpha);

    /// x where it is above alpha, else 0.
    ThresholdedRelu ThresholdedReluGrad { alpha = 1.0 } from Either,
    |x| if x > alpha { x } else { T::ZERO },
    |v, dy| if v > alpha { dy } else { T::ZERO },
    Fill::Avoid { range: (-2.0, 2.0), points: &[1.0, -0.5], margin: 0.05 }, &[&[], &[-0.5]],
    rules!["ThresholdedRelu" => import::<ThresholdedRelu>],
    |v, dy| v.greater(alpha).pick(dy, 0.0);

    /// x, or alpha·(e^x - 1) where x is negative.
    Elu EluGrad { alpha = 1.0 } from OutputOfPositive,
    |x| if x > T::ZERO { x } else { alpha * x.vexp_m1() },
    |y, dy| if y > T::ZERO { dy } else { dy * (y + alpha) },
    SIGNS, &[&[], &[0.4]], rules!["Elu" => import::<Elu>],
    |y, dy| y.greater(0.0).pick(dy, dy * (y + alpha));

    /// gamma·x, or gamma·alpha·(e^x - 1) where x is negative.
    Selu SeluGrad { alpha = 1.673_263_192_176_818_8, gamma = 1.050_701_022_148_132_3 } from OutputOfPositive,
    |x| gamma * if x > T::ZERO { x } else { alpha * x.vexp_m1() },
    |y, dy| dy * if y > T::ZERO { gamma } else { y + gamma * alpha },
    SIGNS, &[&[], &[0.4, 2.0]], rules!["Selu" => import::<Selu>],
    |y, dy| dy * y.greater(0.0).pick(gamma, y + gamma * alpha);

    /// x, or alpha·(e^(x/alpha) - 1) where x is negative.
    Celu CeluGrad { alpha = 1.0 } from OutputOfPositive,
    |x| if x > T::ZERO { x } else { alpha * (x / alpha).vexp_m1() },
    |y, dy| if y > T::ZERO { dy } else { dy * (y / alpha + T::ONE) },
    SIGNS, &[&[], &[0.4]], rules!["Celu" => import::<Celu>],
    |y, dy| y.greater(0.0).pick(dy, dy * (y / alpha + 1.0));

    /// 1 / (1 + e^-x).
    Sigmoid SigmoidGrad {} from Output,
    |x| x.vsigmoid(),
    |y, dy| dy * (y * (T::ONE - y)),
    SMOOTH, &[&[]], rules!["Sigmoid" => import::<Sigmoid>],
    |y, dy| dy * (y * (1.0 - y));

    /// The hyperbolic tangent.
    Tanh TanhGrad {} from Output,
    |x| x.vtanh(),
    |y, dy| dy * (T::ONE - y * y),
    SMOOTH, &[&[]], rules!["Tanh" => import::<Tanh>],
    |y, dy| dy * (1.0 - y * y);

    /// x·sigmoid(alpha·x).
    Swish SwishGrad { alpha = 1.0 } from Input,
    |x| x * (alpha * x).vsigmoid(),
    |x, dy| {
        // Beyond 1000 the sigmoid is 0 or 1 exactly; infinity times 0 would be no number.
        let (at, most) = (alpha * x, T::of(1000.0));
        let at = if at > most { most } else if at < -most { -most } else { at };
        let s = at.vsigmoid();
        dy * (s + at * s * (T::ONE - s))
    },
    SMOOTH, &[&[], &[1.7]], rules!["Swish" => import::<Swish>],
    onnx |x| x * (x * alpha).call("Sigmoid"),
    |x, dy| {
        let at = x * alpha;
        let at = at.greater(1000.0).pick(1000.0, at.less(-1000.0).pick(-1000.0, at));
        let s = at.call("Sigmoid");
        dy * (s + at * s * (1.0 - s))
    };

    /// x·tanh(ln(1 + e^x)).
    Mish MishGrad {} from Input,
    |x| x * x.vsoftplus().vtanh(),
    |x, dy| {
        let t = x.vsoftplus().vtanh();
        dy * (t + x * x.vsigmoid() * (T::ONE - t * t))
    },
    SMOOTH, &[&[]], rules!["Mish" => import::<Mish>],
    |x, dy| {
        let t = x.call("Softplus").call("Tanh");
        dy * (t + x * x.call("Sigmoid") * (1.0 - t * t))
    };

    /// x times the probability that a normal variable is below x.
    Gelu GeluGrad {} from Input,
    |x| T::HALF * x * (T::ONE + (x * T::of(FRAC_1_SQRT_2)).verf()),
    |x, dy| {
        let below = T::HALF * (T::ONE + (x * T::of(FRAC_1_SQRT_2)).verf());
        dy * (x * T::of(DENSITY)).fma((-T::HALF * x * x).vexp(), below)
    },
    SMOOTH, &[&[]], rules!["Gelu" => gelu],
    |x, dy| {
        let below = ((x * FRAC_1_SQRT_2).call("Erf") + 1.0) * 0.5;
        dy * (below + x * DENSITY * (x * x * -0.5).call("Exp"))
    };

    /// [`Gelu`] with the distribution approximated by a hyperbolic tangent.
    GeluTanh GeluTanhGrad {} from Input,
    |x| {
        let u = T::of(ROOT) * x * (T::of(CUBE) * x).fma(x, T::ONE);
        T::HALF * x * (T::ONE + u.vtanh())
    },
    |x, dy| {
        let xx = x * x;
        let t = (T::of(ROOT) * x * T::of(CUBE).fma(xx, T::ONE)).vtanh();
        let du = T::of(ROOT) * T::of(3.0 * CUBE).fma(xx, T::ONE);
        dy * T::HALF * (T::ONE + t + x * (T::ONE - t * t) * du)
    },
    SMOOTH, &[&[]], &[],
    onnx |x| x.call_with("Gelu", Attrs::new().with("approximate", "tanh")),
    |x, dy| {
        let xx = x * x;
        let t = (x * (xx * CUBE + 1.0) * ROOT).call("Tanh");
        let du = (xx * (3.0 * CUBE) + 1.0) * ROOT;
        dy * 0.5 * (t + 1.0 + x * (1.0 - t * t) * du)
    };

    /// ln(1 + e^x).
    Softplus SoftplusGrad {} from Output,
    |x| x.vsoftplus(),
    |y, dy| -(dy * (-y).vexp_m1()),
    SMOOTH, &[&[]], rules!["Softplus" => import::<Softplus>],
    |y, dy| dy * (1.0 - (-y).call("Exp"));

    /// x / (1 + |x|).
    Softsign SoftsignGrad {} from Input,
    |x| x / (T::ONE + x.vabs()),
    |x, dy| {
        let d = T::ONE + x.vabs();
        dy / (d * d)
    },
    SIGNS, &[&[]], rules!["Softsign" => import::<Softsign>],
    |x, dy| {
        let d = x.call("Abs") + 1.0;
        dy / (d * d)
    };

    /// alpha·x + beta, cut to [0, 1].
    HardSigmoid HardSigmoidGrad { alpha = 0.2, beta = 0.5 } from Output,
    |x| (alpha * x + beta).larger(T::ZERO).smaller(T::ONE),
    |y, dy| if y > T::ZERO && y < T::ONE { dy * alpha } else { T::ZERO },
    Fill::Avoid { range: (-4.0, 4.0), points: &[-2.5, 2.5, -0.75, 1.75], margin: 0.05 }, &[&[], &[0.4, 0.3]],
    rules!["HardSigmoid" => import::<HardSigmoid>],
    |y, dy| y.greater(0.0).and(y.less(1.0)).pick(dy * alpha, 0.0);

    /// x·(x/6 + 1/2, cut to [0, 1]).
    HardSwish HardSwishGrad {} from Input,
    |x| x * (x * T::of(1.0 / 6.0) + T::HALF).larger(T::ZERO).smaller(T::ONE),
    |x, dy| {
        let slope = x * T::of(1.0 / 3.0) + T::HALF;
        let three = T::of(3.0);
        if x >= three { dy } else if x > -three { dy * slope } else { T::ZERO }
    },
    Fill::Avoid { range: (-5.0, 5.0), points: &[-3.0, 3.0], margin: 0.05 }, &[&[]],
    rules!["HardSwish" => import::<HardSwish>],
    |x, dy| {
        let between = x.greater(-3.0).pick(dy * (x * (1.0 / 3.0) + 0.5), 0.0);
        x.at_least(3.0).pick(dy, between)
    };

    /// x moved toward 0 by bias where |x| is above lambd, else 0.
    Shrink ShrinkGrad { lambd = 0.5, bias = 0.0 } from Input,
    |x| if x < -lambd { x + bias } else if x > lambd { x - bias } else { T::ZERO },
    |x, dy| if x < -lambd || x > lambd { dy } else { T::ZERO },
    Fill::Avoid { range: (-2.0, 2.0), points: &[-0.5, 0.5, -1.0, 1.0], margin: 0.05 }, &[&[], &[1.0, 0.3]],
    rules!["Shrink" => import::<Shrink>],
    |x, dy| x.less(-lambd).pick(dy, x.greater(lambd).pick(dy, 0.0));

    /// The error function.
    Erf ErfGrad {} from Input,
    |x| x.verf(),
    |x, dy| dy * (T::of(FRAC_2_SQRT_PI) * (-(x * x)).vexp()),
    SMOOTH, &[&[]], rules!["Erf" => import::<Erf>],
    |x, dy| dy * ((-(x * x)).call("Exp") * FRAC_2_SQRT_PI);
}

fn gelu(cx: &mut ImportCx<'_, '_>) -> Result<(), OpError> {
    match cx.attrs.str_or("approximate", "none")? {
        "none" => cx.same("Gelu", Attrs::new()),
        "tanh" => cx.same("GeluTanh", Attrs::new()),
        other => Err(OpError::invalid(format!("approximate must be none or tanh, not {other:?}"))),
    }
}
