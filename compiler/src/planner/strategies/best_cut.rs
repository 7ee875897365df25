//! The resident set of a cut: at the first execution of one node, which values are live and which are made again.
//!
//! The set comes from a bound's relaxation or integer program. As a schedule it means: at every gap over the cut, members are kept and
//! the rest is held once made again.

use super::super::decode::{Genome, arrive};
use super::super::index::{Index, NONE};
use super::super::outcome::Cut;
use super::{Candidate, Context};

/// In how many orders each cut is tried, and of many nodes: which of them has room for the recomputation that a cut asks for is not seen
/// from its own peak.
const ORDERS: usize = 6;
const ORDERS_OF_MANY: usize = 2;
const MANY: usize = 10_000;

/// One candidate a cut and order.
pub(crate) fn run(context: &mut Context<'_, '_>, cuts: &[Cut]) -> Vec<Candidate> {
    let mut out = Vec::new();
    let most = if context.index.given.len() > MANY { ORDERS_OF_MANY } else { ORDERS };
    let orders: Vec<Vec<u32>> = context.orders.iter().take(most).cloned().collect();
    let known = |c: &&Cut| context.index.needed.get(c.node as usize) == Some(&true);
    let cuts: Vec<&Cut> = cuts.iter().filter(known).collect();
    for cut in cuts {
        for order in &orders {
            let genome = decisions(context.index, order.clone(), cut);
            let cutoff = context.index.base_time.saturating_mul(8);
            out.extend(context.decode("best cut", genome, cutoff));
        }
    }
    out
}

/// Keeps resident groups over the cut and holds the others after it.
pub(crate) fn decisions(index: &Index<'_>, order: Vec<u32>, cut: &Cut) -> Genome {
    let mut genome = Genome::keep_all(index, order);
    let place = genome.place[cut.node as usize];
    for group in 0..index.groups() as u32 {
        let resident = index.members.row(group).iter().any(|&v| cut.resident.get(v as usize) == Some(&true));
        let made = index.group_node[group as usize];
        if resident || index.pinned[group as usize] || made == NONE {
            continue;
        }
        // Unneeded nodes have no place.
        if index.needed[made as usize] && genome.place[made as usize] < place {
            let edge = genome.edge_after(index, group, place.saturating_sub(1));
            genome.arrive[edge as usize] = arrive::HOLD;
        }
    }
    genome
}
