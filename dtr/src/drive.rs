//! The plain way in: a whole schedule against a budget, and what came of it.

use crate::error::Error;
use crate::ids::{OpId, TensorId};
use crate::machine::{Machine, Stats};
use crate::options::Options;
use crate::program::Program;
use crate::world::{Event, Recorder, World};

/// One step of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Computes an op for the first time, recomputing what it needs; each output starts with one reference.
    Compute(OpId),
    /// Takes one more reference.
    Get(TensorId),
    /// Gives a reference back.
    Release(TensorId),
    /// Brings the tensor back if need be and pins its storage for ever.
    Pin(TensorId),
    /// Brings the tensor back if need be; from now on its storage is not evictable and, once dead, only [`crate::Dealloc::Retire`] frees it.
    Hold(TensorId),
    /// The op must not run from now on (what it reads was overwritten): resident outputs are held, evicted ones are lost.
    Forbid(OpId),
}

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// Everything that happened, up to the failure if there was one.
    pub events: Vec<Event>,
    /// The figures at the end.
    pub stats: Stats,
    /// How many commands of the schedule were completed.
    pub completed: usize,
    /// The failure.
    pub result: Result<(), Error>,
}

/// Runs a schedule over a program, recording what happens.
pub fn run(program: &Program, schedule: &[Command], options: &Options) -> Outcome {
    let mut recorder = Recorder::default();
    let mut machine = match Machine::new(program.clone(), options.clone()) {
        Ok(machine) => machine,
        Err(error) => {
            return Outcome { events: Vec::new(), stats: Stats::default(), completed: 0, result: Err(error) };
        }
    };
    let (completed, result) = drive(&mut machine, schedule, &mut recorder);
    Outcome { events: recorder.events, stats: machine.stats(), completed, result }
}

/// Gives a machine the commands of a schedule until one fails; returns how many were completed, and the failure.
pub fn drive<W: World>(
    machine: &mut Machine,
    schedule: &[Command],
    world: &mut W,
) -> (usize, Result<(), Error>) {
    for (completed, &command) in schedule.iter().enumerate() {
        let result = match command {
            Command::Compute(op) => machine.compute(op, world),
            Command::Get(tensor) => machine.get(tensor),
            Command::Release(tensor) => machine.release(tensor, world),
            Command::Pin(tensor) => machine.pin(tensor, world),
            Command::Hold(tensor) => machine.hold(tensor, world),
            Command::Forbid(op) => machine.forbid(op, world),
        };
        if result.is_err() {
            return (completed, result);
        }
    }
    (schedule.len(), Ok(()))
}
