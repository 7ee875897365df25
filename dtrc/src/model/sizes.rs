//! Sizes that the model leaves open: bound by `--batch`, or named where a static program needs them.

use super::ModelArgs;
use crate::{dims::DimArg, error::CliError, files::check_readable};
use compiler::import::{self, Imported};

impl ModelArgs {
    /// Binds the first axis of every input.
    ///
    /// # Errors
    ///
    /// It has another extent in the model, or no input has one that is open.
    pub fn bind_batch(&mut self, n: u64) -> Result<(), CliError> {
        check_readable(&self.model)?;
        let mut bound = false;
        for (name, ty) in import::input_types(&self.model)? {
            let Some(first) = ty.shape.0.first() else { continue };
            let symbol = first.as_symbol();
            let given =
                |d: &&DimArg| symbol.is_some_and(|s| *d.name == *s.as_ref()) || d.name == format!("{name}:0");
            if let Some(d) = self.dims.iter().find(given).filter(|d| !d.allows(n as i64)) {
                let what = format!("--batch {n} and --dim {d} are about one size: give one of them");
                return Err(CliError::usage(what));
            }
            // Within a bound: all batches have this size.
            if let Some(d) = self.dims.iter_mut().find(|d| given(&&**d)) {
                *d = DimArg::bound(&d.name, n as i64);
            }
            match (first.as_symbol(), first.as_const()) {
                (Some(s), _) => {
                    if self.dims.iter().all(|d| *d.name != *s.as_ref()) {
                        self.dims.push(DimArg::bound(s.as_ref(), n as i64));
                    }
                    bound = true;
                }
                (None, Some(fixed)) if fixed == n as i64 => bound = true,
                (None, fixed) => {
                    let fixed = fixed.map_or_else(|| "computed".to_owned(), |k| k.to_string());
                    let input = graph::quote_name(&name);
                    let what =
                        format!("--batch {n}: the first axis of input {input} is {fixed} in the model");
                    return Err(CliError::usage(what));
                }
            }
        }
        if bound { Ok(()) } else { Err(CliError::usage("--batch: no input of the model has a first axis")) }
    }
}

/// Why a model cannot be planned ahead, if it cannot: a size of its inputs that nobody bound.
pub(super) fn open_size(imported: &Imported) -> Option<String> {
    let g = &imported.graph;
    let open = g.inputs.iter().find(|i| g.ty(i.value).shape.fixed().is_none())?;
    let names: Vec<String> = imported.symbols.iter().take(4).map(|s| format!("--dim {s}=N")).collect();
    let value = g.value(open.value);
    Some(format!(
        "input {:?} is {}; bind its sizes with {} for a static plan",
        value.name,
        value.ty,
        names.join(" ")
    ))
}
