//! Scan: a body for every slice of its inputs.

use crate::{
    Body, SourceNode,
    error::{TraceError, TraceErrorKind},
    unrun::Unrun,
    walk::{Item, Walk, at, wrong},
};
use graph::{AttrError, TensorType, ValueId};
use std::sync::Arc;

/// What the attributes of a Scan say, and its body.
struct Form<'s> {
    body: &'s Body,
    /// Inputs that are carried from one step to the next, before those that are cut.
    states: usize,
    /// Inputs that are cut.
    lists: usize,
    /// Outputs that are collected, after the states.
    scans: usize,
}

/// What the steps of one sequence left: the states and, of each collected output, a tensor a step.
type Left = (Vec<Item>, Vec<Vec<ValueId>>);

impl<'s> Form<'s> {
    fn of(node: &'s SourceNode, inputs: usize) -> Result<Form<'s>, TraceError> {
        let body = node.body("body").ok_or_else(|| wrong(node, "it has no body"))?;
        let lists = node.attrs.int_or("num_scan_inputs", 0).map_err(|e| refuse(node, e))?;
        let lists = usize::try_from(lists).ok().filter(|n| (1..=inputs).contains(n));
        let lists =
            lists.ok_or_else(|| wrong(node, "num_scan_inputs must be between 1 and the number of inputs"))?;
        let states = inputs - lists;
        let scans = body.outputs.len().checked_sub(states).filter(|_| body.inputs.len() == inputs);
        let scans = scans.ok_or_else(|| wrong(node, "its inputs do not fit its body"))?;
        Ok(Form { body, states, lists, scans })
    }
}

fn refuse(node: &SourceNode, e: AttrError) -> TraceError {
    wrong(node, e.to_string())
}

/// A list attribute of `n` numbers, zeros where it is left out.
fn list(node: &SourceNode, name: &str, n: usize) -> Result<Vec<i64>, TraceError> {
    let v = node.attrs.opt_ints(name).map_err(|e| refuse(node, e))?;
    let v = v.map_or_else(|| vec![0; n], <[i64]>::to_vec);
    if v.len() == n { Ok(v) } else { Err(wrong(node, format!("{name} must have {n} numbers"))) }
}

/// A type without one of its axes.
fn without(ty: &TensorType, axis: usize) -> TensorType {
    let mut ty = ty.clone();
    ty.shape.0.remove(axis);
    ty
}

impl<'s> Walk<'s, '_, '_> {
    /// Walks a Scan.
    pub(crate) fn scan(&mut self, node: &'s SourceNode) -> Result<(), TraceError> {
        if node.opset < 9 {
            let what = "Scan of opset 8, with a batch axis of its own: export with opset 9 or later";
            return Err(at(node, TraceErrorKind::Unsupported(what.to_owned())));
        }
        let all = self.scan_axes(node)?;
        for (name, item) in node.outputs.iter().zip(all).filter(|(n, _)| !n.is_empty()) {
            self.items.insert(Arc::clone(name), item);
        }
        Ok(())
    }

    /// The extent of an axis of an input, which every other one given so far has, too.
    fn extent(
        &mut self,
        node: &SourceNode,
        v: ValueId,
        axis: usize,
        what: &str,
        so_far: &mut Option<usize>,
    ) -> Result<usize, TraceError> {
        let dim = self.b.ty(v).shape.0.get(axis);
        let dim = dim.ok_or_else(|| wrong(node, "an input has too few axes"))?;
        let n = dim.as_const().and_then(|n| usize::try_from(n).ok());
        let n = n.ok_or_else(|| self.op_error(node, ops::OpError::Dynamic(what.to_owned()), &[Some(v)]))?;
        if so_far.is_some_and(|l| l != n) {
            return Err(wrong(node, "its inputs are of different lengths"));
        }
        *so_far = Some(n);
        Ok(n)
    }

    /// The steps of one sequence.
    fn steps(
        &mut self,
        node: &'s SourceNode,
        form: &Form<'s>,
        mut carried: Vec<Item>,
        slices: &[Vec<ValueId>],
        length: usize,
    ) -> Result<Left, TraceError> {
        let mut collected: Vec<Vec<ValueId>> = vec![Vec::new(); form.scans];
        for t in 0..length {
            self.walk_on(node, 1)?;
            let rows = slices.iter().map(|s| Item::Tensor(s[t]));
            for (name, item) in form.body.inputs.iter().zip(carried.into_iter().chain(rows)) {
                self.items.insert(name.clone(), item);
            }
            let mut results = self.body(form.body)?.into_iter();
            carried = results.by_ref().take(form.states).collect();
            for (list, item) in collected.iter_mut().zip(results) {
                match item {
                    Item::Tensor(v) => list.push(v),
                    _ => return Err(wrong(node, "a scan output is no tensor")),
                }
            }
        }
        Ok((carried, collected))
    }

    /// Since opset 9: any axis, no batch.
    fn scan_axes(&mut self, node: &'s SourceNode) -> Result<Vec<Item>, TraceError> {
        let form = Form::of(node, node.inputs.len())?;
        let (lists, scans) = (form.lists, form.scans);
        let (in_axes, in_back) =
            (list(node, "scan_input_axes", lists)?, list(node, "scan_input_directions", lists)?);
        let (out_axes, out_back) =
            (list(node, "scan_output_axes", scans)?, list(node, "scan_output_directions", scans)?);
        let carried: Vec<Item> =
            node.inputs[..form.states].iter().map(|n| self.item(n)).collect::<Result<_, _>>()?;
        let mut slices: Vec<Vec<ValueId>> = Vec::new();
        let mut rows: Vec<TensorType> = Vec::new();
        let mut length: Option<usize> = None;
        for (k, name) in node.inputs[form.states..].iter().enumerate() {
            let v = self.tensor(node, name)?;
            let axis = ops::onnx::normalize_axis(in_axes[k], self.b.ty(v).shape.rank());
            let axis = axis.map_err(|e| self.op_error(node, e, &[]))?;
            let n = self.extent(node, v, axis, "the number of iterations", &mut length)?;
            rows.push(without(self.b.ty(v), axis));
            let mut parts = self.unstack(node, v, axis, n)?;
            if in_back[k] != 0 {
                parts.reverse();
            }
            slices.push(parts);
        }
        let length = length.unwrap_or(0);
        let types = if length == 0 && scans > 0 {
            self.unrun_types(
                node,
                form.body,
                form.states,
                Unrun { first: &[], carried: &carried, rows: &rows },
            )?
        } else {
            Vec::new()
        };
        let (mut all, collected) = self.steps(node, &form, carried, &slices, length)?;
        for (k, mut list) in collected.into_iter().enumerate() {
            if out_back[k] != 0 {
                list.reverse();
            }
            let element = list.first().map(|v| self.b.ty(*v)).or(types.get(k));
            let rank = element.map_or(1, |t| t.shape.rank() + 1);
            let axis = ops::onnx::normalize_axis(out_axes[k], rank);
            let axis = axis.map_err(|e| self.op_error(node, e, &[]))?;
            all.push(Item::Tensor(match types.get(k) {
                Some(ty) => self.empty(node, ty, &[(axis, 0)])?,
                None => self.stack(node, &list, axis)?,
            }));
        }
        Ok(all)
    }
}
