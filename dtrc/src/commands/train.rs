//! `dtrc train`: from a model or plan and data to trained weights.

use crate::{
    cli::Global,
    commands::compile::{hex, write_file},
    error::CliError,
    memory,
    picture::{self, Curve, Moment},
    progress::note,
    save::{SaveArgs, Saves},
    schedule::{LrSchedule, learning_rate},
    session::{SessionArgs, open_data, ready, wanted},
    synthetic::{classes, made_up},
    units,
};
use compiler::pipeline::Budget;
use plan::ProgramKind;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use runtime::{
    RunOptions, RuntimeError, Session, StepInputs,
    checkpoint::{self, CheckpointError, Cursor},
    data::dataset::{Dataset, Wanted},
};
use serde_json::json;
use std::{
    fs::File,
    io::{BufWriter, IsTerminal, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Arguments of `dtrc train`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    session: SessionArgs,

    /// npz file, or folder of npz or npy files, with arrays named like the inputs and the label. One batch's shape: used at each step; an
    /// extra first axis: a batch each; a longer first axis: cut into batches.
    #[arg(long, short, value_name = "PATH", required_unless_present = "synthetic")]
    data: Option<PathBuf>,

    /// Make up data (uniform numbers, random classes) instead.
    #[arg(long, conflicts_with = "data")]
    synthetic: bool,

    /// Times through the data.
    #[arg(long, default_value_t = 1)]
    epochs: u64,

    /// Stop after this many updates.
    #[arg(long, value_name = "N")]
    steps: Option<u64>,

    /// Learning rate.
    #[arg(long, default_value_t = 0.01)]
    lr: f64,

    /// How the learning rate changes over the steps.
    #[arg(long, value_enum, default_value_t = LrSchedule::Constant)]
    lr_schedule: LrSchedule,

    /// Steps over which the learning rate rises to its value.
    #[arg(long, default_value_t = 0, value_name = "N")]
    warmup: u64,

    /// Seed of dropout and of made-up data.
    #[arg(long, default_value_t = 0)]
    seed: i64,

    /// Take the data in an order shuffled by this seed, another one each epoch.
    #[arg(long, value_name = "SEED")]
    shuffle: Option<u64>,

    /// What to do when a loss is NaN or infinite. The state stays as before that step either way.
    #[arg(long, value_enum, default_value_t = OnNan::Stop)]
    on_nan: OnNan,

    /// Compare a hash of every recomputed value with the first one's.
    #[arg(long)]
    check_recompute: bool,

    /// Run the same steps at keep-all's budget first, and compare losses, trained state and time to the bit.
    #[arg(long, conflicts_with_all = ["checkpoint", "log", "save", "save_inference"])]
    compare: bool,

    /// With --compare: draw live memory against the time of one step for both runs.
    #[arg(long, value_name = "FILE.svg", requires = "compare")]
    picture: Option<PathBuf>,

    /// Print the plan's steps before training.
    #[arg(long)]
    show: bool,

    /// Evaluate on this data.
    #[arg(long, value_name = "PATH")]
    eval_data: Option<PathBuf>,

    /// Evaluate after every N updates (and at the end).
    #[arg(long, value_name = "N", requires = "eval_data")]
    eval_every: Option<u64>,

    /// Write a line a step: JSON lines, or CSV if the name ends in .csv.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Write checkpoints into this folder, at the end and with --every.
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,

    /// Checkpoint after every N updates.
    #[arg(long, value_name = "N", requires = "checkpoint", value_parser = clap::value_parser!(u64).range(1..))]
    every: Option<u64>,

    /// Keep the newest K checkpoints; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 3)]
    keep: usize,

    /// Go on from the newest whole checkpoint in --checkpoint.
    #[arg(long, requires = "checkpoint")]
    resume: bool,

    #[command(flatten)]
    save: SaveArgs,
}

/// `--on-nan`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnNan {
    /// Stop with an error.
    Stop,
    /// Go on with the next batch.
    Skip,
}

