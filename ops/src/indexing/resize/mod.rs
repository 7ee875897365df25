//! Resampling of axes: nearest, linear and cubic, any number of axes.

mod export;
mod import;
mod taps;

use super::separable::{Separable, Taps, axes_of};
use crate::{
    Facts, OpDef, OpError, Signature, Work,
    case::Case,
    cpu::{CpuKernel, par},
    export::Export,
    grad::GradCx,
    movement::{count, extents_attr},
    onnx::{OnnxRule, rules},
};
use graph::{Attrs, Shape, TensorType};
use taps::{Axis, Coordinates, Filter, Method, lists, outside};

/// Input resampled along `axes` to extents `sizes`.
///
/// Attributes: `scales` (factor of each axis, as positions are computed with it), `mode` (`nearest`, `linear`, `cubic`), `coordinates`
/// (ONNX's `coordinate_transformation_mode`), and where they matter `nearest_mode` (ONNX's, or `simple`: up or down with the scale),
/// `cubic_coeff_a`, `exclude_outside`, `antialias`, `roi` (starts, then ends, as fractions) and `extrapolation_value`.
pub struct Resize;

impl OpDef for Resize {
    fn name(&self) -> &'static str {
        "Resize"
    }

    fn onnx(&self) -> &'static [OnnxRule] {
        rules!["Resize" => import::resize, "Upsample" => import::upsample]
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let x = s.input(0)?;
        let plan = Plan::of(s.attrs)?;
        let mut out = x.clone();
        for (k, axis) in plan.axes.iter().enumerate() {
            let dim = out.shape.0.get_mut(*axis);
            let dim = dim.ok_or_else(|| OpError::invalid(format!("axis {axis} is not an axis of {x}")))?;
            if dim.as_const() == Some(0) && plan.sizes[k] > 0 {
                return Err(OpError::invalid(format!("an empty axis of {x} cannot be resized")));
            }
            *dim = plan.sizes[k].into();
        }
        if !x.dtype.is_float() && !plan.picks() {
            return Err(OpError::unsupported(format!("interpolation between elements of {}", x.dtype)));
        }
        if let Some(dims) = out.shape.fixed() {
            count(&dims, x.dtype)?;
        }
        Ok(vec![out])
    }

    fn gradient(&self, g: &mut GradCx<'_, '_>) -> Result<(), OpError> {
        let attrs = g.attrs().clone().with("shape", crate::builder::shape_attr(&g.ty(0)?.shape)?);
        let dy = g.cotangent0()?;
        let dx = g.b.op("ResizeGrad", attrs, &[dy])?;
        g.set(0, dx);
        Ok(())
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, s.outputs.first().and_then(|t| t.shape.elements()))
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let (plan, dims, dtype) = (Plan::of(s.attrs)?, s.dims(0)?, s.input(0)?.dtype);
        let map = Separable::new(plan.taps(&dims)?);
        if plan.picks() {
            return crate::for_width!(dtype, T => Ok(Box::new(move |io| {
                map.pick(io.input::<T>(0), io.output::<T>(0));
                Ok(())
            })));
        }
        let out = s.out_dims(0)?;
        let out_of_bounds = plan.outside(&dims, &out);
        crate::for_float!(dtype, self.name(), T => {
            let weights = map.weights::<T>();
            let value = plan.extrapolation as T;
            Ok(Box::new(move |io| {
                map.sum::<T>(&weights, io.input(0), io.output(0));
                if let Some(o) = &out_of_bounds {
                    extrapolate(io.output::<T>(0), &out, o, value);
                }
                Ok(())
            }))
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        export::resize(x)
    }

    fn cases(&self) -> Vec<Case> {
        let image = |h: usize, w: usize| [1, 2, h, w];
        let case = |name, attrs: Attrs, h: usize, w: usize| Case::new(name, attrs, &[&image(h, w)]);
        let roi = |a: Attrs| a.with("roi", vec![0.2, -0.1, 0.9, 0.8]).with("extrapolation_value", 3.0);
        vec![
            case("nearest, twice as large", attrs("nearest", "asymmetric", [2, 3], [4, 6]), 2, 3),
            case("nearest, smaller", attrs("nearest", "half_pixel", [5, 4], [3, 2]), 5, 4),
            case("linear, larger", attrs("linear", "half_pixel", [2, 3], [5, 4]), 2, 3),
            case("linear, corners aligned", attrs("linear", "align_corners", [3, 2], [5, 5]), 3, 2),
            case("linear, smaller", attrs("linear", "pytorch_half_pixel", [4, 5], [1, 3]), 4, 5),
            case(
                "linear, antialiased",
                attrs("linear", "half_pixel", [4, 6], [2, 3]).with("antialias", 1),
                4,
                6,
            ),
            case("linear, a region", roi(attrs("linear", "tf_crop_and_resize", [3, 4], [3, 3])), 3, 4),
            case("cubic", attrs("cubic", "half_pixel", [3, 4], [5, 7]), 3, 4),
            case(
                "cubic, inside only",
                attrs("cubic", "half_pixel_symmetric", [4, 3], [3, 5]).with("exclude_outside", 1),
                4,
                3,
            ),
            Case::new("linear in three axes", volume(), &[&[2, 2, 3]]),
        ]
    }
}

