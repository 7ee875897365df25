//! Recorded operator logs: the log of one training step, read as a static graph with measured costs.
//!
//! The logs are those of the DTR prototype (Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021), one JSON object a line.
//! Reading one as a problem lets a planner that knows the whole step be compared with an online run of the same log, so the
//! meaning is the simulator's: constants are resident for ever; what is still referenced when the log ends is live at the end; an output
//! that aliases an argument lies on the argument's storage at 0 bytes; every other output has a life of its own; a mutation copies the
//! whole storage, and only the name that was mutated sees the copy. Sizes are not rounded.
//!
//! Budgets of such logs are ratios of a baseline: the peak of the run that never evicts and frees each storage, constants too, with its
//! last reference. It is computed here on the way.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::planner::{
    coarse::coarsen,
    problem::{Bytes, Implementation, Nanos, Node, NodeId, Problem, Value, ValueId},
};

/// What is wrong with a log. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// Not a JSON object with the fields of an instruction.
    #[error("line {line}: {message}")]
    Syntax {
        /// Where.
        line: usize,
        /// The parser's words.
        message: String,
    },
    /// An instruction that does not exist.
    #[error("line {line}: unknown instruction {instruction:?}")]
    UnknownInstruction {
        /// Where.
        line: usize,
        /// Its name.
        instruction: String,
    },
    /// A field is missing.
    #[error("line {line}: {instruction} has no field {field}")]
    Missing {
        /// Where.
        line: usize,
        /// The instruction.
        instruction: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A field is not a number in its range.
    #[error("line {line}: field {field} is {text:?}, not {expected}")]
    Number {
        /// Where.
        line: usize,
        /// The field.
        field: &'static str,
        /// What it says.
        text: String,
        /// What it should be.
        expected: &'static str,
    },
    /// An instruction where another one must be.
    #[error("line {line}: {found} where {expected} must follow")]
    Sequence {
        /// Where.
        line: usize,
        /// What is there.
        found: String,
        /// What must be there.
        expected: String,
    },
    /// A name that nothing has made.
    #[error("line {line}: unknown name {name:?}")]
    UnknownName {
        /// Where.
        line: usize,
        /// The name.
        name: String,
    },
    /// A name that exists already.
    #[error("line {line}: the name {name:?} is taken")]
    NameTaken {
        /// Where.
        line: usize,
        /// The name.
        name: String,
    },
    /// A reference to something that has no reference left.
    #[error("line {line}: {name:?} has been released already")]
    Released {
        /// Where.
        line: usize,
        /// The name.
        name: String,
    },
    /// An index into the arguments that is out of range.
    #[error("line {line}: field {field} names argument {index}, but there are {count}")]
    Argument {
        /// Where.
        line: usize,
        /// `ALIAS` or `MUTATE`.
        field: &'static str,
        /// The index.
        index: i64,
        /// Number of arguments.
        count: usize,
    },
    /// Sizes or times together exceed 64 bits.
    #[error("line {line}: the sizes or times up to here exceed 2^64 together")]
    TooLarge {
        /// Where.
        line: usize,
    },
    /// The log ends inside an instruction.
    #[error("the log ends where {expected} must follow")]
    Unfinished {
        /// What is missing.
        expected: String,
    },
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

/// One line, with every field any instruction may have.
#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
struct Line {
    instruction: String,
    annotation: Option<String>,
    name: Option<String>,
    memory: Option<String>,
    alias: Option<String>,
    args: Option<Vec<String>>,
    result: Option<Vec<String>>,
    mutate: Option<Vec<i64>>,
    time: Option<String>,
    dst: Option<String>,
    src: Option<String>,
}

/// Reads a log.
pub fn import(text: &str) -> Result<ImportedLog, LogError> {
    let mut lines = Vec::new();
    for (k, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let parsed: Line = serde_json::from_str(line)
            .map_err(|e| LogError::Syntax { line: k + 1, message: e.to_string() })?;
        lines.push((k + 1, parsed));
    }
    // Everything up to the first START is set-up that the simulator skips.
    let start =
        |(_, l): &(usize, Line)| l.instruction == "ANNOTATE" && l.annotation.as_deref() == Some("START");
    let skipped = lines.iter().position(start).map_or(0, |p| p + 1);
    let mut reader = Reader::default();
    reader.problem.alignment = 1;
    for (line, instruction) in lines.into_iter().skip(skipped) {
        reader.line = line;
        reader.read(instruction)?;
    }
    reader.finish()
}

/// A tensor: a value of the problem with the references that names hold.
struct Tensor {
    value: ValueId,
    storage: usize,
    references: u64,
}

/// Bytes that tensors share.
struct Storage {
    bytes: Bytes,
    references: u64,
}

/// What must follow the last line.
#[derive(Default)]
enum Pending {
    #[default]
    Nothing,
    Constant {
        name: String,
    },
    Call(Call),
}

/// A CALL whose outputs are being read.
struct Call {
    results: Vec<String>,
    node: NodeId,
    args: Vec<usize>,
    /// Outputs read so far.
    done: usize,
    /// Bytes of the output whose ALIAS line must follow.
    memory: Option<Bytes>,
    /// Bytes of the outputs read so far.
    total: Bytes,
}

impl Call {
    /// The instruction that must follow.
    fn expects(&self) -> &'static str {
        if self.memory.is_none() { "MEMORY" } else { "ALIAS" }
    }

    /// The output it must be about.
    fn output(&self) -> &str {
        &self.results[self.done]
    }
}