/// Where batches come from.
enum Source {
    Data(Dataset),
    Synthetic { wanted: Vec<Wanted>, classes: u64, seed: u64 },
}

impl Source {
    fn batches(&self) -> u64 {
        match self {
            Source::Data(d) => d.batches(),
            Source::Synthetic { .. } => u64::MAX,
        }
    }

    fn batch(
        &mut self,
        order: Option<&runtime::data::dataset::Order>,
        index: u64,
    ) -> Result<Vec<(String, Vec<u8>)>, CliError> {
        match self {
            Source::Data(d) => {
                let order = order.ok_or_else(|| CliError::failed("no order of the data"))?;
                d.batch(order, index).map_err(|e| CliError::bad_input(e.to_string()))
            }
            Source::Synthetic { wanted, classes, seed } => {
                let mut rng =
                    ChaCha8Rng::seed_from_u64(seed.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
                Ok(wanted.iter().map(|w| (w.name.clone(), made_up(w, *classes, &mut rng))).collect())
            }
        }
    }
}

/// One line a step, as JSON or CSV.
struct Log {
    out: BufWriter<File>,
    csv: bool,
    path: PathBuf,
}

impl Log {
    fn open(path: &Path, append: bool) -> Result<Log, CliError> {
        let fail = |e: std::io::Error| CliError::disk(path.display(), &e);
        let file = File::options()
            .create(true)
            .write(true)
            .append(append)
            .truncate(!append)
            .open(path)
            .map_err(fail)?;
        let fresh = file.metadata().map_err(fail)?.len() == 0;
        let csv = path.extension().is_some_and(|e| e == "csv");
        let mut out = BufWriter::new(file);
        if csv && fresh {
            writeln!(out, "step,epoch,loss,lr,seconds").map_err(fail)?;
        }
        Ok(Log { out, csv, path: path.to_owned() })
    }

    fn step(&mut self, step: u64, epoch: u64, loss: f64, lr: f64, seconds: f64) -> Result<(), CliError> {
        let line = if self.csv {
            format!("{step},{epoch},{loss},{lr},{seconds:.6}")
        } else {
            json!({"schema": 1, "step": step, "epoch": epoch, "loss": loss, "lr": lr, "seconds": seconds})
                .to_string()
        };
        writeln!(self.out, "{line}")
            .and_then(|()| self.out.flush())
            .map_err(|e| CliError::disk(self.path.display(), &e))
    }
}

impl From<CheckpointError> for CliError {
    fn from(e: CheckpointError) -> Self {
        match &e {
            CheckpointError::Io { error, path } => CliError::disk(path, error),
            CheckpointError::Broken { .. } | CheckpointError::Other { .. } => {
                CliError::bad_input(e.to_string())
            }
            CheckpointError::Runtime(_) => CliError::failed(e.to_string()),
        }
    }
}

/// Notes the last of SIGINT and SIGTERM; a second one ends the process at once.
fn signals() -> Result<Arc<AtomicUsize>, CliError> {
    let flag = Arc::new(AtomicUsize::new(0));
    let again = Arc::new(std::sync::atomic::AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let wrap = |e: std::io::Error| CliError::failed(format!("signal handler: {e}"));
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, again.clone())
            .map_err(wrap)?;
        signal_hook::flag::register(signal, again.clone()).map_err(wrap)?;
        signal_hook::flag::register_usize(signal, flag.clone(), signal as usize).map_err(wrap)?;
    }
    Ok(flag)
}

/// Everything a run of training holds.
struct Run<'a> {
    args: &'a Args,
    global: Global,
    session: Session,
    source: Source,
    eval: Option<Dataset>,
    log: Option<Log>,
    saves: Saves,
    cursor: Cursor,
    total: u64,
    started: Instant,
    last_line: Option<Instant>,
    /// Most anonymous resident bytes seen after a step.
    peak_anonymous: u64,
    /// Bits of every loss, for `--compare`.
    losses: Vec<u64>,
    /// Duration of every step.
    step_seconds: Vec<f64>,
}

