//! `dtrc check --model`: does a plan compute what compiling this model gives?
//!
//! The model is compiled as far as its graphs, with the same flags, and every program of the plan must have one of them, node by node.
//! So not only the forward part is checked, but gradients, optimizer and rewrites, too. Schedules and places are the validator's.

use crate::{
    cli::Global,
    error::CliError,
    model::{Model, ModelArgs, load_any},
};
use clap::{ArgMatches, Command};
use compiler::dynamic::recipes;
use graph::{Graph, Init, ValueId, quote_name};
use ops::cuda::{use_tf32, uses_tf32};
use plan::{Plan, Program, ProgramKind};
use std::borrow::Cow;

/// The model to check against, with the flags that `compile` has about models.
#[derive(Debug)]
pub struct Against(Option<ModelArgs>);

impl clap::Args for Against {
    fn augment_args(cmd: Command) -> Command {
        let help = "Also check that every program computes what compiling this model with the flags below gives, and that the weights are those the plan was made with";
        ModelArgs::augment_args(cmd)
            .mut_arg("model", |a| {
                a.long("model").required(false).value_name("MODEL").help(help).long_help(help)
            })
            .mut_args(|a| {
                let alone = ["model", "plans"].contains(&a.get_id().as_str()) || a.is_global_set();
                if alone { a } else { a.requires("model") }
            })
    }

    fn augment_args_for_update(cmd: Command) -> Command {
        Self::augment_args(cmd)
    }
}

impl clap::FromArgMatches for Against {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = matches.contains_id("model");
        Ok(Against(given.then(|| ModelArgs::from_arg_matches(matches)).transpose()?))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Against {
    /// The model, if one was given.
    pub fn load(&self, global: Global) -> Result<Option<Model>, CliError> {
        self.0.as_ref().map(|args| load_any(args, global)).transpose()
    }
}

/// What differs first, as text.
pub fn check(plan: &Plan, model: &Model) -> Result<(), String> {
    if plan.accumulate != model.accumulate {
        return Err(format!(
            "it cuts steps into {} parts, the flags say {}",
            plan.accumulate, model.accumulate
        ));
    }
    let none = |_: &str| None;
    let open = match &model.open {
        Some(o) => {
            recipes(&o.request(&model.name, &model.costs.profile, &none)).map_err(|e| e.to_string())?
        }
        None => Vec::new(),
    };
    for p in &plan.programs {
        let label = p.label();
        let label = if label.is_empty() { String::new() } else { format!(" ({label})") };
        program(p, model, &open).map_err(|what| format!("program {}{label}: {what}", p.kind))?;
    }
    for s in &plan.state {
        let Init::Weight(name) = &s.init else { continue };
        // Weights that a dynamic program makes itself are in no file.
        let Some(weight) = model.weights.get(name) else { continue };
        if let (Some(a), Some(b)) = (s.hash, weight.hash)
            && a != *b.as_bytes()
        {
            return Err(format!("weight {} has other elements than when it was made", quote_name(name)));
        }
    }
    Ok(())
}

fn program(p: &Program, model: &Model, open: &[(ProgramKind, Graph, Vec<u8>)]) -> Result<(), String> {
    if let Some(d) = &p.dynamic {
        let Some((_, graph, recipe)) = open.iter().find(|(k, ..)| *k == p.kind) else {
            return Err("it is made anew at every step, the model's is not".to_owned());
        };
        if d.recipe != *recipe {
            return Err("it is made by another recipe".to_owned());
        }
        return same(&p.graph, graph);
    }
    let mut kin = model.parts.iter().filter(|part| part.kind == p.kind && part.guard == p.guard).peekable();
    if kin.peek().is_none() {
        return Err("with these flags there is none like it".to_owned());
    }
    let mut first = None;
    // The plan says in its nodes that products are rounded; the model is what it is.
    let tf32 = uses_tf32(&p.graph);
    for part in kin {
        let mut graph = Cow::Borrowed(&part.graph);
        if tf32 {
            use_tf32(graph.to_mut());
        }
        match same(&p.graph, &graph) {
            Ok(()) => return Ok(()),
            Err(what) => first = first.or(Some(what)),
        }
    }
    first.map_or(Ok(()), Err)
}

/// What stands at a place of a list of a graph.
type Text<'a> = &'a dyn Fn(&Graph, usize) -> String;

/// Whether two graphs are the same; if not, where they differ first.
fn same(plan: &Graph, model: &Graph) -> Result<(), String> {
    if plan == model {
        return Ok(());
    }
    let node = |g: &Graph, i: usize| {
        g.nodes.get(i).map_or("nothing".to_owned(), |n| {
            let name = |v: &Option<ValueId>| {
                v.map_or("_".to_owned(), |v| format!("{} {}", g.value(v).name, g.ty(v)))
            };
            let inputs: Vec<String> = n.inputs.iter().map(name).collect();
            let outputs: Vec<String> = n.outputs.iter().map(|v| g.ty(*v).to_string()).collect();
            let attrs: Vec<String> = n.attrs.0.iter().map(|(k, a)| format!("{k}={a}")).collect();
            let attrs = if attrs.is_empty() { String::new() } else { format!(" [{}]", attrs.join(" ")) };
            format!(
                "{} {}{attrs}({}) -> {}",
                quote_name(&n.name),
                n.op,
                inputs.join(", "),
                outputs.join(", ")
            )
        })
    };
    let state = |g: &Graph, i: usize| {
        let s = g.states.get(i);
        s.map_or("nothing".to_owned(), |s| format!("{:?} {} {}", s.kind, quote_name(&s.name), g.ty(s.input)))
    };
    let input = |g: &Graph, i: usize| {
        let v = g.inputs.get(i).map(|i| i.value);
        v.map_or("nothing".to_owned(), |v| format!("{} {}", quote_name(&g.value(v).name), g.ty(v)))
    };
    let lists: [(&str, usize, Text<'_>); 3] = [
        ("input", plan.inputs.len().max(model.inputs.len()), &input),
        ("state", plan.states.len().max(model.states.len()), &state),
        ("node", plan.nodes.len().max(model.nodes.len()), &node),
    ];
    for (what, count, text) in lists {
        if let Some((i, a, b)) =
            (0..count).map(|i| (i, text(plan, i), text(model, i))).find(|(_, a, b)| a != b)
        {
            return Err(format!("{what} {i} is {a}, the model's is {b}"));
        }
    }
    Err("constants or outputs are others".to_owned())
}
