//! One launch of a kernel, as plain data.

use crate::{OpError, Signature};
use graph::DType;

/// Threads of a block, unless a kernel wants fewer.
pub const BLOCK: u32 = 256;
/// Blocks of a kernel whose threads stride over elements: some sixteen for each of the largest devices' processors.
const MOST_BLOCKS: u64 = 2048;
/// Axes that kernels walk; neighbours that behave as one are merged before.
pub(crate) const RANK: usize = 8;
/// Words of a table that one launch carries: with the other arguments within the 4 KiB that every driver takes.
pub(crate) const WORDS: usize = 896;
/// From this many elements on offsets take 64 bits: strides of a grid must not overflow on top of it.
const WIDE: u64 = 1 << 30;

/// A kernel source. It includes `dtrc_device.h`, one that multiplies on tensor cores `dtrc_tensor.h` too, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// Its path below `ops/src`.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// Names a source beside the operators.
macro_rules! source {
    ($file:literal) => {
        $crate::cuda::Source {
            name: $file,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/", $file)),
        }
    };
}
pub(crate) use source;

/// An argument of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// Address of input `i`, null if it is left out.
    Input(usize),
    /// Address of output `i`.
    Output(usize),
    /// Address of output `i` and so many bytes more.
    OutputFrom(usize, u64),
    /// Address of a byte of the workspace.
    Workspace(u64),
    /// A null address.
    Null,
    /// Address of the status that kernels leave a failure in.
    Status,
    /// The number of the call in its program, for the status (u32).
    Call,
    /// An extent or offset, as wide as the launch's indices.
    Index(i64),
    /// Up to eight of them.
    Dims(Vec<i64>),
    /// An i32.
    I32(i32),
    /// A u32.
    U32(u32),
    /// An i64.
    I64(i64),
    /// A u64.
    U64(u64),
    /// An f64.
    F64(f64),
    /// Up to 896 words of a table.
    Words(Vec<u32>),
    /// Three f64: the parameters of an elementwise function.
    Params([f64; 3]),
}

impl Arg {
    /// The bytes of an argument that is no address; `None` for addresses and [`Arg::Call`].
    pub fn bytes(&self, wide: bool) -> Option<Vec<u8>> {
        let index = |v: i64| if wide { v.to_le_bytes().to_vec() } else { (v as i32).to_le_bytes().to_vec() };
        Some(match self {
            Arg::Input(_)
            | Arg::Output(_)
            | Arg::OutputFrom(..)
            | Arg::Workspace(_)
            | Arg::Null
            | Arg::Status
            | Arg::Call => {
                return None;
            }
            Arg::Index(v) => index(*v),
            Arg::Dims(v) => (0..RANK).flat_map(|i| index(v.get(i).copied().unwrap_or(0))).collect(),
            Arg::I32(v) => v.to_le_bytes().to_vec(),
            Arg::U32(v) => v.to_le_bytes().to_vec(),
            Arg::I64(v) => v.to_le_bytes().to_vec(),
            Arg::U64(v) => v.to_le_bytes().to_vec(),
            Arg::F64(v) => v.to_le_bytes().to_vec(),
            Arg::Words(v) => (0..WORDS).flat_map(|i| v.get(i).copied().unwrap_or(0).to_le_bytes()).collect(),
            Arg::Params(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        })
    }
}

/// One launch. Grids and blocks have one dimension; an empty grid is never launched.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The source.
    pub source: Source,
    /// Macros it is compiled with: name and value, in order.
    pub defines: Vec<(&'static str, String)>,
    /// The kernel in it.
    pub entry: &'static str,
    /// Blocks.
    pub grid: u32,
    /// Threads of a block: whole warps.
    pub block: u32,
    /// Arguments in order.
    pub args: Vec<Arg>,
    /// Whether indices have 64 bits.
    pub wide: bool,
}

/// What an operator launches, in order, for one signature.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kernels {
    /// The launches.
    pub launches: Vec<Launch>,
    /// Scratch bytes they share.
    pub workspace: u64,
}

/// A dtype's name in kernels.
pub fn dtype_name(d: DType) -> &'static str {
    match d {
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::U8 | DType::Bool => "u8",
        DType::U16 => "u16",
        DType::U32 => "u32",
        DType::U64 => "u64",
    }
}

