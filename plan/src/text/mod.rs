//! The exact text form: a whole plan as lines that a person can read, compare and edit, and that parse back to the same bytes.
//!
//! One thing a line: header, state section, and for each program its values, inputs, states, nodes, outputs, steps and certificate.
//! Things are called by their names, never by running numbers, so that a small change moves few lines; names outside of
//! `[A-Za-z0-9_./:-]` are quoted. An argument left out is `~`. Floats are the shortest decimals that read back to the same bits; elements
//! of constants are decimals if they are 64-bit integers, otherwise their bytes in hexadecimal. Lines that begin with `#` are remarks.
//!
//! ```text
//! dtrc-plan 5
//! model mlp
//! device cpu
//! ...
//! entry fc1.weight parameter f32[64, 32] @ 0 init weight fc1.weight
//! program train
//!   value fc1.weight f32[64, 32]
//!   value fc1 f32[16, 64]
//!   input x data @ 9216
//!   state fc1.weight parameter fc1.weight -> fc1.weight.new init weight fc1.weight
//!   node fc1 = Gemm(x, fc1.weight, fc1.bias) -> fc1 {transB=int 1}
//!   output loss
//!   run fc1 impl 0 queue 0 ns 1200 at new 0 @ 12288 workspace 20480
//!   drop x
//!   certificate
//!     live-peak 28672
//! end
//! ```

mod lex;
mod parse;
mod write;

pub use parse::{ParseError, parse};
pub use write::full;

use graph::{InputRole, StateKind};

/// First words of the text: form and version of the plan.
const MAGIC: &str = "dtrc-plan";

const ROLES: [(InputRole, &str); 6] = [
    (InputRole::Data, "data"),
    (InputRole::Label, "label"),
    (InputRole::LearningRate, "learning-rate"),
    (InputRole::Step, "step"),
    (InputRole::Seed, "seed"),
    (InputRole::Constant, "constant"),
];

const KINDS: [(StateKind, &str); 5] = [
    (StateKind::Parameter, "parameter"),
    (StateKind::Frozen, "frozen"),
    (StateKind::Statistic, "statistic"),
    (StateKind::Optimizer, "optimizer"),
    (StateKind::Accumulator, "accumulator"),
];

/// The word for a variant; every variant is in its table.
fn word<T: PartialEq>(table: &[(T, &'static str)], x: &T) -> &'static str {
    table.iter().find(|(v, _)| v == x).map_or("", |(_, w)| w)
}
