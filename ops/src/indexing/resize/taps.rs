//! Where output coordinates lie in the input, and with which weights they read it.

use crate::OpError;
use graph::Attrs;

/// One resized axis.
pub(super) struct Axis {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Factor from input to output coordinates; not always outputs / inputs.
    pub(super) scale: f64,
    /// Start and end of the region, as fractions of the axis.
    pub(super) roi: (f64, f64),
}

/// How an output coordinate becomes a position in the input (ONNX's names).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coordinates {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    TfHalfPixelForNn,
    TfCropAndResize,
}

/// How a position becomes a coordinate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    PreferFloor,
    PreferCeil,
    Floor,
    Ceil,
    /// Up when shrinking, down otherwise (opset 10).
    Simple,
}

/// The interpolation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Filter {
    Nearest(Rounding),
    Linear,
    Cubic { a: f64 },
}

/// All that is common to the axes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Method {
    pub(super) filter: Filter,
    pub(super) coordinates: Coordinates,
    exclude_outside: bool,
    antialias: bool,
}

impl Method {
    pub(super) fn of(attrs: &Attrs) -> Result<Method, OpError> {
        let unknown = |what: &str, name: &str| OpError::invalid(format!("{what} {name:?} is unknown"));
        let coordinates = match attrs.str_or("coordinates", "half_pixel")? {
            "half_pixel" => Coordinates::HalfPixel,
            "half_pixel_symmetric" => Coordinates::HalfPixelSymmetric,
            "pytorch_half_pixel" => Coordinates::PytorchHalfPixel,
            "align_corners" => Coordinates::AlignCorners,
            "asymmetric" => Coordinates::Asymmetric,
            "tf_half_pixel_for_nn" => Coordinates::TfHalfPixelForNn,
            "tf_crop_and_resize" => Coordinates::TfCropAndResize,
            c => return Err(unknown("coordinate transformation", c)),
        };
        let rounding = match attrs.str_or("nearest_mode", "round_prefer_floor")? {
            "round_prefer_floor" => Rounding::PreferFloor,
            "round_prefer_ceil" => Rounding::PreferCeil,
            "floor" => Rounding::Floor,
            "ceil" => Rounding::Ceil,
            "simple" => Rounding::Simple,
            r => return Err(unknown("nearest mode", r)),
        };
        let filter = match attrs.str_or("mode", "nearest")? {
            "nearest" => Filter::Nearest(rounding),
            "linear" => Filter::Linear,
            "cubic" => Filter::Cubic { a: attrs.float_or("cubic_coeff_a", -0.75)? },
            m => return Err(unknown("mode", m)),
        };
        Ok(Method {
            filter,
            coordinates,
            exclude_outside: attrs.int_or("exclude_outside", 0)? != 0,
            antialias: attrs.int_or("antialias", 0)? != 0,
        })
    }
}

/// The position of output coordinate `o` in the input.
fn position(axis: &Axis, coordinates: Coordinates, o: usize) -> f64 {
    let (o, inputs, outputs) = (o as f64, axis.inputs as f64, axis.outputs as f64);
    let half_pixel = (o + 0.5) / axis.scale - 0.5;
    let x = match coordinates {
        Coordinates::HalfPixel => half_pixel,
        Coordinates::HalfPixelSymmetric => {
            // Keeps the centre where rounding the output extent would move it.
            half_pixel + inputs / 2.0 * (1.0 - outputs / (axis.scale * inputs))
        }
        Coordinates::PytorchHalfPixel if axis.outputs == 1 => 0.0,
        Coordinates::PytorchHalfPixel => half_pixel,
        Coordinates::AlignCorners if axis.outputs == 1 => 0.0,
        Coordinates::AlignCorners => {
            // ONNX measures the output before its extent is rounded down; scales are single precision in files.
            let extent = axis.scale * inputs;
            let extent = if (extent - outputs).abs() <= 1e-5 * outputs { outputs } else { extent };
            o * (inputs - 1.0) / (extent - 1.0)
        }
        Coordinates::Asymmetric => o / axis.scale,
        Coordinates::TfHalfPixelForNn => (o + 0.5) / axis.scale,
        Coordinates::TfCropAndResize => {
            let (start, end) = axis.roi;
            if axis.outputs == 1 {
                0.5 * (start + end) * (inputs - 1.0)
            } else {
                (start + o * (end - start) / (outputs - 1.0)) * (inputs - 1.0)
            }
        }
    };
    // Scales are single precision in files: a position within their error of a coordinate or of a tie is meant to be there.
    let near = (x * 2.0).round() / 2.0;
    if (x - near).abs() <= 1e-6 * x.abs().max(1.0) { near } else { x }
}

/// Whether output coordinate `o` lies outside of the input, where the extrapolation value stands.
pub(super) fn outside(axis: &Axis, method: &Method, o: usize) -> bool {
    let x = position(axis, method.coordinates, o);
    method.coordinates == Coordinates::TfCropAndResize && !(0.0..=axis.inputs as f64 - 1.0).contains(&x)
}

/// For every output coordinate the input coordinates it reads, with weights; none where it lies outside.
pub(super) fn lists(axis: &Axis, method: &Method) -> Vec<Vec<(usize, f64)>> {
    let one = |o: usize| {
        if outside(axis, method, o) {
            return Vec::new();
        }
        let x = position(axis, method.coordinates, o);
        let last = axis.inputs as i64 - 1;
        match method.filter {
            Filter::Nearest(rounding) => {
                let at = match rounding {
                    Rounding::PreferFloor => (x - 0.5).ceil(),
                    Rounding::PreferCeil => (x + 0.5).floor(),
                    Rounding::Floor => x.floor(),
                    Rounding::Simple if axis.scale >= 1.0 => x.floor(),
                    Rounding::Ceil | Rounding::Simple => x.ceil(),
                };
                vec![((at as i64).clamp(0, last) as usize, 1.0)]
            }
            Filter::Linear => weigh(x, axis, method, 1.0, |d| 1.0 - d),
            Filter::Cubic { a } => weigh(x, axis, method, 2.0, |d| {
                if d <= 1.0 {
                    ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
                } else {
                    a * (((d - 5.0) * d + 8.0) * d - 4.0)
                }
            }),
        }
    };
    (0..axis.outputs).map(one).collect()
}

/// Weights by distance within `reach` of the position (wider by the scale when smoothing); beyond the edges the edge is read.
fn weigh(x: f64, axis: &Axis, method: &Method, reach: f64, f: impl Fn(f64) -> f64) -> Vec<(usize, f64)> {
    let scale = if method.antialias { axis.scale.min(1.0) } else { 1.0 };
    let (first, end) = ((x - reach / scale).ceil() as i64, (x + reach / scale).floor() as i64);
    let last = axis.inputs as i64 - 1;
    let mut list: Vec<(usize, f64)> = Vec::new();
    let mut sum = 0.0;
    for j in first..=end {
        let weight = f((j as f64 - x).abs() * scale);
        if weight == 0.0 || (method.exclude_outside && !(0..=last).contains(&j)) {
            continue;
        }
        sum += weight;
        let at = j.clamp(0, last) as usize;
        match list.last_mut() {
            Some((i, w)) if *i == at => *w += weight,
            _ => list.push((at, weight)),
        }
    }
    if method.exclude_outside || scale < 1.0 {
        list.iter_mut().for_each(|(_, w)| *w /= sum);
    }
    list
}
