//! If and Loop: the branch that is taken, the iterations that run.
//!
//! A body is walked anew for every iteration, so that what comes out is straight and has the gradients of straight programs. Conditions
//! and trip counts are asked for as they come up: the walk of an iteration may depend on what the last one computed.

use crate::{
    Body, SourceNode,
    error::TraceError,
    unrun::Unrun,
    walk::{Item, Walk, wrong},
};
use graph::{Attrs, DType, Dim, Literal, Shape, ValueId, quote_name};

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
    pub(crate) fn body(&mut self, body: &'s Body) -> Result<Vec<Item>, TraceError> {
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
        let all = usize::try_from(most.max(0)).unwrap_or(usize::MAX);
        let bounded = self.fits(node, all.saturating_mul(body.nodes.len().saturating_add(1)));
        let open = conditional && bounded.is_err();
        // Nothing ends it before: what is too long need not be walked.
        if !conditional {
            bounded?;
        }
        let mut i = 0i64;
        while i < most && go {
            self.walk_on(node, 1)?;
            if open {
                self.go_on(node, given(0).map(|_| most))?;
            }
            self.b.set_scope(&*node.name);
            let ints = |n: i64| Literal::ints(&[n]).reshaped(Vec::new());
            let number = ints(i).map_err(|e| wrong(node, e.to_string()))?;
            let number = self.b.constant(number);
            let yes = self.b.scalar(DType::Bool, 1.0);
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
        let types = if i == 0 && scans > 0 {
            let number = Literal::ints(&[0]).reshaped(Vec::new()).map_err(|e| wrong(node, e.to_string()))?;
            let first = [number, Literal::scalar(DType::Bool, 1.0)];
            self.unrun_types(
                node,
                body,
                1 + carried.len(),
                Unrun { first: &first, carried: &carried, rows: &[] },
            )?
        } else {
            Vec::new()
        };
        let wanted = node.outputs.iter().enumerate().filter(|(_, n)| !n.is_empty());
        for (o, name) in wanted {
            let item = match carried.get(o) {
                Some(item) => item.clone(),
                None => {
                    let scan = o - carried.len();
                    let list = collected.get(scan).ok_or_else(|| {
                        wrong(node, format!("output {} is made by no body", quote_name(name)))
                    })?;
                    Item::Tensor(match types.get(scan) {
                        Some(ty) => self.empty(node, ty, &[(0, 0)])?,
                        None => self.stack(node, list, 0)?,
                    })
                }
            };
            self.items.insert(name.clone(), item);
        }
        Ok(())
    }

    /// Tensors of one shape, at least one, along a new axis.
    pub(crate) fn stack(
        &mut self,
        node: &SourceNode,
        parts: &[ValueId],
        axis: usize,
    ) -> Result<ValueId, TraceError> {
        let first = parts.first().ok_or_else(|| wrong(node, "nothing was collected"))?;
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
}
