//! The forward pass: a softmax that is corrected as larger scores turn up (Milakov and Gimelshein, arXiv 1805.02867).

use super::{
    COLUMNS, PER_SCORE, ROWS, TILES,
    mask::Given,
    shape::{Plan, exported, guarded, infer, straight, swapped},
};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::{Case, CaseInput, Fill},
    cpu::{CpuKernel, Io, lanes, math::Math, par::Shared},
    export::Export,
    grad::GradCx,
    loss::log_sum::{log_sum, written_log_sum},
    product::gemm::{Mat, multiply, shared},
};
use graph::{Attrs, DType, TensorType};

/// softmax(q·kᵀ·scale + mask)·v.
///
/// Inputs: q `[.., H, S, D]`, k `[.., H, T, D]`, v `[.., H, T, E]`, optional mask that spreads over `[.., H, S, T]`. Outputs: y
/// `[.., H, S, E]`, and the log-sum-exp of each row of scores as a shift and the rest `[.., H, S]` ([`log_sum`]). Attributes: `scale`;
/// `fill`: the mask is boolean, and scores become this number where it is false; `guarded`: 1 where probabilities that are NaN count as 0,
/// those of rows of which a mask leaves nothing among them (their log-sum-exp is then 0, which makes them 0 in the gradient, too); `q_swapped`, `k_swapped`, `v_swapped`, `y_swapped`: 1
/// where the axes H and S (T) stand the other way round. The mask has no gradient: it would be a score matrix.
pub struct Attention;

impl Plan {
    /// Blocks of rows, and how many are worked on at once.
    fn blocks(&self) -> (usize, usize) {
        let all = self.matrices * self.q.rows.div_ceil(ROWS);
        (all, all.min(TILES))
    }
}

impl OpDef for Attention {
    fn name(&self) -> &'static str {
        "Attention"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let [y, rows] = infer(s, 3)?;
        Ok(vec![y, rows.clone(), rows])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        if g.needs(3) {
            return Err(OpError::unsupported("the gradient to the mask of Attention"));
        }
        let dy = match g.cotangent(0) {
            Some(dy) => dy,
            None => {
                let ty = g.b.ty(g.output(0)).clone();
                let zero = g.b.scalar(ty.dtype, 0.0);
                g.b.expand(zero, &ty.shape)?
            }
        };
        let [y, shift, rest] = [0, 1, 2].map(|i| Some(g.output(i)));
        let mut inputs = [0, 1, 2, 3].map(|i| g.opt_input(i)).to_vec();
        inputs.extend([y, shift, Some(dy), g.cotangent(2), rest]);
        let attrs = g.attrs().clone();
        for (i, d) in g.b.emit("AttentionGrad", attrs, &inputs)?.into_iter().enumerate() {
            if g.needs(i) {
                g.set(i, d);
            }
        }
        Ok(())
    }

    fn numeric_class(&self) -> u32 {
        2
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        let flops = Plan::new(s, 3).map_or(0, |p| {
            let each = 2 * (p.q.columns + p.v.columns) as u64 + PER_SCORE;
            p.scores().saturating_mul(each)
        });
        Work { flops, bytes: s.io_bytes(), product: true }
    }

    fn facts(&self, s: &Signature<'_>) -> Facts {
        let size = s.opt_input(0).map_or(0, |t| t.dtype.size());
        let elements = Plan::new(s, 3).map_or(0, |p| p.blocks().1 * p.tile().iter().product::<usize>());
        Facts::with_workspace(elements as u64 * size)
    }

    fn by_sample(&self, s: &Signature<'_>) -> bool {
        super::shape::has_batch(s, 3)
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let plan = Plan::new(s, 3)?;
        crate::for_float!(s.input(0)?.dtype, self.name(), T => Ok(Box::new(move |io: &Io<'_>| {
            forward::<T>(&plan, io);
            Ok(())
        })))
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let ([_, _, v], scores, _) = exported(x, 3)?;
        let rank = x.sig.input(0)?.shape.rank();
        let p = scores.call_with("Softmax", Attrs::new().with("axis", -1));
        let is_guarded = guarded(x.sig.attrs)?;
        let p = if is_guarded { p.is_nan().pick(0.0, p) } else { p };
        let y = x.call("MatMul", &[p, v], Attrs::new());
        x.set(0, straight(y, rank, swapped(x.sig.attrs)?[3]));
        if x.used(1) || x.used(2) {
            let written = written_log_sum(scores, rank - 1);
            let largest = scores.reduce("ReduceMax", &[rank as i64 - 1], false);
            for (i, n) in written.into_iter().enumerate() {
                let n = if is_guarded { largest.equals(f64::NEG_INFINITY).pick(0.0, n) } else { n };
                x.set(i + 1, n);
            }
        }
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        cases(|attrs, name, shapes, mask| {
            let c = Case::new(name, attrs, &shapes);
            match mask {
                Some(m) => c.input(3, m.fixed()),
                None => c,
            }
        })
    }
}

