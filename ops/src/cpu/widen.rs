//! 16-bit floats for every kernel: stored in 16 bits, computed in float32, each result rounded once.
//!
//! A kernel that reads and writes halves itself is taken as it is (it can be prepared for them). Any other is prepared for float32, and
//! what it reads is widened first: elementwise operators block by block on the stack, the rest in the workspace of the plan, some samples
//! at a time where samples are independent, otherwise as a whole.
//! Planner, validator and runtime ask here for an operator's facts and its kernel, so that they agree on that workspace.

use super::{
    Buffer, CpuKernel, Io, KernelError,
    half::{is_half, narrow, widen},
    par::{self, Shared},
};
use crate::{Facts, OpDef, OpError, Signature, elementwise::lanes::Layout};
use graph::{DType, Dim, Shape, TensorType};

/// Elements of a block of an elementwise operator.
const BLOCK: usize = 1024;
/// Most inputs of one.
const MOST: usize = 3;
/// Elements of all tensors together that are widened at once where samples are independent.
const AT_ONCE: usize = 1 << 20;
/// Alignment of what lies in the workspace.
const ALIGN: u64 = 64;

/// Facts of a node on the CPU.
pub fn facts(op: &dyn OpDef, s: &Signature<'_>) -> Facts {
    match Wide::of(op, s) {
        Some(w) if !w.by_blocks(op) => w.facts(op, s),
        Some(w) => w.shared(op.facts(&w.signature(s)), s),
        None => op.facts(s),
    }
}

/// The kernel of a node on the CPU.
///
/// # Errors
///
/// The operator has none for these types, or refuses its arguments.
pub fn prepare(op: &dyn OpDef, s: &Signature<'_>, implementation: usize) -> Result<CpuKernel, OpError> {
    match Wide::of(op, s) {
        Some(w) if w.by_blocks(op) => w.blocks(op, s, implementation),
        Some(w) => w.whole(op, s, implementation),
        None => op.cpu(s, implementation),
    }
}

/// The types of a node with float32 in place of halves.
struct Wide {
    inputs: Vec<Option<TensorType>>,
    outputs: Vec<TensorType>,
}

fn widened(t: &TensorType) -> TensorType {
    if is_half(t.dtype) { TensorType { dtype: DType::F32, shape: t.shape.clone() } } else { t.clone() }
}

impl Wide {
    /// `None` if there are no halves, or the operator takes them itself.
    fn of(op: &dyn OpDef, s: &Signature<'_>) -> Option<Wide> {
        let mut types = s.inputs.iter().copied().flatten().chain(s.outputs.iter().copied());
        if !types.any(|t| is_half(t.dtype)) {
            return None;
        }
        if !op.facts(s).views.is_empty() || op.cpu(s, 0).is_ok() {
            return None;
        }
        let inputs = s.inputs.iter().map(|t| t.map(widened)).collect();
        Some(Wide { inputs, outputs: s.outputs.iter().map(|t| widened(t)).collect() })
    }

