//! What the machine works on: ops with arguments, output sizes and costs, and which outputs share a storage.

use crate::ids::{NONE, OpId, StorageId, TensorId};

/// One output of an op at declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A storage of its own.
    New {
        /// Its bytes.
        bytes: u64,
    },
    /// A view on the storage of the argument with this index: no bytes of its own, yet it must be computed again after that storage was dropped.
    AliasOf {
        /// Index into the op's arguments.
        argument: usize,
    },
}

/// A program that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// An argument is no tensor of this program.
    #[error("argument {argument} names tensor {tensor}, which does not exist yet")]
    UnknownTensor {
        /// Index into the op's arguments.
        argument: usize,
        /// The tensor named.
        tensor: TensorId,
    },
    /// An alias of an argument that the op does not have.
    #[error("output {output} aliases argument {argument} of {arity}")]
    UnknownArgument {
        /// Index of the output.
        output: usize,
        /// The argument named.
        argument: usize,
        /// Number of arguments.
        arity: usize,
    },
    /// An op without outputs cannot be asked for.
    #[error("an op needs at least one output")]
    NoOutput,
    /// Sums of sizes or costs would leave 60 bits, or ids 32.
    #[error("the program's {0} overflow")]
    Overflow(&'static str),
}

#[derive(Clone, Debug)]
pub(crate) struct Op {
    /// In units of the clock.
    pub(crate) cost: u64,
    /// Bytes of all new outputs.
    pub(crate) bytes: u64,
    pub(crate) first: u32,
    pub(crate) outputs: u32,
    pub(crate) args: u32,
    pub(crate) arity: u32,
    /// Must never run a second time.
    pub(crate) once: bool,
    pub(crate) constant: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensor {
    pub(crate) op: u32,
    pub(crate) storage: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct StorageDecl {
    pub(crate) bytes: u64,
    pub(crate) root: u32,
}

/// Ops and tensors by number. Declaring does not compute: a [`crate::Command::Compute`] does.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub(crate) ops: Vec<Op>,
    pub(crate) args: Vec<u32>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) storages: Vec<StorageDecl>,
    bytes: u64,
    cost: u64,
}

const LIMIT: u64 = 1 << 60;

impl Program {
    /// An empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares an op. Its outputs are consecutive tensors, [`Program::output`].
    ///
    /// # Errors
    /// [`ProgramError`] if an argument or alias does not exist, there is no output, or sums overflow.
    pub fn op(&mut self, args: &[TensorId], outputs: &[Output], cost: u64) -> Result<OpId, ProgramError> {
        self.declare(args, outputs, cost, false, false)
    }

    /// Declares an op that must never run a second time (it is random, discrete or overwrites state): its outputs are held, that is not
    /// evictable, until they are dead and, under [`crate::Dealloc::Retire`], no recomputation can need them.
    ///
    /// # Errors
    /// As [`Program::op`].
    pub fn once(&mut self, args: &[TensorId], outputs: &[Output], cost: u64) -> Result<OpId, ProgramError> {
        self.declare(args, outputs, cost, true, false)
    }

    /// Declares a constant: an input, a parameter. The schedule computes and pins it ([`Program::load_constants`]).
    ///
    /// # Errors
    /// [`ProgramError::Overflow`].
    pub fn constant(&mut self, bytes: u64) -> Result<TensorId, ProgramError> {
        let op = self.declare(&[], &[Output::New { bytes }], 0, false, true)?;
        Ok(self.output(op, 0))
    }

