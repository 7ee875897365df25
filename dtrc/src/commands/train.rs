//! `dtrc train`: from a model or plan and data to trained weights.

mod evaluation;
mod log;
mod source;
mod steps;

use crate::{
    cli::Global,
    commands::compile::{NO_SHARE, check_writable, write_file},
    error::CliError,
    files::{check_data, check_folder},
    picture::{self, Curve, Moment},
    progress::note,
    save::SaveArgs,
    schedule::LrSchedule,
    session::{Inference, SessionArgs, is_plan, open_data, ready, wanted},
    synthetic::{check_sizes, classes},
    units,
};
use compiler::pipeline::Budget;
use evaluation::Evaluation;
use log::Log;
use plan::ProgramKind;
use runtime::{
    checkpoint::{self, Cursor},
    data::dataset::Dataset,
};
use serde_json::json;
use source::Source;
use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};
use steps::Run;

/// Arguments of `dtrc train`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plan, or the model that it is made of.
    #[command(flatten)]
    pub session: SessionArgs,

    /// npz file, or folder of npz or npy files, with arrays named like the inputs and the label. One batch's shape: used at each step; an
    /// extra first axis: a batch each; a longer first axis: cut into batches.
    #[arg(long, short, value_name = "PATH", required_unless_present_any = ["synthetic", "list_trainable"])]
    data: Option<PathBuf>,

    /// Make up data (uniform numbers, random classes) instead.
    #[arg(long, conflicts_with = "data")]
    synthetic: bool,

    /// Rows of a batch: binds the first axis of every input of the model, where it is open.
    #[arg(long, value_name = "N", value_parser = units::count)]
    batch: Option<u64>,

    /// Times through the data. Default: 1, or as many as --steps takes. With --steps, whichever ends first.
    #[arg(long, value_name = "N", value_parser = units::count)]
    epochs: Option<u64>,

    /// Stop after this many updates.
    #[arg(long, value_name = "N", value_parser = units::count)]
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

    /// What to do when a loss is NaN or infinite. The state stays as before that step either way, and it counts for no update of an
    /// optimizer; --checkpoint gets it before training stops.
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

    /// Between steps, choose the largest of the plan's programs that fits into the memory that is available (container limits included),
    /// and give the rest back; where none fits, run under online DTR. The numbers stay the same. See --budget for several programs.
    #[arg(long)]
    follow_memory: bool,

    /// Print the plan's steps before training.
    #[arg(long)]
    show: bool,

    /// Evaluate on this data.
    #[arg(long, value_name = "PATH")]
    eval_data: Option<PathBuf>,

    /// Evaluate after every N updates (and at the end).
    #[arg(long, value_name = "N", requires = "eval_data", value_parser = units::count)]
    eval_every: Option<u64>,

    /// Write a line a step: JSON lines, or CSV if the name ends in .csv.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Write checkpoints into this folder, at the end and with --every.
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,

    /// Checkpoint after every N updates.
    #[arg(long, value_name = "N", requires = "checkpoint", value_parser = units::count)]
    every: Option<u64>,

    /// Keep the newest K checkpoints, or all.
    #[arg(long, value_name = "K", default_value = "3", value_parser = keep)]
    keep: Keep,

    /// Go on from the newest whole checkpoint in --checkpoint.
    #[arg(long, requires = "checkpoint")]
    resume: bool,

    #[command(flatten)]
    save: SaveArgs,
}

/// `--keep`.
#[derive(Clone, Copy, Debug)]
struct Keep(usize);

fn keep(text: &str) -> Result<Keep, String> {
    match (text, text.parse()) {
        ("all", _) => Ok(Keep(0)),
        (_, Ok(n)) if n > 0 => Ok(Keep(n)),
        _ => Err("give how many to keep, 1 or more, or all".to_owned()),
    }
}

/// `--on-nan`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnNan {
    /// Stop with an error.
    Stop,
    /// Go on with the next batch.
    Skip,
}

/// What came of SIGINT and SIGTERM.
struct Signals {
    /// The last one's number, 0 for none.
    last: Arc<AtomicUsize>,
    /// The next one ends the process at once: nothing was trained yet, or one has come before.
    at_once: Arc<AtomicBool>,
}

/// Ends the process at once as long as nothing was trained, then notes the signal, and ends the process with a second one.
fn signals() -> Result<Signals, CliError> {
    let flag = Arc::new(AtomicUsize::new(0));
    let again = Arc::new(AtomicBool::new(true));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let wrap = |e: std::io::Error| CliError::failed(format!("signal handler: {e}"));
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, again.clone())
            .map_err(wrap)?;
        signal_hook::flag::register(signal, again.clone()).map_err(wrap)?;
        signal_hook::flag::register_usize(signal, flag.clone(), signal as usize).map_err(wrap)?;
    }
    Ok(Signals { last: flag, at_once: again })
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
    if args.session.model.list_trainable {
        return crate::model::print_trainable(&args.session.model, global);
    }
    if !(args.lr.is_finite() && args.lr >= 0.0) {
        return Err(CliError::usage("--lr must be finite and not negative"));
    }
    if args.eval_data.is_none() && !args.session.model.metric.is_empty() {
        return Err(CliError::usage("--metric tells what --eval-data shows: give --eval-data as well"));
    }
    args.data.iter().chain(&args.eval_data).try_for_each(|p| check_data(p))?;
    let saves = args.save.save.iter().chain(&args.save.save_inference);
    // A log may go to a pipe or a terminal; files that are renamed into place may not.
    let log = args.log.iter().filter(|p| !p.exists() || p.is_file() || p.is_dir());
    saves.chain(&args.picture).chain(log).try_for_each(|p| check_writable(p))?;
    args.checkpoint.iter().try_for_each(|p| check_folder(p))?;
    let signals = signals()?;
    if !args.compare {
        return once(args, &args.session, global, &signals).map(|(code, _)| code);
    }
    let mut keep_all = args.session.clone();
    if std::mem::replace(&mut keep_all.budget, vec![Budget::OfKeepAll(1.0)]).is_empty() {
        return Err(CliError::usage("--compare needs a model and a --budget: a plan is made for one budget"));
    }
    let quiet = Global { quiet: true, json: false };
    note(global.quiet, "training at keep-all's budget first");
    let (code, reference) = once(args, &keep_all, quiet, &signals).map_err(|e| {
        if e.kind != NO_SHARE {
            return e;
        }
        let what = "--compare trains at keep-all's budget first, and what this model takes with everything kept is known only at run time";
        let way_out = "train with two budgets or pools (--dynamic-pool) and compare what --save writes, or bind its sizes (--dim NAME=N) \
                       where they alone are open";
        CliError::usage(format!("{what}: {way_out}"))
    })?;
    if code != 0 {
        return Ok(code);
    }
    let (code, ours) = once(args, &args.session, global, &signals)?;
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

