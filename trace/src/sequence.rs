//! Sequences and optional values: lists of the walk, no values of the graph.

use crate::{
    SourceNode, TraceErrorKind,
    error::TraceError,
    walk::{Item, Walk, at, wrong},
};
use graph::{Attrs, DType, Literal, ValueId};
use std::sync::Arc;

impl<'s> Walk<'s, '_, '_> {
    /// Walks a node of sequences or optional values. Returns whether the node was one.
    pub(crate) fn sequence(&mut self, node: &'s SourceNode) -> Result<bool, TraceError> {
        let item = match &*node.op_type {
            "SequenceEmpty" => list(Vec::new()),
            "SequenceConstruct" => {
                list(node.inputs.iter().map(|n| self.tensor(node, n)).collect::<Result<_, _>>()?)
            }
            "SequenceInsert" => {
                let mut all = self.list_of(node)?;
                let name = node.inputs.get(1).ok_or_else(|| wrong(node, "it has no tensor"))?;
                let v = self.tensor(node, name)?;
                let at = self.position(node, 2, all.len(), all.len())?;
                all.insert(at, v);
                list(all)
            }
            "SequenceErase" => {
                let mut all = self.list_of(node)?;
                let last = all.len().checked_sub(1).ok_or_else(|| wrong(node, "the sequence is empty"))?;
                let at = self.position(node, 1, last, last)?;
                all.remove(at);
                list(all)
            }
            "SequenceAt" => {
                let all = self.list_of(node)?;
                let last = all.len().checked_sub(1).ok_or_else(|| wrong(node, "the sequence is empty"))?;
                Item::Tensor(all[self.position(node, 1, last, last)?])
            }
            "SequenceLength" => {
                let n = self.list_of(node)?.len() as i64;
                let n = Literal::ints(&[n]).reshaped(Vec::new()).map_err(|e| wrong(node, e.to_string()))?;
                self.b.set_scope(&*node.name);
                Item::Tensor(self.b.constant(n))
            }
            "SplitToSequence" => self.split(node)?,
            "ConcatFromSequence" => self.concat(node)?,
            "SequenceMap" => return self.map(node).map(|()| true),
            "Optional" => match node.inputs.first().filter(|n| !n.is_empty()) {
                Some(name) => match self.item(name)? {
                    // In a loop they would nest without end.
                    Item::Optional(_) => return Err(wrong(node, "its input is an optional value already")),
                    item => Item::Optional(Some(Box::new(item))),
                },
                None => Item::Optional(None),
            },
            "OptionalHasElement" => {
                let there = match node.inputs.first().filter(|n| !n.is_empty()) {
                    Some(name) => !matches!(self.item(name)?, Item::Optional(None)),
                    None => false,
                };
                self.b.set_scope(&*node.name);
                Item::Tensor(self.b.scalar(DType::Bool, f64::from(u8::from(there))))
            }
            "OptionalGetElement" => {
                let name = node.inputs.first().ok_or_else(|| wrong(node, "it has no input"))?;
                match self.item(name)? {
                    Item::Optional(Some(inner)) => *inner,
                    Item::Optional(None) => return Err(wrong(node, "the optional value is absent")),
                    other => other,
                }
            }
            _ => return Ok(false),
        };
        if let Some(name) = node.outputs.first().filter(|n| !n.is_empty()) {
            self.items.insert(name.clone(), item);
        }
        Ok(true)
    }

    fn list_of(&mut self, node: &SourceNode) -> Result<Vec<ValueId>, TraceError> {
        let name = node.inputs.first().ok_or_else(|| wrong(node, "it has no sequence"))?;
        let all = match self.item(name)? {
            Item::Sequence(all) => Ok(all.to_vec()),
            Item::Optional(Some(inner)) if matches!(*inner, Item::Sequence(_)) => match *inner {
                Item::Sequence(all) => Ok(all.to_vec()),
                _ => Ok(Vec::new()),
            },
            _ => Err(wrong(node, "its first input is no sequence")),
        }?;
        // Every list is a copy: what grows in a loop costs the square of its length.
        self.walk_on(node, all.len() / 1024)?;
        Ok(all)
    }

    /// A position from input `i`, counted from the end if negative; `default` if it is left out.
    fn position(
        &mut self,
        node: &SourceNode,
        i: usize,
        most: usize,
        default: usize,
    ) -> Result<usize, TraceError> {
        let Some(name) = node.inputs.get(i).filter(|n| !n.is_empty()) else { return Ok(default) };
        let v = self.tensor(node, name)?;
        let l = self.decide(node, v, "the position")?;
        let n = match l.to_ints().as_deref() {
            Some([n]) => *n,
            _ => return Err(wrong(node, "the position must be one integer")),
        };
        // Counted from the end, an insertion may also go behind the last one.
        let from_end = if n < 0 { n + default as i64 + i64::from(most == default && i == 1) } else { n };
        let at = usize::try_from(from_end).ok().filter(|p| *p <= most);
        at.ok_or_else(|| wrong(node, format!("position {n} is outside of the sequence")))
    }

    fn axis(&self, node: &SourceNode, rank: usize) -> Result<usize, TraceError> {
        let axis = node.attrs.int_or("axis", 0).map_err(|e| wrong(node, e.to_string()))?;
        ops::onnx::normalize_axis(axis, rank).map_err(|e| self.op_error(node, e, &[]))
    }

