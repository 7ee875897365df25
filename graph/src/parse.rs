//! Sizes, shapes and types from the text that `Display` writes: `f32[batch, 4*floordiv("a b"+3, 2)]`.
//!
//! The text forms of plans are exact, so reading them gives the same normal form again.

use crate::{DType, Dim, Shape, TensorType, dim::MAX_DEPTH, unquote_name};
use std::str::FromStr;

/// A text that is no size, shape or type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no {kind}: {what}")]
pub struct TypeTextError {
    /// The text.
    pub text: String,
    /// What it was read as.
    pub kind: &'static str,
    /// What is wrong, and where.
    pub what: String,
}

/// The whole of `text` read by `f`.
fn whole<T>(
    text: &str,
    kind: &'static str,
    f: impl FnOnce(&mut Cursor<'_>) -> Result<T, String>,
) -> Result<T, TypeTextError> {
    let mut c = Cursor { rest: text, depth: 0 };
    let value = f(&mut c).and_then(|v| match c.rest {
        "" => Ok(v),
        rest => Err(format!("{rest:?} is left over")),
    });
    value.map_err(|what| TypeTextError { text: text.to_owned(), kind, what })
}

impl FromStr for Dim {
    type Err = TypeTextError;

    fn from_str(text: &str) -> Result<Dim, TypeTextError> {
        whole(text, "size", |c| c.dim())
    }
}

impl FromStr for Shape {
    type Err = TypeTextError;

    fn from_str(text: &str) -> Result<Shape, TypeTextError> {
        whole(text, "shape", |c| c.shape())
    }
}

impl FromStr for TensorType {
    type Err = TypeTextError;

    fn from_str(text: &str) -> Result<TensorType, TypeTextError> {
        whole(text, "type", |c| {
            let name = c.identifier();
            let dtype = DType::from_name(name).ok_or_else(|| format!("there is no element type {name:?}"))?;
            Ok(TensorType { dtype, shape: c.shape()? })
        })
    }
}

struct Cursor<'a> {
    rest: &'a str,
    depth: u32,
}

impl<'a> Cursor<'a> {
    /// Takes `token` if it comes next.
    fn take(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.take(token) { Ok(()) } else { Err(format!("{token:?} expected before {:?}", self.rest)) }
    }

    fn while_char(&mut self, f: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !f(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn identifier(&mut self) -> &'a str {
        self.while_char(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    fn shape(&mut self) -> Result<Shape, String> {
        self.expect("[")?;
        let mut dims = Vec::new();
        while !self.take("]") {
            if !dims.is_empty() {
                self.expect(", ")?;
            }
            dims.push(self.dim()?);
        }
        Ok(Shape(dims))
    }

    fn dim(&mut self) -> Result<Dim, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("it is nested too deeply".to_owned());
        }
        let negative = self.take("-");
        let mut sum = self.term(negative)?;
        loop {
            if self.take("+") {
                sum = sum.add(&self.term(false)?);
            } else if self.take("-") {
                sum = sum.add(&self.term(true)?);
            } else {
                self.depth -= 1;
                return Ok(sum);
            }
        }
    }

    fn term(&mut self, negative: bool) -> Result<Dim, String> {
        let mut product = if self.rest.starts_with(|c: char| c.is_ascii_digit()) {
            let digits = self.while_char(|c| c.is_ascii_digit());
            let n: i128 = digits.parse().map_err(|_| format!("{digits} is too large"))?;
            let n = i64::try_from(if negative { -n } else { n });
            Dim::constant(n.map_err(|_| format!("{digits} is too large"))?)
        } else {
            let sign = Dim::constant(if negative { -1 } else { 1 });
            sign.mul(&self.atom()?)
        };
        while self.take("*") {
            product = product.mul(&self.atom()?);
        }
        Ok(product)
    }

    fn atom(&mut self) -> Result<Dim, String> {
        if self.rest.starts_with('"') {
            let mut escaped = true;
            let end = self.rest.char_indices().find(|(_, c)| {
                let ends = *c == '"' && !escaped;
                // The opening quote counts as escaped.
                escaped = *c == '\\' && !escaped;
                ends
            });
            let (end, _) = end.ok_or("a quote is not closed")?;
            let (quoted, rest) = self.rest.split_at(end + 1);
            self.rest = rest;
            return Ok(Dim::symbol(&unquote_name(quoted).ok_or("a broken escape")?));
        }
        let name = self.identifier();
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(format!("a name expected before {:?}", self.rest));
        }
        if !self.take("(") {
            return Ok(Dim::symbol(name));
        }
        let x = self.dim()?;
        self.expect(", ")?;
        let y = self.dim()?;
        self.expect(")")?;
        let divided = match name {
            "floordiv" => x.floor_div(&y),
            "ceildiv" => x.ceil_div(&y),
            "min" => Some(x.minimum(&y)),
            "max" => Some(x.maximum(&y)),
            _ => return Err(format!("there is no function {name}")),
        };
        divided.ok_or_else(|| "a division by zero".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_round_trip() {
        let (a, b) = (Dim::symbol("a"), Dim::symbol("past \"n\" + 1\\"));
        let n = Dim::constant;
        let dims = [
            n(0),
            n(-7),
            n(i64::MIN),
            a.clone(),
            b.clone(),
            Dim::symbol("3").mul(&Dim::symbol("max")).sub(&n(2)),
            a.add(&n(3)).floor_div(&n(2)).unwrap().maximum(&n(4)).mul(&a),
            a.mul(&n(-3)).add(&b).ceil_div(&a.add(&b)).unwrap().minimum(&a.sub(&b).mul(&a)),
        ];
        for d in &dims {
            assert_eq!(d.to_string().parse::<Dim>().as_ref(), Ok(d), "{d}");
        }
        let ty = TensorType { dtype: DType::BF16, shape: Shape(dims.to_vec()) };
        assert_eq!(ty.to_string().parse(), Ok(ty));
        assert_eq!("f32[]".parse(), Ok(TensorType::new(DType::F32, Shape::scalar())));
    }

    #[test]
    fn broken_texts_are_errors() {
        let deep = "min(a, ".repeat(1000);
        for text in ["", "a+", "f(a, b)", "min(a)", "floordiv(a, 0)", "\"a", "9223372036854775808", &deep] {
            assert!(text.parse::<Dim>().is_err(), "{text}");
        }
        for text in ["f32", "f31[1]", "f32[1", "f32[1 2]", "f32[1]]"] {
            assert!(text.parse::<TensorType>().is_err(), "{text}");
        }
    }
}
