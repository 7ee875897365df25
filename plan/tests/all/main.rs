//! The plan format and its validator. In one program, which links once and keeps every core busy to its end.

mod choice;
mod common;
mod text;
mod validate;
