//! Attention without the score matrix.
//!
//! softmax(q·kᵀ·scale + mask)·v, block by block: of the scores only a tile exists at a time, in the workspace. What is kept for the
//! gradient are two numbers a row, a shift and what the log-sum-exp of its scores is beyond it, from which the backward pass makes the
//! probabilities of a tile again (Dao et al., FlashAttention, arXiv 2205.14135). Tiles are cut by shape and visited in a fixed order, so that bits do not depend on
//! threads; what runs at once is cut by shape, too, because the workspace is.

mod backward;
pub(crate) mod cuda;
mod forward;
mod mask;
mod shape;

pub use backward::AttentionGrad;
pub use forward::Attention;

/// Rows of a tile of scores.
const ROWS: usize = 64;
/// Columns of a tile of scores.
const COLUMNS: usize = 128;
/// Tiles that may be worked on at once.
const TILES: usize = 16;
/// What an exponential and the passes around it cost, in operations at the rate of matrix products.
const PER_SCORE: u64 = 250;
