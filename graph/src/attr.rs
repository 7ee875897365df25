//! Attributes of an operator: plain data in a fixed order.

use crate::{DType, Literal};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeMap};
use std::collections::BTreeMap;

/// One attribute value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Attr {
    Int(i64),
    Float(f64),
    Str(String),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Strs(Vec<String>),
    DType(DType),
    Tensor(Literal),
}

/// An attribute is missing or has another type than the operator asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttrError {
    /// No attribute of that name.
    #[error("attribute {0} is missing")]
    Missing(String),
    /// An attribute of another type.
    #[error("attribute {name} must be {expected}")]
    Type {
        /// Attribute name.
        name: String,
        /// The type asked for.
        expected: &'static str,
    },
}

/// The attributes of a node, ordered by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attrs(pub AttrMap);

/// A map of few entries: a sorted list, since the first node of a tree has room for eleven, and there are many nodes with one attribute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttrMap(Vec<(String, Attr)>);

type Entries<'a> =
    std::iter::Map<std::slice::Iter<'a, (String, Attr)>, fn(&'a (String, Attr)) -> (&'a String, &'a Attr)>;

impl AttrMap {
    fn find(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(k, _)| k.as_str().cmp(name))
    }

    /// The attribute of that name.
    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.find(name).ok().map(|at| &self.0[at].1)
    }

    /// The attribute of that name, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Attr> {
        self.find(name).ok().map(|at| &mut self.0[at].1)
    }

    /// Whether there is one of that name.
    pub fn contains_key(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// Adds an attribute, or gives the one of that name another value; the one before.
    pub fn insert(&mut self, name: String, value: Attr) -> Option<Attr> {
        match self.find(&name) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.reserve_exact(1);
                self.0.insert(at, (name, value));
                None
            }
        }
    }

    /// Takes the attribute of that name out.
    pub fn remove(&mut self, name: &str) -> Option<Attr> {
        self.find(name).ok().map(|at| self.0.remove(at).1)
    }

    /// Names and attributes in order.
    pub fn iter(&self) -> Entries<'_> {
        self.into_iter()
    }

    /// Names in order.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        self.0.iter().map(|(k, _)| k)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> IntoIterator for &'a AttrMap {
    type Item = (&'a String, &'a Attr);
    type IntoIter = Entries<'a>;

    fn into_iter(self) -> Entries<'a> {
        self.0.iter().map(|(k, a)| (k, a))
    }
}

/// Of several with one name the last.
impl FromIterator<(String, Attr)> for AttrMap {
    fn from_iter<I: IntoIterator<Item = (String, Attr)>>(entries: I) -> AttrMap {
        AttrMap(entries.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect())
    }
}

impl Serialize for AttrMap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.len()))?;
        self.iter().try_for_each(|(k, a)| map.serialize_entry(k, a))?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for AttrMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AttrMap, D::Error> {
        BTreeMap::deserialize(deserializer).map(|map| map.into_iter().collect())
    }
}

impl Attrs {
    /// No attributes.
    pub fn new() -> Attrs {
        Attrs::default()
    }

