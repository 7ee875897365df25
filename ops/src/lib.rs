//! What an operator is: types, gradient, work, facts, kernels.
//!
//! An operator is one unit struct in one folder that implements [`OpDef`], with its CPU kernel and its test cases beside it; `op_set!`
//! below is the only other line. Graphs name operators by text; [`find`] gives the definition. Importing ONNX nodes ([`onnx`]) and
//! writing gradients ([`grad`]) both go through the [`Builder`], which infers types and folds constants as it emits.

mod builder;
pub mod case;
pub mod cpu;
pub mod cuda;
mod def;
pub mod export;
pub mod grad;
pub mod onnx;

pub mod attention;
pub mod elementwise;
pub mod indexing;
pub mod loss;
pub mod movement;
pub mod normalize;
pub mod optimizer;
pub mod pool;
pub mod product;
pub mod random;
pub mod recurrent;
pub mod reduce;
pub mod signal;

pub use builder::{Builder, Mark};
pub use def::{Facts, Implementation, OpDef, OpError, Signature, View, Work, fixed};

macro_rules! op_set {
    ($($op:path),* $(,)?) => {
        /// Every operator, in a fixed order. A constant, so that only programs that name it hold all kernels: unit tests do not.
        pub const OPS: &[&dyn OpDef] = &[$(&$op),*];
    };
}

