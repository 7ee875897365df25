//! From operators to ONNX nodes: the way back from [`crate::onnx`].
//!
//! A definition stands beside its operator ([`crate::OpDef::export`]) and writes it in standard operators of one version, for the types
//! of one node. What needs a single standard node becomes that node in a file, everything else a function of that name.

use crate::{OpDef, OpError, Signature, cpu::half::is_half};
use graph::{Attrs, DType, Literal, TensorType};
use std::{
    cell::RefCell,
    ops::{Add, Div, Mul, Neg, Sub},
};

/// The version of the standard operators that definitions are written in.
pub const OPSET: i64 = 21;

/// A node of a standard operator; numbers stand for values.
#[derive(Clone, Debug, PartialEq)]
pub struct StandardNode {
    /// Operator of the default domain.
    pub op_type: &'static str,
    /// Inputs; `None` for an optional one left out.
    pub inputs: Vec<Option<u32>>,
    /// Outputs.
    pub outputs: Vec<u32>,
    /// Attributes in ONNX's names and types.
    pub attrs: Attrs,
}

/// What an operator does for one node's types. Values below `inputs` are the node's inputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// Number of inputs of the node, those left out included.
    pub inputs: u32,
    /// Constants.
    pub constants: Vec<(u32, Literal)>,
    /// Nodes in a valid order.
    pub nodes: Vec<StandardNode>,
    /// The node's outputs; `None` for one that nothing reads and that was not written.
    pub outputs: Vec<Option<u32>>,
    next: u32,
}

/// Writes an operator for the types of one node. `used` says of each output whether anything reads it.
pub fn body(op: &dyn OpDef, sig: &Signature<'_>, used: &[bool]) -> Result<Body, OpError> {
    let inputs = sig.inputs.len() as u32;
    let empty = Body { inputs, outputs: vec![None; sig.outputs.len()], next: inputs, ..Body::default() };
    let body = RefCell::new(empty);
    let wide = |t: &TensorType| if is_half(t.dtype) { DType::F32 } else { t.dtype };
    let types = |given: &mut dyn Iterator<Item = Option<&TensorType>>| -> Vec<Option<TensorType>> {
        given.map(|t| t.map(|t| TensorType { dtype: wide(t), shape: t.shape.clone() })).collect()
    };
    let converts = matches!(op.name(), "Cast" | "Reshape");
    let halves = |t: &&TensorType| is_half(t.dtype) && !converts;
    if sig.inputs.iter().copied().flatten().chain(sig.outputs.iter().copied()).any(|t| halves(&t)) {
        // As the kernels do: widened, computed in float32, rounded once.
        let from = types(&mut sig.inputs.iter().copied());
        let to = types(&mut sig.outputs.iter().map(|t| Some(*t)));
        let is_wide = |i: usize| sig.opt_input(i).is_some_and(|t| is_half(t.dtype));
        let mut constants = sig.constants.clone();
        constants.iter_mut().enumerate().filter(|(i, _)| is_wide(*i)).for_each(|(_, c)| *c = None);
        let wide = Signature {
            attrs: sig.attrs,
            inputs: from.iter().map(Option::as_ref).collect(),
            constants,
            outputs: to.iter().flatten().collect(),
        };
        let ids: Vec<u32> = (0..inputs)
            .map(|i| match sig.opt_input(i as usize) {
                Some(t) if is_half(t.dtype) => {
                    Term { body: &body, id: i, dtype: t.dtype }.cast(DType::F32).id
                }
                _ => i,
            })
            .collect();
        op.export(&Export { sig: &wide, used, ids: &ids, body: &body })?;
        for (i, t) in sig.outputs.iter().enumerate().filter(|(_, t)| is_half(t.dtype)) {
            let made = body.borrow().outputs[i];
            if let Some(id) = made {
                let rounded = Term { body: &body, id, dtype: DType::F32 }.cast(t.dtype);
                body.borrow_mut().outputs[i] = Some(rounded.id);
            }
        }
    } else {
        let ids: Vec<u32> = (0..inputs).collect();
        op.export(&Export { sig, used, ids: &ids, body: &body })?;
    }
    let mut body = body.into_inner();
    for i in 0..body.outputs.len() {
        let Some(v) = body.outputs[i] else {
            if used.get(i).copied().unwrap_or(true) {
                return Err(OpError::unsupported(format!("writing output {i} of {} as ONNX", op.name())));
            }
            continue;
        };
        // An output is made by a node, and by no other output's name.
        let made = body.nodes.iter().any(|n| n.outputs.contains(&v));
        if !made || body.outputs[..i].contains(&Some(v)) {
            let copy = body.next;
            body.next += 1;
            let attrs = Attrs::new();
            body.nodes.push(StandardNode {
                op_type: "Identity",
                inputs: vec![Some(v)],
                outputs: vec![copy],
                attrs,
            });
            body.outputs[i] = Some(copy);
        }
    }
    Ok(body)
}

