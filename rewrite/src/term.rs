//! The language of the e-graph: one generic e-node, whose value is the tuple of a node's outputs, and projections from it.

use egg::{Id, Language};
use graph::{Attrs, Literal, TensorType};
use std::sync::Arc;

/// What an e-node is, without its arguments. Numbers are indices into the tables of [`super::space::Space`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Head {
    /// A value from outside of the region, or a constant.
    Leaf(u32),
    /// An operator with its attributes.
    Op(u32),
    /// One of the outputs of an operator.
    Proj(u32),
}

/// An e-node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Term {
    pub(crate) head: Head,
    pub(crate) args: Vec<Id>,
}

impl Language for Term {
    type Discriminant = Head;

    fn discriminant(&self) -> Head {
        self.head.clone()
    }

    fn matches(&self, other: &Term) -> bool {
        self.head == other.head && self.args.len() == other.args.len()
    }

    fn children(&self) -> &[Id] {
        &self.args
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.args
    }
}

/// An operator with its attributes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kind {
    pub(crate) op: Arc<str>,
    pub(crate) attrs: Attrs,
    /// Which inputs are given; the others are optional ones left out.
    pub(crate) given: Vec<bool>,
    /// The node that this is, where it must not be merged with an equal one.
    pub(crate) identity: Option<u32>,
}

impl Kind {
    /// Equal for equal kinds only. Attributes are ordered by name, and their text is exact.
    pub(crate) fn key(&self) -> String {
        use std::fmt::Write;
        let mut s = format!("{} {:?} {:?}", self.op, self.identity, self.given);
        for (k, a) in &self.attrs.0 {
            // Writing to a string cannot fail.
            let _ = write!(s, " {k}={a:?}");
        }
        s
    }
}

/// What is known of an e-class.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// Types of the tuple's parts; of a tensor its own type.
    pub(crate) types: Vec<TensorType>,
    /// Elements of a constant.
    pub(crate) constant: Option<Literal>,
    /// Whether it depends on something trained.
    pub(crate) trained: bool,
}

/// The analysis: carries what is known of the e-node about to be added.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) pending: Option<Known>,
}

impl egg::Analysis<Term> for Facts {
    type Data = Known;

    fn make(egraph: &mut egg::EGraph<Term, Facts>, term: &Term, _: Id) -> Known {
        if let Some(known) = egraph.analysis.pending.take() {
            return known;
        }
        // Only projections are added without: they know what their tuple knows.
        let Head::Proj(i) = term.head else {
            return Known { types: Vec::new(), constant: None, trained: false };
        };
        let tuple = &egraph[term.args[0]].data;
        let types: Vec<TensorType> = tuple.types.get(i as usize).cloned().into_iter().collect();
        let trained = tuple.trained && types.iter().all(|t| t.dtype.is_float());
        Known { types, constant: None, trained }
    }

    fn remake(egraph: &mut egg::EGraph<Term, Facts>, _: &Term, id: Id) -> Known {
        egraph[id].data.clone()
    }

    fn merge(&mut self, a: &mut Known, b: Known) -> egg::DidMerge {
        debug_assert_eq!(a.types, b.types, "terms of different types were united");
        let constant = a.constant.is_none() && b.constant.is_some();
        if constant {
            a.constant = b.constant;
        }
        // What any equal term does not depend on has no gradient to be written; both are right, the shorter list is kept.
        a.trained &= b.trained;
        egg::DidMerge(constant, false)
    }
}