#[derive(Default)]
struct Reader {
    line: usize,
    problem: Problem,
    tensors: Vec<Tensor>,
    storages: Vec<Storage>,
    names: BTreeMap<String, usize>,
    pending: Pending,
    live: Bytes,
    peak: Bytes,
    bytes: Bytes,
    time: Nanos,
}

impl Reader {
    fn read(&mut self, instruction: Line) -> Result<(), LogError> {
        match std::mem::take(&mut self.pending) {
            Pending::Nothing => self.instruction(instruction),
            Pending::Constant { name } => {
                if instruction.instruction != "MEMORY" || instruction.name.as_deref() != Some(&name) {
                    return Err(self.sequence(&instruction, format!("MEMORY of {name:?}")));
                }
                let bytes = self.number(&instruction.memory, "MEMORY", "MEMORY")?;
                self.constant(name, bytes)
            }
            Pending::Call(call) => {
                if instruction.instruction != call.expects()
                    || instruction.name.as_deref() != Some(call.output())
                {
                    return Err(
                        self.sequence(&instruction, format!("{} of {:?}", call.expects(), call.output()))
                    );
                }
                self.output(call, instruction)
            }
        }
    }

    fn sequence(&self, found: &Line, expected: String) -> LogError {
        let name = found.name.as_ref().map_or(String::new(), |n| format!(" of {n:?}"));
        LogError::Sequence { line: self.line, found: format!("{}{name}", found.instruction), expected }
    }

    fn instruction(&mut self, mut l: Line) -> Result<(), LogError> {
        match l.instruction.as_str() {
            "ANNOTATE" => Ok(()),
            "CONSTANT" => {
                let name = self.field(l.name, "CONSTANT", "NAME")?;
                self.fresh(&name)?;
                self.pending = Pending::Constant { name };
                Ok(())
            }
            "CALL" => {
                let (node, args) = self.node(&l, "CALL")?;
                let results = l.result.ok_or_else(|| self.missing("CALL", "RESULT"))?;
                for (k, name) in results.iter().enumerate() {
                    self.fresh(name)?;
                    if results[..k].contains(name) {
                        return Err(LogError::NameTaken { line: self.line, name: name.clone() });
                    }
                }
                if !results.is_empty() {
                    self.pending =
                        Pending::Call(Call { results, node, args, done: 0, memory: None, total: 0 });
                }
                Ok(())
            }
            "MUTATE" => self.mutate(l),
            "COPY" => {
                let (dst, src) =
                    (self.field(l.dst.take(), "COPY", "DST")?, self.field(l.src.take(), "COPY", "SRC")?);
                self.fresh(&dst)?;
                let tensor = self.named(&src)?;
                self.get(tensor, &src)?;
                self.names.insert(dst, tensor);
                Ok(())
            }
            "COPY_FROM" => {
                let (dst, src) = (
                    self.field(l.dst.take(), "COPY_FROM", "DST")?,
                    self.field(l.src.take(), "COPY_FROM", "SRC")?,
                );
                let (old, tensor) = (self.named(&dst)?, self.named(&src)?);
                if old != tensor {
                    self.release(old, &dst)?;
                    self.get(tensor, &src)?;
                    self.names.insert(dst, tensor);
                }
                Ok(())
            }
            "RELEASE" => {
                let name = self.field(l.name, "RELEASE", "NAME")?;
                // A name from before the start: the simulator ignores it too.
                match self.names.get(&name) {
                    Some(&tensor) => self.release(tensor, &name),
                    None => Ok(()),
                }
            }
            "MEMORY" | "ALIAS" => Err(self.sequence(&l, "an instruction of its own".to_string())),
            _ => Err(LogError::UnknownInstruction { line: self.line, instruction: l.instruction }),
        }
    }

