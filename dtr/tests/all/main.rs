//! The machine and its simulator. In one program, which links once and keeps every core busy to its end.

mod common;
mod conformance;
mod foresight;
mod machine;
mod order;
mod properties;
mod theorem;