    fn signature<'a>(&'a self, s: &Signature<'a>) -> Signature<'a> {
        let given = |(i, c): (usize, &Option<&'a graph::Literal>)| c.filter(|_| !self.is_wide(s, i));
        Signature {
            attrs: s.attrs,
            inputs: self.inputs.iter().map(Option::as_ref).collect(),
            constants: s.constants.iter().enumerate().map(given).collect(),
            outputs: self.outputs.iter().collect(),
        }
    }

    fn is_wide(&self, s: &Signature<'_>, input: usize) -> bool {
        s.opt_input(input).is_some_and(|t| is_half(t.dtype))
    }

    /// Whether blocks of the output need the same blocks of the inputs only.
    fn by_blocks(&self, op: &dyn OpDef) -> bool {
        op.elementwise() && self.inputs.len() <= MOST && self.outputs.len() == 1
    }

    /// The facts of the float32 kernel, with the overwrites of which both sides have one size.
    fn shared(&self, facts: Facts, s: &Signature<'_>) -> Facts {
        let same =
            |(o, i): &(usize, usize)| s.outputs.get(*o).map(|t| t.dtype) == s.opt_input(*i).map(|t| t.dtype);
        Facts { overwrites: facts.overwrites.into_iter().filter(same).collect(), ..facts }
    }

    /// Samples there are, and how many are widened at once; one of one where they are not independent.
    fn samples(&self, op: &dyn OpDef, s: &Signature<'_>) -> (usize, usize) {
        let whole = (1, 1);
        if !op.by_sample(s) {
            return whole;
        }
        let (mut samples, mut elements) = (None, 0usize);
        for t in self.inputs.iter().flatten().chain(&self.outputs) {
            let Some(dims) = t.shape.fixed().filter(|d| !d.is_empty()) else { return whole };
            if *samples.get_or_insert(dims[0]) != dims[0] {
                return whole;
            }
            elements = elements.saturating_add(dims.iter().product());
        }
        match samples {
            Some(n) if n > 1 => (n, (AT_ONCE / (elements / n).max(1)).clamp(1, n)),
            _ => whole,
        }
    }

    /// The types of `n` samples.
    fn cut(&self, samples: usize, n: usize) -> Wide {
        let cut = |t: &TensorType| {
            let mut t = t.clone();
            if samples > 1 {
                t.shape.0[0] = Dim::constant(n as i64);
            }
            t
        };
        let inputs = self.inputs.iter().map(|t| t.as_ref().map(cut)).collect();
        Wide { inputs, outputs: self.outputs.iter().map(cut).collect() }
    }

    fn facts(&self, op: &dyn OpDef, s: &Signature<'_>) -> Facts {
        let (samples, group) = self.samples(op, s);
        let cut = self.cut(samples, group);
        let mut wide = op.facts(&self.signature(s));
        let few = op.facts(&cut.signature(s));
        wide.implementations = few.implementations.clone();
        let more = cut.places(&few, s).end;
        let mut facts = self.shared(wide, s);
        for i in &mut facts.implementations {
            i.workspace = i.workspace.next_multiple_of(ALIGN).saturating_add(more);
        }
        facts
    }

    /// Where float32 copies lie behind the kernel's own workspace. An output shares the copy of an input that the kernel may overwrite.
    fn places(&self, wide: &Facts, s: &Signature<'_>) -> Places {
        let mut places = Places { inputs: Vec::new(), outputs: Vec::new(), end: 0 };
        let bytes = |t: &TensorType| t.bytes().unwrap_or(u64::MAX / 4);
        for (i, t) in self.inputs.iter().enumerate() {
            let t = t.as_ref().filter(|_| self.is_wide(s, i));
            places.inputs.push(t.map(|t| (places.end, bytes(t))));
            places.end = places.end.saturating_add(t.map_or(0, |t| bytes(t).next_multiple_of(ALIGN)));
        }
        let mut taken = vec![false; self.inputs.len()];
        for (o, t) in self.outputs.iter().enumerate() {
            if !s.outputs.get(o).is_some_and(|t| is_half(t.dtype)) {
                places.outputs.push(None);
                continue;
            }
            let over = wide.overwrites.iter().find(|(out, i)| *out == o && !taken[*i] && self.is_wide(s, *i));
            if let Some((_, i)) = over {
                taken[*i] = true;
                places.outputs.push(places.inputs[*i]);
                continue;
            }
            places.outputs.push(Some((places.end, bytes(t))));
            places.end = places.end.saturating_add(bytes(t).next_multiple_of(ALIGN));
        }
        places
    }

    /// The kernel over float32 copies.
    fn whole(&self, op: &dyn OpDef, s: &Signature<'_>, implementation: usize) -> Result<CpuKernel, OpError> {
        let (samples, group) = self.samples(op, s);
        let (cut, last) = (self.cut(samples, group), self.cut(samples, samples % group));
        let kernel = op.cpu(&cut.signature(s), implementation)?;
        let rest =
            if samples % group == 0 { None } else { Some(op.cpu(&last.signature(s), implementation)?) };
        let wide = op.facts(&cut.signature(s));
        let own = wide.implementations.get(implementation).map_or(0, |i| i.workspace);
        let places = cut.places(&wide, s);
        let dtype = |t: Option<&TensorType>| t.map_or(DType::F32, |t| t.dtype);
        let from: Vec<DType> = (0..self.inputs.len()).map(|i| dtype(s.opt_input(i))).collect();
        let to: Vec<DType> = s.outputs.iter().map(|t| t.dtype).collect();
        Ok(Box::new(move |io: &Io<'_>| {
            for start in (0..samples).step_by(group) {
                let n = group.min(samples - start);
                // These samples of the caller's buffers.
                let own_part = |b: &Buffer| {
                    if b.ptr.is_null() {
                        return *b;
                    }
                    let each = b.len / samples;
                    // SAFETY: every tensor has `samples` equal parts.
                    Buffer { ptr: unsafe { b.ptr.add(each * start) }, len: each * n }
                };
                let place = |(part, place): (&Buffer, &Option<(u64, u64)>)| match place {
                    Some((at, bytes)) if !part.ptr.is_null() => {
                        let at = own.next_multiple_of(ALIGN) + at;
                        if at + bytes > io.workspace.len as u64 {
                            return Err(KernelError("the workspace is too small (a bug)".to_owned()));
                        }
                        // SAFETY: inside the workspace, checked above.
                        let ptr = unsafe { io.workspace.ptr.add(at as usize) };
                        Ok(Buffer { ptr, len: *bytes as usize / group * n })
                    }
                    _ => Ok(*part),
                };
                let given: Vec<Buffer> = io.inputs.iter().map(own_part).collect();
                let wanted: Vec<Buffer> = io.outputs.iter().map(own_part).collect();
                let inputs = given.iter().zip(&places.inputs).map(place).collect::<Result<Vec<_>, _>>()?;
                let outputs = wanted.iter().zip(&places.outputs).map(place).collect::<Result<Vec<_>, _>>()?;
                for (i, _) in places.inputs.iter().enumerate().filter(|(_, p)| p.is_some()) {
                    // SAFETY: the copy has room for every element of the input.
                    unsafe { widen_all(from[i], &given[i], &inputs[i]) };
                }
                let workspace = Buffer { ptr: io.workspace.ptr, len: own as usize };
                let kernel = rest.as_ref().filter(|_| n < group).unwrap_or(&kernel);
                // SAFETY: the caller's buffers, and copies that overlap only where the kernel's facts allow it.
                kernel(&unsafe { Io::new(&inputs, &outputs, workspace) })?;
                for (o, _) in places.outputs.iter().enumerate().filter(|(_, p)| p.is_some()) {
                    // SAFETY: the kernel wrote every element of the copy.
                    unsafe { narrow_all(to[o], &outputs[o], &wanted[o]) };
                }
            }
            Ok(())
        }))
    }

