//! The e-graph of a region, and what rules ask of it.

use crate::{
    rules::{Equal, Miss, Rule},
    term::{Facts, Head, Kind, Known, Term},
};
use egg::{EGraph, Id};
use graph::{Attrs, Graph, Literal, NodeId, OpFacts, Shape, TensorType, ValueDef, ValueId};
use ops::{Registry, Signature, find};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// Operators that draw random numbers.
const RANDOM: &[&str] =
    &["Dropout", "DropoutGrad", "DropoutMask", "RandomUniform", "RandomNormal", "Bernoulli", "Multinomial"];

/// A leaf of the region.
#[derive(Clone, Debug)]
pub(crate) enum Leaf {
    /// A value made outside: an input, a state, a result of an earlier region.
    Value(ValueId),
    /// A constant; where the graph has it already, its first value.
    Constant(Literal, Option<ValueId>),
}

/// An operator that stands somewhere in the e-graph: where a rule looks.
#[derive(Clone, Debug)]
pub struct Site {
    /// The class of its outputs.
    pub(crate) class: Id,
    pub(crate) term: Term,
    kind: u32,
    /// Its inputs; `None` for an optional one left out.
    pub args: Vec<Option<Id>>,
}

/// A rule that added a term.
#[derive(Clone, Debug)]
pub(crate) struct Applied {
    pub(crate) rule: &'static str,
    pub(crate) site: Site,
    /// Whether whole tuples are equal, or only their first parts.
    pub(crate) tuple: bool,
    pub(crate) new: Term,
    pub(crate) class: Id,
}

/// The e-graph of a region of a graph.
pub struct Space<'g> {
    pub(crate) graph: &'g Graph,
    pub(crate) range: Range<usize>,
    pub(crate) egraph: EGraph<Term, Facts>,
    pub(crate) kinds: Vec<Kind>,
    kind_index: BTreeMap<String, u32>,
    pub(crate) leaves: Vec<Leaf>,
    value_leaves: BTreeMap<ValueId, u32>,
    constant_leaves: BTreeMap<(String, Vec<u8>), u32>,
    /// Class of each node of the region.
    pub(crate) nodes: Vec<(usize, Id, Term)>,
    /// Class of each value that the region makes.
    pub(crate) values: BTreeMap<ValueId, Id>,
    pub(crate) applied: Vec<Applied>,
    seen: BTreeSet<(&'static str, Id, Term)>,
}

/// Which values depend on something trained, through operators with a gradient.
pub(crate) fn trained_values(graph: &Graph, trained: &[ValueId]) -> Vec<bool> {
    let mut needs = vec![false; graph.values.len()];
    trained.iter().for_each(|v| needs[v.index()] = true);
    for node in &graph.nodes {
        let differentiable = find(&node.op).is_some_and(|d| d.differentiable());
        if differentiable && node.inputs.iter().flatten().any(|v| needs[v.index()]) {
            for o in &node.outputs {
                needs[o.index()] = graph.ty(*o).dtype.is_float();
            }
        }
    }
    needs
}