op_set![
    // elementwise
    elementwise::binary::Add,
    elementwise::binary::Sub,
    elementwise::binary::Mul,
    elementwise::binary::Div,
    elementwise::extreme::Max,
    elementwise::extreme::MaxGrad,
    elementwise::extreme::Min,
    elementwise::extreme::MinGrad,
    elementwise::power::Pow,
    elementwise::power::PowGrad,
    elementwise::power::PowExponentGrad,
    elementwise::power::Mod,
    elementwise::unary::Neg,
    elementwise::unary::Abs,
    elementwise::unary::AbsGrad,
    elementwise::unary::Sign,
    elementwise::unary::Floor,
    elementwise::unary::Ceil,
    elementwise::unary::Round,
    elementwise::unary::IsNaN,
    elementwise::unary::IsInf,
    elementwise::activation::Relu,
    elementwise::activation::ReluGrad,
    elementwise::activation::LeakyRelu,
    elementwise::activation::LeakyReluGrad,
    elementwise::activation::ThresholdedRelu,
    elementwise::activation::ThresholdedReluGrad,
    elementwise::activation::Elu,
    elementwise::activation::EluGrad,
    elementwise::activation::Selu,
    elementwise::activation::SeluGrad,
    elementwise::activation::Celu,
    elementwise::activation::CeluGrad,
    elementwise::activation::Sigmoid,
    elementwise::activation::SigmoidGrad,
    elementwise::activation::Tanh,
    elementwise::activation::TanhGrad,
    elementwise::activation::Swish,
    elementwise::activation::SwishGrad,
    elementwise::activation::Mish,
    elementwise::activation::MishGrad,
    elementwise::activation::Gelu,
    elementwise::activation::GeluGrad,
    elementwise::activation::GeluTanh,
    elementwise::activation::GeluTanhGrad,
    elementwise::activation::Softplus,
    elementwise::activation::SoftplusGrad,
    elementwise::activation::Softsign,
    elementwise::activation::SoftsignGrad,
    elementwise::activation::HardSigmoid,
    elementwise::activation::HardSigmoidGrad,
    elementwise::activation::HardSwish,
    elementwise::activation::HardSwishGrad,
    elementwise::activation::Shrink,
    elementwise::activation::ShrinkGrad,
    elementwise::activation::Erf,
    elementwise::activation::ErfGrad,
    elementwise::prelu::PRelu,
    elementwise::prelu::PReluGrad,
    elementwise::prelu::PReluSlopeGrad,
    elementwise::trigonometry::Exp,
    elementwise::trigonometry::ExpGrad,
    elementwise::trigonometry::Log,
    elementwise::trigonometry::LogGrad,
    elementwise::trigonometry::Sqrt,
    elementwise::trigonometry::SqrtGrad,
    elementwise::trigonometry::Reciprocal,
    elementwise::trigonometry::ReciprocalGrad,
    elementwise::trigonometry::Sin,
    elementwise::trigonometry::SinGrad,
    elementwise::trigonometry::Cos,
    elementwise::trigonometry::CosGrad,
    elementwise::trigonometry::Tan,
    elementwise::trigonometry::TanGrad,
    elementwise::trigonometry::Asin,
    elementwise::trigonometry::AsinGrad,
    elementwise::trigonometry::Acos,
    elementwise::trigonometry::AcosGrad,
    elementwise::trigonometry::Atan,
    elementwise::trigonometry::AtanGrad,
    elementwise::trigonometry::Sinh,
    elementwise::trigonometry::SinhGrad,
    elementwise::trigonometry::Cosh,
    elementwise::trigonometry::CoshGrad,
    elementwise::trigonometry::Asinh,
    elementwise::trigonometry::AsinhGrad,
    elementwise::trigonometry::Acosh,
    elementwise::trigonometry::AcoshGrad,
    elementwise::trigonometry::Atanh,
    elementwise::trigonometry::AtanhGrad,
    elementwise::compare::Equal,
    elementwise::compare::Less,
    elementwise::compare::LessOrEqual,
    elementwise::compare::Greater,
    elementwise::compare::GreaterOrEqual,
    elementwise::compare::And,
    elementwise::compare::Or,
    elementwise::compare::Xor,
    elementwise::compare::Not,
    elementwise::bits::BitwiseAnd,
    elementwise::bits::BitwiseOr,
    elementwise::bits::BitwiseXor,
    elementwise::bits::BitwiseNot,
    elementwise::bits::BitShift,
    elementwise::select::Where,
    elementwise::select::Clip,
    elementwise::select::ClipGrad,
    elementwise::cast::Cast,
    // reduce
    reduce::ReduceSum,
    reduce::ReduceMean,
    reduce::ReduceMax,
    reduce::ReduceMin,
    reduce::ReduceExtremeGrad,
    reduce::ReduceProd,
    reduce::ReduceProdGrad,
    reduce::ReduceL1,
    reduce::ReduceL2,
    reduce::ReduceSumSquare,
    reduce::ReduceLogSumExp,
    reduce::CumSum,
    // movement: shapes, slices, layout
    movement::reshape::Reshape,
    movement::transpose::Transpose,
    movement::concat::Concat,
    movement::split::Split,
    movement::slice::Slice,
    movement::slice::SliceGrad,
    movement::expand::Expand,
    movement::pad::Pad,
    movement::pad::PadGrad,
    movement::trilu::Trilu,
    movement::reverse::ReverseSequence,
    movement::generate::Fill,
    movement::generate::Range,
    movement::generate::Eye,
    movement::generate::ShapeOf,
    movement::generate::Size,
    // indexing: gather, scatter, selection
    indexing::gather::Gather,
    indexing::gather::GatherGrad,
    indexing::elements::GatherElements,
    indexing::elements::ScatterElements,
    indexing::nd::GatherND,
    indexing::nd::ScatterND,
    indexing::one_hot::OneHot,
    indexing::arg::ArgMax,
    indexing::arg::ArgMin,
    indexing::topk::TopK,
    indexing::resize::Resize,
    indexing::resize::ResizeGrad,
    indexing::grid_sample::GridSample,
    indexing::grid_sample::GridSampleGradImage,
    indexing::grid_sample::GridSampleGradGrid,
    // product: matrix products, convolution
    product::matmul::MatMul,
    product::linear::Gemm,
    product::conv::Conv,
    product::conv::ConvTranspose,
    product::grad_weight::ConvGradWeight,
    // attention
    attention::Attention,
    attention::AttentionGrad,
    // recurrent
    recurrent::lstm::Lstm,
    recurrent::lstm_grad::LstmGrad,
    recurrent::gru::Gru,
    recurrent::gru_grad::GruGrad,
    recurrent::rnn::Rnn,
    recurrent::rnn::RnnGrad,
    // signal
    signal::dft::Dft,
    signal::frame::Frame,
    signal::frame::FrameGrad,
    // pool
    pool::max::MaxPool,
    pool::max::MaxPoolGrad,
    pool::max::MaxPoolIndices,
    pool::average::AveragePool,
    pool::average::AveragePoolGrad,
    pool::unpool::MaxUnpool,
    pool::roi::RoiAlign,
    pool::roi::RoiAlignGrad,
    // normalize
    normalize::batchnorm::BatchNormTraining,
    normalize::batchnorm::BatchNormInference,
    normalize::batchnorm_grad::BatchNormGrad,
    normalize::batchnorm_grad::BatchNormInferenceGrad,
    normalize::layer::LayerNormalization,
    normalize::layer::LayerNormalizationGrad,
    normalize::layer::RmsNormalization,
    normalize::layer::RmsNormalizationGrad,
    normalize::group::GroupNormalization,
    normalize::group::GroupNormalizationGrad,
    normalize::lp::LpNormalization,
    normalize::lp::LpNormalizationGrad,
    normalize::lrn::Lrn,
    normalize::lrn::LrnGrad,
    // loss and softmax
    loss::softmax::Softmax,
    loss::softmax::LogSoftmax,
    loss::softmax::SoftmaxGrad,
    loss::softmax::LogSoftmaxGrad,
    loss::cross_entropy::SoftmaxCrossEntropyLoss,
    loss::cross_entropy_grad::SoftmaxCrossEntropyGrad,
    loss::linear_cross_entropy::LinearCrossEntropy,
    loss::linear_cross_entropy_grad::LinearCrossEntropyGrad,
    loss::nll::NegativeLogLikelihoodLoss,
    loss::nll::NegativeLogLikelihoodGrad,
    loss::pointwise::MseLoss,
    loss::pointwise::MseLossGrad,
    loss::pointwise::BceWithLogitsLoss,
    loss::pointwise::BceWithLogitsLossGrad,
    loss::pointwise::BceLoss,
    loss::pointwise::BceLossGrad,
    // random
    random::dropout::Dropout,
    random::dropout::DropoutGrad,
    random::dropout::DropoutMask,
    random::generate::RandomUniform,
    random::generate::RandomNormal,
    random::sample::Bernoulli,
    random::sample::Multinomial,
    // optimizer
    optimizer::sgd::Sgd,
    optimizer::adam::Adam,
    optimizer::running::RunningUpdate,
    optimizer::accumulate::Accumulate,
    optimizer::accumulate::Reset,
    optimizer::clip::IsFinite,
    optimizer::clip::SumSquares,
    optimizer::clip::ClipScale,
];

