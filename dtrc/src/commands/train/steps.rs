//! The steps of a run: batches to updates, progress, checkpoints, the closing summary.

use super::{
    Args, OnNan,
    evaluation::{Evaluation, Metrics, object, text},
    log::{Log, Row, Scaling},
    source::Source,
};
use crate::{
    cli::Global,
    error::{self, CliError},
    memory,
    picture::Moment,
    planning,
    progress::note,
    save::Saves,
    schedule::learning_rate,
    session::by_name,
    units,
};
use compiler::train::{SCALE, SKIPPED, is_named};
use graph::StateKind;
use plan::{Plan, ProgramKind, StateEntry, hex};
use runtime::{
    RunOptions, RuntimeError, Session, Staged, StepInputs, StepResult,
    checkpoint::{self, CheckpointError, Cursor},
    data::dataset::Order,
};
use serde_json::json;
use std::{
    collections::BTreeSet,
    io::IsTerminal,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

impl From<CheckpointError> for CliError {
    fn from(e: CheckpointError) -> Self {
        match &e {
            CheckpointError::Io { error, path } => CliError::unwritable(path.as_ref(), error),
            CheckpointError::Runtime(_) => CliError::failed(e.to_string()),
            _ => CliError::bad_input(e.to_string()),
        }
    }
}

/// Kind of the error of a loss that is no number.
const NAN: &str = "nan";
/// Most different reasons that are told.
const MOST_TOLD: usize = 16;

/// Everything a run of training holds.
pub struct Run<'a> {
    pub args: &'a Args,
    pub global: Global,
    pub session: Session,
    pub source: Source,
    pub eval: Option<Evaluation>,
    /// What the last evaluation told, and after which step.
    pub evaluated: Option<(u64, Metrics)>,
    pub log: Option<Log>,
    pub saves: Saves,
    pub cursor: Cursor,
    pub total: u64,
    /// The batch that was run last, counted from 0 in its epoch.
    pub last_batch: u64,
    /// Step of the newest checkpoint.
    pub saved_at: u64,
    /// Step of the checkpoint that this run goes on from; 0 if from none.
    pub resumed_at: u64,
    pub started: Instant,
    pub last_line: Option<Instant>,
    /// Most anonymous resident bytes seen after a step.
    pub peak_anonymous: u64,
    /// Inputs that are on the device for a step to come.
    pub ahead: Option<(i64, Staged)>,
    /// The program that ran last.
    pub program: usize,
    /// Whether it was told that the loss scale fell below 1.
    pub told_scale: bool,
    /// Why steps ran dynamic, each told once.
    pub told: BTreeSet<String>,
    /// Bits of every loss, for `--compare`.
    pub losses: Vec<u64>,
    /// Duration of every step.
    pub step_seconds: Vec<f64>,
}

