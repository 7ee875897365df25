//! Operators through what others see of them. In one program, which links once and keeps every core busy to its end.

mod all_ops;
mod builder;
mod einsum;
mod elementwise;
mod halves;
mod loss;
mod normalize;
mod onnx_movement;
mod optimizer;
mod pool;
mod product;
mod random;
mod recurrent;
mod support;