/// The integer of a dtype's width, for kernels that only move data.
pub fn width_name(d: DType) -> &'static str {
    match d.size() {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        _ => "u64",
    }
}

/// Bytes of an element of the type that arithmetic on `d` is done in.
pub(crate) fn wide_size(d: DType) -> u64 {
    match d {
        DType::F16 | DType::BF16 => 4,
        d => d.size(),
    }
}

/// Blocks for threads that stride over `n` units of work.
pub(crate) fn blocks_for(n: u64) -> u64 {
    n.div_ceil(u64::from(BLOCK)).min(MOST_BLOCKS)
}

/// To how many threads the places of each of `lines` are dealt, where every thread walks over all that may go there: enough threads for a
/// device, by shape alone.
pub(crate) fn parts_of(lines: usize, places: usize) -> usize {
    const THREADS: usize = 1 << 14;
    (THREADS / lines.max(1)).clamp(1, places.max(1))
}

/// A block of whole warps for `n` elements that it works on together.
pub(crate) fn block_of(n: u64) -> u32 {
    (n.clamp(1, u64::from(BLOCK)) as u32).next_multiple_of(32)
}

/// Collects the launches of an operator.
pub(crate) struct Builder {
    kernels: Kernels,
    source: Source,
    defines: Vec<(&'static str, String)>,
    wide: bool,
}

impl Builder {
    /// Launches of a source. Indices are as wide as the signature's tensors need.
    pub(crate) fn new(s: &Signature<'_>, source: Source) -> Result<Builder, OpError> {
        let all = s.inputs.iter().copied().flatten().chain(s.outputs.iter().copied());
        let mut most = 0;
        for t in all {
            most = most
                .max(t.shape.elements().ok_or_else(|| OpError::Dynamic(format!("the shape {}", t.shape)))?);
        }
        Ok(Builder { kernels: Kernels::default(), source, defines: Vec::new(), wide: most >= WIDE })
    }

    /// The macro `name`, for the launches that follow.
    pub(crate) fn define(&mut self, name: &'static str, value: impl ToString) -> &mut Builder {
        self.defines.retain(|(n, _)| *n != name);
        self.defines.push((name, value.to_string()));
        self
    }

    /// The types of a source that has one for most operands, T, and another where `dtype` is not that.
    pub(crate) fn types(&mut self, main: DType, name: &'static str, dtype: DType) -> &mut Builder {
        self.define("T", dtype_name(main));
        if dtype != main {
            self.define(name, dtype_name(dtype));
        }
        self
    }

    /// The next launches are of another source.
    pub(crate) fn source(&mut self, source: Source) -> &mut Builder {
        (self.source, self.defines) = (source, Vec::new());
        self
    }

    /// Whether indices have 64 bits.
    pub(crate) fn wide(&self) -> bool {
        self.wide
    }

    /// Takes scratch memory; returns where it starts.
    pub(crate) fn workspace(&mut self, bytes: u64) -> Arg {
        let at = self.kernels.workspace.next_multiple_of(256);
        self.kernels.workspace = at + bytes;
        Arg::Workspace(at)
    }

    /// A launch of `blocks` blocks, none if that is 0.
    pub(crate) fn launch(
        &mut self,
        entry: &'static str,
        blocks: u64,
        block: u32,
        args: Vec<Arg>,
    ) -> Result<(), OpError> {
        if blocks == 0 {
            return Ok(());
        }
        let grid = u32::try_from(blocks).ok().filter(|b| *b <= i32::MAX as u32);
        let grid =
            grid.ok_or_else(|| OpError::unsupported(format!("{blocks} blocks, more than a grid has, ")))?;
        let mut defines = self.defines.clone();
        defines.push(("INDEX", if self.wide { "long long" } else { "int" }.to_owned()));
        self.kernels.launches.push(Launch {
            source: self.source,
            defines,
            entry,
            grid,
            block,
            args,
            wide: self.wide,
        });
        Ok(())
    }

    /// A launch whose threads stride over `n` elements.
    pub(crate) fn over(&mut self, entry: &'static str, n: u64, args: Vec<Arg>) -> Result<(), OpError> {
        self.launch(entry, blocks_for(n), BLOCK, args)
    }

    /// The launches.
    pub(crate) fn done(self) -> Kernels {
        self.kernels
    }
}
