//! CUDA launches of scatters.

use super::{Reduction, elements::Lines, index_input, nd::Rows};
use crate::{
    OpError, Signature,
    cuda::launch::{parts_of, wide_size},
    cuda::{Arg, Builder, Kernels, dtype_name, source, width_name},
    elementwise::cuda::convert,
};

fn index(v: usize) -> Arg {
    Arg::Index(v as i64)
}

/// How updates are addressed: see `scatter.cu`.
struct Target {
    kind: i32,
    /// Extents, strides of the indices, strides of the output.
    axes: [Vec<usize>; 3],
    steps: [usize; 2],
    rows: usize,
    len: usize,
    updates: usize,
    lines: usize,
}

impl Target {
    fn args(&self) -> Result<Vec<Arg>, OpError> {
        let rank = self.axes[0].len();
        if rank > 8 {
            return Err(OpError::unsupported("scattering along more than eight axes on CUDA"));
        }
        let or = |v: &[usize], one: i64| match v {
            [] => Arg::Dims(vec![one]),
            v => Arg::Dims(v.iter().map(|x| *x as i64).collect()),
        };
        let mut args = vec![Arg::I32(if self.kind == 0 { rank.max(1) } else { rank } as i32)];
        args.extend([or(&self.axes[0], 1), or(&self.axes[1], 0), or(&self.axes[2], 0)]);
        args.extend([self.steps[0], self.steps[1], self.rows, self.len, self.updates, self.lines].map(index));
        args.extend([Arg::Status, Arg::Call]);
        Ok(args)
    }
}

/// Puts input `values` at input 1's indices into output 0, which holds already what is there before.
fn put(s: &Signature<'_>, b: &mut Builder, t: &Target, values: usize, how: Reduction) -> Result<(), OpError> {
    let dtype = s.output(0)?.dtype;
    let combine = match how {
        Reduction::Replace => 0,
        Reduction::Add => 1,
        Reduction::Mul => 2,
        Reduction::Max => 3,
        Reduction::Min => 4,
    };
    let all: usize = s.out_dims(0)?.iter().product();
    if all == 0 || t.lines * t.updates == 0 {
        return Ok(());
    }
    let element = if combine == 0 { width_name(dtype) } else { dtype_name(dtype) };
    let indices = dtype_name(s.input(1)?.dtype);
    let define = |b: &mut Builder| {
        b.source(source!("indexing/scatter.cu"));
        b.define("T", element).define("K", indices).define("KIND", t.kind).define("COMBINE", combine);
    };
    let (keys, y) = (Arg::Input(1), Arg::Output(0));
    if combine != 0 {
        // 16-bit floats are added up in float32: many small updates of a place would each be rounded away.
        let wide = if wide_size(dtype) > dtype.size() {
            Some(b.workspace(all as u64 * wide_size(dtype)))
        } else {
            None
        };
        let sums = wide.clone().unwrap_or(y.clone());
        if wide.is_some() {
            convert(b, (y.clone(), element), (sums.clone(), "f32"), all as u64)?;
        }
        define(b);
        let parts = parts_of(t.lines, t.rows);
        let args = [vec![keys, Arg::Input(values), sums.clone(), index(parts)], t.args()?].concat();
        b.over("combine_all", (t.lines * parts) as u64, args)?;
        return if wide.is_some() { convert(b, (sums, "f32"), (y, element), all as u64) } else { Ok(()) };
    }
    let size = if b.wide() { 8 } else { 4 };
    let owners = b.workspace(all as u64 * size);
    b.source(source!("movement/copy.cu"));
    b.define("T", if b.wide() { "u64" } else { "u32" });
    b.over("fill", all as u64, vec![owners.clone(), index(all), Arg::U64(u64::MAX)])?;
    define(b);
    let n = (t.lines * t.updates) as u64;
    b.over("claim", n, [vec![keys.clone(), owners.clone()], t.args()?].concat())?;
    b.over("place", n, [vec![keys, Arg::Input(values), owners, y], t.args()?].concat())
}

/// Input 0 copied to output 0, to which a scatter puts the rest.
fn copied(s: &Signature<'_>) -> Result<Builder, OpError> {
    let n: usize = s.out_dims(0)?.iter().product();
    let mut b = Builder::new(s, source!("movement/copy.cu"))?;
    b.define("T", width_name(s.output(0)?.dtype));
    b.over("run", n as u64, vec![Arg::Input(0), Arg::Output(0), index(n)])?;
    Ok(b)
}

/// ScatterElements.
pub(super) fn elements(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (l, how) = (Lines::new(s)?, Reduction::of(s)?);
    index_input(s, 1)?;
    let target = Target {
        kind: 0,
        axes: [
            l.others.iter().map(|o| o.0).collect(),
            l.others.iter().map(|o| o.1).collect(),
            l.others.iter().map(|o| o.2).collect(),
        ],
        steps: [l.index_step, l.data_step],
        rows: l.n,
        len: 1,
        updates: l.len,
        lines: l.count,
    };
    let mut b = copied(s)?;
    put(s, &mut b, &target, 2, how)?;
    Ok(b.done())
}

/// ScatterND.
pub(super) fn tuples(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let (r, how) = (Rows::new(s)?, Reduction::of(s)?);
    index_input(s, 1)?;
    let target = Target {
        kind: 1,
        lines: r.batches * r.len,
        steps: [0, 0],
        rows: r.rows,
        len: r.len,
        updates: r.tuples,
        axes: [r.extents, vec![], vec![]],
    };
    let mut b = copied(s)?;
    put(s, &mut b, &target, 2, how)?;
    Ok(b.done())
}

/// MaxUnpool: zeros, and input 0 at flat places.
pub(crate) fn unpool(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let n: usize = s.out_dims(0)?.iter().product();
    let mut b = Builder::new(s, source!("movement/copy.cu"))?;
    b.define("T", width_name(s.output(0)?.dtype));
    b.over("fill", n as u64, vec![Arg::Output(0), index(n), Arg::U64(0)])?;
    let target = Target {
        kind: 2,
        axes: [vec![], vec![], vec![]],
        steps: [0, 0],
        rows: n,
        len: 1,
        updates: s.dims(0)?.iter().product(),
        lines: 1,
    };
    put(s, &mut b, &target, 0, Reduction::Replace)?;
    Ok(b.done())
}
