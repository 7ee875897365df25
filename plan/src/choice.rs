//! Several programs of one kind: one for each bucket of sizes, one for each budget, and one for all that these do not cover.
//!
//! They stand in the order in which they are tried: smaller buckets first, and of one bucket the largest arena first. A program with a
//! guard stands for a dynamic program of its kind, which says what the inputs are called, what decides the bits, and what runs where no
//! guard holds.

use crate::{Dynamic, Plan, Program, ProgramKind};
use graph::{Bindings, Graph, InputRole, TensorType};

impl Plan {
    /// The program of a kind that says what its inputs are: the dynamic one, whose sizes may be open, or else the first.
    pub fn interface(&self, kind: ProgramKind) -> Option<&Program> {
        let mut all = self.programs.iter().filter(|p| p.kind == kind);
        let first = all.clone().next();
        all.find(|p| p.dynamic.is_some()).or(first)
    }

    /// The bytes that program `index` may use: the plan's budget, or, where it stands behind one for the same inputs that takes more, what
    /// it takes itself: smaller budgets are not written down.
    ///
    /// # Panics
    /// If there is no such program.
    pub fn budget_of(&self, index: usize) -> u64 {
        let program = &self.programs[index];
        let behind = |b: &Program| b.kind == program.kind && b.guard == program.guard && b.dynamic.is_none();
        if self.programs[..index].iter().any(behind) { program.certificate.arena } else { self.budget }
    }

    /// How many programs of a kind there are.
    pub fn choices(&self, kind: ProgramKind) -> usize {
        self.programs.iter().filter(|p| p.kind == kind).count()
    }
}

impl Program {
    /// What tells it from others of its kind: its guard, or that it is dynamic; empty if neither.
    pub fn label(&self) -> String {
        if self.dynamic.is_some() { "dynamic".to_owned() } else { self.guard.to_string() }
    }
}

/// The programs that decide the bits of a plan: those with guards compute what their dynamic program does, and those of smaller budgets
/// what the first one does.
pub(crate) fn deciding<'a>(programs: &[&'a Program]) -> Vec<(ProgramKind, &'a Graph, Option<&'a Dynamic>)> {
    let mut out: Vec<(ProgramKind, &Graph, Option<&Dynamic>)> = Vec::new();
    for p in programs.iter().filter(|p| p.guard.dims.is_empty()) {
        let this = (p.kind, &p.graph, p.dynamic.as_ref());
        if !out.contains(&this) {
            out.push(this);
        }
    }
    out
}

/// Checks what the module says; the text is for people.
pub(crate) fn check(plan: &Plan) -> Result<(), (usize, String)> {
    for (i, p) in plan.programs.iter().enumerate() {
        let fail = |what: String| Err((i, what));
        let before = plan.programs[..i].iter().filter(|b| b.kind == p.kind);
        let dynamic = plan.programs.iter().find(|b| b.kind == p.kind && b.dynamic.is_some());
        if p.dynamic.is_some() {
            if !p.guard.dims.is_empty() {
                return fail("it is dynamic, and yet has a guard".to_owned());
            }
            if before.clone().any(|b| b.dynamic.is_some()) {
                return fail("it is the second dynamic program of its kind".to_owned());
            }
            continue;
        }
        if let Some(b) = before.clone().rfind(|b| b.guard == p.guard)
            && (b.dynamic.is_some() || b.certificate.arena <= p.certificate.arena)
        {
            return fail(
                "it never runs: one before it is for the same sizes and needs no more memory".to_owned(),
            );
        }
        match dynamic {
            None if p.guard.dims.is_empty() => {}
            None => return fail("it has a guard, and there is no dynamic program of its kind".to_owned()),
            Some(_) if p.guard.dims.is_empty() => {
                return fail("it has no guard, and there is a dynamic program of its kind".to_owned());
            }
            Some(d) => at_bounds(p, d).or_else(fail)?,
        }
        let constants = p.graph.inputs.iter().any(|i| i.role == InputRole::Constant);
        if constants && p.guard.dims.is_empty() {
            return fail("it has no guard, and yet an input that follows from sizes".to_owned());
        }
    }
    Ok(())
}

/// The inputs of a program with a guard are those of its dynamic program at the upper bounds, and nothing else is open.
fn at_bounds(p: &Program, dynamic: &Program) -> Result<(), String> {
    let mut greatest = Bindings::new();
    for (name, least, most) in &p.guard.dims {
        let n = i64::try_from(*most).ok().filter(|_| least <= most);
        let n = n.ok_or_else(|| format!("its guard on size {name:?} never holds"))?;
        if greatest.insert(name.clone(), n).is_some() {
            return Err(format!("its guard has two bounds on size {name:?}"));
        }
    }
    let data = |g: &Graph| -> Vec<(String, TensorType)> {
        let inputs = g.inputs.iter().filter(|i| i.role == InputRole::Data).map(|i| g.value(i.value));
        inputs.map(|v| (v.name.to_string(), v.ty.clone())).collect()
    };
    let open = data(&dynamic.graph);
    for name in greatest.keys() {
        let used = open.iter().flat_map(|(_, t)| &t.shape.0).any(|d| d.as_symbol() == Some(name));
        if !used {
            return Err(format!("its guard is on size {name:?}, which no input has"));
        }
    }
    for (name, ty) in data(&p.graph) {
        let bound = open
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, t)| TensorType { dtype: t.dtype, shape: t.shape.substitute(&greatest) });
        if bound.as_ref() != Some(&ty) {
            return Err(format!(
                "its input {name:?}, {ty}, is not the dynamic program's at the guard's bounds"
            ));
        }
    }
    Ok(())
}