/// What a run of training gave.
struct Summary {
    losses: Vec<u64>,
    state: blake3::Hash,
    seconds_per_step: f64,
    arena: u64,
    budget: u64,
    recomputed: usize,
    moments: Vec<Moment>,
}

/// Trains; with `--compare` twice.
pub fn run(args: &Args, global: Global) -> Result<u8, CliError> {
    if !(args.lr.is_finite() && args.lr >= 0.0) {
        return Err(CliError::usage("--lr must be finite and not negative"));
    }
    let interrupted = signals()?;
    if !args.compare {
        return once(args, &args.session, global, &interrupted).map(|(code, _)| code);
    }
    let mut keep_all = args.session.clone();
    if keep_all.budget.replace(Budget::OfKeepAll(1.0)).is_none() {
        return Err(CliError::usage("--compare needs a model and a --budget: a plan is made for one budget"));
    }
    let quiet = Global { quiet: true, json: false };
    note(global.quiet, "training at keep-all's budget first");
    let (code, reference) = once(args, &keep_all, quiet, &interrupted)?;
    if code != 0 {
        return Ok(code);
    }
    let (code, ours) = once(args, &args.session, global, &interrupted)?;
    if code != 0 {
        return Ok(code);
    }
    let same = reference.losses == ours.losses && reference.state == ours.state;
    if let Some(path) = &args.picture {
        let curve = |name: &str, s: &Summary| Curve { name: name.to_owned(), moments: s.moments.clone() };
        let curves = [curve("keep-all", &reference), curve("within the budget", &ours)];
        let name = args
            .session
            .model
            .model
            .file_stem()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default();
        let svg = picture::draw(&format!("{name}: live memory over one training step"), ours.budget, &curves);
        write_file(path, svg.as_bytes())?;
    }
    if global.json {
        let object = json!({"schema": 1, "compare": {"same_bits": same, "keep_all_arena_bytes": reference.arena,
            "arena_bytes": ours.arena, "keep_all_seconds_per_step": reference.seconds_per_step,
            "seconds_per_step": ours.seconds_per_step, "recomputed_steps": ours.recomputed}});
        println!("{object}");
    } else {
        println!("{:<14}{:>14}{:>16}{:>14}", "", "arena", "recomputations", "s/step");
        for (name, s) in [("keep-all", &reference), ("this budget", &ours)] {
            println!(
                "{name:<14}{:>14}{:>16}{:>14.4}",
                units::bytes(s.arena),
                s.recomputed,
                s.seconds_per_step
            );
        }
        let n = ours.losses.len();
        let word = if same { "the same bits" } else { "DIFFERENT BITS" };
        println!(
            "{:.1} % of the memory, {:+.1} % time; {n} losses and all trained weights: {word}",
            ours.arena as f64 / reference.arena as f64 * 100.0,
            (ours.seconds_per_step / reference.seconds_per_step - 1.0) * 100.0
        );
    }
    Ok(if same { 0 } else { crate::error::FAILED })
}

