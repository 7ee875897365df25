//! Random masks in standard ONNX operators: [`super::philox`] once more, on 64-bit integers that hold 32-bit words, since runtimes have
//! arithmetic on few other integer types.

use super::{dropout, id, philox};
use crate::{
    OpError,
    export::{Export, Term},
};
use graph::{Attrs, DType};

const WORD: f64 = 4_294_967_296.0;
const HALF: f64 = 65_536.0;

/// The lower 32 bits; of negative numbers those of their two's complement.
fn low<'a>(x: &Export<'a>, v: Term<'a>) -> Term<'a> {
    v.with("BitwiseAnd", x.number(DType::I64, WORD - 1.0))
}

/// The upper 32 bits of a 64-bit integer.
fn high<'a>(x: &Export<'a>, v: Term<'a>) -> Term<'a> {
    low(x, (v - low(x, v)) / WORD)
}

/// The product of a word and a constant: its upper and its lower word.
fn product<'a>(x: &Export<'a>, word: Term<'a>, constant: u32) -> (Term<'a>, Term<'a>) {
    // The lower word survives overflow; the upper one comes from halves of the constant, whose products with a word are below 2^48.
    let lower = low(x, word * f64::from(constant));
    let upper = (word * f64::from(constant >> 16) + word * f64::from(constant & 0xffff) / HALF) / HALF;
    (upper, lower)
}

/// Words of the first `n` elements of a node's stream, in `[n]` (see [`philox::Stream`]); seed and step are inputs `first` and the next.
fn words<'a>(x: &Export<'a>, first: usize, n: usize) -> Result<Term<'a>, OpError> {
    let lanes = philox::GROUP / 4;
    let groups = n.div_ceil(philox::GROUP);
    let counters = u32::try_from(groups * lanes)
        .map_err(|_| OpError::unsupported(format!("writing a mask of {n} elements as ONNX")))?;
    let (seed, step) = (x.input(first)?, x.input(first + 1)?);
    let [from, to, by] = [0.0, f64::from(counters), 1.0].map(|v| x.number(DType::I64, v));
    let counter = x.call("Range", &[from, to, by], Attrs::new());
    let zero = x.zeros(DType::I64, &[counters as usize]);
    let above = high(x, step);
    let turned = low(x, above * HALF) + above / HALF;
    let number = |v: u32| x.number(DType::I64, f64::from(v));
    let mut c = [counter, zero + turned, zero + number(id(x.sig)?), zero + low(x, step)];
    let mut key = [low(x, seed), high(x, seed)];
    for _ in 0..10 {
        let (a, b) = (product(x, c[0], 0xD251_1F53), product(x, c[2], 0xCD9E_8D57));
        let xor = |p: Term<'a>, q: Term<'a>, k: Term<'a>| p.with("BitwiseXor", q).with("BitwiseXor", k);
        c = [xor(b.0, c[1], key[0]), b.1, xor(a.0, c[3], key[1]), a.1];
        key = [low(x, key[0] + number(0x9E37_79B9)), low(x, key[1] + number(0xBB67_AE85))];
    }
    let rows = c.map(|w| w.reshape(&[groups, 1, lanes]));
    let all = x.call("Concat", &rows, Attrs::new().with("axis", 1)).reshape(&[groups * philox::GROUP]);
    let [start, end] = [0, n as i64].map(|v| x.ints(&[v]));
    Ok(x.call("Slice", &[all, start, end], Attrs::new()))
}

/// Which elements are kept, in these extents; `None`: none is.
fn kept<'a>(x: &Export<'a>, first: usize, dims: &[usize]) -> Result<Option<Term<'a>>, OpError> {
    let Some(threshold) = dropout::threshold(dropout::ratio(x.sig)?) else { return Ok(None) };
    let words = words(x, first, dims.iter().product())?;
    Ok(Some(words.at_least(f64::from(threshold)).reshape(dims)))
}

/// [`dropout::Dropout`] and its gradient.
pub(super) fn scaled(x: &Export<'_>) -> Result<(), OpError> {
    let (v, dims) = (x.input(0)?, x.dims(0)?);
    let scale = 1.0 / (1.0 - dropout::ratio(x.sig)?);
    x.set(
        0,
        match kept(x, 1, &dims)? {
            Some(kept) => kept.pick(v * scale, 0.0),
            None => x.zeros(v.dtype(), &dims),
        },
    );
    Ok(())
}

/// [`dropout::DropoutMask`].
pub(super) fn mask(x: &Export<'_>) -> Result<(), OpError> {
    let dims: Vec<usize> = x.sig.attrs.ints("shape")?.iter().map(|d| *d as usize).collect();
    let nothing = || x.zeros(DType::Bool, &dims);
    x.set(0, kept(x, 0, &dims)?.unwrap_or_else(nothing));
    Ok(())
}
