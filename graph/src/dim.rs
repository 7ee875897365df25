//! Dimensions as expressions over named sizes.
//!
//! A dimension is a polynomial with integer coefficients over atoms (a symbol, a floor or ceiling division, a minimum, a maximum), kept
//! in a normal form: two dimensions are known to be equal exactly when their normal forms are. Where they differ nothing is concluded.
//!
//! Nearly all are plain integers, and a graph of a million nodes has millions of them: these take no memory of their own.

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::Error as _,
    ser::{SerializeMap, SerializeStruct},
};
use std::{cell::Cell, cmp::Ordering, collections::BTreeMap, fmt, sync::Arc};

/// The name of an unknown size.
pub type Symbol = Arc<str>;
/// Values of symbols.
pub type Bindings = BTreeMap<Symbol, i64>;

/// Inclusive bounds of a dimension; `hi == i64::MAX` means unbounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Least value.
    pub lo: i64,
    /// Greatest value.
    pub hi: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
enum Atom {
    Symbol(Symbol),
    FloorDiv(Box<Dim>, Box<Dim>),
    CeilDiv(Box<Dim>, Box<Dim>),
    Min(Box<Dim>, Box<Dim>),
    Max(Box<Dim>, Box<Dim>),
}

/// A product of atoms, sorted; empty for the constant term.
type Monomial = Vec<Atom>;

/// A size: an integer or an expression over named sizes, in normal form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    constant: i64,
    /// Coefficients of the other monomials; no zero coefficients, and no empty map. In a box, as it is seldom there.
    #[allow(clippy::box_collection)]
    others: Option<Box<BTreeMap<Monomial, i64>>>,
}

impl Ord for Dim {
    fn cmp(&self, other: &Dim) -> Ordering {
        self.terms().cmp(other.terms())
    }
}

impl PartialOrd for Dim {
    fn partial_cmp(&self, other: &Dim) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Written as the map of all its terms.
impl Serialize for Dim {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Terms<'a>(&'a Dim);
        impl Serialize for Terms<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut map = serializer.serialize_map(Some(self.0.terms().count()))?;
                self.0.terms().try_for_each(|(m, c)| map.serialize_entry(m, &c))?;
                map.end()
            }
        }
        let mut out = serializer.serialize_struct("Dim", 1)?;
        out.serialize_field("terms", &Terms(self))?;
        out.end()
    }
}

/// Divisions, minima and maxima that may lie within each other in a size that is read from a file.
pub(crate) const MAX_DEPTH: u32 = 64;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// One level of nesting while a size is decoded: a file may nest them deeper than the stack is.
struct Level;

impl Level {
    fn enter() -> Option<Level> {
        let depth = DEPTH.get();
        (depth < MAX_DEPTH).then(|| {
            DEPTH.set(depth + 1);
            Level
        })
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

impl<'de> Deserialize<'de> for Dim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Dim, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename = "Dim")]
        struct Raw {
            terms: BTreeMap<Monomial, i64>,
        }
        let _level = Level::enter().ok_or_else(|| D::Error::custom("a size is nested too deeply"))?;
        let Raw { terms } = Raw::deserialize(deserializer)?;
        if terms.iter().any(|(m, c)| *c == 0 || !m.is_sorted()) {
            return Err(D::Error::custom("a size is not in normal form"));
        }
        Ok(Dim::from_terms(terms))
    }
}

