//! Every operator and every case on 16-bit floats: what float32 gives for the same elements, rounded once. And, to the bit, whatever may be
//! overwritten, however many threads there are.

use graph::{DType, Graph, InputRole, Literal, TensorType};
use ops::{
    Builder, OPS, OpDef, Signature,
    case::Case,
    cpu::{evaluate_with, widen},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// A node of one operator, and what it reads.
struct Built {
    graph: Graph,
    given: Vec<Option<Literal>>,
}

impl Built {
    /// The case with its floats in `dtype`, or in float32 where `wide` has their input's bit; all of them are what the half can say.
    /// `None` where the operator has no such node, or its result is a constant.
    fn new(op: &dyn OpDef, case: &Case, half: DType, dtype: DType, wide: u32) -> Option<Built> {
        let mut rng = StdRng::seed_from_u64(17);
        let mut graph = Graph::default();
        let (mut inputs, mut given) = (Vec::new(), Vec::new());
        for (i, input) in case.inputs.iter().enumerate() {
            let Some(c) = input else {
                inputs.push(None);
                given.push(None);
                continue;
            };
            let n = c.shape.iter().product();
            let values = c.fill.draw(n, &mut || rng.random());
            // A fixed dtype stays; all other floats are halves.
            let own = c.dtype.unwrap_or(if wide >> i & 1 == 1 { DType::F32 } else { dtype });
            let bytes = values.iter().flat_map(|v| {
                let v = if c.dtype.is_none() { Literal::scalar(half, *v).to_floats()[0] } else { *v };
                Literal::scalar(own, v).bytes().to_vec()
            });
            let l =
                Literal::new(own, c.shape.iter().map(|d| *d as u64).collect(), bytes.collect::<Vec<u8>>());
            let l = l.unwrap();
            inputs.push(Some(if c.constant {
                graph.add_constant(format!("x{i}"), l.clone())
            } else {
                graph.add_input(format!("x{i}"), TensorType::new(own, &c.shape), InputRole::Data)
            }));
            given.push(Some(l));
        }
        Builder::new(&mut graph).emit(op.name(), case.attrs.clone(), &inputs).ok()?;
        (graph.nodes.len() == 1).then_some(Built { graph, given })
    }

    fn signature(&self) -> Signature<'_> {
        Signature::of(&self.graph, &self.graph.nodes[0])
    }

    fn evaluate(&self, op: &dyn OpDef, overwrite: &[(usize, usize)]) -> Result<Vec<Literal>, String> {
        let args: Vec<Option<&Literal>> = self.given.iter().map(Option::as_ref).collect();
        evaluate_with(op, &self.signature(), &args, 0, overwrite).map_err(|e| e.to_string())
    }
}

fn is_half(d: DType) -> bool {
    matches!(d, DType::F16 | DType::BF16)
}

/// Whether two results are one, up to `steps` of the half's spacing at the largest element.
fn compare(got: &Literal, want: &Literal, steps: f64) -> Result<(), String> {
    let (got, want) = (got.to_floats(), Literal::to_floats(want));
    let spacing = 2f64.powi(-8) * steps;
    let size = want.iter().filter(|w| w.is_finite()).fold(0.0f64, |m, w| m.max(w.abs()));
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        let same = g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= spacing * size;
        if !same {
            return Err(format!("element {i} is {g}, not {w}"));
        }
    }
    Ok(())
}

fn rounded(l: &Literal, to: DType) -> Literal {
    let bits = |v: f64| match to {
        DType::F16 => half::f16::from_f32(v as f32).to_bits(),
        _ => half::bf16::from_f32(v as f32).to_bits(),
    };
    if !is_half(to) {
        return l.clone();
    }
    let bytes: Vec<u8> = l.to_floats().iter().flat_map(|v| bits(*v).to_le_bytes()).collect();
    Literal::new(to, l.shape().to_vec(), bytes).unwrap()
}

/// `Ok(false)` if there is no such node.
fn check(op: &dyn OpDef, case: &Case, half: DType, float32: u32) -> Result<bool, String> {
    let (Some(built), Some(wide)) =
        (Built::new(op, case, half, half, float32), Built::new(op, case, half, DType::F32, 0))
    else {
        return Ok(false);
    };
    let sig = built.signature();
    if !sig.inputs.iter().copied().flatten().chain(sig.outputs.iter().copied()).any(|t| is_half(t.dtype)) {
        return Ok(false);
    }
    let native = op.cpu(&sig, 0).is_ok();
    let got = built.evaluate(op, &[])?;
    let want = wide.evaluate(op, &[])?;
    for (g, w) in got.iter().zip(&want) {
        if !g.dtype().is_float() {
            if g != w {
                return Err("another result that is no float".to_owned());
            }
            continue;
        }
        // One that takes halves itself may add in another order, or round in between.
        compare(g, &rounded(w, g.dtype()), if native { 2.0 } else { 0.0 })?;
    }
    let overwrites = widen::facts(op, &sig).overwrites;
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for sharing in std::iter::once(vec![]).chain(overwrites.iter().map(|p| vec![*p])) {
            if pool.install(|| built.evaluate(op, &sharing))? != got {
                return Err(format!("bits differ: overwriting {sharing:?}, {threads} threads"));
            }
        }
    }
    Ok(true)
}

#[test]
fn halves_are_float32_rounded_once() {
    let mut failures = Vec::new();
    let (mut checked, mut mixed, mut operators) = (0, 0, 0);
    for op in OPS {
        let mut any = false;
        for case in op.cases() {
            // Some inputs may stay float32: parameters and statistics, masks.
            let free =
                case.inputs.iter().enumerate().filter(|(_, c)| c.as_ref().is_some_and(|c| c.dtype.is_none()));
            let free: u32 = free.fold(0, |bits, (i, _)| bits | 1 << i);
            for wide in
                (0..1 << case.inputs.len()).filter(|wide| wide & !free == 0 && (*wide == 0 || *wide != free))
            {
                for half in [DType::F16, DType::BF16] {
                    match check(*op, &case, half, wide) {
                        Ok(done) => {
                            checked += usize::from(done);
                            mixed += usize::from(done && wide != 0);
                            any |= done;
                        }
                        Err(e) => {
                            failures.push(format!("{} ({}), {half}, {wide:b}: {e}", op.name(), case.name))
                        }
                    }
                }
            }
        }
        operators += usize::from(any);
    }
    assert!(failures.is_empty(), "{} of {checked} cases fail:\n{}", failures.len(), failures.join("\n"));
    assert!(
        operators > 150 && mixed > 50,
        "only {operators} operators were checked, {mixed} cases beside float32"
    );
}