    fn split(&mut self, node: &SourceNode) -> Result<Item, TraceError> {
        let name = node.inputs.first().ok_or_else(|| wrong(node, "it has no input"))?;
        let v = self.tensor(node, name)?;
        let shape = self.b.ty(v).shape.clone();
        let axis = self.axis(node, shape.rank())?;
        let n = shape.0.get(axis).and_then(|d| d.as_const()).ok_or_else(|| {
            let what = ops::OpError::Dynamic("the length of what is split".to_owned());
            self.op_error(node, what, &[Some(v)])
        })?;
        let split = match node.inputs.get(1).filter(|n| !n.is_empty()) {
            None => {
                let keep = node.attrs.int_or("keepdims", 1).map_err(|e| wrong(node, e.to_string()))? != 0;
                self.walk_on(node, extent(n))?;
                if !keep {
                    return Ok(list(self.unstack(node, v, axis, n as usize)?));
                }
                vec![1; n as usize]
            }
            Some(name) => {
                let s = self.tensor(node, name)?;
                let l = self.decide(node, s, "the sizes of the parts")?;
                let sizes = l.to_ints().ok_or_else(|| wrong(node, "split must be integers"))?;
                self.walk_on(node, sizes.len())?;
                match (l.shape().is_empty(), sizes.as_slice()) {
                    (true, [size]) if *size > 0 => {
                        let whole = n / size;
                        let rest = n % size;
                        self.walk_on(node, extent(whole))?;
                        let mut all = vec![*size; whole as usize];
                        all.extend((rest > 0).then_some(rest));
                        all
                    }
                    (false, all) if all.iter().all(|s| *s >= 0) && all.iter().sum::<i64>() == n => {
                        all.to_vec()
                    }
                    _ => return Err(wrong(node, format!("parts of {sizes:?} do not make up {n}"))),
                }
            }
        };
        if split.len() <= 1 {
            return Ok(list(if split.is_empty() { Vec::new() } else { vec![v] }));
        }
        let attrs = Attrs::new().with("axis", axis as i64).with("split", split);
        Ok(list(self.emit(node, "Split", attrs, &[v])?))
    }

    /// The body once for every position; an input that is no sequence is the same at each.
    fn map(&mut self, node: &'s SourceNode) -> Result<(), TraceError> {
        let body = node.body("body").ok_or_else(|| wrong(node, "it has no body"))?;
        let length = self.list_of(node)?.len();
        let mut given = Vec::with_capacity(node.inputs.len());
        for name in &node.inputs {
            given.push(match self.item(name)? {
                Item::Optional(Some(inner)) => *inner,
                item => item,
            });
        }
        if body.inputs.len() != given.len() || body.outputs.len() < node.outputs.len() {
            return Err(wrong(node, "its inputs and outputs do not fit its body"));
        }
        if given.iter().any(|item| matches!(item, Item::Sequence(all) if all.len() != length)) {
            return Err(wrong(node, "its sequences are of different lengths"));
        }
        let mut made = vec![Vec::with_capacity(length); body.outputs.len()];
        for i in 0..length {
            self.walk_on(node, 1)?;
            for (name, item) in body.inputs.iter().zip(&given) {
                let item = if let Item::Sequence(all) = item { Item::Tensor(all[i]) } else { item.clone() };
                self.items.insert(name.clone(), item);
            }
            for (parts, item) in made.iter_mut().zip(self.body(body)?) {
                match item {
                    Item::Tensor(v) => parts.push(v),
                    _ => return Err(wrong(node, "an output of its body is no tensor")),
                }
            }
        }
        for (name, parts) in node.outputs.iter().zip(made).filter(|(n, _)| !n.is_empty()) {
            self.items.insert(name.clone(), list(parts));
        }
        Ok(())
    }

    fn concat(&mut self, node: &SourceNode) -> Result<Item, TraceError> {
        let mut all = self.list_of(node)?;
        let Some(first) = all.first().copied() else {
            let what = "the concatenation of an empty sequence".to_owned();
            return Err(at(node, TraceErrorKind::Unsupported(what)));
        };
        let new_axis = node.attrs.int_or("new_axis", 0).map_err(|e| wrong(node, e.to_string()))? != 0;
        let rank = self.b.ty(first).shape.rank();
        let axis = self.axis(node, rank + usize::from(new_axis))?;
        if new_axis {
            self.b.set_scope(&*node.name);
            for v in &mut all {
                let mut dims = self.b.ty(*v).shape.0.clone();
                dims.insert(axis.min(dims.len()), graph::Dim::constant(1));
                *v = self
                    .b
                    .reshape(*v, &graph::Shape(dims))
                    .map_err(|e| self.op_error(node, e, &[Some(*v)]))?;
            }
        }
        if let [one] = all.as_slice() {
            return Ok(Item::Tensor(*one));
        }
        let out = self.emit(node, "Concat", Attrs::new().with("axis", axis as i64), &all)?;
        out.first().copied().map(Item::Tensor).ok_or_else(|| wrong(node, "nothing was concatenated"))
    }
}

/// How many parts an extent is cut into.
fn extent(n: i64) -> usize {
    usize::try_from(n).unwrap_or(0)
}

fn list(all: Vec<ValueId>) -> Item {
    Item::Sequence(Arc::new(all))
}
