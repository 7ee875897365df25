//! Windows of a schedule, decided anew by small integer programs.
//!
//! A window is a stretch of what is made before the tight moments: the groups made there that are kept through such a moment or made
//! again. What becomes of them is asked of an integer program over a few moments (see [`super::moments`]), everything else staying as it
//! is. The answer is replayed exactly; where that is over the budget, the moment or burst is added and the question asked again, until
//! it fits, nothing better exists, or patience ends. Local search changes one decision at a time and repairs; here many change at once.

use super::super::index::NONE;
use super::super::problem::Bytes;
use super::moments::{Burst, Moments, Question, Scene};
use super::{Candidate, Context, neighbourhood, sequence_search};

/// Programs have no more variables than this.
const VARIABLES: usize = 480;
/// Moments asked for at first.
const MOMENTS: usize = 4;
/// Most moments after those that replays add.
const MOST_MOMENTS: usize = 10;
/// A suggestion that is still over the budget is repaired with this part of the work.
const REPAIRS: u64 = 16;
/// Temperature of the repair.
const HEAT: f64 = 0.5;
/// Questions a window.
const QUESTIONS: usize = 8;
/// Nodes of the search tree a question.
const NODES: u64 = 300;

/// Improves a candidate with about `work` executed steps. The answer is never worse than the start.
pub(crate) fn improve(context: &mut Context<'_, '_>, start: &Candidate, work: u64) -> Candidate {
    let end = context.evaluator.work + work;
    let mut best = start.clone();
    let mut idle = 0;
    let mut turn = 0;
    while context.evaluator.work < end {
        let windows = windows(context, &best);
        if idle >= windows.len() || (best.score.peak <= context.budget && best.score.time <= context.enough) {
            break;
        }
        let question = windows[turn % windows.len()].clone();
        turn += 1;
        idle += 1;
        let Some(mut found) = ask(context, &best, question, end) else { continue };
        if found.score.peak > context.budget {
            found = neighbourhood::improve(context, &found, HEAT, work / REPAIRS, turn as u64);
        }
        if found.score.key(context.budget) < best.score.key(context.budget) {
            best = Candidate { strategy: "windows", ..found };
            idle = 0;
        }
    }
    best
}

/// The windows of a schedule, those with the most recomputation first.
fn windows(context: &mut Context<'_, '_>, current: &Candidate) -> Vec<Question> {
    let index = context.index;
    let scene = Scene::new(index, &mut context.evaluator, &current.sequence, context.budget);
    let moments = tight_moments(&scene);
    if moments.is_empty() {
        return Vec::new();
    }
    // What is kept through a moment, or made again.
    let mut matter: Vec<(u32, u32)> = Vec::new();
    for group in 0..index.groups() as u32 {
        let maker = index.group_node[group as usize];
        if index.pinned[group as usize]
            || index.group_bytes[group as usize] == 0
            || maker == NONE
            || !index.needed[maker as usize]
        {
            continue;
        }
        let made = scene.place[maker as usize];
        let over = |m: &u32| {
            made < *m
                && scene.is_live(group, *m)
                && !index.input_groups.row(scene.order[*m as usize]).contains(&group)
        };
        if scene.instances(group) > 1 || moments.iter().any(over) {
            matter.push((made, group));
        }
    }
    matter.sort_unstable();
    let most = (VARIABLES / 2 / moments.len()).max(8);
    let mut out: Vec<(u64, Question)> = Vec::new();
    let mut from = 0;
    while from < matter.len() {
        let mut chosen = vec![false; index.groups()];
        let mut count = 0;
        let mut to = from;
        while to < matter.len() && count < most {
            count += choose(&scene, &moments, matter[to].1, &mut chosen, most);
            to += 1;
        }
        let groups: Vec<u32> = (0..index.groups() as u32).filter(|&g| chosen[g as usize]).collect();
        let again: u64 = groups
            .iter()
            .map(|&g| {
                (scene.instances(g) as u64).saturating_sub(1)
                    * index.time[index.group_node[g as usize] as usize]
            })
            .sum();
        out.push((again, Question { moments: moments.clone(), groups, ..Question::default() }));
        if to >= matter.len() {
            break;
        }
        from += ((to - from) / 2).max(1);
    }
    out.sort_by_key(|w| std::cmp::Reverse(w.0));
    out.into_iter().map(|w| w.1).filter(|q| !q.groups.is_empty()).collect()
}

