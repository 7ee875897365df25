//! Importing a model from any bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dtrc_fuzz::import(bytes));