    fn missing(&self, instruction: &'static str, field: &'static str) -> LogError {
        LogError::Missing { line: self.line, instruction, field }
    }

    fn field(
        &self,
        field: Option<String>,
        instruction: &'static str,
        name: &'static str,
    ) -> Result<String, LogError> {
        field.ok_or_else(|| self.missing(instruction, name))
    }

    fn number(
        &self,
        text: &Option<String>,
        instruction: &'static str,
        field: &'static str,
    ) -> Result<u64, LogError> {
        let text = text.as_deref().ok_or_else(|| self.missing(instruction, field))?;
        let error = || LogError::Number {
            line: self.line,
            field,
            text: text.to_string(),
            expected: "an unsigned 64-bit number",
        };
        text.parse().map_err(|_| error())
    }

    fn fresh(&self, name: &str) -> Result<(), LogError> {
        match self.names.contains_key(name) {
            true => Err(LogError::NameTaken { line: self.line, name: name.to_string() }),
            false => Ok(()),
        }
    }

    fn named(&self, name: &str) -> Result<usize, LogError> {
        self.names
            .get(name)
            .copied()
            .ok_or_else(|| LogError::UnknownName { line: self.line, name: name.to_string() })
    }

    fn get(&mut self, tensor: usize, name: &str) -> Result<(), LogError> {
        let storage = &mut self.storages[self.tensors[tensor].storage];
        if storage.references == 0 {
            return Err(LogError::Released { line: self.line, name: name.to_string() });
        }
        storage.references += 1;
        self.tensors[tensor].references += 1;
        Ok(())
    }

    fn release(&mut self, tensor: usize, name: &str) -> Result<(), LogError> {
        let t = &mut self.tensors[tensor];
        if t.references == 0 {
            return Err(LogError::Released { line: self.line, name: name.to_string() });
        }
        t.references -= 1;
        let storage = &mut self.storages[t.storage];
        storage.references -= 1;
        if storage.references == 0 {
            self.live -= storage.bytes;
        }
        Ok(())
    }

    /// Counts the bytes of what one instruction allocates, all at once.
    fn allocate(&mut self, bytes: Bytes) {
        self.live += bytes;
        self.peak = self.peak.max(self.live);
    }

    /// Makes sure that no sum of sizes can overflow.
    fn account(&mut self, bytes: Bytes) -> Result<(), LogError> {
        self.bytes = self.bytes.checked_add(bytes).ok_or(LogError::TooLarge { line: self.line })?;
        Ok(())
    }

    fn tensor(&mut self, value: Value, storage: usize) -> usize {
        self.storages[storage].references += 1;
        self.tensors.push(Tensor { value: self.problem.values.len() as ValueId, storage, references: 1 });
        self.problem.values.push(value);
        self.tensors.len() - 1
    }

    fn storage(&mut self, bytes: Bytes) -> Result<usize, LogError> {
        self.account(bytes)?;
        self.storages.push(Storage { bytes, references: 0 });
        Ok(self.storages.len() - 1)
    }

    fn constant(&mut self, name: String, bytes: Bytes) -> Result<(), LogError> {
        let storage = self.storage(bytes)?;
        self.allocate(bytes);
        self.problem.resident += bytes;
        let value = Value {
            name: name.clone(),
            producer: None,
            bytes: 0,
            view_of: None,
            resident: true,
            keep_to_end: false,
        };
        let tensor = self.tensor(value, storage);
        self.names.insert(name, tensor);
        Ok(())
    }