/// One run of training.
fn once(
    args: &Args,
    session_args: &SessionArgs,
    global: Global,
    interrupted: &Arc<AtomicUsize>,
) -> Result<(u8, Summary), CliError> {
    let ready = ready(session_args, global, args.eval_data.is_some())?;
    let first = &ready.plan.programs[0];
    if first.kind == ProgramKind::Infer {
        return Err(CliError::bad_input(
            "this is an inference plan: the model has no scalar loss output; give --loss to train",
        ));
    }
    let eval = match &args.eval_data {
        Some(path) => {
            let p = ready.plan.programs.iter().find(|p| p.kind == ProgramKind::Infer);
            let p = p.ok_or_else(|| {
                CliError::bad_input("the plan has no inference program: compile it with --with-inference")
            })?;
            Some(open_data(path, p, global)?)
        }
        None => None,
    };
    let source = match &args.data {
        Some(path) => Source::Data(open_data(path, first, global)?),
        None => Source::Synthetic { wanted: wanted(first), classes: classes(first), seed: args.seed as u64 },
    };
    let saves = args.save.prepare(&ready)?;
    let mut session = session_args.load(&ready, global)?;
    let recomputed = session.replays()[0].recomputed.len();
    if args.show && !global.quiet {
        print!("{}", plan::show(session.plan(), session.replays()));
    }
    let mut cursor = Cursor { seed: args.seed, shuffle: args.shuffle, ..Cursor::default() };
    if let (false, Some(dir)) = (args.resume, &args.checkpoint)
        && dir.is_dir()
        && !checkpoint::list(dir)?.is_empty()
    {
        let what = "holds checkpoints already: go on from them with --resume, or choose another folder";
        return Err(CliError::usage(format!("{}: {what}", dir.display())));
    }
    if let (true, Some(dir)) = (args.resume, &args.checkpoint) {
        let (found, remarks) = checkpoint::resume(dir, &mut session)?;
        remarks.iter().for_each(|r| note(global.quiet, r));
        match found {
            Some(c) => {
                if c.seed != args.seed || c.shuffle != args.shuffle {
                    let was = c.shuffle.map_or_else(String::new, |s| format!(" --shuffle {s}"));
                    let what = format!("{} was made with --seed {}{was}", dir.display(), c.seed);
                    return Err(CliError::usage(format!("{what}: give the same to resume")));
                }
                note(global.quiet, format!("resumed after step {}", c.step));
                cursor = c;
            }
            None => note(global.quiet, "no checkpoint yet: starting anew"),
        }
    }
    let parts = u64::from(session.plan().accumulate.max(1));
    let per_epoch = source.batches() / parts;
    if per_epoch == 0 {
        return Err(CliError::bad_input(format!(
            "the data has {} batches, a step takes {parts}",
            source.batches()
        )));
    }
    let all = per_epoch.saturating_mul(args.epochs);
    let total = args.steps.map_or(all, |s| s.min(all));
    if per_epoch > u64::MAX / 2 / parts && args.steps.is_none() {
        return Err(CliError::usage("--synthetic data has no end: give --steps"));
    }
    let log = args.log.as_ref().map(|p| Log::open(p, args.resume)).transpose()?;
    let mut run = Run {
        args,
        global,
        session,
        source,
        eval,
        log,
        saves,
        cursor,
        total,
        started: Instant::now(),
        last_line: None,
        peak_anonymous: 0,
        losses: Vec::new(),
        step_seconds: Vec::new(),
    };
    let loss = run.train(per_epoch, interrupted)?;
    let mut hasher = blake3::Hasher::new();
    if args.compare {
        for e in run.session.plan().state.clone() {
            hasher.update(&run.session.state(&e.name)?);
        }
    }
    run.step_seconds.sort_by(f64::total_cmp);
    let moments = if args.picture.is_some() { run.moments()? } else { Vec::new() };
    let summary = Summary {
        losses: std::mem::take(&mut run.losses),
        state: hasher.finalize(),
        seconds_per_step: run.step_seconds.get(run.step_seconds.len() / 2).copied().unwrap_or(0.0),
        arena: run.session.plan().arena,
        budget: run.session.plan().budget,
        recomputed,
        moments,
    };
    let code = run.finish(loss, interrupted.load(Ordering::Relaxed))?;
    Ok((code, summary))
}