/// Cases that attention and its gradient share: attributes, name, shapes of q, k and v, the mask.
pub(super) fn cases(
    case: impl Fn(Attrs, &'static str, [&'static [usize]; 3], Option<CaseInput>) -> Case,
) -> Vec<Case> {
    let make = |attrs, name, shapes, mask: Option<&[usize]>| {
        case(attrs, name, shapes, mask.map(|m| CaseInput::float(m, Fill::Uniform(-2.0, 1.0))))
    };
    // What is replaced has a probability here, so that a gradient of it would show; of one row everything is.
    let replaced = |name, shapes, mask: &[usize], keep: &[f64]| {
        let fill = Fill::Values(keep.to_vec());
        let mask = CaseInput { fill, ..CaseInput::ints(DType::Bool, mask, 0, 2) };
        case(Attrs::new().with("scale", 0.7).with("fill", -1.5), name, shapes, Some(mask))
    };
    let scale = || Attrs::new().with("scale", 0.7);
    let none = f64::NEG_INFINITY;
    let left = |shape, mask: &[f64]| CaseInput::float(shape, Fill::Values(mask.to_vec()));
    let guarded = || scale().with("guarded", 1);
    let swap = scale().with("q_swapped", 1).with("v_swapped", 1).with("y_swapped", 1);
    vec![
        make(scale(), "one head", [&[3, 4], &[5, 4], &[5, 2]], None),
        make(
            scale(),
            "heads and a mask of rows",
            [&[2, 2, 3, 4], &[2, 2, 3, 4], &[2, 2, 3, 4]],
            Some(&[2, 1, 3, 3]),
        ),
        make(scale(), "a mask of columns", [&[2, 3, 2], &[2, 4, 2], &[2, 4, 3]], Some(&[4])),
        make(scale(), "a mask of heads", [&[2, 3, 2], &[2, 4, 2], &[2, 4, 3]], Some(&[2, 3, 1])),
        make(swap, "rows before heads", [&[2, 3, 2, 4], &[2, 2, 5, 4], &[2, 5, 2, 3]], Some(&[3, 5])),
        make(scale().with("k_swapped", 1), "keys before heads", [&[2, 3, 4], &[5, 2, 4], &[2, 5, 3]], None),
        make(scale(), "several tiles", [&[1, 70, 2], &[1, 131, 2], &[1, 131, 1]], Some(&[70, 131])),
        replaced(
            "scores replaced",
            [&[2, 2, 3, 4], &[2, 2, 3, 4], &[2, 2, 3, 2]],
            &[3, 3],
            &[1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0],
        ),
        replaced(
            "rows replaced",
            [&[2, 3, 2], &[2, 4, 2], &[2, 4, 3]],
            &[2, 3, 1],
            &[1.0, 0.0, 1.0, 1.0, 1.0, 0.0],
        ),
        case(
            guarded(),
            "nothing left of a row",
            [&[2, 3, 2], &[2, 4, 2], &[2, 4, 3]],
            Some(left(&[3, 4], &[0.0, none, 0.5, none, none, none, none, none, none, -0.5, 0.0, 0.0])),
        ),
        case(
            guarded().with("fill", none),
            "nothing kept of a row",
            [&[2, 3, 2], &[2, 4, 2], &[2, 4, 3]],
            Some(CaseInput {
                fill: Fill::Values(vec![1.0, 0.0, 1.0, 1.0, 1.0, 0.0]),
                ..CaseInput::ints(DType::Bool, &[2, 3, 1], 0, 2)
            }),
        ),
        make(
            guarded().with("v_swapped", 1),
            "guarded for nothing",
            [&[2, 3, 4], &[2, 5, 4], &[5, 2, 3]],
            None,
        ),
    ]
}