/// One node on its way out.
pub struct Export<'a> {
    /// Attributes and types.
    pub sig: &'a Signature<'a>,
    used: &'a [bool],
    /// The value of each input.
    ids: &'a [u32],
    body: &'a RefCell<Body>,
}

/// A value of the body.
#[derive(Clone, Copy)]
pub struct Term<'a> {
    body: &'a RefCell<Body>,
    id: u32,
    dtype: DType,
}

impl<'a> Export<'a> {
    /// Input `i`, which must be given.
    pub fn input(&self, i: usize) -> Result<Term<'a>, OpError> {
        self.opt(i).ok_or_else(|| OpError::invalid(format!("input {i} is missing")))
    }

    /// Input `i`, if given.
    pub fn opt(&self, i: usize) -> Option<Term<'a>> {
        self.sig.opt_input(i).map(|t| Term { body: self.body, id: self.ids[i], dtype: t.dtype })
    }

    /// Whether anything reads output `i`.
    pub fn used(&self, i: usize) -> bool {
        self.used.get(i).copied().unwrap_or(false)
    }

    /// Extents of input `i`.
    pub fn dims(&self, i: usize) -> Result<Vec<usize>, OpError> {
        self.sig.dims(i)
    }

    /// Sets output `i`.
    pub fn set(&self, i: usize, v: Term<'a>) {
        if let Some(o) = self.body.borrow_mut().outputs.get_mut(i) {
            *o = Some(v.id);
        }
    }

    /// A constant.
    pub fn constant(&self, elements: Literal) -> Term<'a> {
        constant(self.body, elements)
    }

    /// A constant vector of integers.
    pub fn ints(&self, values: &[i64]) -> Term<'a> {
        self.constant(Literal::ints(values))
    }

    /// A constant scalar.
    pub fn number(&self, dtype: DType, value: f64) -> Term<'a> {
        self.constant(Literal::scalar(dtype, value))
    }

    /// A constant tensor from its elements in row-major order.
    pub fn tensor(&self, dtype: DType, shape: &[usize], elements: &[f64]) -> Result<Term<'a>, OpError> {
        let bytes: Vec<u8> =
            elements.iter().flat_map(|v| Literal::scalar(dtype, *v).bytes().to_vec()).collect();
        let shape = shape.iter().map(|d| *d as u64).collect();
        let literal = Literal::new(dtype, shape, bytes).map_err(|e| OpError::invalid(e.to_string()))?;
        Ok(self.constant(literal))
    }

    /// Zeros of these extents.
    pub fn zeros(&self, dtype: DType, shape: &[usize]) -> Term<'a> {
        let shape: Vec<i64> = shape.iter().map(|d| *d as i64).collect();
        let value = Literal::filled(dtype, vec![1], 0.0).unwrap_or_else(|_| Literal::ints(&[0]));
        let mut v = self.call("ConstantOfShape", &[self.ints(&shape)], Attrs::new().with("value", value));
        v.dtype = dtype;
        v
    }

    /// A standard node; its outputs have these dtypes.
    pub fn node(
        &self,
        op_type: &'static str,
        inputs: &[Option<Term<'a>>],
        attrs: Attrs,
        outputs: &[DType],
    ) -> Vec<Term<'a>> {
        node(self.body, op_type, inputs, attrs, outputs)
    }

    /// A standard node of one output of the first input's dtype.
    pub fn call(&self, op_type: &'static str, inputs: &[Term<'a>], attrs: Attrs) -> Term<'a> {
        call(self.body, op_type, inputs, attrs)
    }

    /// The node is this standard node: all inputs and outputs in order.
    pub fn same(&self, op_type: &'static str, attrs: Attrs) -> Result<(), OpError> {
        let inputs: Vec<_> = (0..self.sig.inputs.len()).map(|i| self.opt(i)).collect();
        self.same_of(op_type, &inputs, attrs)
    }

    /// The node is this standard node of other inputs.
    pub fn same_of(
        &self,
        op_type: &'static str,
        inputs: &[Option<Term<'a>>],
        attrs: Attrs,
    ) -> Result<(), OpError> {
        let dtypes: Vec<DType> = self.sig.outputs.iter().map(|t| t.dtype).collect();
        for (i, v) in self.node(op_type, inputs, attrs, &dtypes).into_iter().enumerate() {
            self.set(i, v);
        }
        Ok(())
    }
}

