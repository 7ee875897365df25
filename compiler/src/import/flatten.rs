//! One flat list of nodes: the model's functions expanded, every node named, in topological order.
//!
//! A node of a function body gets the calling node's name as a prefix, and so do the values that the function does not give back.

use super::{
    error::{ImportError, ImportErrorKind},
    model::{Model, ModelSource, Opsets, domain_name, opsets},
};
use graph::quote_name;
use onnx_protobuf as pb;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, HashSet},
    rc::Rc,
};

/// Deepest nesting of function calls.
const MAX_CALLS: usize = 64;

/// A node after expansion.
#[derive(Clone, Debug)]
pub struct FlatNode<'m> {
    /// Unique name.
    pub name: String,
    /// Operator domain; `""` for the default one.
    pub domain: &'m str,
    /// Operator.
    pub op_type: &'m str,
    /// Version of the domain; 0 if the model does not say.
    pub opset: i64,
    /// Attributes by name, references to attributes of a calling node resolved.
    pub attrs: Vec<(&'m str, &'m pb::AttributeProto)>,
    /// Names of the inputs; empty where left out.
    pub inputs: Vec<String>,
    /// Names of the outputs; empty where not wanted.
    pub outputs: Vec<String>,
    /// Bodies of control flow by attribute name.
    pub bodies: Vec<(&'m str, FlatBody<'m>)>,
}

/// A body of control flow after expansion. What it defines has names that nothing else in the model has.
#[derive(Clone, Debug)]
pub struct FlatBody<'m> {
    /// Which body of the model's file it is, counted as they begin; `None` inside of a function, whose bodies are many.
    pub number: Option<u32>,
    /// New and old names of what its nodes hold or repeat: Constant, ConstantOfShape.
    pub held: Vec<(String, &'m str)>,
    /// Names of its inputs.
    pub inputs: Vec<String>,
    /// Its initializers by their new names.
    pub initializers: Vec<(String, &'m pb::TensorProto)>,
    /// Its nodes.
    pub nodes: Vec<FlatNode<'m>>,
    /// Names of its outputs, and what the file says of their types.
    pub outputs: Vec<(String, &'m pb::ValueInfoProto)>,
}

impl FlatBody<'_> {
    /// Names that it reads and does not make.
    fn captures(&self) -> Vec<&str> {
        let mut own: HashSet<&str> = self.inputs.iter().map(String::as_str).collect();
        own.extend(self.initializers.iter().map(|(n, _)| n.as_str()));
        own.extend(self.nodes.iter().flat_map(|n| &n.outputs).map(String::as_str));
        let outputs = self.outputs.iter().map(|(n, _)| n.as_str());
        let reads = self.nodes.iter().flat_map(FlatNode::reads).chain(outputs);
        reads.filter(|n| !n.is_empty() && !own.contains(n)).collect()
    }
}

impl FlatNode<'_> {
    /// The operator for messages.
    pub fn op(&self) -> String {
        if self.domain.is_empty() {
            self.op_type.to_owned()
        } else {
            format!("{}.{}", self.domain, self.op_type)
        }
    }

    /// Input names that must exist, those that bodies read from outside included.
    pub fn reads(&self) -> Vec<&str> {
        let own = self.inputs.iter().map(String::as_str).filter(|n| !n.is_empty());
        own.chain(self.bodies.iter().flat_map(|(_, b)| b.captures())).collect()
    }

    fn error(&self, source: &ModelSource, what: String) -> ImportError {
        ImportError::node(source, &self.name, &self.op(), ImportErrorKind::Model(what))
    }
}

type Key<'m> = (&'m str, &'m str, &'m str);

struct Function<'m> {
    proto: &'m pb::FunctionProto,
    opsets: Rc<Opsets>,
}

/// What names and attributes mean inside of one body.
struct Scope<'m> {
    /// Name of the calling node; `None` in the main graph.
    caller: Option<String>,
    /// Values of the function by their names in it.
    values: HashMap<&'m str, String>,
    attrs: BTreeMap<&'m str, &'m pb::AttributeProto>,
    in_function: bool,
    opsets: Rc<Opsets>,
}

struct Expander<'m> {
    source: &'m ModelSource,
    functions: BTreeMap<Key<'m>, Function<'m>>,
    calls: Vec<Key<'m>>,
    /// Bodies outside of functions so far.
    bodies: u32,
    out: Vec<FlatNode<'m>>,
    node_names: Names,
    value_names: Names,
    /// Bytes that may still be spent on expanded nodes.
    allowance: u64,
}