fn forward<T: Math>(p: &Plan, io: &Io<'_>) {
    let [q, k, v] = [0, 1, 2].map(|i| shared(io.input::<T>(i)));
    let mask = p.mask.as_ref().map(|m| (m, Given::of(io, 3, m.fill)));
    let [y, shift, rest] = [0, 1, 2].map(|i| Shared(io.output_ptr::<T>(i).0));
    let tiles = Shared(io.workspace::<T>().as_mut_ptr());
    let (blocks, at_once) = p.blocks();
    let down = p.q.rows.div_ceil(ROWS);
    let (scale, [height, ld]) = (T::from_f64(p.scale), p.tile());
    lanes::each(
        at_once,
        1,
        #[inline(always)]
        |range| {
            let (q, k, v, y, shift, rest, mask, tiles) = (&q, &k, &v, &y, &shift, &rest, &mask, &tiles);
            for lane in range {
                for block in (lane..blocks).step_by(at_once) {
                    let (i, first) = (block / down, block % down * ROWS);
                    let rows = ROWS.min(p.q.rows - first);
                    let (mut max, mut sum) = ([T::NEG_INFINITY; ROWS], [0.0f64; ROWS]);
                    // SAFETY: the block's rows of y and of the log-sum-exp, and the lane's tile, are this call's only; everything lies
                    // inside of its tensor by inference.
                    unsafe {
                        let tile = tiles.0.add(lane * height * ld);
                        let (sq, sy) = (p.q.stride(), p.y.stride());
                        let rows_q = Mat::rows(q.0.add(p.q.at(i) + first * sq), sq);
                        let out = y.0.add(p.y.at(i) + first * sy);
                        for column in (0..p.k.rows).step_by(COLUMNS) {
                            let n = COLUMNS.min(p.k.rows - column);
                            let keys = k.0.add(p.k.at(i) + column * p.k.stride());
                            let keys = Mat::cols(keys, p.k.stride());
                            multiply(
                                [rows, n, p.q.columns],
                                scale,
                                rows_q,
                                keys,
                                T::ZERO,
                                Mat::rows(tile, ld),
                            );
                            for r in 0..rows {
                                let row = tile.add(r * ld);
                                if let Some((m, given)) = mask {
                                    let at = m.at(i) + (first + r) * m.row + column * m.column;
                                    given.put(n, row, at, m.column);
                                }
                                let new = max[r].larger(lanes::largest(n, row.cast_const()));
                                // A row that is masked so far has no maximum to subtract.
                                let from = if new == T::NEG_INFINITY { T::ZERO } else { new };
                                lanes::map(
                                    n,
                                    [row.cast_const()],
                                    [row],
                                    #[inline(always)]
                                    |[x]| [(x - from).vexp()],
                                );
                                let [s] = lanes::sums(
                                    n,
                                    [row.cast_const()],
                                    #[inline(always)]
                                    |x| x,
                                );
                                let keep = (max[r] - from).vexp();
                                sum[r] = sum[r] * keep.to_f64() + s;
                                max[r] = new;
                                if column > 0 {
                                    scaled(p.y.columns, out.add(r * sy), keep);
                                }
                            }
                            let values = v.0.add(p.v.at(i) + column * p.v.stride());
                            let values = Mat::rows(values, p.v.stride());
                            let beta = if column == 0 { T::ZERO } else { T::ONE };
                            let shape = [rows, p.v.columns, n];
                            multiply(shape, T::ONE, Mat::rows(tile, ld), values, beta, Mat::rows(out, sy));
                        }
                        for r in 0..rows {
                            let line = i * p.q.rows + first + r;
                            let logs = [shift.0.add(line), rest.0.add(line)];
                            // Of numbers the largest alone gives 1; the sum of others is NaN, or 0 where there are none.
                            if p.guarded && (sum[r].is_nan() || sum[r] == 0.0) {
                                let values = v.0.add(p.v.at(i)).cast_const();
                                nothing(p, values, out.add(r * sy));
                                let is_empty = max[r] == T::NEG_INFINITY;
                                [*logs[0], *logs[1]] =
                                    if is_empty { [T::ZERO; 2] } else { log_sum(max[r], sum[r]) };
                                continue;
                            }
                            scaled(p.y.columns, out.add(r * sy), T::from_f64(1.0 / sum[r]));
                            [*logs[0], *logs[1]] = log_sum(max[r], sum[r]);
                        }
                    }
                }
            }
        },
    );
}

/// A row of results whose probabilities are all 0: 0, or NaN beside values that are no numbers.
///
/// # Safety
///
/// The matrix of values and the row are valid.
unsafe fn nothing<T: Math>(p: &Plan, values: *const T, out: *mut T) {
    for c in 0..p.v.columns {
        let mut sum = T::ZERO;
        for j in 0..p.v.rows {
            // SAFETY: by this function's contract.
            sum += T::ZERO * unsafe { *values.add(j * p.v.stride() + c) };
        }
        // SAFETY: as before.
        unsafe { *out.add(c) = sum };
    }
}

/// Multiplies `n` elements by a number.
///
/// # Safety
///
/// They are valid.
#[inline(always)]
unsafe fn scaled<T: Math>(n: usize, x: *mut T, by: T) {
    // SAFETY: by this function's contract.
    unsafe {
        lanes::map(
            n,
            [x.cast_const()],
            [x],
            #[inline(always)]
            |[v]| [v * by],
        );
    }
}
