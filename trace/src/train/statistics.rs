//! Running statistics of a training step: when they are committed, and how several updates of a step become one.
//!
//! A layer that runs several times in a step updates its statistics each time, and a state has one commit. So the earlier updates are
//! gathered as what they add, from zero on (`pending' = m pending + s batch`), and the last one commits the lot.
//!
//! A step in parts may fail in its last one, so the earlier ones must leave the statistics alone. They gather what they would have added in
//! a state beside each statistic, `pending' = m pending + s batch` from zero, and the last part commits the lot under its guard:
//! `running' = m^n running + m pending + s batch`, which is what n updates one after the other come to.

use super::{Names, PENDING, TrainError, add_state, set_output};
use graph::{Attrs, NodeId, StateId, StateKind, ValueId};
use ops::{Builder, OpError};
use plan::ProgramKind;

/// Makes the commits of running statistics wait for the guard `ok`, and moves them to the last of `parts`.
pub(super) fn guard(
    b: &mut Builder<'_>,
    kind: ProgramKind,
    names: &Names<'_>,
    parts: u32,
    ok: ValueId,
) -> Result<(), TrainError> {
    let users = b.graph().users();
    let states = b.graph().states.iter().enumerate();
    let updates: Vec<(StateId, ValueId)> =
        states.filter_map(|(i, s)| Some((StateId(i as u32), s.output?))).collect();
    for (state, new) in updates {
        let Some(last) = b.graph().producer(new).filter(|n| &*b.graph().node(*n).op == "RunningUpdate")
        else {
            continue;
        };
        let (name, old) = {
            let s = &b.graph().states[state.index()];
            (s.name.to_string(), s.input)
        };
        let wrap = |error| TrainError::Update { parameter: name.clone(), error };
        b.set_scope(format!("statistics/{name}"));
        let earlier = before(b, last);
        b.graph_mut().nodes[last.index()].inputs[0] = Some(old);
        let in_step = earlier.len() as i64 + 1;
        let mut pending = gathered(b, &earlier, last).map_err(wrap)?;
        b.graph_mut().nodes[last.index()].inputs.resize(4, None);
        b.graph_mut().nodes[last.index()].inputs[2] = Some(ok);
        if kind != ProgramKind::Train && !users[new.index()].is_empty() {
            let what = "accumulating gradients where the model reads the new running statistic";
            return Err(wrap(OpError::unsupported(what)));
        }
        let mut all_parts = in_step;
        if kind != ProgramKind::Train {
            b.set_scope(format!("accumulate/{name}"));
            let of_parts = add_state(b, &names.memory(&name, PENDING), old, StateKind::Accumulator);
            if kind == ProgramKind::Micro {
                b.graph_mut().states[state.index()].output = None;
                b.graph_mut().nodes[last.index()].inputs[0] = Some(of_parts);
                set_output(b, of_parts, new);
            } else {
                pending = Some(match pending {
                    None => of_parts,
                    Some(p) => {
                        let kept = momentum(b, last).map_err(wrap)?.powi(earlier.len() as i32);
                        let kept = scaled(b, of_parts, kept).map_err(wrap)?;
                        b.call("Add", &[kept, p]).map_err(wrap)?
                    }
                });
                all_parts = in_step.saturating_mul(i64::from(parts));
                let zero = b.op("Reset", Attrs::new(), &[of_parts, new]).map_err(wrap)?;
                set_output(b, of_parts, zero);
            }
        }
        let node = &mut b.graph_mut().nodes[last.index()];
        node.inputs[3] = pending;
        if pending.is_none() {
            node.inputs.truncate(3);
        }
        if all_parts > 1 {
            node.attrs = std::mem::take(&mut node.attrs).with("parts", all_parts);
        }
    }
    Ok(())
}

/// The updates of the same statistic before the last one, in order: each goes on from the one before.
fn before(b: &Builder<'_>, last: NodeId) -> Vec<NodeId> {
    let g = b.graph();
    let previous = |n: &NodeId| {
        let n = g.producer(g.node(*n).inputs.first().copied().flatten()?)?;
        (&*g.node(n).op == "RunningUpdate").then_some(n)
    };
    let mut all: Vec<NodeId> = std::iter::successors(previous(&last), previous).collect();
    all.reverse();
    all
}

/// What updates before the last one add to a statistic, from zero on; `None` if there are none.
fn gathered(b: &mut Builder<'_>, earlier: &[NodeId], last: NodeId) -> Result<Option<ValueId>, OpError> {
    let mut pending = None;
    let m = momentum(b, last)?;
    for n in earlier {
        if momentum(b, *n)? != m {
            return Err(OpError::unsupported("one running statistic updated with several momenta"));
        }
        let node = b.graph().node(*n);
        let share = (1.0 - m) * node.attrs.float_or("scale", 1.0)?;
        let Some(batch) = node.inputs.get(1).copied().flatten() else { continue };
        let added = scaled(b, batch, share)?;
        pending = Some(match pending {
            None => added,
            Some(p) => {
                let kept = scaled(b, p, m)?;
                b.call("Add", &[kept, added])?
            }
        });
    }
    Ok(pending)
}

fn momentum(b: &Builder<'_>, update: NodeId) -> Result<f64, OpError> {
    Ok(b.graph().node(update).attrs.float_or("momentum", 0.9)?)
}

fn scaled(b: &mut Builder<'_>, v: ValueId, factor: f64) -> Result<ValueId, OpError> {
    let factor = b.scalar(b.ty(v).dtype, factor);
    b.call("Mul", &[v, factor])
}
