//! `--dim`: sizes that are bound, and sizes that vary within bounds.

use compiler::import::parse_binding;
use std::fmt;

/// One `--dim`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DimArg {
    /// The size: its name, or `INPUT:AXIS`.
    pub name: String,
    sizes: Sizes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Sizes {
    One(i64),
    /// Upper bounds of buckets.
    UpTo(Vec<i64>),
}

impl DimArg {
    /// A size that is bound.
    pub fn bound(name: &str, n: i64) -> DimArg {
        DimArg { name: name.to_owned(), sizes: Sizes::One(n) }
    }

    /// The size, if it is bound.
    pub fn fixed(&self) -> Option<(String, i64)> {
        if let Sizes::One(n) = self.sizes { Some((self.name.clone(), n)) } else { None }
    }

    /// Whether a size of `n` is what is said.
    pub fn allows(&self, n: i64) -> bool {
        match &self.sizes {
            Sizes::One(k) => *k == n,
            Sizes::UpTo(list) => matches!(list[..], [bound] if n <= bound),
        }
    }

    /// The bounds of a size that varies.
    pub fn bounds(&self) -> Option<(String, Vec<i64>)> {
        if let Sizes::UpTo(list) = &self.sizes { Some((self.name.clone(), list.clone())) } else { None }
    }
}

/// As it is given.
impl fmt::Display for DimArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sizes {
            Sizes::One(n) => write!(f, "{}={n}", self.name),
            Sizes::UpTo(list) if list.len() == 1 => write!(f, "{}<={}", self.name, list[0]),
            Sizes::UpTo(list) => {
                let list: Vec<String> = list.iter().map(i64::to_string).collect();
                write!(f, "{}={}", self.name, list.join(","))
            }
        }
    }
}

/// Reads `NAME=N`, `NAME=N,N,..` or `NAME<=N`; for `NAME` also `INPUT:AXIS`.
///
/// # Errors
///
/// A text that says what is accepted.
pub fn dim(text: &str) -> Result<DimArg, String> {
    let wrong = || {
        format!(
            "--dim {text}: write NAME=N, NAME=N,N,.. (buckets) or NAME<=N (a bound), with INPUT:AXIS for a size without a name, and N positive"
        )
    };
    if let Some((name, bound)) = text.rsplit_once("<=") {
        let (name, n) = parse_binding(&format!("{}={bound}", name.trim())).map_err(|_| wrong())?;
        return Ok(DimArg { name, sizes: Sizes::UpTo(vec![n]) });
    }
    let (name, list) = text.rsplit_once('=').ok_or_else(wrong)?;
    let mut sizes = Vec::new();
    for n in list.split(',') {
        sizes.push(parse_binding(&format!("{name}={n}")).map_err(|_| wrong())?.1);
    }
    let name = name.to_owned();
    match sizes[..] {
        [n] => Ok(DimArg { name, sizes: Sizes::One(n) }),
        _ => Ok(DimArg { name, sizes: Sizes::UpTo(sizes) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_bounds_are_read() {
        assert_eq!(dim("seq=128").unwrap().fixed(), Some(("seq".to_owned(), 128)));
        assert_eq!(dim("x:1=128,256").unwrap().bounds(), Some(("x:1".to_owned(), vec![128, 256])));
        assert_eq!(dim("seq<=512").unwrap().bounds(), Some(("seq".to_owned(), vec![512])));
        for text in ["seq=128", "x:1=128,256", "seq<=512"] {
            assert_eq!(dim(text).unwrap().to_string(), text);
        }
        assert!(
            dim("n<=4").unwrap().allows(2)
                && !dim("n<=4").unwrap().allows(5)
                && !dim("n=2,4").unwrap().allows(2)
        );
        assert_eq!(dim("a=b=3").unwrap().fixed(), Some(("a=b".to_owned(), 3)));
        for bad in ["seq", "seq=", "seq=0", "seq=1,", "seq=1,x", "seq<=0", "<=4", "=4", "seq<4"] {
            assert!(dim(bad).unwrap_err().contains("NAME<=N"), "{bad}");
        }
    }
}
