//! Every operator has CUDA kernels for all of its cases; the program names those that lack one.

use std::process::Command;

#[test]
fn every_operator_has_cuda_kernels() {
    let out = Command::new(env!("CARGO_BIN_EXE_cuda-coverage")).output().unwrap();
    let (table, missing) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{table}{missing}");
    assert!(table.lines().count() > 100, "the table is short: {table}");
}