    /// With one more attribute; replaces one of that name.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Attr>) -> Attrs {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// The attribute of that name.
    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.0.get(name)
    }

    fn typed<'a, T>(
        &'a self,
        name: &str,
        expected: &'static str,
        f: impl FnOnce(&'a Attr) -> Option<T>,
    ) -> Result<Option<T>, AttrError> {
        match self.0.get(name) {
            None => Ok(None),
            Some(a) => f(a).map(Some).ok_or_else(|| AttrError::Type { name: name.to_owned(), expected }),
        }
    }

    /// An integer, or the default.
    pub fn int_or(&self, name: &str, default: i64) -> Result<i64, AttrError> {
        Ok(self.opt_int(name)?.unwrap_or(default))
    }

    /// An integer, if given.
    pub fn opt_int(&self, name: &str) -> Result<Option<i64>, AttrError> {
        self.typed(name, "an integer", |a| if let Attr::Int(i) = a { Some(*i) } else { None })
    }

    /// An integer that must be given.
    pub fn int(&self, name: &str) -> Result<i64, AttrError> {
        self.opt_int(name)?.ok_or_else(|| AttrError::Missing(name.to_owned()))
    }

    /// A number, or the default; integers are taken too.
    pub fn float_or(&self, name: &str, default: f64) -> Result<f64, AttrError> {
        let f = |a: &Attr| match a {
            Attr::Float(f) => Some(*f),
            Attr::Int(i) => Some(*i as f64),
            _ => None,
        };
        Ok(self.typed(name, "a number", f)?.unwrap_or(default))
    }

    /// A list of integers, if given.
    pub fn opt_ints(&self, name: &str) -> Result<Option<&[i64]>, AttrError> {
        self.typed(
            name,
            "a list of integers",
            |a| if let Attr::Ints(v) = a { Some(v.as_slice()) } else { None },
        )
    }

    /// A list of integers that must be given.
    pub fn ints(&self, name: &str) -> Result<&[i64], AttrError> {
        self.opt_ints(name)?.ok_or_else(|| AttrError::Missing(name.to_owned()))
    }

    /// A list of numbers, if given.
    pub fn opt_floats(&self, name: &str) -> Result<Option<&[f64]>, AttrError> {
        self.typed(
            name,
            "a list of numbers",
            |a| if let Attr::Floats(v) = a { Some(v.as_slice()) } else { None },
        )
    }

    /// A text, or the default.
    pub fn str_or<'a>(&'a self, name: &str, default: &'a str) -> Result<&'a str, AttrError> {
        Ok(self
            .typed(name, "a text", |a| if let Attr::Str(s) = a { Some(s.as_str()) } else { None })?
            .unwrap_or(default))
    }

    /// A list of texts, if given.
    pub fn opt_strs(&self, name: &str) -> Result<Option<&[String]>, AttrError> {
        self.typed(name, "a list of texts", |a| if let Attr::Strs(v) = a { Some(v.as_slice()) } else { None })
    }

    /// A dtype that must be given.
    pub fn dtype(&self, name: &str) -> Result<DType, AttrError> {
        self.typed(name, "a dtype", |a| if let Attr::DType(d) = a { Some(*d) } else { None })?
            .ok_or_else(|| AttrError::Missing(name.to_owned()))
    }

    /// A tensor, if given.
    pub fn opt_tensor(&self, name: &str) -> Result<Option<&Literal>, AttrError> {
        self.typed(name, "a tensor", |a| if let Attr::Tensor(t) = a { Some(t) } else { None })
    }
}

macro_rules! from {
    ($($t:ty => $v:ident),*) => {$(
        impl From<$t> for Attr {
            fn from(x: $t) -> Attr {
                Attr::$v(x.into())
            }
        }
    )*};
}
from!(i64 => Int, f64 => Float, &str => Str, String => Str, Vec<i64> => Ints, &[i64] => Ints, Vec<f64> => Floats, DType => DType, Literal => Tensor);

impl From<bool> for Attr {
    fn from(b: bool) -> Attr {
        Attr::Int(i64::from(b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_does_as_a_map_does() {
        let (mut list, mut map) = (AttrMap::default(), BTreeMap::new());
        for (i, name) in ["b", "d", "a", "c", "b", "a"].into_iter().enumerate() {
            let (a, b) = (Attr::Int(i as i64), Attr::Int(i as i64));
            assert_eq!(list.insert(name.to_owned(), a), map.insert(name.to_owned(), b));
            assert!(list.iter().eq(map.iter()) && list.len() == map.len());
        }
        assert_eq!(list.remove("c"), map.remove("c"));
        assert_eq!(list.remove("z"), None);
        assert!(list.contains_key("d") && !list.contains_key("c") && list.keys().eq(map.keys()));
        if let Some(a) = list.get_mut("d") {
            *a = Attr::Str("x".to_owned());
        }
        map.insert("d".to_owned(), Attr::Str("x".to_owned()));
        assert_eq!(list.get("d"), map.get("d"));
        let bytes = postcard::to_allocvec(&map).unwrap();
        assert_eq!(postcard::to_allocvec(&list).unwrap(), bytes);
        assert_eq!(postcard::from_bytes::<AttrMap>(&bytes).unwrap(), list);
        assert_eq!(map.into_iter().collect::<AttrMap>(), list);
    }
}