    fn declare(
        &mut self,
        args: &[TensorId],
        outputs: &[Output],
        cost: u64,
        once: bool,
        constant: bool,
    ) -> Result<OpId, ProgramError> {
        if outputs.is_empty() {
            return Err(ProgramError::NoOutput);
        }
        for (argument, &tensor) in args.iter().enumerate() {
            if tensor.index() >= self.tensors.len() {
                return Err(ProgramError::UnknownTensor { argument, tensor });
            }
        }
        let mut bytes = 0u64;
        for (index, output) in outputs.iter().enumerate() {
            match *output {
                Output::New { bytes: more } => bytes = bytes.saturating_add(more),
                Output::AliasOf { argument } if argument < args.len() => {}
                Output::AliasOf { argument } => {
                    return Err(ProgramError::UnknownArgument { output: index, argument, arity: args.len() });
                }
            }
        }
        let total = self.bytes.saturating_add(bytes);
        let weight = self.cost.saturating_add(cost.saturating_mul(outputs.len() as u64));
        if total > LIMIT {
            return Err(ProgramError::Overflow("sizes"));
        }
        if weight > LIMIT {
            return Err(ProgramError::Overflow("costs"));
        }
        if self.tensors.len() + outputs.len() >= NONE as usize / 2
            || self.args.len() + args.len() >= NONE as usize / 2
        {
            return Err(ProgramError::Overflow("ids"));
        }
        (self.bytes, self.cost) = (total, weight);

        let op = self.ops.len() as u32;
        self.ops.push(Op {
            cost,
            bytes,
            first: self.tensors.len() as u32,
            outputs: outputs.len() as u32,
            args: self.args.len() as u32,
            arity: args.len() as u32,
            once,
            constant,
        });
        self.args.extend(args.iter().map(|tensor| tensor.0));
        for output in outputs {
            let storage = match *output {
                Output::New { bytes } => {
                    self.storages.push(StorageDecl { bytes, root: self.tensors.len() as u32 });
                    self.storages.len() as u32 - 1
                }
                Output::AliasOf { argument } => self.tensors[args[argument].index()].storage,
            };
            self.tensors.push(Tensor { op, storage });
        }
        Ok(OpId(op))
    }

    /// The op's output with this index.
    ///
    /// # Panics
    /// If the program has no such op.
    pub fn output(&self, op: OpId, index: usize) -> TensorId {
        TensorId(self.ops[op.index()].first + index as u32)
    }

    /// The op that computes a tensor, if the tensor exists.
    pub fn op_of(&self, tensor: TensorId) -> Option<OpId> {
        self.tensors.get(tensor.index()).map(|tensor| OpId(tensor.op))
    }

    /// The storage behind a tensor, if the tensor exists.
    pub fn storage_of(&self, tensor: TensorId) -> Option<StorageId> {
        self.tensors.get(tensor.index()).map(|tensor| StorageId(tensor.storage))
    }

    /// A storage's bytes; 0 for one that does not exist.
    pub fn storage_bytes(&self, storage: StorageId) -> u64 {
        self.storages.get(storage.index()).map_or(0, |storage| storage.bytes)
    }

    /// An op's declared cost; 0 for one that does not exist.
    pub fn cost_of(&self, op: OpId) -> u64 {
        self.ops.get(op.index()).map_or(0, |op| op.cost)
    }

    /// An op's arguments, empty for one that does not exist.
    pub fn args_of(&self, op: OpId) -> impl Iterator<Item = TensorId> + '_ {
        let range =
            self.ops.get(op.index()).map_or(0..0, |op| op.args as usize..(op.args + op.arity) as usize);
        self.args[range].iter().map(|&tensor| TensorId(tensor))
    }

    /// An op's outputs, empty for one that does not exist.
    pub fn outputs_of(&self, op: OpId) -> impl Iterator<Item = TensorId> + use<> {
        self.ops.get(op.index()).map_or(0..0, |op| op.first..op.first + op.outputs).map(TensorId)
    }

    /// Number of ops, constants included.
    pub fn op_count(&self) -> usize {
        self.ops.len()
    }

    /// Number of tensors.
    pub fn tensor_count(&self) -> usize {
        self.tensors.len()
    }

    /// Number of storages.
    pub fn storage_count(&self) -> usize {
        self.storages.len()
    }

    /// Whether an op is a constant.
    pub fn is_constant(&self, op: OpId) -> bool {
        self.ops.get(op.index()).is_some_and(|op| op.constant)
    }

    /// The commands that compute and pin every constant, in order of declaration.
    pub fn load_constants(&self) -> Vec<crate::Command> {
        let constants = self.ops.iter().enumerate().filter(|(_, op)| op.constant);
        constants
            .flat_map(|(id, op)| {
                [crate::Command::Compute(OpId(id as u32)), crate::Command::Pin(TensorId(op.first))]
            })
            .collect()
    }

    pub(crate) fn args(&self, op: &Op) -> &[u32] {
        &self.args[op.args as usize..(op.args + op.arity) as usize]
    }
}
