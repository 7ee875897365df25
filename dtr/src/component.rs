//! Connected parts of what is evicted, for `h_DTR` and its kin: who is affected by a change, and shortcuts for large parts.
//!
//! A storage's evicted neighbourhood can change only when one of the components next to it does, so components keep readers. They merge at
//! evictions and are never split (a component may then be several, which costs work and no exactness).
//!
//! Many components have a *source*, a member from which all members are reached, or a *sink*, reached from all: a chain, or everything that
//! is dead in a backward pass. A resident parent of the source has the whole component below it, and its total is known without a walk. Both
//! are carried along where that is certain and otherwise dropped, until a walk happens to prove one anew.

use crate::ids::NONE;
use crate::live::{LATE, Live, MATERIAL, PENDING, Way};
use crate::sets::Sets;
use crate::window::Window;

#[derive(Clone, Copy)]
struct Component {
    /// Cost of all members.
    total: u64,
    members: u32,
    /// A member that reaches all, and one that all reach, or [`NONE`].
    ends: [u32; 2],
}

/// What a storage that is just being dropped has to do with one component next to it.
#[derive(Clone, Copy)]
struct Contact {
    component: u32,
    /// It has a parent, a child in there.
    side: [bool; 2],
    /// One of its children is the source, one of its parents is the sink.
    end: [bool; 2],
}

pub(crate) struct Components {
    sets: Sets,
    components: Vec<Component>,
    /// The cost with which each evicted storage counts.
    counted: Vec<u64>,
    contacts: Vec<Contact>,
}

/// The end of a component that a walk this way starts from: the source for children, the sink for parents.
fn end(way: Way) -> usize {
    match way {
        Way::Children => 0,
        Way::Parents => 1,
    }
}

/// Evicted, and computed at least once.
fn member(live: &Live, storage: u32) -> bool {
    live.at(storage).evicted() && !live.at(storage).is(PENDING)
}

/// The only direct neighbour one way that is a member, if there is exactly one.
fn only_neighbour(live: &Live, storage: u32, way: Way) -> Result<u32, usize> {
    let mut only = NONE;
    for other in live.neighbours(storage, way).filter(|&other| other != storage && member(live, other)) {
        if only != NONE && only != other {
            return Err(2);
        }
        only = other;
    }
    if only == NONE { Err(0) } else { Ok(only) }
}

impl Components {
    pub(crate) fn new() -> Self {
        Self { sets: Sets::new(), components: Vec::new(), counted: Vec::new(), contacts: Vec::new() }
    }

    pub(crate) fn extend(&mut self, storages: usize) {
        self.sets.extend(storages);
        self.counted.resize(storages, 0);
    }

    /// `storage` was dropped.
    pub(crate) fn evicted(&mut self, live: &mut Live, window: &Window, storage: u32, scratch: &mut Vec<u32>) {
        let late = if live.at(storage).is(LATE) { window.late_cost(storage) } else { 0 };
        let cost = live.at(storage).cost - late;
        self.counted[storage as usize] = cost;
        let mut contacts = std::mem::take(&mut self.contacts);
        contacts.clear();
        for way in [Way::Children, Way::Parents] {
            scratch.clear();
            scratch.extend(live.neighbours(storage, way));
            for &other in scratch.iter() {
                if live.at(other).is(MATERIAL) {
                    live.outdate(other);
                } else if member(live, other)
                    && let Some(component) = self.sets.of(other)
                {
                    let at = contacts
                        .iter()
                        .position(|contact| contact.component == component)
                        .unwrap_or_else(|| {
                            contacts.push(Contact { component, side: [false; 2], end: [false; 2] });
                            contacts.len() - 1
                        });
                    contacts[at].side[end(way)] = true;
                    contacts[at].end[end(way)] |= self.components[component as usize].ends[end(way)] == other;
                }
            }
        }
        scratch.clear();

        let root = self.sets.create(storage);
        let ends = [Way::Children, Way::Parents].map(|way| self.end_with(&contacts, storage, way));
        let mut whole = Component { total: cost, members: 1, ends };
        for contact in &contacts {
            let part = self.components[contact.component as usize];
            whole.total += part.total;
            whole.members += part.members;
            self.sets.join(live, contact.component, root);
        }
        self.components.push(whole);
        self.contacts = contacts;
    }