/// The gradient of [`Resize`] from its cotangent: the transposed map, to extents `shape`.
pub struct ResizeGrad;

impl OpDef for ResizeGrad {
    fn name(&self) -> &'static str {
        "ResizeGrad"
    }

    fn infer(&self, s: &Signature<'_>) -> Result<Vec<TensorType>, OpError> {
        let (dy, dims) = (s.input(0)?, extents_attr(s, "shape")?);
        let plan = Plan::of(s.attrs)?;
        let mut want = dims.clone();
        for (axis, size) in plan.axes.iter().zip(&plan.sizes) {
            let dim = want.get_mut(*axis);
            *dim.ok_or_else(|| OpError::invalid(format!("axis {axis} is not an axis of {dims:?}")))? = *size;
        }
        count(&dims, dy.dtype)?;
        if dy.shape != Shape::from(&want) {
            return Err(OpError::invalid(format!("the input is {dy}, the resized extents are {want:?}")));
        }
        Ok(vec![TensorType::new(dy.dtype, &dims)])
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn work(&self, s: &Signature<'_>) -> Work {
        work(s, s.opt_input(0).and_then(|t| t.shape.elements()))
    }

    fn facts(&self, _: &Signature<'_>) -> Facts {
        Facts { folds: true, ..Facts::default() }
    }

    fn cpu(&self, s: &Signature<'_>, _: usize) -> Result<CpuKernel, OpError> {
        let taps = Plan::of(s.attrs)?.taps(&extents_attr(s, "shape")?)?;
        let map = Separable::new(taps.iter().map(Taps::transposed).collect());
        crate::for_float!(s.input(0)?.dtype, self.name(), T => {
            let weights = map.weights::<T>();
            Ok(Box::new(move |io| {
                map.sum::<T>(&weights, io.input(0), io.output(0));
                Ok(())
            }))
        })
    }

    fn export(&self, x: &Export<'_>) -> Result<(), OpError> {
        let taps = Plan::of(x.sig.attrs)?.taps(&extents_attr(x.sig, "shape")?)?;
        x.set(0, super::separable::written(x, x.input(0)?, &taps)?);
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let up = attrs("nearest", "asymmetric", [2, 3], [4, 6]).with("shape", vec![1, 2, 2, 3]);
        let down = attrs("linear", "half_pixel", [4, 3], [2, 5]).with("shape", vec![1, 1, 4, 3]);
        vec![Case::new("nearest", up, &[&[1, 2, 4, 6]]), Case::new("linear", down, &[&[1, 1, 2, 5]])]
    }
}

/// Attributes of a resize of the axes of images.
fn attrs(mode: &str, coordinates: &str, from: [usize; 2], to: [usize; 2]) -> Attrs {
    Attrs::new()
        .with("mode", mode)
        .with("coordinates", coordinates)
        .with("axes", vec![2, 3])
        .with("sizes", vec![to[0] as i64, to[1] as i64])
        .with("scales", vec![to[0] as f64 / from[0] as f64, to[1] as f64 / from[1] as f64])
}

fn volume() -> Attrs {
    Attrs::new()
        .with("mode", "linear")
        .with("coordinates", "half_pixel")
        .with("axes", vec![0, 1, 2])
        .with("sizes", vec![3, 1, 4])
        .with("scales", vec![1.5, 0.5, 4.0 / 3.0])
}