/// Names that are taken, with the next number of those asked for repeatedly.
#[derive(Default)]
struct Names {
    taken: HashSet<String>,
    next: HashMap<String, u32>,
}

impl Names {
    fn fresh(&mut self, hint: &str) -> String {
        let mut name = hint.to_owned();
        while !self.taken.insert(name.clone()) {
            let n = self.next.entry(hint.to_owned()).or_insert(1);
            *n += 1;
            name = format!("{hint}.{n}");
        }
        name
    }
}

/// Expands, names and sorts the nodes of a model. `given` are names that exist without a node: inputs and initializers.
pub fn flatten<'m>(model: &'m Model, given: &HashSet<&str>) -> Result<Vec<FlatNode<'m>>, ImportError> {
    let source = &model.source;
    let fail = |what: String| ImportError::file(source, ImportErrorKind::Model(what));
    let mut functions = BTreeMap::new();
    for proto in &model.proto.functions {
        let key = (domain_name(&proto.domain), proto.name.as_str(), proto.overload.as_str());
        let mut opsets = opsets(&proto.opset_import, &mut Vec::new()).map_err(&fail)?;
        for (domain, version) in &model.opsets {
            opsets.entry(domain.clone()).or_insert(*version);
        }
        let opsets = Rc::new(opsets);
        if functions.insert(key, Function { proto, opsets }).is_some() {
            return Err(fail(format!("function {} is defined twice", quote_name(&proto.name))));
        }
    }
    let graph = &model.proto.graph;
    let mut value_names = Names::default();
    if !functions.is_empty() || graph.node.iter().any(|n| graphs_of(n).next().is_some()) {
        value_names.taken.extend(given.iter().map(|s| (*s).to_owned()));
        value_names.taken.extend(graph.node.iter().flat_map(|n| &n.output).cloned());
    }
    let mut e = Expander {
        source,
        functions,
        calls: Vec::new(),
        bodies: 0,
        out: Vec::with_capacity(graph.node.len()),
        node_names: Names::default(),
        value_names,
        allowance: 0,
    };
    let nodes = graph.node.len() as u64;
    e.allowance = (16 << 20) + 4096 * nodes;
    let scope = Scope {
        caller: None,
        values: HashMap::new(),
        attrs: BTreeMap::new(),
        in_function: false,
        opsets: Rc::new(model.opsets.clone()),
    };
    e.body(&graph.node, &scope)?;
    sort(source, e.out, Some(given))
}