    /// The source (walking to children) or sink of what a dropped storage and the components next to it become together.
    fn end_with(&self, contacts: &[Contact], storage: u32, way: Way) -> u32 {
        let (this, back) = (end(way), 1 - end(way));
        let mut beyond = contacts.iter().filter(|contact| contact.side[back]);
        let from = beyond.next();
        if beyond.next().is_some() {
            return NONE;
        }
        let others = |contact: &&Contact| from.is_none_or(|from| from.component != contact.component);
        if !contacts.iter().filter(others).all(|contact| contact.end[this]) {
            return NONE;
        }
        from.map_or(storage, |from| self.components[from.component as usize].ends[this])
    }

    /// `storage` is resident again, or gone for good.
    pub(crate) fn restored(&mut self, live: &mut Live, storage: u32) {
        let Some(set) = self.sets.take(storage) else { return };
        self.sets.notify(live, set);
        let component = &mut self.components[set as usize];
        component.total -= self.counted[storage as usize];
        component.members -= 1;
        for way in [Way::Children, Way::Parents] {
            let last = &mut component.ends[end(way)];
            match only_neighbour(live, storage, way) {
                // Nothing was reached through it.
                Err(0) if *last != storage => {}
                Ok(next) if *last == storage => *last = next,
                _ => *last = NONE,
            }
        }
    }

    /// An edge has appeared between two storages that existed before.
    pub(crate) fn connected(&mut self, live: &mut Live, one: u32, other: u32) {
        if let (Some(one), Some(other)) = (self.sets.of(one), self.sets.of(other))
            && one != other
        {
            let part = self.components[one as usize];
            let whole = &mut self.components[other as usize];
            whole.total += part.total;
            whole.members += part.members;
            whole.ends = [NONE; 2];
            self.sets.notify(live, other);
            self.sets.join(live, one, other);
        }
    }

    /// Cost of all evicted storages reached one way; the storage is told when it changes.
    pub(crate) fn reach(&mut self, live: &mut Live, window: &Window, storage: u32, way: Way) -> u64 {
        let mut contacts = std::mem::take(&mut self.contacts);
        contacts.clear();
        for other in live.neighbours(storage, way) {
            if member(live, other)
                && let Some(component) = self.sets.of(other)
            {
                let hit = self.components[component as usize].ends[end(way)] == other;
                match contacts.iter_mut().find(|contact| contact.component == component) {
                    Some(contact) => contact.end[0] |= hit,
                    None => contacts.push(Contact { component, side: [false; 2], end: [hit; 2] }),
                }
            }
        }
        for contact in &contacts {
            self.sets.read(contact.component, storage);
        }
        let reach = if contacts.iter().all(|contact| contact.end[0]) {
            contacts.iter().map(|contact| self.components[contact.component as usize].total).sum()
        } else {
            self.walk(live, window, storage, way, &contacts)
        };
        self.contacts = contacts;
        reach
    }

    fn walk(
        &mut self,
        live: &mut Live,
        window: &Window,
        storage: u32,
        way: Way,
        contacts: &[Contact],
    ) -> u64 {
        let (mut sum, mut visited) = (0, 0);
        live.walk(
            storage,
            way,
            |id, inner| {
                visited += 1;
                sum += inner.cost;
                if inner.flags & LATE != 0 {
                    sum -= window.late_cost(id);
                }
            },
            |_| {},
        );
        if let [contact] = contacts {
            let component = &mut self.components[contact.component as usize];
            if component.members == visited
                && let Ok(only) = only_neighbour(live, storage, way)
            {
                component.ends[end(way)] = only;
            }
        }
        sum
    }
}
