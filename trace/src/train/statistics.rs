//! Running statistics of a training step: when they are committed, and how a step in parts takes them in.
//!
//! A step in parts may fail in its last one, so the earlier ones must leave the statistics alone. They gather what they would have added in
//! a state beside each statistic, `pending' = m pending + s batch` from zero, and the last part commits the lot under its guard:
//! `running' = m^n running + m pending + s batch`, which is what n updates one after the other come to.

use super::{TrainError, add_state, set_output};
use graph::{Attrs, StateId, StateKind, ValueId};
use ops::{Builder, OpError};
use plan::ProgramKind;

/// The state in which the parts of a step gather what they add to a running statistic.
pub fn pending_of(statistic: &str) -> String {
    format!("{statistic}/pending")
}

/// Makes the commits of running statistics wait for the guard `ok`, and moves them to the last of `parts`.
pub(super) fn guard(
    b: &mut Builder<'_>,
    kind: ProgramKind,
    parts: u32,
    ok: ValueId,
) -> Result<(), TrainError> {
    let users = b.graph().users();
    let updates: Vec<(StateId, ValueId)> = b
        .graph()
        .states
        .iter()
        .enumerate()
        .filter_map(|(i, s)| Some((StateId(i as u32), s.output?)))
        .collect();
    for (state, new) in updates {
        let Some(n) = b.graph().producer(new) else { continue };
        if &*b.graph().node(n).op != "RunningUpdate" {
            continue;
        }
        b.graph_mut().nodes[n.index()].inputs.resize(3, None);
        b.graph_mut().nodes[n.index()].inputs[2] = Some(ok);
        if kind == ProgramKind::Train {
            continue;
        }
        let name = b.graph().states[state.index()].name.to_string();
        let wrap = |error| TrainError::Update { parameter: name.clone(), error };
        if !users[new.index()].is_empty() {
            let what = "accumulating gradients where the model reads the new running statistic";
            return Err(wrap(OpError::unsupported(what)));
        }
        b.set_scope(format!("accumulate/{name}"));
        let old = b.graph().states[state.index()].input;
        let pending = add_state(b, &pending_of(&name), old, StateKind::Accumulator);
        if kind == ProgramKind::Micro {
            b.graph_mut().states[state.index()].output = None;
            b.graph_mut().nodes[n.index()].inputs[0] = Some(pending);
            set_output(b, pending, new);
        } else {
            let node = &mut b.graph_mut().nodes[n.index()];
            node.inputs.push(Some(pending));
            node.attrs = std::mem::take(&mut node.attrs).with("parts", i64::from(parts));
            let zero = b.op("Reset", Attrs::new(), &[pending, new]).map_err(wrap)?;
            set_output(b, pending, zero);
        }
    }
    Ok(())
}
