//! What the shape of an array says: how it is cut into batches, and whether it holds labels as a one among zeros.

use trace::train::usual_class_axis;

/// How an array gives batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The same batch always.
    Whole,
    /// A batch each along an extra first axis.
    Steps,
    /// Rows along the first axis.
    Rows,
}

/// How an array of extents `given` gives batches of extents `shape`, if it does.
pub(super) fn cut(given: &[u64], shape: &[u64]) -> Option<Cut> {
    if given == shape {
        Some(Cut::Whole)
    } else if given.len() == shape.len() + 1 && given[1..] == *shape {
        Some(Cut::Steps)
    } else if !shape.is_empty()
        && given.len() == shape.len()
        && given[1..] == shape[1..]
        && given[0] > shape[0]
    {
        Some(Cut::Rows)
    } else {
        None
    }
}

/// Labels given as a one among zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OneHot {
    /// Number of classes.
    pub classes: u64,
    /// Labels from one element of the class axis to the next.
    pub inner: u64,
}

impl OneHot {
    /// The label of each row of scores; the number of the first row that is not one-hot.
    pub fn labels(self, scores: &[f64]) -> Result<Vec<u64>, usize> {
        let (classes, inner) = (self.classes as usize, self.inner as usize);
        let rows = scores.len() / classes.max(1);
        let label = |row: usize| {
            let (outer, inside) = (row / inner.max(1), row % inner.max(1));
            let mut hot = (0..classes).filter(|c| scores[(outer * classes + c) * inner + inside] != 0.0);
            let class = hot.next().filter(|c| scores[(outer * classes + c) * inner + inside] == 1.0);
            class.filter(|_| hot.next().is_none()).map(|c| c as u64).ok_or(row)
        };
        (0..rows).map(label).collect()
    }
}

/// How labels of extents `given` give batches of extents `shape`: as they are, or with the classes along an axis of their own, any but a
/// batch's first. Where it could be several, the usual one comes first: the last of three, otherwise the second. An axis of one element is
/// no score, but the label itself.
pub(super) fn labels(given: &[u64], shape: &[u64]) -> (Option<Cut>, Vec<OneHot>) {
    let mut one_hot = Vec::new();
    let mut how = cut(given, shape);
    if how.is_some() {
        return (how, one_hot);
    }
    let usual = usual_class_axis(shape.len() + 1);
    let mut axes: Vec<usize> = (1..=shape.len()).collect();
    axes.sort_by_key(|a| *a != usual);
    for (axis, steps) in axes.into_iter().flat_map(|a| [(a, false), (a, true)]) {
        let at = axis + usize::from(steps);
        if at >= given.len() {
            continue;
        }
        let rest = [&given[..at], &given[at + 1..]].concat();
        let found = cut(&rest, shape).filter(|c| (*c == Cut::Steps) == steps);
        if found.is_none() || (how.is_some() && found != how) {
            continue;
        }
        how = found;
        if given[at] > 1 {
            one_hot.push(OneHot { classes: given[at], inner: shape[axis..].iter().product() });
        }
    }
    (how, one_hot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_cut_by_their_shape() {
        assert_eq!(cut(&[2, 3], &[2, 3]), Some(Cut::Whole));
        assert_eq!(cut(&[5, 2, 3], &[2, 3]), Some(Cut::Steps));
        assert_eq!(cut(&[5, 3], &[2, 3]), Some(Cut::Rows));
        assert_eq!(cut(&[1, 3], &[2, 3]), None);
        assert_eq!(cut(&[4], &[]), Some(Cut::Steps));
    }

    #[test]
    fn classes_may_lie_along_any_axis_but_the_first() {
        let axis = |given: &[u64], shape: &[u64]| labels(given, shape);
        // Images: 5 classes for each of 3 x 4 points.
        let second = vec![OneHot { classes: 5, inner: 12 }];
        assert_eq!(axis(&[2, 5, 3, 4], &[2, 3, 4]), (Some(Cut::Whole), second.clone()));
        assert_eq!(axis(&[7, 2, 5, 3, 4], &[2, 3, 4]), (Some(Cut::Steps), second.clone()));
        assert_eq!(axis(&[6, 5, 3, 4], &[2, 3, 4]), (Some(Cut::Rows), second));
        assert_eq!(
            axis(&[2, 3, 4, 5], &[2, 3, 4]),
            (Some(Cut::Whole), vec![OneHot { classes: 5, inner: 1 }])
        );
        // Several axes could be the classes': the usual one first.
        let square = [
            OneHot { classes: 4, inner: 16 },
            OneHot { classes: 4, inner: 4 },
            OneHot { classes: 4, inner: 1 },
        ];
        assert_eq!(axis(&[2, 4, 4, 4], &[2, 4, 4]).1, square);
        assert_eq!(
            axis(&[2, 8, 8], &[2, 8]).1,
            [OneHot { classes: 8, inner: 1 }, OneHot { classes: 8, inner: 8 }]
        );
        assert_eq!(axis(&[16, 1], &[16]), (Some(Cut::Whole), Vec::new()));
        assert_eq!(axis(&[3, 4], &[2]), (Some(Cut::Rows), vec![OneHot { classes: 4, inner: 1 }]));
        assert_eq!(axis(&[2, 3, 9], &[2, 4]), (None, Vec::new()));
    }

    #[test]
    fn a_label_is_the_one_among_zeros() {
        // Two rows of three classes, then the same with the classes in front.
        let last = OneHot { classes: 3, inner: 1 };
        assert_eq!(last.labels(&[0.0, 0.0, 1.0, 1.0, 0.0, 0.0]), Ok(vec![2, 0]));
        let front = OneHot { classes: 3, inner: 2 };
        assert_eq!(front.labels(&[0.0, 1.0, 0.0, 0.0, 1.0, 0.0]), Ok(vec![2, 0]));
        assert_eq!(last.labels(&[0.0, 0.0, 1.0, 0.5, 0.5, 0.0]), Err(1));
        assert_eq!(last.labels(&[0.0, 0.0, 0.0]), Err(0));
        assert_eq!(last.labels(&[1.0, 0.0, 1.0]), Err(0));
    }
}