    /// Adds the node of a CALL or MUTATE line, without outputs.
    fn node(&mut self, l: &Line, instruction: &'static str) -> Result<(NodeId, Vec<usize>), LogError> {
        let op = l.name.as_deref().ok_or_else(|| self.missing(instruction, "NAME"))?;
        let time = self.number(&l.time, instruction, "TIME")?;
        self.time = self.time.checked_add(time).ok_or(LogError::TooLarge { line: self.line })?;
        let names = l.args.as_deref().ok_or_else(|| self.missing(instruction, "ARGS"))?;
        let args = names.iter().map(|n| self.named(n)).collect::<Result<Vec<_>, _>>()?;
        let mut inputs = Vec::new();
        for &a in &args {
            let value = self.tensors[a].value;
            if !inputs.contains(&value) {
                inputs.push(value);
            }
        }
        let node = self.problem.nodes.len() as NodeId;
        self.problem.nodes.push(Node {
            name: format!("{op}/{node}"),
            inputs,
            outputs: Vec::new(),
            implementations: vec![Implementation { workspace: 0, time }],
            overwrites: Vec::new(),
            once: false,
            required: true,
        });
        Ok((node, args))
    }

    /// A MEMORY or ALIAS line of a CALL.
    fn output(&mut self, mut call: Call, line: Line) -> Result<(), LogError> {
        let Some(memory) = call.memory.take() else {
            call.memory = Some(self.number(&line.memory, "MEMORY", "MEMORY")?);
            self.pending = Pending::Call(call);
            return Ok(());
        };
        let text = line.alias.as_deref().ok_or_else(|| self.missing("ALIAS", "ALIAS"))?;
        let error = || LogError::Number {
            line: self.line,
            field: "ALIAS",
            text: text.to_string(),
            expected: "-1 or the index of an argument",
        };
        let alias: i64 = text.parse().map_err(|_| error())?;
        let name = call.output().to_string();
        let (storage, bytes, view_of) = if alias == -1 {
            (self.storage(memory)?, memory, None)
        } else {
            let arg = usize::try_from(alias).ok().and_then(|a| call.args.get(a).copied());
            let arg = arg.ok_or(LogError::Argument {
                line: self.line,
                field: "ALIAS",
                index: alias,
                count: call.args.len(),
            })?;
            (self.tensors[arg].storage, 0, Some(self.tensors[arg].value))
        };
        // An alias of a storage that the baseline has freed would revive it.
        if view_of.is_some() && self.storages[storage].references == 0 {
            return Err(LogError::Released { line: self.line, name });
        }
        let value = Value {
            name: name.clone(),
            producer: Some(call.node),
            bytes,
            view_of,
            resident: false,
            keep_to_end: false,
        };
        let tensor = self.tensor(value, storage);
        self.problem.nodes[call.node as usize].outputs.push(self.tensors[tensor].value);
        self.names.insert(name, tensor);
        call.done += 1;
        call.total += bytes;
        if call.done == call.results.len() {
            self.allocate(call.total);
        } else {
            self.pending = Pending::Call(call);
        }
        Ok(())
    }

