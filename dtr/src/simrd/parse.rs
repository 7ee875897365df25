//! From the lines of a log to a program and its schedule.
//!
//! In-place ops become ordinary ones that write a fresh copy and rebind one name; what is alive at the end is pinned, in the order in which
//! the names first appeared.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, BufRead};

use serde::Deserialize;

use crate::drive::Command;
use crate::ids::{OpId, TensorId};
use crate::program::{Output, Program, ProgramError};

/// A log that cannot be read: what and where.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// Reading failed.
    #[error("line {line}: cannot read")]
    Io {
        /// Counted from 1.
        line: usize,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A line is not an instruction.
    #[error("line {line}: not an instruction: {source}")]
    Json {
        /// Counted from 1.
        line: usize,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// A line is an instruction that makes no sense here.
    #[error("line {line}: {what}")]
    Instruction {
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// A line declares an op that cannot be.
    #[error("line {line}: {source}")]
    Program {
        /// Counted from 1.
        line: usize,
        /// The cause.
        #[source]
        source: ProgramError,
    },
    /// The log ends inside a block, or has no START.
    #[error("the log ends {0}")]
    End(&'static str),
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
struct Line<'a> {
    #[serde(borrow)]
    instruction: Cow<'a, str>,
    #[serde(borrow, default)]
    annotation: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    memory: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    alias: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    time: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    dst: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    src: Option<Cow<'a, str>>,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    result: Option<Vec<String>>,
    #[serde(default)]
    mutate: Option<Vec<usize>>,
}

/// A recorded training step as a program and a schedule.
#[derive(Clone, Debug)]
pub struct Log {
    /// Its ops; constants included, in order of first execution.
    pub program: Program,
    /// What the recorded program did, references and final pins included.
    pub schedule: Vec<Command>,
    /// The line of the log, counted from 1, behind each command; of the final pins, the last one.
    pub lines: Vec<usize>,
    /// Name of each op, as in the log; `constant` for constants.
    pub op_names: Vec<String>,
    /// Each op's number among the log's CALL and MUTATE lines, from 0; `None` for constants.
    pub call_numbers: Vec<Option<usize>>,
    /// Index into the schedule of the first command recorded after the BACKWARD annotation.
    pub backward: Option<usize>,
}

/// A CALL whose MEMORY and ALIAS lines are still coming.
struct Call {
    args: Vec<TensorId>,
    results: Vec<String>,
    cost: u64,
    name: String,
    memory: Option<u64>,
    outputs: Vec<Output>,
}

enum Expect {
    Anything,
    ConstantMemory(String),
    Call(Call),
}

struct Parser {
    log: Log,
    /// Name to its place in `bound`.
    names: HashMap<String, usize>,
    /// What each name is bound to, in order of first appearance.
    bound: Vec<TensorId>,
    /// References as the log counts them, which decide what is alive at the end.
    references: Vec<i64>,
    calls: usize,
    line: usize,
}

impl Log {
    /// Reads a log: one JSON object a line.
    ///
    /// # Errors
    /// [`ParseError`], with the line.
    pub fn parse(mut reader: impl BufRead) -> Result<Self, ParseError> {
        let mut parser = Parser {
            log: Log {
                program: Program::new(),
                schedule: Vec::new(),
                lines: Vec::new(),
                op_names: Vec::new(),
                call_numbers: Vec::new(),
                backward: None,
            },
            names: HashMap::new(),
            bound: Vec::new(),
            references: Vec::new(),
            calls: 0,
            line: 0,
        };
        let (mut text, mut started, mut expect) = (String::new(), false, Expect::Anything);
        loop {
            text.clear();
            parser.line += 1;
            let line = parser.line;
            if reader.read_line(&mut text).map_err(|source| ParseError::Io { line, source })? == 0 {
                break;
            }
            if line == 1 && text.starts_with('\u{feff}') {
                // A mark of byte order, as some editors put in front.
                text.remove(0);
            }
            if text.trim().is_empty() {
                continue;
            }
            let parsed: Line<'_> =
                serde_json::from_str(&text).map_err(|source| ParseError::Json { line, source })?;
            if !started {
                started = parsed.instruction == "ANNOTATE" && parsed.annotation.as_deref() == Some("START");
                continue;
            }
            expect = parser.step(parsed, expect)?;
            parser.log.lines.resize(parser.log.schedule.len(), line);
        }
        match expect {
            Expect::Anything if started => {}
            Expect::Anything => return Err(ParseError::End("without a START annotation")),
            Expect::ConstantMemory(_) => return Err(ParseError::End("before the MEMORY of a CONSTANT")),
            Expect::Call(_) => return Err(ParseError::End("inside a CALL")),
        }
        parser.finish();
        Ok(parser.log)
    }
}

impl Parser {
    fn wrong(&self, what: impl Into<String>) -> ParseError {
        ParseError::Instruction { line: self.line, what: what.into() }
    }

    fn field<T>(&self, value: Option<T>, name: &str) -> Result<T, ParseError> {
        value.ok_or_else(|| self.wrong(format!("{name} is missing")))
    }

    fn number<T: std::str::FromStr>(&self, value: Option<Cow<'_, str>>, name: &str) -> Result<T, ParseError> {
        let text = self.field(value, name)?;
        text.parse().map_err(|_| self.wrong(format!("{name} is not a number in range: {text:?}")))
    }

    fn step(&mut self, line: Line<'_>, expect: Expect) -> Result<Expect, ParseError> {
        match expect {
            Expect::Anything => self.instruction(line),
            Expect::ConstantMemory(name) => {
                if line.instruction != "MEMORY" || line.name.as_deref() != Some(&name) {
                    return Err(self.wrong(format!("the MEMORY of constant {name:?} must follow it")));
                }
                let bytes = self.number(line.memory, "MEMORY")?;
                let tensor = self
                    .log
                    .program
                    .constant(bytes)
                    .map_err(|source| ParseError::Program { line: self.line, source })?;
                self.declared("constant".to_owned(), None);
                self.name_new(name, tensor)?;
                self.log.schedule.push(Command::Pin(tensor));
                Ok(Expect::Anything)
            }
            Expect::Call(call) => self.call_line(line, call),
        }
    }

    fn instruction(&mut self, line: Line<'_>) -> Result<Expect, ParseError> {
        match &*line.instruction {
            "ANNOTATE" => match line.annotation.as_deref() {
                Some("BACKWARD") => self.log.backward = Some(self.log.schedule.len()),
                Some("START") => {}
                other => return Err(self.wrong(format!("unknown annotation {other:?}"))),
            },
            "CONSTANT" => return Ok(Expect::ConstantMemory(self.field(line.name, "NAME")?.into_owned())),
            "CALL" => {
                let args = self.resolve(&self.field(line.args, "ARGS")?)?;
                let results = self.field(line.result, "RESULT")?;
                if results.is_empty() {
                    return Err(self.wrong("RESULT is empty"));
                }
                let cost = self.number(line.time, "TIME")?;
                let name = self.field(line.name, "NAME")?.into_owned();
                return Ok(Expect::Call(Call {
                    args,
                    results,
                    cost,
                    name,
                    memory: None,
                    outputs: Vec::new(),
                }));
            }
            "MUTATE" => self.mutate(line)?,
            "COPY" => {
                let (dst, src) = (self.field(line.dst, "DST")?, self.field(line.src, "SRC")?);
                let tensor = self.lookup(&src)?;
                self.references[tensor.index()] += 1;
                self.name_new(dst.into_owned(), tensor)?;
                self.log.schedule.push(Command::Get(tensor));
            }
            "COPY_FROM" => {
                let (dst, src) = (self.field(line.dst, "DST")?, self.field(line.src, "SRC")?);
                let (old, tensor) = (self.lookup(&dst)?, self.lookup(&src)?);
                self.rebind(&dst, tensor);
                self.references[old.index()] -= 1;
                self.references[tensor.index()] += 1;
                self.log.schedule.extend([Command::Release(old), Command::Get(tensor)]);
            }
            "RELEASE" => {
                // The reference ignores releases of names from before the START.
                if let Some(&place) = self.names.get(&*self.field(line.name, "NAME")?) {
                    let tensor = self.bound[place];
                    self.references[tensor.index()] -= 1;
                    self.log.schedule.push(Command::Release(tensor));
                }
            }
            other => return Err(self.wrong(format!("{other:?} is no instruction, or not one here"))),
        }
        Ok(Expect::Anything)
    }

    /// A MEMORY or ALIAS line of a CALL, which come in pairs in the order of results.
    fn call_line(&mut self, line: Line<'_>, mut call: Call) -> Result<Expect, ParseError> {
        let result = &call.results[call.outputs.len()];
        if line.name.as_deref() != Some(result) {
            return Err(self.wrong(format!("MEMORY and ALIAS of {result:?} must follow its CALL")));
        }
        match (&*line.instruction, call.memory) {
            ("MEMORY", None) => call.memory = Some(self.number(line.memory, "MEMORY")?),
            ("ALIAS", Some(bytes)) => {
                call.outputs.push(match self.number::<i64>(line.alias, "ALIAS")? {
                    -1 => Output::New { bytes },
                    argument => match usize::try_from(argument) {
                        Ok(argument) => Output::AliasOf { argument },
                        Err(_) => return Err(self.wrong(format!("ALIAS is neither -1 nor an argument: {argument}"))),
                    },
                });
                call.memory = None;
            }
            (other, _) => return Err(self.wrong(format!("{other:?} inside a CALL"))),
        }
        if call.outputs.len() < call.results.len() {
            return Ok(Expect::Call(call));
        }
        let op = self.op(call.name, &call.args, &call.outputs, call.cost)?;
        for (index, name) in call.results.into_iter().enumerate() {
            let tensor = self.log.program.output(op, index);
            self.name_new(name, tensor)?;
        }
        Ok(Expect::Anything)
    }

    fn mutate(&mut self, line: Line<'_>) -> Result<(), ParseError> {
        let names = self.field(line.args, "ARGS")?;
        let (args, mutated) = (self.resolve(&names)?, self.field(line.mutate, "MUTATE")?);
        let cost = self.number(line.time, "TIME")?;
        if let Some(index) = mutated.iter().find(|&&index| index >= args.len()) {
            return Err(self.wrong(format!("MUTATE names argument {index} of {}", args.len())));
        }
        let program = &self.log.program;
        let bytes = |&index: &usize| {
            program.storage_of(args[index]).map_or(0, |storage| program.storage_bytes(storage))
        };
        let outputs: Vec<Output> = mutated.iter().map(|index| Output::New { bytes: bytes(index) }).collect();
        let op = self.op(self.field(line.name, "NAME")?.into_owned(), &args, &outputs, cost)?;
        for (output, &index) in mutated.iter().enumerate() {
            let tensor = self.log.program.output(op, output);
            // A name mutated twice by one op releases what it was bound to last.
            let old = self.lookup(&names[index])?;
            self.rebind(&names[index], tensor);
            self.references[old.index()] -= 1;
            self.log.schedule.push(Command::Release(old));
        }
        Ok(())
    }

    /// Declares an op and computes it.
    fn op(
        &mut self,
        name: String,
        args: &[TensorId],
        outputs: &[Output],
        cost: u64,
    ) -> Result<OpId, ParseError> {
        let op = self
            .log
            .program
            .op(args, outputs, cost)
            .map_err(|source| ParseError::Program { line: self.line, source })?;
        self.declared(name, Some(self.calls));
        self.calls += 1;
        Ok(op)
    }

    fn declared(&mut self, name: String, call: Option<usize>) {
        let op = OpId(self.log.op_names.len() as u32);
        self.log.op_names.push(name);
        self.log.call_numbers.push(call);
        self.log.schedule.push(Command::Compute(op));
        self.references.resize(self.log.program.tensor_count(), 1);
    }

    fn resolve(&self, names: &[String]) -> Result<Vec<TensorId>, ParseError> {
        names.iter().map(|name| self.lookup(name)).collect()
    }

    fn lookup(&self, name: &str) -> Result<TensorId, ParseError> {
        self.names
            .get(name)
            .map(|&place| self.bound[place])
            .ok_or_else(|| self.wrong(format!("unknown name {name:?}")))
    }

    fn rebind(&mut self, name: &str, tensor: TensorId) {
        if let Some(&place) = self.names.get(name) {
            self.bound[place] = tensor;
        }
    }

    fn name_new(&mut self, name: String, tensor: TensorId) -> Result<(), ParseError> {
        if self.names.contains_key(&name) {
            return Err(self.wrong(format!("{name:?} is bound already")));
        }
        self.names.insert(name, self.bound.len());
        self.bound.push(tensor);
        Ok(())
    }

    fn finish(&mut self) {
        for &tensor in &self.bound {
            if self.references[tensor.index()] > 0 {
                self.log.schedule.push(Command::Pin(tensor));
            }
        }
        self.log.lines.resize(self.log.schedule.len(), self.line);
    }
}
