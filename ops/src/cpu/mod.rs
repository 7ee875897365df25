//! CPU kernels: the calling convention, buffers, and evaluation of single nodes.
//!
//! A kernel is prepared once for fixed types and called with addresses only. It writes every byte of its outputs, allocates nothing
//! tensor-sized (scratch comes from the plan's workspace), and gives the same bits for any number of threads: work is cut into pieces
//! that depend on shapes alone, and every reduction has a fixed order.

pub mod columns;
pub mod element;
pub mod half;
mod interpret;
pub mod lanes;
pub mod math;
pub mod par;
pub mod widen;

use crate::{OpDef, OpError, Signature};
use graph::Literal;
use std::marker::PhantomData;

pub use element::{Element, Float};
pub use interpret::interpret;
pub use math::Math;

/// Data that a kernel refuses: what, where in the tensor, what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KernelError(pub String);

/// A prepared kernel.
pub type CpuKernel = Box<dyn Fn(&Io<'_>) -> Result<(), KernelError> + Send + Sync>;

/// The memory of one tensor: address and length in bytes. A null address is an optional input left out.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// First byte.
    pub ptr: *mut u8,
    /// Bytes.
    pub len: usize,
}

// SAFETY: a buffer is an address; whoever dereferences it upholds the contract of `Io::new`.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// The buffer of an optional input left out.
    pub const NONE: Buffer = Buffer { ptr: std::ptr::null_mut(), len: 0 };

    /// The buffer over a slice.
    pub fn of(bytes: &mut [u8]) -> Buffer {
        Buffer { ptr: bytes.as_mut_ptr(), len: bytes.len() }
    }
}

/// The memory one call works on.
pub struct Io<'a> {
    inputs: &'a [Buffer],
    outputs: &'a [Buffer],
    workspace: Buffer,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Io<'a> {
    /// Memory for one call.
    ///
    /// # Safety
    ///
    /// For `'a`: every buffer is valid memory of its length, aligned for its element type, initialised where it is an input; nobody else
    /// writes to an input or touches an output or the workspace; outputs and workspace overlap nothing, except that an output may be
    /// exactly the buffer of an input with which the operator's facts allow it to be shared (overwrites, commits).
    pub unsafe fn new(inputs: &'a [Buffer], outputs: &'a [Buffer], workspace: Buffer) -> Io<'a> {
        Io { inputs, outputs, workspace, memory: PhantomData }
    }

    /// Whether optional input `i` is given.
    pub fn has(&self, i: usize) -> bool {
        self.inputs.get(i).is_some_and(|b| !b.ptr.is_null())
    }

    /// Input `i`. Not to be used together with an output that may overwrite it; see [`Io::input_ptr`].
    pub fn input<T: Element>(&self, i: usize) -> &[T] {
        // SAFETY: valid and initialised by the contract of `new`; every bit pattern is a `T`.
        unsafe { slice(self.inputs[i]) }
    }

    /// Output `i`. Take each output once a call.
    #[allow(clippy::mut_from_ref)]
    pub fn output<T: Element>(&self, i: usize) -> &mut [T] {
        let b = self.outputs[i];
        // SAFETY: valid and exclusively ours by the contract of `new`.
        unsafe { std::slice::from_raw_parts_mut(aligned::<T>(b), b.len / size_of::<T>()) }
    }

    /// The workspace as elements.
    #[allow(clippy::mut_from_ref)]
    pub fn workspace<T: Element>(&self) -> &mut [T] {
        let b = self.workspace;
        // SAFETY: valid and exclusively ours by the contract of `new`.
        unsafe { std::slice::from_raw_parts_mut(aligned::<T>(b), b.len / size_of::<T>()) }
    }

    /// Address and number of elements of input `i`, for kernels whose output may be the same memory.
    pub fn input_ptr<T: Element>(&self, i: usize) -> (*const T, usize) {
        let b = self.inputs[i];
        (aligned::<T>(b).cast_const(), b.len / size_of::<T>())
    }

    /// Address and number of elements of output `i`.
    pub fn output_ptr<T: Element>(&self, i: usize) -> (*mut T, usize) {
        let b = self.outputs[i];
        (aligned::<T>(b), b.len / size_of::<T>())
    }

    /// Raw bytes of input `i`, for kernels that only move data. As [`Io::input`] otherwise.
    pub fn input_bytes(&self, i: usize) -> &[u8] {
        self.input::<u8>(i)
    }

    /// Raw bytes of output `i`. As [`Io::output`] otherwise.
    #[allow(clippy::mut_from_ref)]
    pub fn output_bytes(&self, i: usize) -> &mut [u8] {
        self.output::<u8>(i)
    }
}

fn aligned<T>(b: Buffer) -> *mut T {
    if b.len == 0 {
        return std::ptr::NonNull::dangling().as_ptr();
    }
    debug_assert_eq!(b.ptr as usize % align_of::<T>(), 0);
    b.ptr.cast()
}

