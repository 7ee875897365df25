//! Loading a plan from any bytes behind a header that fits them.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dtrc_fuzz::plan(bytes));
