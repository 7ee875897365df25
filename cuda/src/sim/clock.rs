//! Vector clocks: what is known to have happened before what.

use std::collections::BTreeMap;

/// Who does things one after the other: the host, a stream, or a recorded stream in one run of its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Actor(pub usize);

/// A moment of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Whose.
    pub actor: Actor,
    /// Its time then.
    pub time: u64,
}

/// For each actor the time up to which its doings are known to have happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock(BTreeMap<Actor, u64>);

impl Clock {
    /// Whether a moment is known to have happened.
    pub fn knows(&self, m: Moment) -> bool {
        self.0.get(&m.actor).is_some_and(|t| *t >= m.time)
    }

    /// Learns all that another clock knows.
    pub fn join(&mut self, other: &Clock) {
        for (actor, time) in &other.0 {
            let known = self.0.entry(*actor).or_insert(0);
            *known = (*known).max(*time);
        }
    }

    /// The next moment of the actor whose clock this is.
    pub fn tick(&mut self, actor: Actor) -> Moment {
        let time = self.0.entry(actor).or_insert(0);
        *time += 1;
        Moment { actor, time: *time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_carries_knowledge() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        let written = a.tick(Actor(1));
        assert!(a.knows(written) && !b.knows(written));
        let event = a.clone();
        let later = a.tick(Actor(1));
        b.join(&event);
        assert!(b.knows(written) && !b.knows(later));
    }
}
