//! CUDA launches of regions of images.

use super::roi::Plan;
use crate::{
    OpError, Signature,
    cuda::launch::{parts_of, wide_size},
    cuda::{Arg, Builder, Kernels, Plan as Launches, dtype_name, source},
};

fn arguments(p: &Plan) -> Vec<Arg> {
    let sizes = p.images.iter().chain([&p.regions]).chain(&p.bins).map(|v| *v as i64).collect();
    vec![
        Arg::Dims(sizes),
        Arg::I32(p.samples as i32),
        Arg::I32(p.half_pixel.into()),
        Arg::F64(p.scale),
        Arg::Status,
        Arg::Call,
    ]
}

fn builder(s: &Signature<'_>, p: &Plan) -> Result<Builder, OpError> {
    let mut b = Builder::new(s, source!("pool/roi.cu"))?;
    b.define("T", dtype_name(s.output(0)?.dtype)).define("MAX", i32::from(p.max));
    Ok(b)
}

fn align(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let p = Plan::new(s, &s.dims(0)?, s.dims(1)?[0])?;
    let mut b = builder(s, &p)?;
    let args = [(0..3).map(Arg::Input).chain([Arg::Output(0)]).collect(), arguments(&p)].concat();
    b.over("align", s.out_dims(0)?.iter().product::<usize>() as u64, args)?;
    Ok(b.done())
}

fn gradient(s: &Signature<'_>) -> Result<Kernels, OpError> {
    let p = Plan::new(s, &s.out_dims(0)?, s.dims(1)?[0])?;
    let mut b = builder(s, &p)?;
    let (planes, pixels) = (p.images[0] * p.images[1], p.images[2] * p.images[3]);
    let sums = b.workspace((planes * pixels) as u64 * wide_size(s.output(0)?.dtype));
    let x = if s.opt_input(0).is_some() { Arg::Input(0) } else { Arg::Null };
    let parts = parts_of(planes, pixels);
    let mut args = vec![x, Arg::Input(1), Arg::Input(2), Arg::Input(3), sums, Arg::Output(0)];
    args.push(Arg::Index(parts as i64));
    args.extend(arguments(&p));
    b.over("gradient", (planes * parts) as u64, args)?;
    Ok(b.done())
}

/// Names and launches.
pub(crate) const KERNELS: &[(&str, Launches)] = &[("RoiAlign", align), ("RoiAlignGrad", gradient)];