    /// The kernel block by block.
    fn blocks(&self, op: &dyn OpDef, s: &Signature<'_>, implementation: usize) -> Result<CpuKernel, OpError> {
        let out = s.out_dims(0)?;
        let n: usize = out.iter().product();
        let kernel = |len: usize| {
            let flat = |t: &TensorType| TensorType { dtype: t.dtype, shape: Shape::from(&[len][..]) };
            let types: Vec<_> = self.inputs.iter().map(|t| t.as_ref().map(flat)).collect();
            let output = flat(&self.outputs[0]);
            let sig = Signature {
                attrs: s.attrs,
                inputs: types.iter().map(Option::as_ref).collect(),
                constants: vec![None; types.len()],
                outputs: vec![&output],
            };
            op.cpu(&sig, implementation)
        };
        let (full, rest) = (kernel(BLOCK)?, kernel(n % BLOCK)?);
        let mut operands = Vec::new();
        for (i, t) in s.inputs.iter().enumerate() {
            let operand = t.map(|t| Ok::<_, OpError>((t.dtype, Layout::new(&s.dims(i)?, &out))));
            operands.push(operand.transpose()?);
        }
        let to = s.output(0)?.dtype;
        Ok(Box::new(move |io: &Io<'_>| {
            let inputs: Vec<Shared<u8>> = io.inputs.iter().map(|b| Shared(b.ptr)).collect();
            let y = Shared(io.outputs[0].ptr);
            let (operands, inputs, full, rest) = (&operands, &inputs, &full, &rest);
            let failed = std::sync::Mutex::new(None);
            par::ranges(n, par::GRAIN, |range| {
                let y = &y;
                let mut rooms = [[0f32; BLOCK]; MOST];
                let mut result = [0f32; BLOCK];
                for start in range.clone().step_by(BLOCK) {
                    let len = BLOCK.min(range.end - start);
                    let mut buffers = [Buffer::NONE; MOST];
                    for ((operand, from), (room, buffer)) in
                        operands.iter().zip(inputs).zip(rooms.iter_mut().zip(&mut buffers))
                    {
                        if let Some((dtype, layout)) = operand {
                            // SAFETY: the layout is the operand's for this output, and the room has a block of any element.
                            unsafe { gather(*dtype, layout, from.0, (start, len), room) };
                            let size = if is_half(*dtype) { 4 } else { dtype.size() as usize };
                            *buffer = Buffer { ptr: room.as_mut_ptr().cast(), len: len * size };
                        }
                    }
                    let size = if is_half(to) { 4 } else { to.size() as usize };
                    let outputs = [Buffer { ptr: result.as_mut_ptr().cast(), len: len * size }];
                    // SAFETY: rooms of this call; the block was read before it is written.
                    let done = unsafe {
                        let io = Io::new(&buffers[..operands.len()], &outputs, Buffer::NONE);
                        let done = if len == BLOCK { full(&io) } else { rest(&io) };
                        let at = y.0.add(start * to.size() as usize);
                        if is_half(to) {
                            narrow(to, result.as_ptr(), at, len);
                        } else {
                            std::ptr::copy_nonoverlapping(result.as_ptr().cast(), at, len * size);
                        }
                        done
                    };
                    if let (Err(e), Ok(mut first)) = (done, failed.lock()) {
                        first.get_or_insert(e);
                    }
                }
            });
            failed.into_inner().ok().flatten().map_or(Ok(()), Err)
        }))
    }
}

