//! Reading and writing models. In one program, which links once and keeps every core busy to its end.

mod import_hostile;
mod import_models;
mod import_support;
mod import_trainable;
mod save;
