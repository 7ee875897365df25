//! Exponential, logarithm, root, reciprocal, and the circular and hyperbolic functions: a table of formulas.
//!
//! The rare ones are computed in 64 bits by way of `libm`.

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
    onnx::{OnnxRule, rules},
};
use graph::{Attrs, TensorType};

const ANY: Fill = Fill::Uniform(-2.0, 2.0);
const POSITIVE: Fill = Fill::Uniform(0.3, 3.0);
const INSIDE: Fill = Fill::Uniform(-0.9, 0.9);

functions! {
    /// e^x.
    Exp ExpGrad {} from Output,
    |x| x.vexp(),
    |y, dy| dy * y,
    ANY, &[&[]], rules!["Exp" => import::<Exp>],
    |y, dy| dy * y;

    /// The natural logarithm.
    Log LogGrad {} from Input,
    |x| x.vln(),
    |x, dy| dy / x,
    POSITIVE, &[&[]], rules!["Log" => import::<Log>],
    |x, dy| dy / x;

    /// The square root.
    Sqrt SqrtGrad {} from Output,
    |x| x.sqrt(),
    |y, dy| dy / (y + y),
    POSITIVE, &[&[]], rules!["Sqrt" => import::<Sqrt>],
    |y, dy| dy / (y + y);

    /// 1 / x.
    Reciprocal ReciprocalGrad {} from Output,
    |x| T::ONE / x,
    |y, dy| -(dy * y * y),
    POSITIVE, &[&[]], rules!["Reciprocal" => import::<Reciprocal>],
    |y, dy| -(dy * y * y);

    /// The sine.
    Sin SinGrad {} from Input,
    |x| x.vsin(),
    |x, dy| dy * x.vcos(),
    ANY, &[&[]], rules!["Sin" => import::<Sin>],
    |x, dy| dy * x.call("Cos");

    /// The cosine.
    Cos CosGrad {} from Input,
    |x| x.vcos(),
    |x, dy| -(dy * x.vsin()),
    ANY, &[&[]], rules!["Cos" => import::<Cos>],
    |x, dy| -(dy * x.call("Sin"));

    /// The tangent.
    Tan TanGrad {} from Output,
    |x| x.via(libm::tan),
    |y, dy| dy * (T::ONE + y * y),
    INSIDE, &[&[]], rules!["Tan" => import::<Tan>],
    |y, dy| dy * (y * y + 1.0);

    /// The angle in [-pi/2, pi/2] whose sine is x.
    Asin AsinGrad {} from Input,
    |x| x.via(libm::asin),
    |x, dy| dy / ((T::ONE - x) * (T::ONE + x)).sqrt(),
    INSIDE, &[&[]], rules!["Asin" => import::<Asin>],
    |x, dy| dy / ((1.0 - x) * (x + 1.0)).call("Sqrt");

    /// The angle in [0, pi] whose cosine is x.
    Acos AcosGrad {} from Input,
    |x| x.via(libm::acos),
    |x, dy| -(dy / ((T::ONE - x) * (T::ONE + x)).sqrt()),
    INSIDE, &[&[]], rules!["Acos" => import::<Acos>],
    |x, dy| -(dy / ((1.0 - x) * (x + 1.0)).call("Sqrt"));

    /// The angle in [-pi/2, pi/2] whose tangent is x.
    Atan AtanGrad {} from Input,
    |x| x.via(libm::atan),
    |x, dy| dy / x.fma(x, T::ONE),
    ANY, &[&[]], rules!["Atan" => import::<Atan>],
    |x, dy| dy / (x * x + 1.0);

    /// The hyperbolic sine.
    Sinh SinhGrad {} from Input,
    |x| x.via(libm::sinh),
    |x, dy| dy * x.via(libm::cosh),
    ANY, &[&[]], rules!["Sinh" => import::<Sinh>],
    |x, dy| dy * x.call("Cosh");

    /// The hyperbolic cosine.
    Cosh CoshGrad {} from Input,
    |x| x.via(libm::cosh),
    |x, dy| dy * x.via(libm::sinh),
    ANY, &[&[]], rules!["Cosh" => import::<Cosh>],
    |x, dy| dy * x.call("Sinh");

    /// The inverse of the hyperbolic sine.
    Asinh AsinhGrad {} from Input,
    |x| x.via(libm::asinh),
    |x, dy| dy / x.fma(x, T::ONE).sqrt(),
    ANY, &[&[]], rules!["Asinh" => import::<Asinh>],
    |x, dy| dy / (x * x + 1.0).call("Sqrt");

    /// The inverse of the hyperbolic cosine.
    Acosh AcoshGrad {} from Input,
    |x| x.via(libm::acosh),
    |x, dy| dy / ((x - T::ONE) * (x + T::ONE)).sqrt(),
    Fill::Uniform(1.3, 3.0), &[&[]], rules!["Acosh" => import::<Acosh>],
    |x, dy| dy / ((x - 1.0) * (x + 1.0)).call("Sqrt");

    /// The inverse of the hyperbolic tangent.
    Atanh AtanhGrad {} from Input,
    |x| x.via(libm::atanh),
    |x, dy| dy / ((T::ONE - x) * (T::ONE + x)),
    INSIDE, &[&[]], rules!["Atanh" => import::<Atanh>],
    |x, dy| dy / ((1.0 - x) * (x + 1.0));
}
