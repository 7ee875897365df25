//! Random allocation traces: how full a pool is when an allocation fails.

use runtime::Pool;

/// Bytes of the pool, and of its smallest tensor.
const POOL: u64 = 4 << 20;
const UNIT: u64 = 256;

/// How large tensors are, up to a sixteenth of the pool.
#[derive(Clone, Copy, Debug)]
pub enum Sizes {
    /// Every size as often.
    Uniform,
    /// Every order of magnitude as often.
    LogUniform,
    /// Powers of four, as the layers of a network have them.
    Layers,
}

/// When tensors go.
#[derive(Clone, Copy, Debug)]
pub enum Lifetimes {
    /// Any of those that live.
    Any,
    /// The latest ones sooner, as in a backward pass.
    Latest,
    /// Most soon, some hardly ever, as activations and what is kept of them.
    Mixed,
}

/// What one trace came to.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Pool over live bytes, less one, when an allocation found no hole for the first time.
    pub first_gap: f64,
    /// The same when it failed: not even sliding helped.
    pub failure: f64,
    /// Bytes that slid over bytes that were allocated.
    pub moved: f64,
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn share(&mut self) -> f64 {
        self.below(1 << 20) as f64 / (1u64 << 20) as f64
    }
}

/// Allocates and frees at random until an allocation fails.
pub fn trace(sizes: Sizes, lifetimes: Lifetimes, seed: u64) -> Outcome {
    let mut draw = Draw(seed);
    let mut pool = Pool::new(POOL);
    let mut live: Vec<Option<u64>> = Vec::new();
    let (mut first_gap, mut moved, mut allocated) = (None, 0, 0);
    let most = POOL / UNIT / 16;
    let over = |pool: &Pool| POOL as f64 / pool.live().max(1) as f64 - 1.0;
    loop {
        // Where a pool is nearly full, what goes and what comes are about as much.
        if draw.share() < 0.45 {
            go(&mut draw, lifetimes, &mut pool, &mut live);
            continue;
        }
        let units = match sizes {
            Sizes::Uniform => 1 + draw.below(most),
            Sizes::LogUniform => (most as f64).powf(draw.share()) as u64,
            Sizes::Layers => 1 << (2 * draw.below(6)),
        };
        let (bytes, cheap) = (units.min(most) * UNIT, draw.share() < 0.5);
        let mut at = pool.find(bytes, cheap);
        if at.is_none() {
            first_gap.get_or_insert(over(&pool));
            for (owner, _, to, len) in pool.slide(bytes) {
                live[owner as usize] = Some(to);
                moved += len;
            }
            at = pool.find(bytes, cheap);
        }
        let Some(at) = at else { break };
        pool.take(at, bytes, live.len() as u32);
        live.push(Some(at));
        allocated += bytes;
    }
    let failure = over(&pool);
    Outcome {
        first_gap: first_gap.unwrap_or(failure),
        failure,
        moved: moved as f64 / f64::max(allocated as f64, 1.0),
    }
}

/// A tensor goes.
fn go(draw: &mut Draw, lifetimes: Lifetimes, pool: &mut Pool, live: &mut [Option<u64>]) {
    let there: Vec<usize> = (0..live.len()).filter(|i| live[*i].is_some()).collect();
    if there.is_empty() {
        return;
    }
    let n = there.len() as u64;
    let which = match lifetimes {
        Lifetimes::Any => draw.below(n),
        Lifetimes::Latest => n - 1 - draw.below(n.min(8)),
        Lifetimes::Mixed if draw.share() < 0.9 => n - 1 - draw.below(n.min(4)),
        Lifetimes::Mixed => draw.below(n),
    };
    if let Some(at) = live[there[which as usize]].take() {
        pool.free(at);
    }
}

/// The share `q` of sorted figures lies below this one.
pub fn quantile(figures: &mut [f64], q: f64) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[((figures.len() - 1) as f64 * q).round() as usize]
}

/// All kinds of traces.
pub fn kinds() -> Vec<(Sizes, Lifetimes)> {
    let sizes = [Sizes::Uniform, Sizes::LogUniform, Sizes::Layers];
    let lifetimes = [Lifetimes::Any, Lifetimes::Latest, Lifetimes::Mixed];
    sizes.iter().flat_map(|s| lifetimes.iter().map(|l| (*s, *l))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_lost_when_an_allocation_fails() {
        for (sizes, lifetimes) in kinds() {
            let mut all: Vec<f64> = (0..200).map(|s| trace(sizes, lifetimes, s).failure).collect();
            let median = quantile(&mut all, 0.5);
            assert!(median <= 0.10, "{sizes:?}, {lifetimes:?}: {median}");
        }
    }
}
