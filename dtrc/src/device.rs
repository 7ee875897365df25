//! Which device a plan is for: `--device`, `--target`.

use crate::{error::CliError, progress::note, units};
use clap::ValueEnum;
use compiler::{
    cost::{CostModel, DeviceProfile},
    pipeline::Budget,
};
use cuda::profile::{DeviceFigures, Reached, of_device, target};
use graph::Graph;
use ops::{Signature, cuda::on_architecture};
use plan::Rates;

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

    /// With --device cuda: the GPU whose shipped figures give the times of nodes (h200, h100, a100, l4, rtx4090, t4); not needed with
    /// --costs measured on the device.
    #[arg(long, value_name = "GPU")]
    pub target: Option<String>,

    /// With --device cuda: the context, modules and graphs come out of --budget, too; by what profile measured, or a rough figure.
    #[arg(long)]
    pub budget_includes_context: bool,

    /// With --device cuda: float32 products and convolutions on tensor cores, from operands rounded to TF32's 10 bits of mantissa, from
    /// architecture 80 (A100) on. The numbers are others than without, at every budget the same.
    #[arg(long)]
    pub tf32: bool,
}

fn rates(f: &DeviceFigures, tf32: bool) -> DeviceProfile {
    let Reached { product_flops_per_s, other_flops_per_s, bytes_per_s, launch_ns } = f.reached(tf32);
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
        if self.device == Kind::Cpu {
            let flag = [
                ("--target is the GPU", self.target.is_some()),
                ("--budget-includes-context is", self.budget_includes_context),
                ("--tf32 is a choice", self.tf32),
            ];
            return match flag.into_iter().find(|f| f.1) {
                Some((what, _)) => Err(CliError::usage(format!("{what} of --device cuda"))),
                None => Ok(of_file_or_cpu),
            };
        }
        let figures = self.target.as_deref().map(target).transpose();
        let figures = figures.map_err(|e| CliError::usage(format!("--target: {e}")))?;
        if given {
            if of_file_or_cpu.profile.name == DeviceProfile::cpu().name {
                return Err(CliError::usage(
                    "--costs: measured on the CPU; measure with dtrc profile --device cuda",
                ));
            }
            let context_bytes = of_file_or_cpu.context_bytes.or(figures.map(|f| f.context));
            return Ok(CostModel { context_bytes, ..of_file_or_cpu });
        }
        let Some(figures) = figures else {
            let what = "--device cuda needs --target GPU, whose shipped figures give the times of nodes, or --costs from dtrc profile --device cuda";
            return Err(CliError::usage(what));
        };
        note(quiet, format!("costs estimated, from shipped figures of {}", figures.name));
        Ok(CostModel {
            context_bytes: Some(figures.context),
            ..CostModel::estimated(rates(&figures, self.tf32))
        })
    }

    /// Refuses the first node that kernels for the device cannot run, where it is known which device that is.
    pub fn check<'g>(
        &self,
        graphs: impl IntoIterator<Item = &'g Graph>,
        costs: &CostModel,
    ) -> Result<(), CliError> {
        let figures = match (self.device, &self.target) {
            (Kind::Cpu, _) => None,
            (Kind::Cuda, Some(name)) => target(name).ok(),
            (Kind::Cuda, None) => of_device(&costs.profile.name),
        };
        let Some(figures) = figures else { return Ok(()) };
        for g in graphs {
            for node in &g.nodes {
                on_architecture(&Signature::of(g, node), figures.architecture)
                    .map_err(|e| CliError::usage(format!("{} ({}): {e}", node.name, node.op)))?;
            }
        }
        Ok(())
    }

    /// Budgets of the arena: what is given, without the context where it is to be included. Shares are of the arena's keep-all.
    pub fn arena_budgets(
        &self,
        budgets: &[Budget],
        costs: &CostModel,
        quiet: bool,
    ) -> Result<Vec<Budget>, CliError> {
        if !self.budget_includes_context {
            return Ok(budgets.to_vec());
        }
        let Some(context) = costs.context_bytes else {
            let what = "--budget-includes-context: nothing says what the context takes: give --target, or --costs from dtrc profile --device cuda";
            return Err(CliError::usage(what));
        };
        let one = |b: &Budget| match b {
            Budget::Bytes(n) if *n <= context => Err(CliError::usage(format!(
                "a budget of {n} bytes is too small: context, modules and graphs take {context}"
            ))),
            Budget::Bytes(n) => Ok(Budget::Bytes(n - context)),
            share @ Budget::OfKeepAll(_) => Ok(*share),
        };
        let how = if costs.measured.is_empty() { "roughly" } else { "measured" };
        note(
            quiet,
            format!("context, modules and graphs take {} of the budget ({how})", units::bytes(context)),
        );
        budgets.iter().map(one).collect()
    }
}

/// A costs file's head for a device that was opened: shipped figures under its own name, or those of a current GPU.
pub fn opened(name: &str) -> DeviceProfile {
    let Rates { product_flops_per_s, other_flops_per_s, bytes_per_s, launch_ns } =
        Rates::of(plan::Device::Cuda);
    let unknown = DeviceProfile {
        name: name.to_owned(),
        product_flops_per_s,
        other_flops_per_s,
        bytes_per_s,
        launch_ns,
    };
    of_device(name).map_or(unknown, |f| DeviceProfile { name: name.to_owned(), ..rates(&f, false) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::{Attrs, DType, InputRole, TensorType};

    /// A device without bfloat16 is known before there is one, by its figures or by what was measured on it.
    #[test]
    fn bfloat16_is_refused_where_the_device_has_none() {
        let mut g = Graph::default();
        let x = g.add_input("x".to_owned(), TensorType::new(DType::BF16, &[4usize][..]), InputRole::Data);
        ops::Builder::new(&mut g).emit("Relu", Attrs::new(), &[Some(x)]).unwrap();
        let costs = |name: &str| {
            CostModel::estimated(DeviceProfile { name: name.to_owned(), ..DeviceProfile::cpu() })
        };
        let of = |target: Option<&str>, costs: &CostModel| {
            let args =
                DeviceArgs { device: Kind::Cuda, target: target.map(str::to_owned), ..DeviceArgs::default() };
            args.check([&g], costs).map_err(|e| e.message)
        };
        for e in [of(Some("t4"), &costs("any")), of(None, &costs("Tesla T4"))] {
            let e = e.unwrap_err();
            assert!(e.contains("Relu") && e.contains("bfloat16") && e.contains("float16"), "{e}");
        }
        assert_eq!(of(Some("a100"), &costs("any")), Ok(()));
        assert_eq!(of(None, &costs("simulated device")), Ok(()));
    }
}
