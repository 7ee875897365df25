//! Which device a plan is for: `--device`, `--target`.

use crate::{error::CliError, progress::note};
use clap::ValueEnum;
use compiler::cost::{CostModel, DeviceProfile};
use cuda::profile::{DeviceFigures, Reached, target};

/// Kinds of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// This machine's processor.
    #[default]
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

/// The device flags of commands that plan.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct DeviceArgs {
    /// The device that the plan is for. Planning for cuda needs no GPU.
    #[arg(long, value_enum, default_value_t)]
    pub device: Kind,

    /// With --device cuda: the GPU whose shipped figures give the times of nodes (h200, h100, a100, l4, rtx4090, t4).
    #[arg(long, value_name = "GPU", required_if_eq("device", "cuda"))]
    pub target: Option<String>,
}

fn rates(f: &DeviceFigures) -> DeviceProfile {
    let Reached { product_flops_per_s, other_flops_per_s, bytes_per_s, launch_ns } = f.reached();
    DeviceProfile { name: f.name.clone(), product_flops_per_s, other_flops_per_s, bytes_per_s, launch_ns }
}

impl DeviceArgs {
    /// The kind, as plans name it.
    pub fn kind(&self) -> plan::Device {
        match self.device {
            Kind::Cpu => plan::Device::Cpu,
            Kind::Cuda => plan::Device::Cuda,
        }
    }

    /// Costs for the device: those of a file if one is given, else shipped figures, and that is said.
    pub fn costs(&self, given: bool, of_file_or_cpu: CostModel, quiet: bool) -> Result<CostModel, CliError> {
        let (Kind::Cuda, Some(name)) = (self.device, &self.target) else {
            if self.target.is_some() {
                return Err(CliError::usage("--target is the GPU of --device cuda"));
            }
            return Ok(of_file_or_cpu);
        };
        let figures = target(name).map_err(|e| CliError::usage(format!("--target: {e}")))?;
        if given {
            return Ok(of_file_or_cpu);
        }
        note(quiet, format!("costs estimated, from shipped figures of {}", figures.name));
        Ok(CostModel::estimated(rates(&figures)))
    }
}