/// Chooses a group and what making it again reads, directly or through others, up to what is live at some moment. Returns how many.
fn choose(scene: &Scene<'_, '_>, moments: &[u32], group: u32, chosen: &mut [bool], most: usize) -> usize {
    let index = scene.index;
    let mut queue = vec![group];
    let mut at = 0;
    let mut count = 0;
    while at < queue.len() && count < most {
        let group = queue[at];
        at += 1;
        if index.pinned[group as usize] || std::mem::replace(&mut chosen[group as usize], true) {
            continue;
        }
        count += 1;
        for &value in index.members.row(group) {
            let read = index.input_groups.row(index.producer[value as usize]);
            queue.extend(read.iter().filter(|&&g| !moments.iter().any(|&m| scene.is_live(g, m))));
        }
    }
    count
}

/// First executions at which most is live, some way apart.
fn tight_moments(scene: &Scene<'_, '_>) -> Vec<u32> {
    let mut ranked: Vec<(Bytes, u32)> =
        (1..scene.order.len() as u32).map(|p| (scene.live[scene.step(p) as usize], p)).collect();
    ranked.sort_by_key(|&(bytes, place)| (std::cmp::Reverse(bytes), place));
    let apart = (scene.order.len() / 24).max(1) as u32;
    let mut moments: Vec<u32> = Vec::new();
    for (_, place) in ranked {
        if moments.len() < MOMENTS && moments.iter().all(|m| m.abs_diff(place) >= apart) {
            moments.push(place);
        }
    }
    moments.sort_unstable();
    moments
}

/// Asks until the answer fits; the best schedule on the way.
fn ask(
    context: &mut Context<'_, '_>,
    current: &Candidate,
    mut question: Question,
    end: u64,
) -> Option<Candidate> {
    let index = context.index;
    let budget = context.budget;
    let scene = Scene::new(index, &mut context.evaluator, &current.sequence, budget);
    let mut best: Option<Candidate> = None;
    for _ in 0..QUESTIONS {
        if context.evaluator.work > end {
            break;
        }
        let moments = Moments::new(&scene, &question, budget);
        let answer = moments.program.solve(NODES);
        // A step of the simplex method looks at all variables, and is some ten times as long as an executed step.
        context.evaluator.work += answer.iterations * moments.program.len() as u64;
        let Some(sequence) = answer.on.and_then(|on| moments.sequence(&on)) else { break };
        let sequence = sequence_search::drop_unread(index, &sequence, context.keep_order);
        let candidate = context.sequence(current.strategy, sequence)?;
        let (peak, step) = (candidate.score.peak, candidate.score.peak_step);
        let found = Scene::new(index, &mut context.evaluator, &candidate.sequence, budget);
        super::take_better(budget, &mut best, Some(candidate));
        if peak <= budget {
            break;
        }
        let place = found.place_of(step);
        let node = found.sequence[step as usize];
        sharpen(&mut question, place, (found.order[place as usize] != node).then_some(node), peak - budget);
        if question.moments.len() > MOST_MOMENTS {
            break;
        }
    }
    best
}

/// Adds what a replay showed to be missing: a moment, the burst before it, and at last bytes to leave free there.
fn sharpen(question: &mut Question, place: u32, burst: Option<u32>, over: Bytes) {
    let known = question.moments.binary_search(&place);
    if let Err(at) = known {
        question.moments.insert(at, place);
    }
    match burst {
        Some(node) => {
            let same = |b: &&mut Burst| b.moment == place && b.node == node;
            match question.bursts.iter_mut().find(same) {
                None => question.bursts.push(Burst { moment: place, node, heaped: false }),
                Some(burst) if !burst.heaped => burst.heaped = true,
                Some(_) => question.slack.push((place, over)),
            }
        }
        None if known.is_ok() => question.slack.push((place, over)),
        None => {}
    }
}
