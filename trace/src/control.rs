//! If, Loop and Scan: the branch that is taken, the iterations that run.
//!
//! A body is walked anew for every iteration, so that what comes out is straight and has the gradients of straight programs. Conditions
//! and trip counts are asked for as they come up: the walk of an iteration may depend on what the last one computed.

use crate::{
    Body, SourceNode,
    error::TraceError,
    walk::{Item, Walk, at, wrong},
};
use graph::{Attrs, Dim, Literal, Shape, TensorType, ValueId, quote_name};
use std::sync::Arc;

impl<'s> Walk<'s, '_, '_> {
    /// Walks a node of control flow. Returns whether the node was one.
    pub(crate) fn control(&mut self, node: &'s SourceNode) -> Result<bool, TraceError> {
        match &*node.op_type {
            "If" => self.branch(node)?,
            "Loop" => self.repeat(node)?,
            "Scan" => self.scan(node)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Walks a body; its outputs.
    fn body(&mut self, body: &'s Body) -> Result<Vec<Item>, TraceError> {
        self.depth += 1;
        for n in &body.nodes {
            self.node(n)?;
        }
        self.depth -= 1;
        body.outputs.iter().map(|o| self.item(o)).collect()
    }

    fn truth(&mut self, node: &SourceNode, v: ValueId, what: &str) -> Result<bool, TraceError> {
        let l = self.decide(node, v, what)?;
        match l.to_floats().as_slice() {
            [x] => Ok(*x != 0.0),
            _ => Err(wrong(node, format!("{what} has {} elements, it must be one", l.len()))),
        }
    }

    fn branch(&mut self, node: &'s SourceNode) -> Result<(), TraceError> {
        let condition = node.inputs.first().ok_or_else(|| wrong(node, "it has no condition"))?;
        let condition = self.tensor(node, condition)?;
        let taken = if self.truth(node, condition, "the condition")? { "then_branch" } else { "else_branch" };
        let body = node.body(taken).ok_or_else(|| wrong(node, format!("it has no {taken}")))?;
        let results = self.body(body)?;
        if results.len() < node.outputs.len() {
            return Err(wrong(node, format!("its {taken} gives {} outputs", results.len())));
        }
        for (name, item) in node.outputs.iter().zip(results).filter(|(n, _)| !n.is_empty()) {
            self.items.insert(name.clone(), item);
        }
        Ok(())
    }

    fn repeat(&mut self, node: &'s SourceNode) -> Result<(), TraceError> {
        let body = node.body("body").ok_or_else(|| wrong(node, "it has no body"))?;
        let given = |i: usize| node.inputs.get(i).filter(|n| !n.is_empty());
        let most = match given(0) {
            None => i64::MAX,
            Some(name) => {
                let v = self.tensor(node, name)?;
                let l = self.decide(node, v, "the trip count")?;
                match l.to_ints().as_deref() {
                    Some([n]) => *n,
                    _ => return Err(wrong(node, "the trip count must be one integer")),
                }
            }
        };
        let conditional = given(1).is_some();
        let mut go = match given(1) {
            None => true,
            Some(name) => {
                let v = self.tensor(node, name)?;
                self.truth(node, v, "the condition")?
            }
        };
        let mut carried: Vec<Item> =
            node.inputs.iter().skip(2).map(|n| self.item(n)).collect::<Result<_, _>>()?;
        let scans = body.outputs.len().checked_sub(1 + carried.len());
        let scans = scans.filter(|_| body.inputs.len() == 2 + carried.len()).ok_or_else(|| {
            let (inputs, outputs) = (body.inputs.len(), body.outputs.len());
            wrong(
                node,
                format!(
                    "{} carried values do not fit a body of {inputs} inputs and {outputs} outputs",
                    carried.len()
                ),
            )
        })?;
        let mut collected: Vec<Vec<ValueId>> = vec![Vec::new(); scans];
        // Nothing ends it before: what is too long need not be walked.
        if !conditional {
            let all = usize::try_from(most.max(0)).unwrap_or(usize::MAX);
            self.fits(node, all.saturating_mul(body.nodes.len().saturating_add(1)))?;
        }
        let mut i = 0i64;
        while i < most && go {
            self.walk_on(node, 1)?;
            if conditional {
                self.go_on(node)?;
            }
            self.b.set_scope(&*node.name);
            let ints = |n: i64| Literal::ints(&[n]).reshaped(Vec::new());
            let number = ints(i).map_err(|e| wrong(node, e.to_string()))?;
            let number = self.b.constant(number);
            let yes = self.b.scalar(graph::DType::Bool, 1.0);
            let first = [Item::Tensor(number), Item::Tensor(yes)];
            for (name, item) in body.inputs.iter().zip(first.into_iter().chain(carried)) {
                self.items.insert(name.clone(), item);
            }
            let mut results = self.body(body)?.into_iter();
            // Without a condition at the node, the body's own is ignored.
            match results.next() {
                Some(Item::Tensor(v)) if conditional => go = self.truth(node, v, "the condition")?,
                _ => {}
            }
            carried = results.by_ref().take(body.inputs.len() - 2).collect();
            for (list, item) in collected.iter_mut().zip(results) {
                match item {
                    Item::Tensor(v) => list.push(v),
                    _ => return Err(wrong(node, "a scan output is no tensor")),
                }
            }
            i += 1;
        }
        let wanted = node.outputs.iter().enumerate().filter(|(_, n)| !n.is_empty());
        for (o, name) in wanted {
            let item = match carried.get(o) {
                Some(item) => item.clone(),
                None => {
                    let scan = o - carried.len();
                    let list = collected.get(scan).ok_or_else(|| {
                        wrong(node, format!("output {} is made by no body", quote_name(name)))
                    })?;
                    let list = list.clone();
                    let ty = body.output_types.get(1 + o).cloned().flatten();
                    Item::Tensor(self.stack(node, &list, 0, ty)?)
                }
            };
            self.items.insert(name.clone(), item);
        }
        Ok(())
    }

    /// Tensors of one shape along a new axis.
    fn stack(
        &mut self,
        node: &SourceNode,
        parts: &[ValueId],
        axis: usize,
        ty: Option<TensorType>,
    ) -> Result<ValueId, TraceError> {
        let Some(first) = parts.first() else {
            // No iteration ran: the file must say what an element would have been.
            let empty = ty.and_then(|t| {
                let mut shape: Vec<u64> = t.shape.fixed()?.into_iter().map(|d| d as u64).collect();
                shape.insert(axis.min(shape.len()), 0);
                Literal::new(t.dtype, shape, Vec::new()).ok()
            });
            let empty = empty.ok_or_else(|| {
                wrong(
                    node,
                    "no iteration ran, and the file does not say the shape of what it would have collected",
                )
            })?;
            self.b.set_scope(&*node.name);
            return Ok(self.b.constant(empty));
        };
        let mut dims = self.b.ty(*first).shape.0.clone();
        if axis > dims.len() {
            return Err(wrong(node, format!("axis {axis} is outside of {} axes", dims.len() + 1)));
        }
        dims.insert(axis, Dim::constant(1));
        let shape = Shape(dims);
        self.b.set_scope(&*node.name);
        let mut rows = Vec::with_capacity(parts.len());
        for v in parts {
            rows.push(self.b.reshape(*v, &shape).map_err(|e| self.op_error(node, e, &[Some(*v)]))?);
        }
        match rows.as_slice() {
            [one] => Ok(*one),
            _ => {
                let out = self.emit(node, "Concat", Attrs::new().with("axis", axis as i64), &rows)?;
                out.first().copied().ok_or_else(|| wrong(node, "nothing was collected"))
            }
        }
    }

    /// A tensor cut into its slices along an axis, without that axis.
    pub(crate) fn unstack(
        &mut self,
        node: &SourceNode,
        v: ValueId,
        axis: usize,
        count: usize,
    ) -> Result<Vec<ValueId>, TraceError> {
        self.walk_on(node, count)?;
        let mut dims = self.b.ty(v).shape.0.clone();
        dims.remove(axis);
        let shape = Shape(dims);
        let parts = if count == 1 {
            vec![v]
        } else if count == 0 {
            Vec::new()
        } else {
            let attrs = Attrs::new().with("axis", axis as i64).with("split", vec![1i64; count]);
            self.emit(node, "Split", attrs, &[v])?
        };
        let mut out = Vec::with_capacity(count);
        for p in parts {
            out.push(self.b.reshape(p, &shape).map_err(|e| self.op_error(node, e, &[Some(p)]))?);
        }
        Ok(out)
    }

    fn scan(&mut self, node: &'s SourceNode) -> Result<(), TraceError> {
        let refuse = |e: graph::AttrError| wrong(node, e.to_string());
        let body = node.body("body").ok_or_else(|| wrong(node, "it has no body"))?;
        if node.opset < 9 {
            let what = "Scan of opset 8, with a batch axis of its own: export with opset 9 or later";
            return Err(at(node, crate::TraceErrorKind::Unsupported(what.to_owned())));
        }
        let lists = node.attrs.int_or("num_scan_inputs", 0).map_err(refuse)?;
        let lists = usize::try_from(lists).ok().filter(|n| (1..=node.inputs.len()).contains(n));
        let lists =
            lists.ok_or_else(|| wrong(node, "num_scan_inputs must be between 1 and the number of inputs"))?;
        let states = node.inputs.len() - lists;
        let scans = body.outputs.len().checked_sub(states).filter(|_| body.inputs.len() == node.inputs.len());
        let scans = scans.ok_or_else(|| wrong(node, "its inputs do not fit its body"))?;
        let list = |name: &str, n: usize| -> Result<Vec<i64>, TraceError> {
            let v = node.attrs.opt_ints(name).map_err(refuse)?.map(<[i64]>::to_vec).unwrap_or(vec![0; n]);
            if v.len() == n { Ok(v) } else { Err(wrong(node, format!("{name} must have {n} numbers"))) }
        };
        let (in_axes, in_back) = (list("scan_input_axes", lists)?, list("scan_input_directions", lists)?);
        let (out_axes, out_back) = (list("scan_output_axes", scans)?, list("scan_output_directions", scans)?);
        let mut carried: Vec<Item> =
            node.inputs[..states].iter().map(|n| self.item(n)).collect::<Result<_, _>>()?;
        let mut slices: Vec<Vec<ValueId>> = Vec::new();
        let mut length: Option<usize> = None;
        for (k, name) in node.inputs[states..].iter().enumerate() {
            let v = self.tensor(node, name)?;
            let shape = self.b.ty(v).shape.clone();
            let axis = ops::onnx::normalize_axis(in_axes[k], shape.rank());
            let axis = axis.map_err(|e| self.op_error(node, e, &[]))?;
            let n = shape.0[axis].as_const().and_then(|n| usize::try_from(n).ok()).ok_or_else(|| {
                let what = ops::OpError::Dynamic("the number of iterations".to_owned());
                self.op_error(node, what, &[Some(v)])
            })?;
            if length.is_some_and(|l| l != n) {
                return Err(wrong(node, "its inputs are of different lengths"));
            }
            length = Some(n);
            let mut parts = self.unstack(node, v, axis, n)?;
            if in_back[k] != 0 {
                parts.reverse();
            }
            slices.push(parts);
        }
        let mut collected: Vec<Vec<ValueId>> = vec![Vec::new(); scans];
        for t in 0..length.unwrap_or(0) {
            self.walk_on(node, 1)?;
            let rows = slices.iter().map(|s| Item::Tensor(s[t]));
            for (name, item) in body.inputs.iter().zip(carried.into_iter().chain(rows)) {
                self.items.insert(name.clone(), item);
            }
            let mut results = self.body(body)?.into_iter();
            carried = results.by_ref().take(states).collect();
            for (list, item) in collected.iter_mut().zip(results) {
                match item {
                    Item::Tensor(v) => list.push(v),
                    _ => return Err(wrong(node, "a scan output is no tensor")),
                }
            }
        }
        let mut all: Vec<Item> = carried;
        for (k, mut list) in collected.into_iter().enumerate() {
            if out_back[k] != 0 {
                list.reverse();
            }
            let rank = list.first().map_or(1, |v| self.b.ty(*v).shape.rank() + 1);
            let axis = ops::onnx::normalize_axis(out_axes[k], rank);
            let axis = axis.map_err(|e| self.op_error(node, e, &[]))?;
            let ty = body.output_types.get(states + k).cloned().flatten();
            let v = self.stack(node, &list, axis, ty)?;
            all.push(Item::Tensor(v));
        }
        for (name, item) in node.outputs.iter().zip(all).filter(|(n, _)| !n.is_empty()) {
            self.items.insert(Arc::clone(name), item);
        }
        Ok(())
    }
}
