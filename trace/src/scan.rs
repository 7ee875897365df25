//! Scan: a body for every slice of its inputs.
//!
//! Opset 8 had a batch before the axis of the scan, and a length for each sequence of the batch; they run one after the other, as the same
//! steps that later opsets have.

use crate::{
    Body, SourceNode,
    error::TraceError,
    unrun::Unrun,
    walk::{Item, Walk, wrong},
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
        let all = if node.opset < 9 { self.scan_batches(node)? } else { self.scan_axes(node)? };
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

    /// Opset 8: every input has the batch first, and what is cut, then the axis of the scan. Where a sequence is shorter than the longest,
    /// what is collected of it ends with zeros.
    fn scan_batches(&mut self, node: &'s SourceNode) -> Result<Vec<Item>, TraceError> {
        let given = node.inputs.get(1..).unwrap_or_default();
        let form = Form::of(node, given.len())?;
        let back = list(node, "directions", form.lists)?;
        let (mut batch, mut length) = (None, None);
        let mut rows: Vec<TensorType> = Vec::new();
        let mut values = Vec::with_capacity(given.len());
        for (k, name) in given.iter().enumerate() {
            let v = self.tensor(node, name)?;
            self.extent(node, v, 0, "the batch", &mut batch)?;
            let mut row = without(self.b.ty(v), 0);
            if k >= form.states {
                self.extent(node, v, 1, "the number of iterations", &mut length)?;
                row = without(&row, 0);
            }
            rows.push(row);
            values.push(v);
        }
        let (batch, length) = (batch.unwrap_or(0), length.unwrap_or(0));
        let lengths = self.lengths(node, batch, length)?;
        let types = if (batch == 0 || lengths.contains(&0)) && form.scans > 0 {
            self.unrun_types(node, form.body, form.states, Unrun { first: &[], carried: &[], rows: &rows })?
        } else {
            Vec::new()
        };
        let mut sequences: Vec<Vec<ValueId>> = Vec::with_capacity(values.len());
        for v in &values {
            sequences.push(self.unstack(node, *v, 0, batch)?);
        }
        let mut left: Vec<Vec<ValueId>> = vec![Vec::new(); form.states + form.scans];
        for (b, steps) in lengths.iter().enumerate() {
            let carried = sequences[..form.states].iter().map(|s| Item::Tensor(s[b])).collect();
            let mut slices = Vec::with_capacity(form.lists);
            for (s, back) in sequences[form.states..].iter().zip(&back) {
                let mut parts = self.unstack(node, s[b], 0, length)?;
                parts.truncate(*steps);
                if *back != 0 {
                    parts.reverse();
                }
                slices.push(parts);
            }
            let (states, collected) = self.steps(node, &form, carried, &slices, *steps)?;
            for (list, item) in left.iter_mut().zip(states) {
                match item {
                    Item::Tensor(v) => list.push(v),
                    _ => return Err(wrong(node, "a state is no tensor")),
                }
            }
            for (k, mut list) in collected.into_iter().enumerate() {
                if length == 0 {
                    continue;
                }
                if *steps < length {
                    let ty = list.first().map(|v| self.b.ty(*v)).or(types.get(k)).cloned();
                    let ty = ty.ok_or_else(|| wrong(node, "nothing was collected"))?;
                    let zero = self.b.scalar(ty.dtype, 0.0);
                    let zeros = self.b.expand(zero, &ty.shape).map_err(|e| self.op_error(node, e, &[]))?;
                    list.resize(length, zeros);
                }
                let all = self.stack(node, &list, 0)?;
                left[form.states + k].push(all);
            }
        }
        let mut all = Vec::with_capacity(left.len());
        for (k, list) in left.iter().enumerate() {
            all.push(Item::Tensor(match k.checked_sub(form.states).and_then(|k| types.get(k)) {
                Some(ty) if list.is_empty() => {
                    self.empty(node, ty, &[(0, length as u64), (0, batch as u64)])?
                }
                // Of no sequence the states are the ones given.
                None if list.is_empty() => values[k],
                _ => self.stack(node, list, 0)?,
            }));
        }
        Ok(all)
    }

    /// How many steps each sequence of a batch has.
    fn lengths(&mut self, node: &SourceNode, batch: usize, longest: usize) -> Result<Vec<usize>, TraceError> {
        let Some(name) = node.inputs.first().filter(|n| !n.is_empty()) else {
            return Ok(vec![longest; batch]);
        };
        let v = self.tensor(node, name)?;
        let said = self.decide(node, v, "the lengths of its sequences")?.to_ints();
        let said = said.map(|l| l.into_iter().map(|n| usize::try_from(n).ok().filter(|n| *n <= longest)));
        let said: Option<Vec<usize>> = said.and_then(Iterator::collect);
        said.filter(|l| l.len() == batch).ok_or_else(|| {
            wrong(node, format!("sequence_lens must be {batch} numbers between 0 and {longest}"))
        })
    }
}