impl Run<'_> {
    /// Steps until the end or an interrupt. Returns the last loss.
    fn train(&mut self, per_epoch: u64, interrupted: &AtomicUsize) -> Result<Option<f64>, CliError> {
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
            let start = Instant::now();
            let step = self.cursor.step + 1;
            let lr = learning_rate(self.args.lr_schedule, self.args.lr, step, self.total, self.args.warmup);
            let loss = self.step(order.as_ref(), lr, step)?;
            let seconds = start.elapsed().as_secs_f64();
            if let Some(rss) = memory::anonymous_rss() {
                self.peak_anonymous = self.peak_anonymous.max(rss);
            }
            if !loss.is_finite() {
                let what = format!(
                    "step {step} (epoch {}, batch {}): the loss is {loss}",
                    self.cursor.epoch, self.cursor.batch
                );
                if self.args.on_nan == OnNan::Stop {
                    let hint = "the state is as before the step; lower --lr, use --clip-norm, or go on with --on-nan skip";
                    return Err(CliError {
                        kind: "nan",
                        message: format!("{what}; {hint}"),
                        code: crate::error::FAILED,
                    });
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
            if let Some(log) = &mut self.log {
                log.step(step, self.cursor.epoch, loss, lr, seconds)?;
            }
            self.tell(step, loss, seconds);
            let due = |every: Option<u64>| every.is_some_and(|n| n > 0 && step.is_multiple_of(n));
            if due(self.args.eval_every) {
                self.evaluate()?;
            }
            if due(self.args.every) {
                self.checkpoint()?;
            }
        }
        Ok(last)
    }

    /// Measures the calls of one more step on the first batch.
    fn moments(&mut self) -> Result<Vec<Moment>, CliError> {
        let order = if let Source::Data(d) = &self.source { Some(d.order(0, None)) } else { None };
        let batch = self.source.batch(order.as_ref(), 0)?;
        let data: Vec<(&str, &[u8])> = batch.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
        let inputs = StepInputs { data: &data, step: 1, ..StepInputs::default() };
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
    fn step(
        &mut self,
        order: Option<&runtime::data::dataset::Order>,
        lr: f64,
        step: u64,
    ) -> Result<f64, CliError> {
        let parts = u64::from(self.session.plan().accumulate.max(1));
        let mut sum = 0.0;
        for part in 0..parts {
            let index = match &self.source {
                Source::Data(_) => self.cursor.batch * parts + part,
                Source::Synthetic { .. } => (step - 1) * parts + part,
            };
            let batch = self.source.batch(order, index)?;
            let data: Vec<(&str, &[u8])> = batch.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
            let kind = if parts == 1 {
                ProgramKind::Train
            } else if part + 1 < parts {
                ProgramKind::Micro
            } else {
                ProgramKind::Last
            };
            let inputs = StepInputs {
                data: &data,
                learning_rate: lr as f32,
                step: step as i64,
                // Parts of a step draw different masks.
                seed: self.cursor.seed.wrapping_mul(0x1_0000).wrapping_add(part as i64),
                ..StepInputs::default()
            };
            let options = RunOptions { check_recompute: self.args.check_recompute, measure: false };
            let program = self.session.program(kind)?;
            let result = self.session.run(program, &inputs, options);
            let loss = result
                .map_err(|e| at_batch(e, &self.cursor))
                .and_then(|r| r.loss().ok_or_else(|| CliError::failed("the program has no loss")));
            if parts > 1 && !matches!(loss, Ok(l) if l.is_finite()) {
                // The update must not see part of a step.
                self.reset_accumulators()?;
                return loss;
            }
            sum += loss?;
        }
        Ok(sum / parts as f64)
    }

    /// Zeros the gradients added so far.
    fn reset_accumulators(&mut self) -> Result<(), CliError> {
        let entries = self.session.plan().state.clone();
        for e in entries.iter().filter(|e| e.kind == graph::StateKind::Accumulator) {
            let zeros = vec![0; e.ty.bytes().unwrap_or(0) as usize];
            self.session.write_state(&e.name, 0, &zeros)?;
        }
        Ok(())
    }

    /// A progress line: on a terminal it is written over, elsewhere one every 30 s; with `--json` an object a step.
    fn tell(&mut self, step: u64, loss: f64, seconds: f64) {
        if self.global.json {
            println!("{}", json!({"schema": 1, "step": step, "loss": loss, "seconds": seconds}));
        }
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
        let line = format!(
            "step {step}/{}   loss {loss:.6}   {seconds:.3} s/step   arena {}   {}:{:02}:{:02} left",
            self.total,
            units::bytes(self.session.plan().arena),
            eta / 3600,
            eta / 60 % 60,
            eta % 60
        );
        let end = if terminal && step < self.total { "\r" } else { "\n" };
        eprint!("{line}{end}");
        self.last_line = Some(Instant::now());
    }

    fn checkpoint(&mut self) -> Result<(), CliError> {
        if let Some(dir) = &self.args.checkpoint {
            checkpoint::save(dir, &self.session, &self.cursor, self.args.keep)?;
        }
        Ok(())
    }

    /// Runs the inference program over the evaluation data: means of scalar outputs.
    fn evaluate(&mut self) -> Result<(), CliError> {
        let Some(eval) = &mut self.eval else { return Ok(()) };
        let program = self.session.program(ProgramKind::Infer)?;
        let order = eval.order(0, None);
        let n = eval.batches();
        let mut sums: Vec<(String, f64)> = Vec::new();
        for i in 0..n {
            let batch = eval.batch(&order, i).map_err(|e| CliError::bad_input(e.to_string()))?;
            let data: Vec<(&str, &[u8])> = batch.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
            let inputs = StepInputs { data: &data, ..StepInputs::default() };
            let result = self.session.run(program, &inputs, RunOptions::default())?;
            for (name, ty, bytes) in result.outputs {
                let shape = vec![ty.shape.elements().unwrap_or(0)];
                let Ok(l) = graph::Literal::new(ty.dtype, shape, bytes) else { continue };
                if l.len() != 1 {
                    continue;
                }
                match sums.iter_mut().find(|(n, _)| *n == name) {
                    Some((_, s)) => *s += l.to_floats()[0],
                    None => sums.push((name, l.to_floats()[0])),
                }
            }
        }
        for (name, sum) in sums {
            let mean = sum / n as f64;
            if self.global.json {
                println!("{}", json!({"schema": 1, "eval": name, "step": self.cursor.step, "mean": mean}));
            } else {
                eprintln!("eval after step {}: {name} {mean:.6} over {n} batches", self.cursor.step);
            }
        }
        Ok(())
    }

    fn finish(mut self, loss: Option<f64>, signal: usize) -> Result<u8, CliError> {
        self.checkpoint()?;
        let saved = self.saves.write(&self.session, self.global)?;
        if signal != 0 {
            note(self.global.quiet, format!("interrupted after step {}", self.cursor.step));
            return Ok(128 + signal as u8);
        }
        self.evaluate()?;
        let peak_rss = memory::peak_rss();
        let seconds = self.started.elapsed().as_secs_f64();
        let plan = self.session.plan();
        if self.args.compare && self.global.quiet {
            return Ok(0);
        }
        if self.global.json {
            let object = json!({"schema": 1, "steps": self.cursor.step, "loss": loss, "seconds": seconds,
                "arena_bytes": plan.arena, "budget_bytes": plan.budget, "peak_rss_bytes": peak_rss,
                "peak_anonymous_rss_bytes": self.peak_anonymous, "numerics": hex(&plan.numerics),
                "saved": saved});
            println!("{object}");
        } else {
            let loss = loss.map_or_else(|| "none".to_owned(), |l| format!("{l:.6}"));
            println!(
                "{} steps in {seconds:.1} s   loss {loss}   arena {} within {}   peak resident {}",
                self.cursor.step,
                units::bytes(plan.arena),
                units::bytes(plan.budget),
                peak_rss.map_or_else(|| "unknown".to_owned(), units::bytes)
            );
        }
        Ok(0)
    }
}

fn at_batch(e: RuntimeError, cursor: &Cursor) -> CliError {
    let mut e = CliError::from(e);
    e.message = format!("epoch {}, batch {}: {}", cursor.epoch, cursor.batch, e.message);
    e
}