/// # Safety
///
/// `b` is valid initialised memory that nobody writes to for `'x`.
unsafe fn slice<'x, T: Element>(b: Buffer) -> &'x [T] {
    // SAFETY: by this function's contract.
    unsafe { std::slice::from_raw_parts(aligned::<T>(b), b.len / size_of::<T>()) }
}

/// Memory with the alignment of the arena, for evaluation outside of one.
struct Aligned(Vec<u128>, usize);

impl Aligned {
    fn new(len: usize, fill: u8) -> Aligned {
        Aligned(vec![u128::from_ne_bytes([fill; 16]); len.div_ceil(16)], len)
    }

    fn from(bytes: &[u8]) -> Aligned {
        let mut a = Aligned::new(bytes.len(), 0);
        a.bytes().copy_from_slice(bytes);
        a
    }

    fn bytes(&mut self) -> &mut [u8] {
        let len = self.1;
        // SAFETY: the vector owns at least `len` initialised bytes.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}

/// Runs one operator on literals: for constant folding, tests and references. Outputs and workspace are poisoned first, so that a kernel
/// that leaves bytes unwritten shows.
pub fn evaluate(
    op: &dyn OpDef,
    s: &Signature<'_>,
    inputs: &[Option<&Literal>],
) -> Result<Vec<Literal>, OpError> {
    evaluate_with(op, s, inputs, 0, &[])
}

/// As [`evaluate`], with a chosen implementation and overwriting: pairs (output, input) that share memory.
pub fn evaluate_with(
    op: &dyn OpDef,
    s: &Signature<'_>,
    inputs: &[Option<&Literal>],
    implementation: usize,
    overwrite: &[(usize, usize)],
) -> Result<Vec<Literal>, OpError> {
    let facts = widen::facts(op, s);
    let size = |t: &graph::TensorType| t.bytes().ok_or_else(|| OpError::Dynamic(format!("the size of {t}")));
    let mut ins: Vec<Option<Aligned>> = inputs.iter().map(|i| i.map(|l| Aligned::from(l.bytes()))).collect();
    let in_buffers: Vec<Buffer> =
        ins.iter_mut().map(|i| i.as_mut().map_or(Buffer::NONE, |a| Buffer::of(a.bytes()))).collect();
    let mut outs = s
        .outputs
        .iter()
        .map(|t| Ok(Aligned::new(size(t)? as usize, 0xA5)))
        .collect::<Result<Vec<_>, OpError>>()?;
    let mut out_buffers: Vec<Buffer> = outs.iter_mut().map(|a| Buffer::of(a.bytes())).collect();
    for (o, i) in overwrite.iter().chain(&facts.commits) {
        out_buffers[*o] = in_buffers[*i];
    }
    for v in &facts.views {
        let b = in_buffers[v.input];
        let len = out_buffers[v.output].len;
        if v.offset as usize + len > b.len {
            return Err(OpError::invalid("a view reaches beyond its source"));
        }
        // SAFETY: within the source buffer, checked above.
        out_buffers[v.output] = Buffer { ptr: unsafe { b.ptr.add(v.offset as usize) }, len };
    }
    let mut workspace = Aligned::new(facts.implementations[implementation].workspace as usize, 0xA5);
    let is_view = |o: usize| facts.views.iter().any(|v| v.output == o);
    if !(0..outs.len()).all(is_view) {
        let kernel = widen::prepare(op, s, implementation)?;
        // SAFETY: buffers are owned by this function, sized by their types, 16-aligned; sharing is what the facts allow.
        let io = unsafe { Io::new(&in_buffers, &out_buffers, Buffer::of(workspace.bytes())) };
        kernel(&io).map_err(|e| OpError::Invalid(e.0))?;
    }
    let read = |(b, t): (&Buffer, &&graph::TensorType)| {
        // SAFETY: written by the kernel or initialised above; still owned by `ins` or `outs`.
        let bytes: Vec<u8> = unsafe { slice::<u8>(*b) }.to_vec();
        let shape = crate::def::fixed(&t.shape, "the shape")?.into_iter().map(|d| d as u64).collect();
        Literal::new(t.dtype, shape, bytes).map_err(|e| OpError::invalid(e.to_string()))
    };
    out_buffers.iter().zip(&s.outputs).map(read).collect()
}

/// The instruction set that kernels are dispatched to, for reports.
pub fn instruction_set() -> String {
    let arch = format!("{:?}", pulp::Arch::new()).to_lowercase();
    match arch.split(['(', ' ']).next().unwrap_or("") {
        "v4" => "x86-64-v4 (AVX-512)".to_owned(),
        "v3" => "x86-64-v3 (AVX2)".to_owned(),
        other => other.to_owned(),
    }
}