/// A multiply-add for each tap of each element on the resized side.
fn work(s: &Signature<'_>, elements: Option<u64>) -> Work {
    let taps = Plan::of(s.attrs).map_or(1, |p| {
        let each = match p.method.filter {
            Filter::Nearest(_) => 1u64,
            Filter::Linear => 2,
            Filter::Cubic { .. } => 4,
        };
        each.saturating_pow(p.axes.len() as u32)
    });
    Work { flops: elements.unwrap_or(0).saturating_mul(2 * taps), bytes: s.io_bytes(), product: false }
}

/// The attributes, checked.
pub(super) struct Plan {
    axes: Vec<usize>,
    sizes: Vec<usize>,
    scales: Vec<f64>,
    roi: Vec<(f64, f64)>,
    method: Method,
    pub(super) extrapolation: f64,
}

impl Plan {
    pub(super) fn of(attrs: &Attrs) -> Result<Plan, OpError> {
        let unsigned = |name: &str| -> Result<Vec<usize>, OpError> {
            let list = attrs.ints(name)?.iter().map(|n| usize::try_from(*n).ok()).collect::<Option<_>>();
            list.ok_or_else(|| OpError::invalid(format!("{name} holds a negative number")))
        };
        let (axes, sizes) = (unsigned("axes")?, unsigned("sizes")?);
        let scales = attrs.opt_floats("scales")?.unwrap_or_default().to_vec();
        let n = axes.len();
        if sizes.len() != n || scales.len() != n || axes.windows(2).any(|w| w[0] >= w[1]) {
            return Err(OpError::invalid("axes must be sorted, with a size and a scale each"));
        }
        if scales.iter().any(|s| !s.is_finite() || *s <= 0.0) {
            return Err(OpError::invalid(format!("scales {scales:?} are not all positive")));
        }
        let roi = match attrs.opt_floats("roi")? {
            None => vec![(0.0, 1.0); n],
            Some(r) if r.len() == 2 * n => (0..n).map(|k| (r[k], r[n + k])).collect(),
            Some(_) => return Err(OpError::invalid("roi must hold a start and an end for each axis")),
        };
        let method = Method::of(attrs)?;
        Ok(Plan {
            axes,
            sizes,
            scales,
            roi,
            method,
            extrapolation: attrs.float_or("extrapolation_value", 0.0)?,
        })
    }

    /// Whether every output element is one input element.
    pub(super) fn picks(&self) -> bool {
        matches!(self.method.filter, Filter::Nearest(_))
            && self.method.coordinates != Coordinates::TfCropAndResize
    }

    fn axis(&self, axis: usize, inputs: usize) -> Option<Axis> {
        let k = self.axes.iter().position(|a| *a == axis)?;
        Some(Axis { inputs, outputs: self.sizes[k], scale: self.scales[k], roi: self.roi[k] })
    }

    pub(super) fn taps(&self, dims: &[usize]) -> Result<Vec<Taps>, OpError> {
        axes_of(dims, |a, n| {
            let Some(axis) = self.axis(a, n) else { return Ok(None) };
            if n == 0 && axis.outputs > 0 {
                return Err(OpError::invalid("an empty axis cannot be resized"));
            }
            Ok(Some(Taps::new(n, &lists(&axis, &self.method))))
        })
    }

    /// For each axis the coordinates that lie outside of the input; `None` if none can.
    pub(super) fn outside(&self, dims: &[usize], out: &[usize]) -> Option<Vec<Vec<bool>>> {
        if self.method.coordinates != Coordinates::TfCropAndResize {
            return None;
        }
        let of = |a: usize| match self.axis(a, dims[a]) {
            Some(axis) => (0..out[a]).map(|o| outside(&axis, &self.method, o)).collect(),
            None => vec![false; out[a]],
        };
        Some((0..dims.len()).map(of).collect())
    }
}

/// Sets every element that has a coordinate outside to `value`.
fn extrapolate<T: crate::cpu::Float>(y: &mut [T], dims: &[usize], outside: &[Vec<bool>], value: T) {
    let Some((last, lead)) = outside.split_last() else { return };
    par::rows(y, last.len(), |r, row| {
        let mut rest = r;
        let mut out = false;
        for a in (0..lead.len()).rev() {
            out |= lead[a][rest % dims[a]];
            rest /= dims[a];
        }
        row.iter_mut().zip(last).filter(|(_, o)| out || **o).for_each(|(y, _)| *y = value);
    });
}
