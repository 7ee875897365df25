//! Rewrite rules. In one program, which links once and keeps every core busy to its end.

mod masked;
mod random;
mod rules;
mod support;
