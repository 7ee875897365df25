//! Recorded operator logs: the log of one training step, read as a static graph with measured costs.
//!
//! The logs are those of the DTR prototype (Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021), one JSON object a line; the
//! simulator's reader reads them. Reading one as a problem lets a planner that knows the whole step be compared with an online run of the
//! same log, so the meaning is the simulator's: constants are resident for ever; what is still referenced when the log ends is live at the
//! end; an output that aliases an argument lies on the argument's storage at 0 bytes; every other output has a life of its own; a mutation
//! copies the whole storage, and only the name that was mutated sees the copy. Sizes are not rounded.
//!
//! Budgets of such logs are ratios of the simulator's baseline: the peak of the run that never evicts and frees each storage, constants too,
//! with its last reference.

use dtr::{
    Command, OpId, TensorId,
    simrd::{Log, SimulateError},
};

use crate::planner::{
    coarse::coarsen,
    problem::{Bytes, Implementation, Nanos, Node, NodeId, Problem, Value, ValueId},
};

/// What is wrong with a log, or with a budget for it.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// It cannot be read, or does what no program can.
    #[error(transparent)]
    Log(#[from] SimulateError),
    /// A budget ratio that is no ratio.
    #[error("budget ratio {ratio} is not a finite number of at least 0")]
    Ratio {
        /// The ratio, as text.
        ratio: String,
    },
}

/// A log read as a problem.
#[derive(Clone, Debug)]
pub struct ImportedLog {
    /// Node number k is the k-th CALL or MUTATE line, counted from 0.
    pub problem: Problem,
    /// Peak bytes of the run that never evicts and frees with the last reference: ratio 1 of budgets.
    pub baseline_peak: Bytes,
    /// Time of all operators together. Where that is 2^50 or more, the problem has coarser units.
    pub baseline_time: Nanos,
}

impl ImportedLog {
    /// The budget for a ratio of the baseline's peak, rounded down as the reference simulator does.
    pub fn budget(&self, ratio: f64) -> Result<Bytes, LogError> {
        if !ratio.is_finite() || ratio < 0.0 {
            return Err(LogError::Ratio { ratio: ratio.to_string() });
        }
        Ok((self.baseline_peak as f64 * ratio) as Bytes)
    }
}

/// Reads a log.
pub fn import(text: &str) -> Result<ImportedLog, LogError> {
    let log = Log::parse(text.as_bytes()).map_err(SimulateError::from)?;
    let baseline = log.baseline()?;
    let mut problem = problem_of(&log);
    coarsen(&mut problem);
    Ok(ImportedLog { problem, baseline_peak: baseline.peak_bytes, baseline_time: baseline.compute })
}

