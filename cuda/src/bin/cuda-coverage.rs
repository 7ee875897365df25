//! `cargo xtask cuda-coverage`: which operators have a CUDA kernel. Fails where one is missing, or refuses some of its operator's cases.

use graph::{DType, Graph, InputRole, TensorType};
use ops::{Builder, OPS, OpDef, Signature};
use std::process::ExitCode;

/// How many of an operator's cases have kernels, and why the first one without has none.
fn covered(op: &dyn OpDef) -> (usize, usize, Option<String>) {
    let (mut with, mut all, mut why) = (0, 0, None);
    for case in op.cases() {
        let mut graph = Graph::default();
        let inputs: Vec<_> = case
            .inputs
            .iter()
            .enumerate()
            .map(|(i, c)| {
                let c = c.as_ref()?;
                let ty = TensorType::new(c.dtype.unwrap_or(DType::F32), &c.shape);
                Some(graph.add_input(format!("x{i}"), ty, InputRole::Data))
            })
            .collect();
        // Cases whose elements are part of the program, and those of other dtypes, are for the CPU's tests.
        if Builder::new(&mut graph).emit(op.name(), case.attrs, &inputs).is_err() {
            continue;
        }
        let Some(node) = graph.nodes.last() else { continue };
        all += 1;
        match op.cuda(&Signature::of(&graph, node)) {
            Ok(_) => with += 1,
            Err(e) => why = why.or_else(|| Some(e.to_string())),
        }
    }
    (with, all, why)
}

fn main() -> ExitCode {
    let mut missing = Vec::new();
    for op in OPS {
        let (with, all, why) = covered(*op);
        let verdict = if with == all && all > 0 {
            "yes".to_owned()
        } else {
            missing.push(op.name());
            let why = why.unwrap_or_else(|| "none of its cases is executed".to_owned());
            if with == 0 { format!("no: {why}") } else { format!("in part ({with} of {all} cases): {why}") }
        };
        println!("{:<28} {verdict}", op.name());
    }
    println!("{} of {} operators have CUDA kernels", OPS.len() - missing.len(), OPS.len());
    if missing.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "without a CUDA kernel for all of their cases: {}; write it beside the operator",
        missing.join(", ")
    );
    ExitCode::FAILURE
}