impl<'g> Space<'g> {
    pub(crate) fn new(
        graph: &'g Graph,
        range: Range<usize>,
        needs: &[bool],
        distinct: &BTreeSet<usize>,
    ) -> Space<'g> {
        let mut s = Space {
            graph,
            range: range.clone(),
            egraph: EGraph::new(Facts::default()),
            kinds: Vec::new(),
            kind_index: BTreeMap::new(),
            leaves: Vec::new(),
            value_leaves: BTreeMap::new(),
            constant_leaves: BTreeMap::new(),
            nodes: Vec::new(),
            values: BTreeMap::new(),
            applied: Vec::new(),
            seen: BTreeSet::new(),
        };
        for n in range {
            let node = &graph.nodes[n];
            let args: Vec<Option<Id>> =
                node.inputs.iter().map(|i| i.map(|v| s.value(v, needs[v.index()]))).collect();
            // A node whose facts are unknown is left alone.
            let facts = Registry.facts(graph, NodeId(n as u32)).ok();
            let own = facts.is_none_or(|f| f.once || !f.commits.is_empty());
            let own = own || RANDOM.contains(&&*node.op) || distinct.contains(&n);
            let kind = Kind {
                op: node.op.clone(),
                attrs: node.attrs.clone(),
                given: args.iter().map(Option::is_some).collect(),
                identity: own.then_some(n as u32),
            };
            let types: Vec<TensorType> = node.outputs.iter().map(|o| graph.ty(*o).clone()).collect();
            let trained = node.outputs.iter().any(|o| needs[o.index()]);
            let (class, term) = s.add_op(kind, args.into_iter().flatten().collect(), types, trained);
            s.nodes.push((n, class, term));
            for (i, o) in node.outputs.iter().enumerate() {
                let part = s.proj(class, i);
                s.values.insert(*o, part);
            }
        }
        s.rebuild();
        s
    }

    /// The class of a value of the graph.
    fn value(&mut self, v: ValueId, trained: bool) -> Id {
        if let Some(id) = self.values.get(&v) {
            return *id;
        }
        if let ValueDef::Constant(l) = &self.graph.value(v).def {
            return self.leaf_constant(l.clone(), Some(v));
        }
        let next = self.leaves.len() as u32;
        let leaf = *self.value_leaves.entry(v).or_insert(next);
        if leaf == next {
            self.leaves.push(Leaf::Value(v));
        }
        let types = vec![self.graph.ty(v).clone()];
        self.add(Head::Leaf(leaf), Vec::new(), Known { types, constant: None, trained })
    }

    fn leaf_constant(&mut self, l: Literal, v: Option<ValueId>) -> Id {
        let next = self.leaves.len() as u32;
        let key = (format!("{} {:?}", l.dtype(), l.shape()), l.bytes().to_vec());
        let leaf = *self.constant_leaves.entry(key).or_insert(next);
        if leaf == next {
            self.leaves.push(Leaf::Constant(l.clone(), v));
        }
        let types = vec![TensorType::new(l.dtype(), l.shape())];
        self.add(Head::Leaf(leaf), Vec::new(), Known { types, constant: Some(l), trained: false })
    }

    fn add(&mut self, head: Head, args: Vec<Id>, known: Known) -> Id {
        self.egraph.analysis.pending = Some(known);
        let id = self.egraph.add(Term { head, args });
        self.egraph.analysis.pending = None;
        id
    }

    fn add_op(&mut self, kind: Kind, args: Vec<Id>, types: Vec<TensorType>, trained: bool) -> (Id, Term) {
        let key = kind.key();
        let next = self.kinds.len() as u32;
        let k = *self.kind_index.entry(key).or_insert(next);
        if k == next {
            self.kinds.push(kind);
        }
        let term = Term { head: Head::Op(k), args: args.clone() };
        (self.add(Head::Op(k), args, Known { types, constant: None, trained }), term)
    }

    /// Output `i` of a tuple.
    pub(crate) fn proj(&mut self, tuple: Id, i: usize) -> Id {
        self.egraph.add(Term { head: Head::Proj(i as u32), args: vec![tuple] })
    }

    pub(crate) fn rebuild(&mut self) {
        self.egraph.rebuild();
    }

    /// E-nodes in all.
    pub(crate) fn size(&self) -> usize {
        self.egraph.total_size()
    }

    /// A term with its arguments as they are known now.
    pub(crate) fn canonical(&self, term: &Term) -> Term {
        Term { head: term.head.clone(), args: term.args.iter().map(|a| self.egraph.find(*a)).collect() }
    }

    /// The terms of a class, in a fixed order.
    pub(crate) fn terms(&self, class: Id) -> Vec<Term> {
        let mut out: Vec<Term> = self.egraph[class].nodes.iter().map(|t| self.canonical(t)).collect();
        out.sort();
        out.dedup();
        out
    }

    fn site(&self, class: Id, term: Term) -> Option<Site> {
        let Head::Op(kind) = term.head else { return None };
        let k = &self.kinds[kind as usize];
        if k.identity.is_some() {
            return None;
        }
        let mut given = term.args.iter().copied();
        let args = k.given.iter().map(|g| if *g { given.next() } else { None }).collect();
        Some(Site { class, term, kind, args })
    }

    /// All operators where a rule may look.
    pub(crate) fn sites(&self) -> Vec<Site> {
        let mut classes: Vec<Id> = self.egraph.classes().map(|c| c.id).collect();
        classes.sort();
        let of = |c: Id| self.terms(c).into_iter().filter_map(move |t| self.site(c, t));
        classes.into_iter().flat_map(of).collect()
    }

    /// The operator of a site.
    pub fn op(&self, site: &Site) -> &str {
        &self.kinds[site.kind as usize].op
    }

    /// The attributes of a site.
    pub fn attrs(&self, site: &Site) -> &Attrs {
        &self.kinds[site.kind as usize].attrs
    }

    /// The operators of this name whose first output a tensor is.
    pub fn made(&self, tensor: Id, op: &str) -> Vec<Site> {
        let mut out = Vec::new();
        for t in self.terms(tensor) {
            if t.head != Head::Proj(0) {
                continue;
            }
            let tuple = self.egraph.find(t.args[0]);
            let sites = self.terms(tuple).into_iter().filter_map(|t| self.site(tuple, t));
            out.extend(sites.filter(|s| self.op(s) == op));
        }
        out
    }

    /// The first of [`Space::made`].
    pub fn first(&self, tensor: Id, op: &str) -> Option<Site> {
        self.made(tensor, op).into_iter().next()
    }

    /// The type of a tensor.
    pub fn ty(&self, tensor: Id) -> &TensorType {
        &self.egraph[tensor].data.types[0]
    }

    /// Extents of a tensor, where they are known.
    pub fn dims(&self, tensor: Id) -> Option<Vec<usize>> {
        self.ty(tensor).shape.fixed()
    }

    /// Whether a tensor depends on something trained.
    pub fn trained(&self, tensor: Id) -> bool {
        self.egraph[tensor].data.trained
    }

    /// The number that all elements of a constant are.
    pub fn number(&self, tensor: Id) -> Option<f64> {
        let l = self.egraph[tensor].data.constant.as_ref()?;
        if l.is_empty() || l.len() > 4096 {
            return None;
        }
        let all = l.to_floats();
        all.iter().all(|x| x.to_bits() == all[0].to_bits()).then_some(all[0])
    }

    /// Whether two tensors are known to be equal.
    pub fn same(&self, a: Id, b: Id) -> bool {
        self.egraph.find(a) == self.egraph.find(b)
    }

    /// A constant scalar.
    pub fn scalar(&mut self, like: Id, value: f64) -> Id {
        let l = Literal::scalar(self.ty(like).dtype, value);
        self.leaf_constant(l, None)
    }

    /// An operator over these inputs: the class of its outputs.
    ///
    /// # Errors
    ///
    /// The operator refuses the inputs.
    pub fn tuple(&mut self, op: &str, attrs: Attrs, args: &[Option<Id>]) -> Result<Id, Miss> {
        let def = find(op).ok_or_else(|| Miss(format!("there is no operator {op}")))?;
        let known: Vec<Option<&Known>> = args.iter().map(|a| a.map(|a| &self.egraph[a].data)).collect();
        let sig = Signature {
            attrs: &attrs,
            inputs: known.iter().map(|k| k.map(|k| &k.types[0])).collect(),
            constants: known.iter().map(|k| k.and_then(|k| k.constant.as_ref())).collect(),
            outputs: Vec::new(),
        };
        let types = def.infer(&sig).map_err(|e| Miss(format!("{op}: {e}")))?;
        let trained = def.differentiable() && known.iter().flatten().any(|k| k.trained);
        let given = args.iter().map(Option::is_some).collect();
        let kind = Kind { op: op.into(), attrs, given, identity: None };
        Ok(self.add_op(kind, args.iter().flatten().copied().collect(), types, trained).0)
    }

    /// The first output of an operator over these inputs.
    ///
    /// # Errors
    ///
    /// As [`Space::tuple`].
    pub fn call(&mut self, op: &str, attrs: Attrs, args: &[Id]) -> Result<Id, Miss> {
        let args: Vec<Option<Id>> = args.iter().copied().map(Some).collect();
        let tuple = self.tuple(op, attrs, &args)?;
        Ok(self.proj(tuple, 0))
    }

    /// A tensor under another shape of equal size; itself if it has that shape.
    ///
    /// # Errors
    ///
    /// A size is unknown.
    pub fn reshape(&mut self, tensor: Id, dims: &[usize]) -> Result<Id, Miss> {
        if self.dims(tensor).as_deref() == Some(dims) {
            return Ok(tensor);
        }
        let shape: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
        self.call("Reshape", Attrs::new().with("shape", shape), &[tensor])
    }

    /// A tensor with its axes permuted; itself for the identity.
    ///
    /// # Errors
    ///
    /// None of the axes fit.
    pub fn transpose(&mut self, tensor: Id, perm: &[i64]) -> Result<Id, Miss> {
        if perm.iter().enumerate().all(|(i, p)| i as i64 == *p) {
            return Ok(tensor);
        }
        self.call("Transpose", Attrs::new().with("perm", perm), &[tensor])
    }

    /// The shape of a tensor.
    pub fn shape(&self, tensor: Id) -> &Shape {
        &self.ty(tensor).shape
    }

    /// Makes what a rule found equal; whether that is new.
    pub(crate) fn unite(&mut self, rule: &Rule, site: &Site, equal: Equal) -> bool {
        let (tuple, new) = match equal {
            Equal::Tensor(id) => (false, id),
            Equal::Tuple(id) => (true, id),
        };
        let old = if tuple { site.class } else { self.proj(site.class, 0) };
        if self.egraph[old].data.types != self.egraph[new].data.types {
            return false;
        }
        let term = self.egraph.id_to_node(new).clone();
        let key = (rule.name, self.egraph.find(old), self.canonical(&term));
        if !self.seen.insert(key) {
            return false;
        }
        let changed = self.egraph.union(old, new);
        self.applied.push(Applied { rule: rule.name, site: site.clone(), tuple, new: term, class: old });
        changed
    }

    /// The application that made the term at a site; `None` for terms of the graph.
    pub(crate) fn maker(&self, site: &Site) -> Option<&Applied> {
        let (class, term) = (self.egraph.find(site.class), self.canonical(&site.term));
        if self.nodes.iter().any(|(_, c, t)| self.egraph.find(*c) == class && self.canonical(t) == term) {
            return None;
        }
        self.applied.iter().find(|a| {
            let new = self.canonical(&a.new);
            if a.tuple { new == term } else { new.head == Head::Proj(0) && new.args[0] == class }
        })
    }

    /// The name of the node at a site, or of the one that it was made from.
    pub(crate) fn site_name(&self, site: &Site) -> String {
        let mut at = site;
        // A chain of rules is shorter than this.
        for _ in 0..16 {
            match self.maker(at) {
                Some(made) => at = &made.site,
                None => break,
            }
        }
        let class = self.egraph.find(at.class);
        let named = self.nodes.iter().find(|(_, c, _)| self.egraph.find(*c) == class);
        let name = |n: usize| self.graph.nodes[n].name.to_string();
        named.map_or_else(|| format!("a new {}", self.op(site)), |(n, _, _)| name(*n))
    }
}