    /// An in-place operator: each mutated argument's name goes on with a copy of the whole storage.
    fn mutate(&mut self, l: Line) -> Result<(), LogError> {
        let (node, args) = self.node(&l, "MUTATE")?;
        let indices = l.mutate.as_deref().ok_or_else(|| self.missing("MUTATE", "MUTATE"))?;
        let names = l.args.as_deref().unwrap_or_default();
        let mut made = Vec::new();
        let mut total = 0;
        for &index in indices {
            let at = usize::try_from(index).ok().filter(|&a| a < args.len());
            let at =
                at.ok_or(LogError::Argument { line: self.line, field: "MUTATE", index, count: args.len() })?;
            let bytes = self.storages[self.tensors[args[at]].storage].bytes;
            let storage = self.storage(bytes)?;
            let value = Value {
                name: format!("{}$", names[at]),
                producer: Some(node),
                bytes,
                view_of: None,
                resident: false,
                keep_to_end: false,
            };
            let tensor = self.tensor(value, storage);
            self.problem.nodes[node as usize].outputs.push(self.tensors[tensor].value);
            made.push((at, tensor));
            total += bytes;
        }
        self.allocate(total);
        for (at, tensor) in made {
            let old = self.named(&names[at])?;
            self.names.insert(names[at].clone(), tensor);
            self.release(old, &names[at])?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<ImportedLog, LogError> {
        match &self.pending {
            Pending::Nothing => {}
            Pending::Constant { name } => {
                return Err(LogError::Unfinished { expected: format!("MEMORY of {name:?}") });
            }
            Pending::Call(call) => {
                return Err(LogError::Unfinished {
                    expected: format!("{} of {:?}", call.expects(), call.output()),
                });
            }
        }
        for tensor in self.names.values().map(|&t| &self.tensors[t]).filter(|t| t.references > 0) {
            let value = &mut self.problem.values[tensor.value as usize];
            value.keep_to_end = !value.resident;
        }
        coarsen(&mut self.problem);
        Ok(ImportedLog { problem: self.problem, baseline_peak: self.peak, baseline_time: self.time })
    }
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
        assert_eq!((log.baseline_peak, log.budget(0.5), log.budget(0.99)), (240, Ok(120), Ok(237)));
        let values: Vec<_> = p
            .values
            .iter()
            .map(|v| (v.name.as_str(), v.bytes, v.view_of, v.resident, v.keep_to_end))
            .collect();
        assert_eq!(
            values,
            [
                ("w", 0, None, true, false),
                ("a", 40, None, false, false),
                ("v", 0, Some(0), false, false),
                ("v$", 100, None, false, true)
            ]
        );
        assert_eq!(
            (p.nodes[0].inputs.as_slice(), p.nodes[1].inputs.as_slice()),
            ([0].as_slice(), [2, 1].as_slice())
        );
        assert_eq!((p.nodes[0].name.as_str(), p.nodes[1].name.as_str()), ("mul/0", "add_/1"));
        assert!(log.budget(f64::NAN).is_err() && log.budget(-0.1).is_err());
    }

    #[test]
    fn errors_name_line_and_field() {
        let constant = r#"{"INSTRUCTION":"CONSTANT","NAME":"w"}
{"INSTRUCTION":"MEMORY","MEMORY":"9","NAME":"w"}
"#;
        let cases = [
            ("{", "line 3: EOF while parsing an object at line 1 column 1"),
            (r#"{"INSTRUCTION":"JUMP"}"#, "line 3: unknown instruction \"JUMP\""),
            (r#"{"INSTRUCTION":"CONSTANT","NAME":"w"}"#, "line 3: the name \"w\" is taken"),
            (r#"{"INSTRUCTION":"CONSTANT","NAME":"x"}"#, "the log ends where MEMORY of \"x\" must follow"),
            (
                r#"{"INSTRUCTION":"ALIAS","NAME":"w","ALIAS":"-1"}"#,
                "line 3: ALIAS of \"w\" where an instruction of its own must follow",
            ),
            (r#"{"INSTRUCTION":"COPY","DST":"x","SRC":"y"}"#, "line 3: unknown name \"y\""),
            (r#"{"INSTRUCTION":"COPY","DST":"x"}"#, "line 3: COPY has no field SRC"),
            (
                r#"{"INSTRUCTION":"CALL","NAME":"f","ARGS":[],"RESULT":["x"]}"#,
                "line 3: CALL has no field TIME",
            ),
            (
                r#"{"INSTRUCTION":"CALL","NAME":"f","ARGS":[],"RESULT":["w"],"TIME":"1"}"#,
                "line 3: the name \"w\" is taken",
            ),
            (
                r#"{"INSTRUCTION":"CALL","NAME":"f","ARGS":[],"RESULT":["x"],"TIME":"-1"}"#,
                "line 3: field TIME is \"-1\", not an unsigned 64-bit number",
            ),
            (
                r#"{"INSTRUCTION":"MUTATE","NAME":"f","ARGS":["w"],"MUTATE":[1],"TIME":"1"}"#,
                "line 3: field MUTATE names argument 1, but there are 1",
            ),
            (
                "{\"INSTRUCTION\":\"RELEASE\",\"NAME\":\"w\"}\n{\"INSTRUCTION\":\"RELEASE\",\"NAME\":\"w\"}",
                "line 4: \"w\" has been released already",
            ),
        ];
        for (text, message) in cases {
            assert_eq!(import(&format!("{constant}{text}\n")).unwrap_err().to_string(), message, "{text}");
        }
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