impl From<u64> for Dim {
    fn from(n: u64) -> Self {
        Dim::constant(i64::try_from(n).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Self {
        Dim::from(n as u64)
    }
}

impl Dim {
    /// The integer `n`.
    pub fn constant(n: i64) -> Dim {
        Dim { constant: n, others: None }
    }

    /// The unknown size `name`.
    pub fn symbol(name: &str) -> Dim {
        Dim::atom(Atom::Symbol(name.into()))
    }

    fn atom(a: Atom) -> Dim {
        Dim::from_terms(BTreeMap::from([(vec![a], 1)]))
    }

    /// The sum of terms, none of which is zero.
    fn from_terms(mut terms: BTreeMap<Monomial, i64>) -> Dim {
        let constant = terms.remove(&[][..]).unwrap_or(0);
        Dim { constant, others: (!terms.is_empty()).then(|| Box::new(terms)) }
    }

    /// Its terms in order, the constant one first.
    fn terms(&self) -> impl DoubleEndedIterator<Item = (&[Atom], i64)> {
        let constant = (self.constant != 0).then_some((&[][..], self.constant));
        let others = self.others.iter().flat_map(|terms| terms.iter());
        constant.into_iter().chain(others.map(|(m, c)| (m.as_slice(), *c)))
    }

    /// Its term, if there is no other.
    fn single(&self) -> Option<(&[Atom], i64)> {
        let mut terms = self.terms();
        terms.next().filter(|_| terms.next().is_none())
    }

    /// Its value, if it is a plain integer.
    pub fn as_const(&self) -> Option<i64> {
        self.others.is_none().then_some(self.constant)
    }

    /// The symbol, if it is exactly one.
    pub fn as_symbol(&self) -> Option<&Symbol> {
        match self.single() {
            Some(([Atom::Symbol(s)], 1)) => Some(s),
            _ => None,
        }
    }

    /// Sum; saturates at the limits of `i64`.
    #[allow(clippy::should_implement_trait)]
    pub fn add(&self, other: &Dim) -> Dim {
        let constant = self.constant.saturating_add(other.constant);
        let Some(added) = &other.others else { return Dim { constant, others: self.others.clone() } };
        let mut terms = self.others.as_deref().cloned().unwrap_or_default();
        for (m, c) in added.iter() {
            let sum = terms.get(m).copied().unwrap_or(0).saturating_add(*c);
            if sum == 0 {
                terms.remove(m);
            } else {
                terms.insert(m.clone(), sum);
            }
        }
        Dim { constant, ..Dim::from_terms(terms) }
    }

    /// Difference.
    #[allow(clippy::should_implement_trait)]
    pub fn sub(&self, other: &Dim) -> Dim {
        self.add(&other.mul(&Dim::constant(-1)))
    }

    /// Product; saturates at the limits of `i64`.
    #[allow(clippy::should_implement_trait)]
    pub fn mul(&self, other: &Dim) -> Dim {
        if let (Some(a), Some(b)) = (self.as_const(), other.as_const()) {
            return Dim::constant(a.saturating_mul(b));
        }
        let mut out = Dim::constant(0);
        for (ma, ca) in self.terms() {
            for (mb, cb) in other.terms() {
                let mut m: Monomial = ma.iter().chain(mb).cloned().collect();
                m.sort();
                out = out.add(&Dim::from_terms(BTreeMap::from([(m, ca.saturating_mul(cb))])));
            }
        }
        out
    }

    /// Quotient rounded down; `None` when the divisor is known to be zero.
    pub fn floor_div(&self, by: &Dim) -> Option<Dim> {
        self.div(by, |a, b| a.checked_div_euclid(b).unwrap_or(i64::MAX), Atom::FloorDiv)
    }

    /// Quotient rounded up; `None` when the divisor is known to be zero.
    pub fn ceil_div(&self, by: &Dim) -> Option<Dim> {
        fn up(a: i64, b: i64) -> Option<i64> {
            a.checked_neg()?.checked_div_euclid(b)?.checked_neg()
        }
        self.div(by, |a, b| up(a, b).unwrap_or(i64::MAX), Atom::CeilDiv)
    }

    fn div(&self, by: &Dim, f: fn(i64, i64) -> i64, atom: fn(Box<Dim>, Box<Dim>) -> Atom) -> Option<Dim> {
        let divisor = by.as_const();
        if divisor == Some(0) {
            return None;
        }
        if let (Some(a), Some(b)) = (self.as_const(), divisor) {
            return Some(Dim::constant(f(a, b)));
        }
        if self == by {
            return Some(Dim::constant(1));
        }
        if let Some(b) = divisor
            && self.terms().all(|(_, c)| c.checked_rem(b) == Some(0))
        {
            return Some(Dim::from_terms(self.terms().map(|(m, c)| (m.to_vec(), c / b)).collect()));
        }
        // An exact division by one monomial cancels its atoms.
        if let Some((mb, cb)) = by.single()
            && let Some(terms) = self
                .terms()
                .map(|(m, c)| Some((cancel(m, mb)?, (c.checked_rem(cb) == Some(0)).then(|| c / cb)?)))
                .collect()
        {
            return Some(Dim::from_terms(terms));
        }
        Some(Dim::atom(atom(Box::new(self.clone()), Box::new(by.clone()))))
    }

    /// The smaller of two sizes.
    pub fn minimum(&self, other: &Dim) -> Dim {
        self.extreme(other, i64::min, Atom::Min)
    }

    /// The larger of two sizes.
    pub fn maximum(&self, other: &Dim) -> Dim {
        self.extreme(other, i64::max, Atom::Max)
    }

    fn extreme(&self, other: &Dim, f: fn(i64, i64) -> i64, atom: fn(Box<Dim>, Box<Dim>) -> Atom) -> Dim {
        if self == other {
            return self.clone();
        }
        if let (Some(a), Some(b)) = (self.as_const(), other.as_const()) {
            return Dim::constant(f(a, b));
        }
        let (a, b) = if self <= other { (self, other) } else { (other, self) };
        Dim::atom(atom(Box::new(a.clone()), Box::new(b.clone())))
    }

    /// Its value under `bindings`; `None` if a symbol is unbound, a divisor is zero or a number overflows.
    pub fn eval(&self, bindings: &Bindings) -> Option<i64> {
        let mut sum = 0i64;
        for (m, c) in self.terms() {
            let mut product = c;
            for a in m {
                product = product.checked_mul(a.eval(bindings)?)?;
            }
            sum = sum.checked_add(product)?;
        }
        Some(sum)
    }

    /// The expression with the bound symbols replaced.
    pub fn substitute(&self, bindings: &Bindings) -> Dim {
        let mut out = Dim::constant(0);
        for (m, c) in self.terms() {
            let mut product = Dim::constant(c);
            for a in m {
                product = product.mul(&a.substitute(bindings));
            }
            out = out.add(&product);
        }
        out
    }

    /// Bounds given those of the symbols (a symbol without any is at least 0).
    pub fn interval(&self, of: &dyn Fn(&Symbol) -> Interval) -> Interval {
        let mut sum = Interval { lo: 0, hi: 0 };
        for (m, c) in self.terms() {
            let mut p = Interval { lo: c, hi: c };
            for a in m {
                p = mul_interval(p, a.interval(of));
            }
            sum = Interval { lo: sum.lo.saturating_add(p.lo), hi: sum.hi.saturating_add(p.hi) };
        }
        sum
    }

    /// Every symbol in it, in order, without repetition.
    pub fn symbols(&self) -> Vec<Symbol> {
        let mut out = std::collections::BTreeSet::new();
        self.collect_symbols(&mut out);
        out.into_iter().collect()
    }

    fn collect_symbols(&self, out: &mut std::collections::BTreeSet<Symbol>) {
        for a in self.terms().flat_map(|(m, _)| m) {
            match a {
                Atom::Symbol(s) => {
                    out.insert(s.clone());
                }
                Atom::FloorDiv(x, y) | Atom::CeilDiv(x, y) | Atom::Min(x, y) | Atom::Max(x, y) => {
                    x.collect_symbols(out);
                    y.collect_symbols(out);
                }
            }
        }
    }
}

/// `m` without the atoms of `by`, or `None` if one is missing.
fn cancel(m: &[Atom], by: &[Atom]) -> Option<Monomial> {
    let mut rest = m.to_vec();
    for a in by {
        let at = rest.iter().position(|x| x == a)?;
        rest.remove(at);
    }
    Some(rest)
}

fn mul_interval(a: Interval, b: Interval) -> Interval {
    let p = [
        a.lo.saturating_mul(b.lo),
        a.lo.saturating_mul(b.hi),
        a.hi.saturating_mul(b.lo),
        a.hi.saturating_mul(b.hi),
    ];
    Interval { lo: p.into_iter().fold(i64::MAX, i64::min), hi: p.into_iter().fold(i64::MIN, i64::max) }
}

impl Atom {
    fn eval(&self, b: &Bindings) -> Option<i64> {
        Some(match self {
            Atom::Symbol(s) => *b.get(s)?,
            Atom::FloorDiv(x, y) => x.eval(b)?.checked_div_euclid(y.eval(b)?)?,
            Atom::CeilDiv(x, y) => x.eval(b)?.checked_neg()?.checked_div_euclid(y.eval(b)?)?.checked_neg()?,
            Atom::Min(x, y) => x.eval(b)?.min(y.eval(b)?),
            Atom::Max(x, y) => x.eval(b)?.max(y.eval(b)?),
        })
    }

    fn substitute(&self, b: &Bindings) -> Dim {
        let keep = || Dim::atom(self.clone());
        match self {
            Atom::Symbol(s) => b.get(s).map_or_else(keep, |n| Dim::constant(*n)),
            Atom::FloorDiv(x, y) => x.substitute(b).floor_div(&y.substitute(b)).unwrap_or_else(keep),
            Atom::CeilDiv(x, y) => x.substitute(b).ceil_div(&y.substitute(b)).unwrap_or_else(keep),
            Atom::Min(x, y) => x.substitute(b).minimum(&y.substitute(b)),
            Atom::Max(x, y) => x.substitute(b).maximum(&y.substitute(b)),
        }
    }

    fn interval(&self, of: &dyn Fn(&Symbol) -> Interval) -> Interval {
        match self {
            Atom::Symbol(s) => of(s),
            Atom::FloorDiv(x, y) | Atom::CeilDiv(x, y) => {
                let (x, y) = (x.interval(of), y.interval(of));
                if y.lo < 1 || x.lo < 0 {
                    return Interval { lo: i64::MIN, hi: i64::MAX };
                }
                let up = i64::from(matches!(self, Atom::CeilDiv(..)));
                let hi = if x.hi == i64::MAX { i64::MAX } else { (x.hi / y.lo).saturating_add(up) };
                Interval { lo: x.lo / y.hi, hi }
            }
            Atom::Min(x, y) => {
                let (x, y) = (x.interval(of), y.interval(of));
                Interval { lo: x.lo.min(y.lo), hi: x.hi.min(y.hi) }
            }
            Atom::Max(x, y) => {
                let (x, y) = (x.interval(of), y.interval(of));
                Interval { lo: x.lo.max(y.lo), hi: x.hi.max(y.hi) }
            }
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.as_const() == Some(0) {
            return f.write_str("0");
        }
        for (i, (m, c)) in self.terms().rev().enumerate() {
            if i > 0 {
                f.write_str(if c < 0 { "-" } else { "+" })?;
            } else if c < 0 {
                f.write_str("-")?;
            }
            let c = c.unsigned_abs();
            if m.is_empty() || c != 1 {
                write!(f, "{c}{}", if m.is_empty() { "" } else { "*" })?;
            }
            for (j, a) in m.iter().enumerate() {
                write!(f, "{}{a}", if j > 0 { "*" } else { "" })?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A name that could be read as something else is quoted.
            Atom::Symbol(s) if is_identifier(s) => f.write_str(s),
            Atom::Symbol(s) => write!(f, "{s:?}"),
            Atom::FloorDiv(x, y) => write!(f, "floordiv({x}, {y})"),
            Atom::CeilDiv(x, y) => write!(f, "ceildiv({x}, {y})"),
            Atom::Min(x, y) => write!(f, "min({x}, {y})"),
            Atom::Max(x, y) => write!(f, "max({x}, {y})"),
        }
    }
}

/// Whether the text form of a symbol is its bare name.
fn is_identifier(s: &str) -> bool {
    s.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n(x: i64) -> Dim {
        Dim::constant(x)
    }

    #[test]
    fn sums_and_products_have_one_form() {
        let (a, b) = (Dim::symbol("a"), Dim::symbol("b"));
        assert_eq!(a.add(&b).mul(&a), b.mul(&a).add(&a.mul(&a)));
        assert_eq!(a.sub(&a), n(0));
        assert_eq!(a.mul(&n(4)).floor_div(&n(2)), Some(a.mul(&n(2))));
        assert_eq!(a.mul(&b).floor_div(&b), Some(a.clone()));
        assert_ne!(a, b);
        assert_eq!(n(7).ceil_div(&n(2)), Some(n(4)));
        assert_eq!(a.floor_div(&n(0)), None);
    }

    #[test]
    fn substitution_and_evaluation_agree() {
        let seq = Dim::symbol("seq");
        let d = seq.add(&n(3)).floor_div(&n(2)).unwrap().maximum(&n(4)).mul(&seq);
        for v in 0..40 {
            let b = Bindings::from([("seq".into(), v)]);
            assert_eq!(d.eval(&b), Some(((v + 3) / 2).max(4) * v));
            assert_eq!(d.substitute(&b).as_const(), d.eval(&b));
        }
        assert_eq!(d.to_string(), "seq*max(4, floordiv(seq+3, 2))");
        assert_eq!(d.symbols(), vec![Symbol::from("seq")]);
    }

    /// Plain integers stand in the order of their values, but for 0, which has no term, before all others; the wire has all terms.
    #[test]
    fn order_and_wire_are_those_of_the_terms() {
        let (a, b) = (Dim::symbol("a"), Dim::symbol("b"));
        let sorted = [n(0), n(-3), a.add(&n(-3)), n(2), a.add(&n(2)), n(7), a.clone(), a.mul(&b), b.clone()];
        assert!(sorted.is_sorted(), "{sorted:?}");
        for d in &sorted {
            let bytes = postcard::to_allocvec(d).unwrap();
            assert_eq!(postcard::from_bytes::<Dim>(&bytes).unwrap(), *d);
        }
        // One term, of no atoms, whose coefficient is 7.
        assert_eq!(postcard::to_allocvec(&n(7)).unwrap(), [1, 0, 14]);
        assert_eq!(postcard::to_allocvec(&n(0)).unwrap(), [0]);
        assert_eq!(size_of::<Dim>(), 16);
    }

    #[test]
    fn intervals_contain_every_value() {
        let x = Dim::symbol("x");
        let d = x.mul(&n(3)).sub(&n(2)).ceil_div(&n(4)).unwrap().minimum(&n(9));
        let i = d.interval(&|_| Interval { lo: 1, hi: 20 });
        for v in 1..=20 {
            let e = d.eval(&Bindings::from([("x".into(), v)])).unwrap();
            assert!(i.lo <= e && e <= i.hi, "{e} outside {i:?}");
        }
    }
}