struct Places {
    /// Offset and bytes of the copy of each input that has one.
    inputs: Vec<Option<(u64, u64)>>,
    outputs: Vec<Option<(u64, u64)>>,
    end: u64,
}

/// Elements `start..start + len` of a broadcast operand, as float32 if it has halves, otherwise as they are.
///
/// # Safety
///
/// `from` is an operand of this layout, and the room has space for them.
unsafe fn gather(
    dtype: DType,
    layout: &Layout,
    from: *const u8,
    (start, len): (usize, usize),
    room: &mut [f32; BLOCK],
) {
    let size = dtype.size() as usize;
    let wide = is_half(dtype);
    let to_size = if wide { 4 } else { size };
    let to = room.as_mut_ptr().cast::<u8>();
    for (done, run, at, step) in layout.runs(start, len) {
        // SAFETY: by this function's contract.
        unsafe {
            let (from, to) = (from.add(at * size), to.add(done * to_size));
            let read = if step == 0 { 1 } else { run };
            if wide {
                widen(dtype, from, to.cast(), read);
            } else {
                std::ptr::copy_nonoverlapping(from, to, read * size);
            }
            for i in read..run {
                std::ptr::copy_nonoverlapping(to, to.add(i * to_size), to_size);
            }
        }
    }
}

/// # Safety
///
/// `to` has room for as many float32 as `from` has halves.
unsafe fn widen_all(dtype: DType, from: &Buffer, to: &Buffer) {
    let (from, to, n) = (Shared(from.ptr), Shared(to.ptr), from.len / 2);
    par::ranges(n, par::GRAIN, |r| {
        let (from, to) = (&from, &to);
        // SAFETY: ranges are disjoint and inside both.
        unsafe { widen(dtype, from.0.add(r.start * 2), to.0.add(r.start * 4).cast(), r.len()) };
    });
}

/// # Safety
///
/// `from` has as many float32 as `to` has room for halves.
unsafe fn narrow_all(dtype: DType, from: &Buffer, to: &Buffer) {
    let (from, to, n) = (Shared(from.ptr), Shared(to.ptr), to.len / 2);
    par::ranges(n, par::GRAIN, |r| {
        let (from, to) = (&from, &to);
        // SAFETY: ranges are disjoint and inside both.
        unsafe { narrow(dtype, from.0.add(r.start * 4).cast_const().cast(), to.0.add(r.start * 2), r.len()) };
    });
}
