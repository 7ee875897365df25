//! `cargo xtask cuda-coverage`: which operators have a CUDA kernel. Fails where one is missing that is not on the reviewed list, and where
//! one on the list has a kernel by now: the list only shrinks.

use graph::{DType, Graph, InputRole, TensorType};
use ops::{Builder, OPS, OpDef, Signature};
use std::{collections::BTreeSet, process::ExitCode};

/// Operators whose kernels are still to be written.
const MISSING: &str = include_str!("../../missing.txt");

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
    let listed: BTreeSet<&str> = MISSING
        .lines()
        .map(|l| l.split('#').next().unwrap_or_default().trim())
        .filter(|l| !l.is_empty())
        .collect();
    let (mut wrong, mut complete) = (Vec::new(), 0);
    for op in OPS {
        let (with, all, why) = covered(*op);
        let is_complete = with == all && all > 0;
        complete += usize::from(is_complete);
        let verdict = match (with, is_complete) {
            (_, true) => "yes".to_owned(),
            (0, _) => "no".to_owned(),
            _ => format!("in part ({with} of {all} cases): {}", why.unwrap_or_default()),
        };
        println!("{:<28} {verdict}", op.name());
        match (is_complete, listed.contains(op.name())) {
            (false, false) => wrong
                .push(format!("{} has no CUDA kernel ({verdict}): write it beside the operator", op.name())),
            (true, true) => {
                wrong.push(format!("{} has a CUDA kernel now: take it off cuda/missing.txt", op.name()))
            }
            _ => {}
        }
    }
    for name in &listed {
        if ops::find(name).is_none() {
            wrong.push(format!("cuda/missing.txt lists {name}, which is no operator"));
        }
    }
    println!("{complete} of {} operators have CUDA kernels", OPS.len());
    for w in &wrong {
        eprintln!("{w}");
    }
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