/// The operators as a validator asks for them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Registry;

impl graph::OpFacts for Registry {
    fn infer(&self, graph: &graph::Graph, node: graph::NodeId) -> Result<Vec<graph::TensorType>, String> {
        let node = graph.node(node);
        let op = find(&node.op).ok_or_else(|| format!("unknown operator {}", node.op))?;
        op.infer(&Signature { outputs: Vec::new(), ..Signature::of(graph, node) }).map_err(|e| e.to_string())
    }

    fn facts(&self, graph: &graph::Graph, node: graph::NodeId) -> Result<Facts, String> {
        let node = graph.node(node);
        let op = find(&node.op).ok_or_else(|| format!("unknown operator {}", node.op))?;
        Ok(cpu::widen::facts(op, &Signature::of(graph, node)))
    }

    fn numeric_class(&self, op: &str) -> Option<u32> {
        find(op).map(|op| op.numeric_class())
    }
}

/// The operator with this name in graphs.
pub fn find(name: &str) -> Option<&'static dyn OpDef> {
    use std::{collections::HashMap, sync::OnceLock};
    static BY_NAME: OnceLock<HashMap<&str, &dyn OpDef>> = OnceLock::new();
    BY_NAME.get_or_init(|| OPS.iter().map(|op| (op.name(), *op)).collect()).get(name).copied()
}
