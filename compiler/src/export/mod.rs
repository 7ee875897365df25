//! From a trained state back to files that other programs read.
//!
//! [`save`] writes new elements into a copy of the model a plan was made from. [`sites`] finds where in the file that may be done,
//! [`edit`] writes a copy with other bytes in some places. No model is ever re-encoded: what is not replaced is copied byte by byte.

mod edit;
pub mod save;
mod sites;

pub use save::{SaveError, SaveOptions, Saved, Saver};