fn constant(body: &RefCell<Body>, elements: Literal) -> Term<'_> {
    let mut b = body.borrow_mut();
    let dtype = elements.dtype();
    if let Some((id, _)) = b.constants.iter().find(|(_, l)| *l == elements) {
        return Term { body, id: *id, dtype };
    }
    let id = b.next;
    b.next += 1;
    b.constants.push((id, elements));
    Term { body, id, dtype }
}

fn node<'a>(
    body: &'a RefCell<Body>,
    op_type: &'static str,
    inputs: &[Option<Term<'a>>],
    attrs: Attrs,
    outputs: &[DType],
) -> Vec<Term<'a>> {
    let mut b = body.borrow_mut();
    let first = b.next;
    b.next += outputs.len() as u32;
    let ids = first..b.next;
    let inputs = inputs.iter().map(|i| i.map(|t| t.id)).collect();
    b.nodes.push(StandardNode { op_type, inputs, outputs: ids.clone().collect(), attrs });
    ids.zip(outputs).map(|(id, d)| Term { body, id, dtype: *d }).collect()
}

fn call<'a>(body: &'a RefCell<Body>, op_type: &'static str, inputs: &[Term<'a>], attrs: Attrs) -> Term<'a> {
    let dtype = inputs.first().map_or(DType::F32, |t| t.dtype);
    let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
    node(body, op_type, &inputs, attrs, &[dtype])[0]
}

/// A value or a number that becomes one of the other operand's dtype.
pub trait Operand<'a>: Copy {
    /// Its dtype, if it has one.
    fn known(self) -> Option<DType>;
    /// As a value.
    fn of(self, body: &'a RefCell<Body>, dtype: DType) -> Term<'a>;
}

impl<'a> Operand<'a> for Term<'a> {
    fn known(self) -> Option<DType> {
        Some(self.dtype)
    }

    fn of(self, _: &'a RefCell<Body>, _: DType) -> Term<'a> {
        self
    }
}

impl<'a> Operand<'a> for f64 {
    fn known(self) -> Option<DType> {
        None
    }

    fn of(self, body: &'a RefCell<Body>, dtype: DType) -> Term<'a> {
        constant(body, Literal::scalar(dtype, self))
    }
}

impl<'a> Term<'a> {
    /// Its dtype.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// A standard operator of one input without attributes.
    pub fn call(self, op_type: &'static str) -> Term<'a> {
        call(self.body, op_type, &[self], Attrs::new())
    }

    /// A standard operator of this and another value.
    pub fn with(self, op_type: &'static str, other: impl Operand<'a>) -> Term<'a> {
        call(self.body, op_type, &[self, other.of(self.body, self.dtype)], Attrs::new())
    }

    /// A standard test of this and another value.
    pub fn test(self, op_type: &'static str, other: impl Operand<'a>) -> Term<'a> {
        Term { dtype: DType::Bool, ..self.with(op_type, other) }
    }

    /// A standard operator of one input.
    pub fn call_with(self, op_type: &'static str, attrs: Attrs) -> Term<'a> {
        call(self.body, op_type, &[self], attrs)
    }

    /// Whether it is NaN.
    pub fn is_nan(self) -> Term<'a> {
        Term { dtype: DType::Bool, ..self.call("IsNaN") }
    }