impl Run<'_> {
    /// Steps until the end or an interrupt. Returns the last loss.
    pub fn train(&mut self, per_epoch: u64, interrupted: &AtomicUsize) -> Result<Option<f64>, CliError> {
        let mut last = None;
        let mut order = None;
        let mut order_epoch = None;
        while self.cursor.step < self.total && interrupted.load(Ordering::Relaxed) == 0 {
            if self.cursor.batch >= per_epoch {
                self.cursor.epoch += 1;
                self.cursor.batch = 0;
            }
            if order_epoch != Some(self.cursor.epoch) {
                if let Source::Data(d) = &self.source {
                    order = Some(d.order(self.cursor.epoch, self.cursor.shuffle));
                }
                order_epoch = Some(self.cursor.epoch);
            }
            if self.args.follow_memory
                && let Some(budget) = self.session.follow_memory().map_err(|e| self.rescue(e.into()))?
            {
                note(self.global.quiet, format!("memory: the arena may take {} now", units::bytes(budget)));
            }
            let start = Instant::now();
            let step = self.cursor.step + 1;
            let lr = learning_rate(self.args.lr_schedule, self.args.lr, step, self.total, self.args.warmup);
            let loss = self.step(order.as_ref(), lr, step).map_err(|e| self.rescue(e))?;
            let seconds = start.elapsed().as_secs_f64();
            if let Some(rss) = memory::anonymous_rss() {
                self.peak_anonymous = self.peak_anonymous.max(rss);
            }
            if !loss.is_finite() {
                let what = format!(
                    "step {step} (epoch {}, batch {}): the loss is {loss}",
                    self.cursor.epoch, self.last_batch
                );
                if self.args.on_nan == OnNan::Stop {
                    let hint = "the state is as before the step; lower --lr, use --clip-norm, or go on with --on-nan skip";
                    let e = CliError { kind: NAN, message: format!("{what}; {hint}"), code: error::FAILED };
                    return Err(self.rescue(e));
                }
                note(self.global.quiet, format!("{what}; skipped"));
            } else {
                last = Some(loss);
            }
            self.step_seconds.push(seconds);
            if self.args.compare {
                self.losses.push(loss.to_bits());
            }
            self.cursor.step = step;
            self.cursor.batch += 1;
            let scaling = self.scaling().map_err(|e| self.rescue(e))?;
            self.tell_scale(scaling);
            if self.global.json {
                let mut line = json!({"schema": 1, "step": step, "loss": loss, "seconds": seconds});
                if let Some(s) = scaling {
                    line["scale"] = s.scale.into();
                    line["skipped"] = s.skipped.into();
                }
                if let Some(p) = self.ran() {
                    line["program"] = p.into();
                }
                println!("{line}");
            }
            let due = |every: Option<u64>| every.is_some_and(|n| step.is_multiple_of(n));
            let evaluate = due(self.args.eval_every) || step == self.total;
            if evaluate {
                self.evaluate().map_err(|e| self.rescue(e))?;
            }
            let program = self.ran();
            if let Some(log) = &mut self.log {
                let row = Row { step, epoch: self.cursor.epoch, loss, lr, seconds, program, scaling };
                let written = log.step(&row, self.evaluated.as_ref().filter(|_| evaluate).map(|(_, m)| m));
                written.map_err(|e| self.rescue(e))?;
            }
            self.tell(step, loss, seconds, scaling);
            if due(self.args.every) {
                self.checkpoint()?;
            }
        }
        Ok(last)
    }

    /// By what the loss is scaled now, if it is.
    fn scaling(&self) -> Result<Option<Scaling>, CliError> {
        let number = |name: &str| -> Result<Option<f64>, CliError> {
            let Some(s) = state_of_scaling(self.session.plan(), name) else { return Ok(None) };
            let mut bytes = [0; 4];
            self.session.read_state(&s.name, 0, &mut bytes)?;
            Ok(Some(f64::from(f32::from_le_bytes(bytes))))
        };
        let (scale, skipped) = (number(SCALE)?, number(SKIPPED)?);
        Ok(scale.zip(skipped).map(|(scale, skipped)| Scaling { scale, skipped: skipped as u64 }))
    }

    /// Says once that scaling does not help.
    fn tell_scale(&mut self, scaling: Option<Scaling>) {
        if let Some(s) = scaling.filter(|s| s.scale < 1.0 && !self.told_scale) {
            self.told_scale = true;
            let what =
                format!("the loss scale fell to {}: gradients overflow float16 whatever it is", s.scale);
            note(self.global.quiet, format!("{what}; --amp bf16 has the range of float32"));
        }
    }

    /// Which of several programs of its kind ran last: its sizes, and its arena where others are for the same sizes; empty of one alone.
    fn ran(&self) -> Option<String> {
        let plan = self.session.plan();
        let p = plan.programs.get(self.program).filter(|p| plan.choices(p.kind) > 1)?;
        let same =
            plan.programs.iter().filter(|q| q.kind == p.kind && q.guard == p.guard && q.dynamic.is_none());
        let arena = (p.dynamic.is_none() && same.count() > 1).then(|| units::bytes(p.certificate.arena));
        let label = Some(p.label()).filter(|l| !l.is_empty());
        Some([label, arena].into_iter().flatten().collect::<Vec<_>>().join(" in "))
    }

    /// Bytes of the arena that the program that ran last may take.
    fn arena(&self) -> u64 {
        let plan = self.session.plan();
        let own = plan.programs.get(self.program).map_or(plan.arena, |p| p.certificate.arena);
        own.min(self.session.budget())
    }

    /// Measures the calls of one more step on the first batch.
    pub fn moments(&mut self) -> Result<Vec<Moment>, CliError> {
        let order = if let Source::Data(d) = &self.source { Some(d.order(0, None)) } else { None };
        let batch = self.source.batch(order.as_ref(), 0)?;
        let (data, shapes) = by_name(&batch);
        let inputs = StepInputs { data: &data, shapes: &shapes, step: 1, ..StepInputs::default() };
        let options = RunOptions { check_recompute: false, measure: true };
        let ns = self.session.run(0, &inputs, options)?.report.call_ns;
        let replay = &self.session.replays()[0];
        let moment = |(i, (ns, live)): (usize, (u64, &u64))| Moment {
            ns,
            live: *live,
            recompute: replay.recomputed.contains(&i),
        };
        Ok(ns.into_iter().zip(&replay.live).enumerate().map(moment).collect())
    }

    /// One update. The loss is the mean over its parts.
    fn step(&mut self, order: Option<&Order>, lr: f64, step: u64) -> Result<f64, CliError> {
        let parts = u64::from(self.session.plan().accumulate.max(1));
        let mut sum = 0.0;
        for part in 0..parts {
            let index = match &self.source {
                Source::Data(_) => self.cursor.batch * parts + part,
                Source::Synthetic { .. } => (step - 1) * parts + part,
            };
            self.last_batch = index;
            let batch = self.source.batch(order, index)?;
            let (data, shapes) = by_name(&batch);
            let kind = if parts == 1 {
                ProgramKind::Train
            } else if part + 1 < parts {
                ProgramKind::Micro
            } else {
                ProgramKind::Last
            };
            let inputs = StepInputs {
                data: &data,
                shapes: &shapes,
                learning_rate: lr as f32,
                step: step as i64,
                // Parts of a step draw different masks.
                seed: self.cursor.seed.wrapping_mul(0x1_0000).wrapping_add(part as i64),
            };
            let options = RunOptions { check_recompute: self.args.check_recompute, measure: false };
            let program = self.session.program(kind)?;
            let result = if self.session.plan().slot_bytes > 0 && parts == 1 {
                self.overlapped(order, program, &inputs, options)
            } else {
                self.session.run(program, &inputs, options)
            };
            if let Ok(r) = &result {
                self.program = r.report.program;
                if let Some(why) = &r.report.why_dynamic
                    && self.told.len() < MOST_TOLD
                    && self.told.insert(why.clone())
                {
                    note(self.global.quiet, format!("step {step} ran dynamic: {why}"));
                }
            }
            let loss = result
                .map_err(|e| at_batch(e, self.cursor.epoch, index))
                .and_then(|r| r.loss().ok_or_else(|| CliError::failed("the program has no loss")));
            if parts > 1 && !matches!(loss, Ok(l) if l.is_finite()) {
                // The next step must not see part of this one.
                self.session.forget_parts()?;
                return loss;
            }
            sum += loss?;
        }
        Ok(sum / parts as f64)
    }

    /// A whole step; while it runs, the inputs of the next one go to the device. Whatever is wrong with those is told at their own step.
    fn overlapped(
        &mut self,
        order: Option<&Order>,
        program: usize,
        inputs: &StepInputs<'_>,
        options: RunOptions,
    ) -> Result<StepResult, RuntimeError> {
        let ahead = self.ahead.take().filter(|(step, s)| *step == inputs.step && self.session.holds(s));
        let staged = match ahead {
            Some((_, staged)) => staged,
            None => self.session.stage(program, inputs)?,
        };
        let (index, step) = (self.last_batch + 1, inputs.step + 1);
        // A new epoch has an order of its own, and evaluation takes the slot.
        let last = index >= self.source.batches() || step as u64 > self.total;
        let evaluated = self.args.eval_every.is_some_and(|n| (inputs.step as u64).is_multiple_of(n));
        let mut running = self.session.start(staged, options)?;
        if !last
            && !evaluated
            && let Ok(batch) = self.source.batch(order, index)
        {
            let (data, shapes) = by_name(&batch);
            let schedule = self.args.lr_schedule;
            let lr = learning_rate(schedule, self.args.lr, step as u64, self.total, self.args.warmup) as f32;
            let next =
                StepInputs { data: &data, shapes: &shapes, learning_rate: lr, step, seed: inputs.seed };
            self.ahead = running.stage(program, &next).ok().map(|staged| (step, staged));
        }
        running.finish()
    }

    /// A progress line: on a terminal it is written over, elsewhere one every 30 s.
    fn tell(&mut self, step: u64, loss: f64, seconds: f64, scaling: Option<Scaling>) {
        if self.global.quiet {
            return;
        }
        let terminal = std::io::stderr().is_terminal();
        let pause = if terminal { Duration::from_millis(200) } else { Duration::from_secs(30) };
        if self.last_line.is_some_and(|t| t.elapsed() < pause) && step < self.total {
            return;
        }
        let left = self.total - step;
        let eta = Duration::from_secs_f64((seconds * left as f64).min(1e9)).as_secs();
        let eval = self.evaluated.as_ref();
        let eval = eval.map_or_else(String::new, |(at, m)| format!("   after {at}: {}", text(m)));
        let scale = scaling.map_or_else(String::new, |s| text_of(&s));
        let line = format!(
            "step {step}/{}   loss {loss:.6}{scale}{eval}   {seconds:.3} s/step   arena {}{}   {}:{:02}:{:02} left",
            self.total,
            units::bytes(self.arena()),
            self.ran().map_or_else(String::new, |p| format!("   {p}")),
            eta / 3600,
            eta / 60 % 60,
            eta % 60
        );
        let end = if terminal && step < self.total { "\r" } else { "\n" };
        eprint!("{line}{end}");
        self.last_line = Some(Instant::now());
    }

    /// Writes a checkpoint unless this step has one.
    fn checkpoint(&mut self) -> Result<(), CliError> {
        if let Some(dir) = &self.args.checkpoint
            && self.cursor.step > self.saved_at
        {
            checkpoint::save(dir, &self.session, &self.cursor, self.args.keep.0)?;
            self.saved_at = self.cursor.step;
        }
        Ok(())
    }

    /// Saves what was trained before something failed that left the state as it was, and tells where.
    fn rescue(&mut self, mut e: CliError) -> CliError {
        let harmless = [error::BAD_INPUT, error::DISK, error::OUT_OF_MEMORY, error::INFEASIBLE];
        let unharmed = e.kind == NAN || harmless.contains(&e.code);
        if let Some(dir) = self.args.checkpoint.as_ref().filter(|_| unharmed && self.cursor.step > 0) {
            let file = checkpoint::file(dir, self.cursor.step);
            match self.checkpoint() {
                Ok(()) => e.message += &format!("; what was trained before is in {}", file.display()),
                Err(c) => e.message += &format!("; what was trained before is lost: {}", c.message),
            }
        }
        e
    }

    /// Evaluates and tells.
    fn evaluate(&mut self) -> Result<(), CliError> {
        let Some(eval) = &mut self.eval else { return Ok(()) };
        let metrics = eval.run(&mut self.session)?;
        if self.global.json {
            println!("{}", json!({"schema": 1, "step": self.cursor.step, "eval": object(&metrics)}));
        } else if !self.global.quiet {
            let clear = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
            eprintln!("{clear}evaluation after step {}: {}", self.cursor.step, text(&metrics));
        }
        self.evaluated = Some((self.cursor.step, metrics));
        Ok(())
    }

    pub fn finish(mut self, loss: Option<f64>, signal: usize) -> Result<u8, CliError> {
        self.checkpoint()?;
        let saved = self.saves.write(&self.session, self.global)?;
        if signal != 0 {
            note(self.global.quiet, format!("interrupted after step {}", self.cursor.step));
            if self.global.json {
                let object = json!({"schema": 1, "interrupted": true, "steps": self.cursor.step, "loss": loss,
                    "seconds": self.started.elapsed().as_secs_f64(), "peak_rss_bytes": memory::peak_rss(),
                    "peak_anonymous_rss_bytes": self.peak_anonymous, "saved": saved, "exit_code": 128 + signal});
                println!("{object}");
            }
            return Ok(128 + signal as u8);
        }
        // A run that found nothing left to do may have been asked for this alone.
        if self.evaluated.is_none() {
            self.evaluate()?;
        }
        let done = self.cursor.step - self.resumed_at;
        if done == 0 {
            let what =
                "nothing left to do: the checkpoint is where this run ends; give more --steps or --epochs";
            note(self.global.quiet, format!("{what} than {}", self.total));
        }
        let peak_rss = memory::peak_rss();
        let seconds = self.started.elapsed().as_secs_f64();
        let plan = self.session.plan();
        if self.args.compare && self.global.quiet {
            return Ok(0);
        }
        let per_step = median(&self.step_seconds);
        let predicted = planning::predicted_step_seconds(plan);
        let scaling = self.scaling()?;
        if self.global.json {
            let mut object = json!({"schema": 1, "steps": self.cursor.step, "loss": loss, "seconds": seconds,
                "seconds_per_step": per_step, "predicted_seconds_per_step": predicted,
                "arena_bytes": plan.arena, "budget_bytes": plan.budget, "peak_rss_bytes": peak_rss,
                "peak_anonymous_rss_bytes": self.peak_anonymous, "numerics": hex(&plan.numerics),
                "eval": self.evaluated.as_ref().map(|(_, m)| object(m)), "saved": saved});
            if let Some(s) = scaling {
                object["scale"] = s.scale.into();
                object["skipped"] = s.skipped.into();
            }
            println!("{object}");
        } else {
            let steps = match (done, self.resumed_at) {
                (_, 0) => format!("{done} steps"),
                (0, at) => format!("no step after step {at}"),
                (_, at) => format!("{done} steps after step {at}"),
            };
            let loss = match loss {
                Some(l) => format!("loss {l:.6}   "),
                None if done > 0 => "every step skipped   ".to_owned(),
                None => String::new(),
            };
            let eval = self.evaluated.as_ref();
            let eval = eval.map_or_else(String::new, |(_, m)| format!("evaluation: {}   ", text(m)));
            let scale = scaling.map_or_else(String::new, |s| format!("{}   ", text_of(&s).trim_start()));
            let predicted =
                predicted.map_or_else(String::new, |p| format!(", predicted {}", units::seconds(p)));
            let each =
                per_step.map_or_else(String::new, |s| format!(" ({} each{predicted})", units::seconds(s)));
            println!(
                "{steps} in {seconds:.1} s{each}   {loss}{scale}{eval}arena {} within {}   peak resident {}",
                units::bytes(plan.arena),
                units::bytes(plan.budget),
                peak_rss.map_or_else(|| "unknown".to_owned(), units::bytes)
            );
        }
        Ok(0)
    }
}

/// A state of loss scaling, if the plan scales. A parameter may have its name; then the step's own has another ending.
pub fn state_of_scaling<'p>(plan: &'p Plan, name: &str) -> Option<&'p StateEntry> {
    plan.state.iter().find(|s| s.kind == StateKind::Optimizer && is_named(&s.name, name))
}

/// `   loss scale 32768, 3 steps skipped`.
fn text_of(s: &Scaling) -> String {
    let steps = if s.skipped == 1 { "step" } else { "steps" };
    format!("   loss scale {}, {} {steps} skipped", s.scale, s.skipped)
}

/// The middle of some durations; `None` if there is none.
pub fn median(seconds: &[f64]) -> Option<f64> {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

fn at_batch(e: RuntimeError, epoch: u64, batch: u64) -> CliError {
    let mut e = CliError::from(e);
    e.message = format!("epoch {epoch}, batch {batch}: {}", e.message);
    e
}
