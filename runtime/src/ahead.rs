//! Inputs put on the device ahead of their step.
//!
//! While a step runs, the next one's inputs go into the plan's input slot ([`Running::stage`]): the device copies them beside its work. On
//! devices without a slot, and for programs whose sizes come with the inputs, they are kept as they are until the step starts.

use crate::{
    RuntimeError,
    device::{LoadedProgram, Move, RunOptions, RunReport},
    programs::Chosen,
    session::{Session, StepInputs, StepResult, bound, outputs},
};
use plan::ProgramKind;

/// Inputs of one step that is yet to start.
#[derive(Debug)]
pub struct Staged(Held);

#[derive(Debug)]
enum Held {
    /// In the slot, for the program at this index; the slot's contents by number.
    Slot { program: usize, turn: u64 },
    /// Here.
    Here(Box<Owned>),
}

/// Inputs of a step with their own memory.
#[derive(Debug)]
struct Owned {
    kind: ProgramKind,
    data: Vec<(String, Vec<u8>)>,
    shapes: Vec<(String, Vec<u64>)>,
    learning_rate: f32,
    step: i64,
    seed: i64,
}

impl Owned {
    fn new(kind: ProgramKind, inputs: &StepInputs<'_>) -> Owned {
        Owned {
            kind,
            data: inputs.data.iter().map(|(n, b)| ((*n).to_owned(), b.to_vec())).collect(),
            shapes: inputs.shapes.iter().map(|(n, s)| ((*n).to_owned(), s.to_vec())).collect(),
            learning_rate: inputs.learning_rate,
            step: inputs.step,
            seed: inputs.seed,
        }
    }

    fn run(&self, session: &mut Session, options: RunOptions) -> Result<StepResult, RuntimeError> {
        let data: Vec<(&str, &[u8])> = self.data.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
        let shapes: Vec<(&str, &[u64])> =
            self.shapes.iter().map(|(n, s)| (n.as_str(), s.as_slice())).collect();
        let Owned { learning_rate, step, seed, .. } = *self;
        let inputs = StepInputs { data: &data, shapes: &shapes, learning_rate, step, seed };
        let program = session.program(self.kind)?;
        session.run(program, &inputs, options)
    }
}

/// A step that was started. The session is its own until it has finished.
pub struct Running<'a> {
    session: &'a mut Session,
    started: Option<Started>,
}

enum Started {
    Device { program: usize, handle: LoadedProgram, report: RunReport },
    Done(Box<StepResult>),
}

impl Session {
    /// Puts the inputs of a step of the kind of `program` where it will find them; see [`Session::start`]. What was staged before and not
    /// started is given up.
    pub fn stage(&mut self, program: usize, inputs: &StepInputs<'_>) -> Result<Staged, RuntimeError> {
        let kind = self.plan().programs[program].kind;
        // Which program runs, and what its inputs are, may follow from sizes: nothing is prepared while another step runs.
        let open = self.plan().programs.iter().any(|p| p.dynamic.is_some() || !p.guard.dims.is_empty());
        let here = || Ok(Staged(Held::Here(Box::new(Owned::new(kind, inputs)))));
        if self.plan().slot_bytes == 0 || open {
            return here();
        }
        self.turn += 1;
        let Session { plan, programs, device, budget, turn, .. } = self;
        match programs.choose(plan, kind, inputs, *budget, &mut **device)? {
            Chosen::Ready(program, ready) => {
                let p = &plan.programs[program];
                let Some(slot) = plan.slot_offsets(&p.graph) else { return here() };
                let given = bound(p, ready, inputs)?;
                let parts: Vec<(u64, &[u8])> = slot.into_iter().zip(given.iter().map(|b| &**b)).collect();
                device.stage(&parts)?;
                Ok(Staged(Held::Slot { program, turn: *turn }))
            }
            Chosen::Dynamic(..) => here(),
        }
    }

    /// Whether staged inputs are still there: other steps, evaluation among them, use the slot, too.
    pub fn holds(&self, staged: &Staged) -> bool {
        match &staged.0 {
            Held::Slot { turn, .. } => *turn == self.turn,
            Held::Here(_) => true,
        }
    }

    /// Starts the step of staged inputs. On a device that works by itself it runs when this returns.
    ///
    /// # Errors
    ///
    /// As [`Session::run`]; and the inputs are no longer there ([`Session::holds`]).
    pub fn start(&mut self, staged: Staged, options: RunOptions) -> Result<Running<'_>, RuntimeError> {
        let (program, turn) = match staged.0 {
            Held::Slot { program, turn } => (program, turn),
            Held::Here(owned) => {
                let done = Started::Done(Box::new(owned.run(self, options)?));
                return Ok(Running { session: self, started: Some(done) });
            }
        };
        if turn != self.turn {
            return Err(RuntimeError::Staged);
        }
        self.turn += 1;
        let p = &self.plan.programs[program];
        let none = || RuntimeError::Internal("a program that was not prepared".to_owned());
        let (slot, ready) = (
            self.plan.slot_offsets(&p.graph).ok_or_else(none)?,
            self.programs.ready(program).ok_or_else(none)?,
        );
        self.touched = self.touched.max(p.certificate.arena);
        let moves = moves(p, slot);
        let handle = ready.handle;
        let report = self.device.start(handle, &moves, options)?;
        let started = Some(Started::Device { program, handle, report });
        Ok(Running { session: self, started })
    }
}

/// The copies out of the slot with which a step begins.
pub(crate) fn moves(p: &plan::Program, slot: Vec<u64>) -> Vec<Move> {
    let inputs = p.graph.inputs.iter().zip(&p.inputs).zip(slot);
    inputs
        .map(|((i, to), from)| Move { from, to: *to, len: p.graph.ty(i.value).bytes().unwrap_or(0) })
        .collect()
}

impl Running<'_> {
    /// As [`Session::stage`], while this step runs.
    pub fn stage(&mut self, program: usize, inputs: &StepInputs<'_>) -> Result<Staged, RuntimeError> {
        self.session.stage(program, inputs)
    }

    /// Waits for the end of the step.
    ///
    /// # Errors
    ///
    /// As [`Session::run`].
    pub fn finish(mut self) -> Result<StepResult, RuntimeError> {
        match self.started.take() {
            Some(Started::Done(result)) => Ok(*result),
            Some(Started::Device { program, handle, mut report }) => {
                let Session { plan, programs, device, .. } = &mut *self.session;
                device.finish(handle)?;
                let none = || RuntimeError::Internal("a program that was not prepared".to_owned());
                let ready = programs.ready(program).ok_or_else(none)?;
                report.program = program;
                Ok(StepResult { outputs: outputs(&**device, &plan.programs[program], ready)?, report })
            }
            None => Err(RuntimeError::Internal("a step that was not started".to_owned())),
        }
    }
}

impl Drop for Running<'_> {
    /// Nothing else may begin while it runs.
    fn drop(&mut self) {
        if let Some(Started::Device { handle, .. }) = self.started.take() {
            let _ = self.session.device.finish(handle);
        }
    }
}