    /// Whether both conditions hold.
    pub fn and(self, other: Term<'a>) -> Term<'a> {
        self.with("And", other)
    }

    /// Whether it is less.
    pub fn less(self, other: impl Operand<'a>) -> Term<'a> {
        self.test("Less", other)
    }

    /// Whether it is at least the other.
    pub fn at_least(self, other: impl Operand<'a>) -> Term<'a> {
        self.test("GreaterOrEqual", other)
    }

    /// Whether it is greater.
    pub fn greater(self, other: impl Operand<'a>) -> Term<'a> {
        self.test("Greater", other)
    }

    /// Whether it is equal.
    pub fn equals(self, other: impl Operand<'a>) -> Term<'a> {
        self.test("Equal", other)
    }

    /// `yes` where this condition holds, else `no`.
    pub fn pick(self, yes: impl Operand<'a>, no: impl Operand<'a>) -> Term<'a> {
        let dtype = yes.known().or(no.known()).unwrap_or(DType::F32);
        let (yes, no) = (yes.of(self.body, dtype), no.of(self.body, dtype));
        Term { dtype, ..call(self.body, "Where", &[self, yes, no], Attrs::new()) }
    }

    /// Converted; itself if it has that dtype.
    pub fn cast(self, to: DType) -> Term<'a> {
        if self.dtype == to {
            return self;
        }
        Term { dtype: to, ..call(self.body, "Cast", &[self], Attrs::new().with("to", code(to))) }
    }

    /// A standard reduction (since opset 18) over `axes`; itself if there are none.
    pub fn reduce(self, op_type: &'static str, axes: &[i64], keep: bool) -> Term<'a> {
        if axes.is_empty() {
            return self;
        }
        let list = constant(self.body, Literal::ints(axes));
        call(self.body, op_type, &[self, list], Attrs::new().with("keepdims", keep))
    }

    /// The sum over `axes`.
    pub fn sum(self, axes: &[i64], keep: bool) -> Term<'a> {
        self.reduce("ReduceSum", axes, keep)
    }

    /// The same elements under these extents.
    pub fn reshape(self, shape: &[usize]) -> Term<'a> {
        let shape: Vec<i64> = shape.iter().map(|d| *d as i64).collect();
        let list = constant(self.body, Literal::ints(&shape));
        call(self.body, "Reshape", &[self, list], Attrs::new().with("allowzero", 1))
    }

    /// Broadcast to these extents.
    pub fn expand(self, shape: &[usize]) -> Term<'a> {
        let shape: Vec<i64> = shape.iter().map(|d| *d as i64).collect();
        call(self.body, "Expand", &[self, constant(self.body, Literal::ints(&shape))], Attrs::new())
    }

    /// Axes permuted.
    pub fn transpose(self, perm: &[usize]) -> Term<'a> {
        if perm.iter().enumerate().all(|(i, p)| i == *p) {
            return self;
        }
        let perm: Vec<i64> = perm.iter().map(|p| *p as i64).collect();
        call(self.body, "Transpose", &[self], Attrs::new().with("perm", perm))
    }

    /// Its last two axes exchanged, for a tensor of `rank` axes.
    pub fn turned(self, rank: usize) -> Term<'a> {
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 2, rank - 1);
        self.transpose(&perm)
    }
}

macro_rules! arithmetic {
    ($($Trait:ident $f:ident $name:literal),*) => {$(
        impl<'a, O: Operand<'a>> $Trait<O> for Term<'a> {
            type Output = Term<'a>;

            fn $f(self, other: O) -> Term<'a> {
                self.with($name, other)
            }
        }

        impl<'a> $Trait<Term<'a>> for f64 {
            type Output = Term<'a>;

            fn $f(self, other: Term<'a>) -> Term<'a> {
                self.of(other.body, other.dtype).with($name, other)
            }
        }
    )*};
}
arithmetic!(Add add "Add", Sub sub "Sub", Mul mul "Mul", Div div "Div");

impl<'a> Neg for Term<'a> {
    type Output = Term<'a>;

    fn neg(self) -> Term<'a> {
        self.call("Neg")
    }
}

/// The number of a dtype in ONNX files.
pub fn code(dtype: DType) -> i64 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::U16 => 4,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::U32 => 12,
        DType::U64 => 13,
        DType::BF16 => 16,
    }
}