/// A value for each tensor and a node for each op that is no constant, in the log's order.
fn problem_of(log: &Log) -> Problem {
    let program = &log.program;
    let mut problem = Problem { alignment: 1, ..Problem::default() };
    for (op, name) in log.op_names.iter().enumerate() {
        let op = OpId(op as u32);
        let args: Vec<TensorId> = program.args_of(op).collect();
        let outputs: Vec<ValueId> = program.outputs_of(op).map(|t| t.0).collect();
        let producer = log.call_numbers[op.index()].map(|call| call as NodeId);
        for output in program.outputs_of(op) {
            let on = |t: TensorId| program.storage_of(t);
            let source = args.iter().find(|a| on(**a) == on(output)).map(|a| a.0);
            let bytes = on(output).map_or(0, |storage| program.storage_bytes(storage));
            if producer.is_none() {
                problem.resident += bytes;
            }
            problem.values.push(Value {
                name: format!("{name}:{output}"),
                producer,
                bytes: if producer.is_none() || source.is_some() { 0 } else { bytes },
                view_of: source,
                resident: producer.is_none(),
                keep_to_end: false,
            });
        }
        if let Some(node) = producer {
            let mut inputs = Vec::new();
            for TensorId(value) in args {
                if !inputs.contains(&value) {
                    inputs.push(value);
                }
            }
            problem.nodes.push(Node {
                name: format!("{name}/{node}"),
                inputs,
                outputs,
                implementations: vec![Implementation { workspace: 0, time: program.cost_of(op) }],
                overwrites: Vec::new(),
                once: false,
                required: true,
            });
        }
    }
    for command in &log.schedule {
        if let Command::Pin(TensorId(value)) = *command {
            let value = &mut problem.values[value as usize];
            value.keep_to_end = !value.resident;
        }
    }
    problem
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"{"INSTRUCTION":"CONSTANT","NAME":"before"}
{"INSTRUCTION":"MEMORY","MEMORY":"1","NAME":"before"}
{"ANNOTATION":"START","INSTRUCTION":"ANNOTATE"}
{"INSTRUCTION":"CONSTANT","NAME":"w"}
{"INSTRUCTION":"MEMORY","MEMORY":"100","NAME":"w"}
{"ARGS":["w","w"],"INSTRUCTION":"CALL","NAME":"mul","RESULT":["a","v"],"TIME":"7"}
{"INSTRUCTION":"MEMORY","MEMORY":"40","NAME":"a"}
{"ALIAS":"-1","INSTRUCTION":"ALIAS","NAME":"a"}
{"INSTRUCTION":"MEMORY","MEMORY":"100","NAME":"v"}
{"ALIAS":"1","INSTRUCTION":"ALIAS","NAME":"v"}
{"DST":"b","INSTRUCTION":"COPY","SRC":"a"}
{"INSTRUCTION":"RELEASE","NAME":"w"}
{"INSTRUCTION":"RELEASE","NAME":"gone"}
{"ARGS":["v","a"],"INSTRUCTION":"MUTATE","MUTATE":[0],"NAME":"add_","TIME":"5"}
{"INSTRUCTION":"RELEASE","NAME":"a"}
{"DST":"b","INSTRUCTION":"COPY_FROM","SRC":"v"}
{"ANNOTATION":"BACKWARD","INSTRUCTION":"ANNOTATE"}
"#;

    #[test]
    fn small_log() {
        let log = import(SMALL).unwrap();
        let p = &log.problem;
        assert_eq!((p.resident, p.alignment, log.baseline_time), (100, 1, 12));
        // Constant 100, a 40, the copy of the storage under v 100, all live at once.
        assert_eq!((log.baseline_peak, log.budget(0.5).unwrap(), log.budget(0.99).unwrap()), (240, 120, 237));
        let values: Vec<_> =
            p.values.iter().map(|v| (v.bytes, v.view_of, v.resident, v.keep_to_end)).collect();
        assert_eq!(
            values,
            [
                (0, None, true, false),
                (40, None, false, false),
                (0, Some(0), false, false),
                (100, None, false, true)
            ]
        );
        assert_eq!(
            (p.nodes[0].inputs.as_slice(), p.nodes[1].inputs.as_slice()),
            ([0].as_slice(), [2, 1].as_slice())
        );
        assert_eq!((p.nodes[0].name.as_str(), p.nodes[1].name.as_str()), ("mul/0", "add_/1"));
        assert!(log.budget(f64::NAN).is_err() && log.budget(-0.1).is_err());
    }

    /// A log and where what is wrong with it stands; what else can be wrong is the reader's to say.
    #[test]
    fn errors_name_the_line() {
        let start = r#"{"ANNOTATION":"START","INSTRUCTION":"ANNOTATE"}
{"INSTRUCTION":"CONSTANT","NAME":"w"}
{"INSTRUCTION":"MEMORY","MEMORY":"9","NAME":"w"}
{"ARGS":["w"],"INSTRUCTION":"CALL","NAME":"f","RESULT":["a"],"TIME":"7"}
{"INSTRUCTION":"MEMORY","MEMORY":"40","NAME":"a"}
{"ALIAS":"-1","INSTRUCTION":"ALIAS","NAME":"a"}
"#;
        let release = r#"{"INSTRUCTION":"RELEASE","NAME":"a"}"#;
        let cases = [
            ("{".to_owned(), "line 7: not an instruction: EOF while parsing an object at line 2 column 0"),
            (format!("{release}\n\n{release}"), "line 9: tensor 1 has no reference left"),
            (
                format!("{release}\n{}", r#"{"DST":"b","INSTRUCTION":"COPY","SRC":"a"}"#),
                "line 8: tensor 1 has no reference left",
            ),
        ];
        for (text, message) in cases {
            assert_eq!(import(&format!("{start}{text}\n")).unwrap_err().to_string(), message, "{text}");
        }
        let without = start.split_once('\n').unwrap().1;
        assert_eq!(import(without).unwrap_err().to_string(), "the log ends without a START annotation");
    }

    #[test]
    fn garbled_logs_do_not_panic() {
        for at in 0..SMALL.len() {
            for byte in [b'"', b'9', b'-', b'}'] {
                let mut bytes = SMALL.as_bytes().to_vec();
                bytes[at] = byte;
                let _ = import(std::str::from_utf8(&bytes).unwrap());
            }
            let _ = import(&SMALL[..at]);
        }
    }

    #[test]
    fn given_logs_have_the_baselines_stated() {
        let Some(folder) = test_support::data("simrd") else { return };
        let table = std::fs::read_to_string(folder.join("log_info.csv")).unwrap();
        let mut rows = table.lines().map(|l| l.split(',').collect::<Vec<_>>());
        let header = rows.next().unwrap();
        let column = |name: &str| header.iter().position(|h| *h == name).unwrap();
        let mut seen = 0;
        for row in rows {
            let Ok(text) = std::fs::read_to_string(folder.join("logs").join(row[column("file")])) else {
                continue;
            };
            let log = import(&text).unwrap();
            let number = |name: &str| row[column(name)].parse::<u64>().unwrap();
            assert_eq!(log.baseline_peak, number("baseline_peak_V1_inf"), "{}", row[0]);
            assert_eq!(log.baseline_time, number("baseline_compute_ns"), "{}", row[0]);
            assert_eq!(log.problem.resident, number("constants_bytes"), "{}", row[0]);
            assert_eq!(log.problem.nodes.len() as u64, number("ops"), "{}", row[0]);
            let values = &log.problem.values;
            let mut kept: Vec<usize> = (0..values.len()).filter(|&v| values[v].keep_to_end).collect();
            kept.iter_mut().for_each(|v| {
                while let Some(source) = values[*v].view_of {
                    *v = source as usize;
                }
            });
            kept.sort_unstable();
            kept.dedup();
            let pinned: u64 = kept.iter().map(|&v| values[v].bytes).sum();
            assert_eq!(pinned, number("outputs_pinned_nonconst_bytes"), "{}", row[0]);
            seen += 1;
        }
        assert!(seen >= 4);
    }
}