impl<'m> Expander<'m> {
    fn body(&mut self, nodes: &'m [pb::NodeProto], scope: &Scope<'m>) -> Result<(), ImportError> {
        for node in nodes {
            let hint = node_name(node);
            let hint = match &scope.caller {
                Some(c) => format!("{c}/{hint}"),
                None => hint,
            };
            let name = self.node_names.fresh(&hint);
            let value = |n: &'m str| match scope.values.get(n) {
                Some(v) => v.clone(),
                None => n.to_owned(),
            };
            let domain = domain_name(&node.domain);
            let mut bodies = Vec::new();
            for a in &node.attribute {
                if let Some(g) = a.g.as_ref() {
                    bodies.push((a.name.as_str(), self.nested(g, scope)?));
                }
            }
            let flat = FlatNode {
                name,
                domain,
                op_type: &node.op_type,
                opset: scope.opsets.get(domain).copied().unwrap_or(0),
                attrs: attributes(node, scope),
                inputs: node.input.iter().map(|n| value(n)).collect(),
                outputs: node.output.iter().map(|n| value(n)).collect(),
                bodies,
            };
            self.spend(&flat)?;
            let key = (domain, node.op_type.as_str(), node.overload.as_str());
            if self.functions.contains_key(&key) {
                self.call(key, &flat)?;
            } else {
                self.out.push(flat);
            }
        }
        Ok(())
    }

    /// A body of control flow: its own names are made unique, those from outside stay what they are there.
    fn nested(&mut self, graph: &'m pb::GraphProto, outer: &Scope<'m>) -> Result<FlatBody<'m>, ImportError> {
        let mut scope = Scope {
            caller: outer.caller.clone(),
            values: outer.values.clone(),
            attrs: outer.attrs.clone(),
            in_function: outer.in_function,
            opsets: outer.opsets.clone(),
        };
        let number = (!outer.in_function).then_some(self.bodies);
        self.bodies += u32::from(number.is_some());
        let own = graph.input.iter().map(|i| &i.name).chain(graph.initializer.iter().map(|t| &t.name));
        for name in own.chain(graph.node.iter().flat_map(|n| &n.output)).filter(|n| !n.is_empty()) {
            let fresh = self.value_names.fresh(name);
            scope.values.insert(name, fresh);
        }
        let outside = std::mem::take(&mut self.out);
        let done = self.body(&graph.node, &scope);
        let nodes = std::mem::replace(&mut self.out, outside);
        done?;
        let nodes = sort(self.source, nodes, None)?;
        let named = |n: &'m String| scope.values.get(n.as_str()).unwrap_or(n).clone();
        let holds = |n: &&pb::NodeProto| matches!(n.op_type.as_str(), "Constant" | "ConstantOfShape");
        let held = graph.node.iter().filter(holds).filter_map(|n| n.output.first());
        Ok(FlatBody {
            number,
            held: held.map(|n| (named(n), n.as_str())).collect(),
            inputs: graph.input.iter().map(|i| named(&i.name)).collect(),
            initializers: graph.initializer.iter().map(|t| (named(&t.name), t)).collect(),
            nodes,
            outputs: graph.output.iter().map(|o| (named(&o.name), o)).collect(),
        })
    }

    /// Expands a call of a function.
    fn call(&mut self, key: Key<'m>, node: &FlatNode<'m>) -> Result<(), ImportError> {
        if self.calls.contains(&key) {
            return Err(node.error(self.source, "the function calls itself".to_owned()));
        }
        if self.calls.len() >= MAX_CALLS {
            return Err(
                node.error(self.source, format!("functions call each other more than {MAX_CALLS} deep"))
            );
        }
        let Some(Function { proto, opsets }) = self.functions.get(&key) else { return Ok(()) };
        let (proto, opsets) = (*proto, opsets.clone());
        if node.inputs.len() > proto.input.len() || node.outputs.len() > proto.output.len() {
            let what = format!(
                "the function takes {} inputs and gives {} outputs, but the node has {} and {}",
                proto.input.len(),
                proto.output.len(),
                node.inputs.len(),
                node.outputs.len()
            );
            return Err(node.error(self.source, what));
        }
        let mut values: HashMap<&'m str, String> = HashMap::new();
        for (i, formal) in proto.input.iter().enumerate() {
            values.insert(formal, node.inputs.get(i).cloned().unwrap_or_default());
        }
        let mut passed = Vec::new();
        for (i, formal) in proto.output.iter().enumerate() {
            let actual = node.outputs.get(i).filter(|a| !a.is_empty());
            match (values.get(formal.as_str()), actual) {
                // An output that is an input as it came.
                (Some(from), Some(to)) => passed.push((from.clone(), to.clone())),
                (None, Some(to)) => {
                    values.insert(formal, to.clone());
                }
                (_, None) => {}
            }
        }
        for inner in proto.node.iter().flat_map(|n| &n.output).filter(|n| !n.is_empty()) {
            if !values.contains_key(inner.as_str()) {
                let name = self.value_names.fresh(&format!("{}/{inner}", node.name));
                values.insert(inner, name);
            }
        }
        let mut attrs: BTreeMap<&'m str, &'m pb::AttributeProto> =
            proto.attribute_proto.iter().map(|a| (a.name.as_str(), a)).collect();
        attrs.extend(node.attrs.iter().copied());
        let scope = Scope { caller: Some(node.name.clone()), values, attrs, in_function: true, opsets };
        self.calls.push(key);
        self.body(&proto.node, &scope)?;
        self.calls.pop();
        for (from, to) in passed {
            let name = self.node_names.fresh(&format!("{}/{to}", node.name));
            self.out.push(FlatNode {
                name,
                domain: "",
                op_type: "Identity",
                opset: node.opset,
                attrs: Vec::new(),
                inputs: vec![from],
                outputs: vec![to],
                bodies: Vec::new(),
            });
        }
        Ok(())
    }

    /// Functions that call each other can grow without bounds; this ends it.
    fn spend(&mut self, node: &FlatNode<'m>) -> Result<(), ImportError> {
        let texts = node.inputs.iter().chain(&node.outputs).chain([&node.name]).map(|s| s.len() as u64 + 32);
        let bytes = texts.sum::<u64>() + size_of::<FlatNode>() as u64;
        match self.allowance.checked_sub(bytes) {
            _ if self.calls.is_empty() => Ok(()),
            Some(left) => {
                self.allowance = left;
                Ok(())
            }
            None => Err(node.error(self.source, "its functions expand to too many nodes".to_owned())),
        }
    }
}