/// What the data and `--batch` say about the model.
fn of_data(args: &Args, session: &SessionArgs) -> Result<SessionArgs, CliError> {
    let mut session = session.clone();
    if is_plan(&session.model.model)? {
        if args.batch.is_some() {
            return Err(CliError::usage("--batch is for models: a plan has its batch already"));
        }
        return Ok(session);
    }
    if let Some(n) = args.batch {
        session.model.bind_batch(n)?;
    }
    // A pipe can be read only once.
    if let Some(data) = args.data.as_ref().filter(|d| d.is_file() || d.is_dir()) {
        let extents = Dataset::extents(data, &session.model.label);
        session.model.label_extents = extents.map_err(|e| CliError::bad_input(e.to_string()))?;
    }
    Ok(session)
}

/// One run of training.
fn once(
    args: &Args,
    session_args: &SessionArgs,
    global: Global,
    signals: &Signals,
) -> Result<(u8, Summary), CliError> {
    signals.at_once.store(true, Ordering::Relaxed);
    let session_args = &of_data(args, session_args)?;
    let ready = ready(
        session_args,
        global,
        if args.eval_data.is_some() { Inference::Metrics } else { Inference::AsAsked },
    )?;
    let first = &ready.plan.programs[0];
    if first.kind == ProgramKind::Infer {
        return Err(CliError::bad_input(
            "this is an inference plan: the model has no scalar loss output; give --loss to train",
        ));
    }
    let eval = match &args.eval_data {
        Some(path) => Some(Evaluation::open(path, &args.session.model.metric, &ready, global)?),
        None => None,
    };
    let source = match &args.data {
        Some(path) => Source::Data(open_data(path, &ready.plan, first.kind, global)?),
        None => {
            check_sizes(first)?;
            Source::Synthetic { wanted: wanted(first), classes: classes(first), seed: args.seed as u64 }
        }
    };
    let saves = args.save.prepare(&ready)?;
    let mut session = session_args.load(&ready, args.follow_memory, global)?;
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
        let (found, broken) = checkpoint::resume(dir, &mut session)?;
        broken.iter().for_each(|b| note(global.quiet, format!("{b}; an older one is tried")));
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
            "the data has {} batches, a step of --accumulate {parts} takes {parts}: give more data or fewer parts",
            source.batches()
        )));
    }
    if let (Source::Data(d), rest @ 1..) = (&source, source.batches() % parts) {
        note(
            global.quiet,
            format!("the last {rest} of {} batches do not fill a step of {parts}", d.batches()),
        );
    }
    let total = match (args.steps, args.epochs) {
        (Some(steps), None) => steps,
        (steps, epochs) => per_epoch.saturating_mul(epochs.unwrap_or(1)).min(steps.unwrap_or(u64::MAX)),
    };
    if per_epoch > u64::MAX / 2 / parts && args.steps.is_none() {
        return Err(CliError::usage("--synthetic data has no end: give --steps"));
    }
    let log = args
        .log
        .as_ref()
        .map(|p| {
            let several = session.plan().choices(session.plan().programs[0].kind) > 1;
            let scaled = steps::state_of_scaling(session.plan(), compiler::train::SCALE).is_some();
            let after = args.resume.then_some(cursor.step);
            Log::open(p, after, (several, scaled), eval.as_ref().map_or(&[], |e| &e.names))
        })
        .transpose()?;
    let mut run = Run {
        args,
        global,
        session,
        source,
        eval,
        evaluated: None,
        log,
        saves,
        saved_at: cursor.step,
        resumed_at: cursor.step,
        cursor,
        total,
        last_batch: 0,
        started: Instant::now(),
        last_line: None,
        peak_anonymous: 0,
        ahead: None,
        program: 0,
        told_scale: false,
        told: BTreeSet::new(),
        losses: Vec::new(),
        step_seconds: Vec::new(),
    };
    signals.at_once.store(false, Ordering::Relaxed);
    let loss = run.train(per_epoch, &signals.last)?;
    let mut hasher = blake3::Hasher::new();
    if args.compare {
        for e in run.session.plan().state.clone() {
            hasher.update(&run.session.state(&e.name)?);
        }
    }
    let moments = if args.picture.is_some() { run.moments()? } else { Vec::new() };
    let summary = Summary {
        losses: std::mem::take(&mut run.losses),
        state: hasher.finalize(),
        seconds_per_step: steps::median(&run.step_seconds).unwrap_or(0.0),
        arena: run.session.plan().arena,
        budget: run.session.plan().budget,
        recomputed,
        moments,
    };
    let code = run.finish(loss, signals.last.load(Ordering::Relaxed))?;
    Ok((code, summary))
}