/// The name of a node in the file, or one made from its first output, which stays when other nodes come or go.
fn node_name(node: &pb::NodeProto) -> String {
    if !node.name.is_empty() {
        return node.name.clone();
    }
    match node.output.iter().find(|o| !o.is_empty()) {
        Some(o) => format!("{o}/{}", node.op_type),
        None => node.op_type.clone(),
    }
}

fn attributes<'m>(node: &'m pb::NodeProto, scope: &Scope<'m>) -> Vec<(&'m str, &'m pb::AttributeProto)> {
    let resolve = |a: &'m pb::AttributeProto| {
        if a.ref_attr_name.is_empty() || !scope.in_function {
            return Some((a.name.as_str(), a));
        }
        // Without the attribute at the calling node, the node has none either.
        scope.attrs.get(a.ref_attr_name.as_str()).map(|v| (a.name.as_str(), *v))
    };
    node.attribute.iter().filter(|a| a.g.is_none()).filter_map(resolve).collect()
}

fn graphs_of(node: &pb::NodeProto) -> impl Iterator<Item = &pb::GraphProto> {
    node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs))
}

/// Sorts nodes so that each stands after those it reads from, as near to the file's order as can be. `given` are names that exist without
/// a node; `None` in a body, where names may come from outside.
fn sort<'m>(
    source: &ModelSource,
    mut nodes: Vec<FlatNode<'m>>,
    given: Option<&HashSet<&str>>,
) -> Result<Vec<FlatNode<'m>>, ImportError> {
    let mut maker: HashMap<&str, usize> = HashMap::new();
    for (i, n) in nodes.iter().enumerate() {
        for o in n.outputs.iter().filter(|o| !o.is_empty()) {
            if given.is_some_and(|g| g.contains(o.as_str())) {
                return Err(
                    n.error(source, format!("output {} is also an input or initializer", quote_name(o)))
                );
            }
            if let Some(other) = maker.insert(o, i) {
                let other = quote_name(&nodes[other].name);
                return Err(n.error(source, format!("output {} is also made by node {other}", quote_name(o))));
            }
        }
    }
    let mut waits = vec![0usize; nodes.len()];
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (i, n) in nodes.iter().enumerate() {
        for name in n.inputs.iter().filter(|n| !n.is_empty()) {
            if given.is_some_and(|g| !g.contains(name.as_str())) && !maker.contains_key(name.as_str()) {
                let what = format!("input {} is made by no node", quote_name(name));
                return Err(n.error(source, what));
            }
        }
        for m in n.reads().into_iter().filter_map(|name| maker.get(name)) {
            waits[i] += 1;
            readers[*m].push(i);
        }
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..nodes.len()).filter(|i| waits[*i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(i);
        for r in &readers[i] {
            waits[*r] -= 1;
            if waits[*r] == 0 {
                ready.push(Reverse(*r));
            }
        }
    }
    if order.len() < nodes.len() {
        let stuck = on_cycle(&nodes, &maker, &waits);
        return Err(
            nodes[stuck].error(source, "it is on a cycle: it reads what is made from its own output".into())
        );
    }
    let mut slots: Vec<Option<FlatNode<'m>>> = nodes.drain(..).map(Some).collect();
    Ok(order.into_iter().filter_map(|i| slots[i].take()).collect())
}

/// A node on a cycle: follow what waits backwards until a node comes again.
fn on_cycle(nodes: &[FlatNode<'_>], maker: &HashMap<&str, usize>, waits: &[usize]) -> usize {
    let mut at = waits.iter().position(|w| *w > 0).unwrap_or(0);
    let mut seen = vec![false; nodes.len()];
    while !std::mem::replace(&mut seen[at], true) {
        let before = nodes[at].reads().into_iter().filter_map(|n| maker.get(n)).find(|m| waits[**m] > 0);
        match before {
            Some(m) => at = *m,
            None => break,
        }
    }
    at
}
