//! `onnx-models MODEL --out FILE`: writes a model of the size asked for.

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use onnx_models::{Common, LoopLstm, Mlp, ResNet, Springs, Transformer, TreeLstm, UNet, tiny, to_bytes};
use std::{fs, path::PathBuf};

/// Write ONNX models of any size with seeded weights.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    model: Model,
}

#[derive(Args)]
struct Options {
    /// File to write
    #[arg(long)]
    out: PathBuf,
    /// Samples of a batch
    #[arg(long, default_value_t = 16, value_parser = extent)]
    batch: u32,
    /// Leave the batch open under the name `batch`
    #[arg(long)]
    dynamic: bool,
    /// Leave the loss out: the output is `y`
    #[arg(long)]
    no_loss: bool,
    /// Seed of the weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Options {
    fn common(&self) -> Common {
        Common { batch: self.batch, dynamic: self.dynamic, loss: !self.no_loss, seed: self.seed }
    }
}

#[derive(Subcommand)]
enum Model {
    /// Dense layers with ReLU between
    Mlp {
        #[command(flatten)]
        options: Options,
        /// Features of the input
        #[arg(long, default_value_t = 784, value_parser = extent)]
        inputs: u32,
        /// Features of the hidden layers
        #[arg(long, value_delimiter = ',', default_value = "512,512", value_parser = extent)]
        hidden: Vec<u32>,
        /// Classes
        #[arg(long, default_value_t = 10, value_parser = extent)]
        classes: u32,
    },
    /// Residual network of basic blocks
    Resnet {
        #[command(flatten)]
        options: Options,
        /// Layers with weights: 8, 14, 20 .. up to 32 pixels, 10, 18, 34 .. from 64 pixels on
        #[arg(long, default_value_t = 20, value_parser = extent)]
        depth: u32,
        /// Channels of the first stage
        #[arg(long, default_value_t = 16, value_parser = extent)]
        width: u32,
        /// Classes
        #[arg(long, default_value_t = 10, value_parser = extent)]
        classes: u32,
        /// Rows and columns of the image
        #[arg(long, default_value_t = 32, value_parser = extent)]
        size: u32,
        /// Channels of the image
        #[arg(long, default_value_t = 3, value_parser = extent)]
        channels: u32,
    },
    /// U-Net with BatchNormalization
    Unet {
        #[command(flatten)]
        options: Options,
        /// Times that the extents are halved
        #[arg(long, default_value_t = 4, value_parser = extent)]
        levels: u32,
        /// Channels at full resolution
        #[arg(long, default_value_t = 32, value_parser = extent)]
        width: u32,
        /// Classes of a pixel
        #[arg(long, default_value_t = 2, value_parser = extent)]
        classes: u32,
        /// Rows and columns of the image
        #[arg(long, default_value_t = 128, value_parser = extent)]
        size: u32,
        /// Channels of the image
        #[arg(long, default_value_t = 3, value_parser = extent)]
        channels: u32,
    },
    /// Decoder-only transformer with causal attention
    Transformer {
        #[command(flatten)]
        options: Options,
        /// Number of blocks
        #[arg(long, default_value_t = 4, value_parser = extent)]
        layers: u32,
        /// Features of a token
        #[arg(long, default_value_t = 128, value_parser = extent)]
        width: u32,
        /// Attention heads
        #[arg(long, default_value_t = 4, value_parser = extent)]
        heads: u32,
        /// Number of tokens that there are
        #[arg(long, default_value_t = 1000, value_parser = extent)]
        vocabulary: u32,
        /// Tokens of a sample
        #[arg(long, default_value_t = 128, value_parser = extent)]
        sequence: u32,
    },
    /// Chain of springs, integrated in a Loop; the initial state is trained
    Springs {
        #[command(flatten)]
        options: Options,
        /// Masses
        #[arg(long, default_value_t = 64, value_parser = extent)]
        masses: u32,
        /// Time steps
        #[arg(long, default_value_t = 5000, value_parser = extent)]
        steps: u32,
    },
    /// LSTM of several layers, written as a Loop over time
    LoopLstm {
        #[command(flatten)]
        options: Options,
        /// Layers
        #[arg(long, default_value_t = 2, value_parser = extent)]
        layers: u32,
        /// Features of the input
        #[arg(long, default_value_t = 16, value_parser = extent)]
        inputs: u32,
        /// Features of a layer
        #[arg(long, default_value_t = 32, value_parser = extent)]
        width: u32,
        /// Time steps
        #[arg(long, default_value_t = 500, value_parser = extent)]
        steps: u32,
        /// Classes
        #[arg(long, default_value_t = 5, value_parser = extent)]
        classes: u32,
    },
    /// TreeLSTM over a Loop of nodes, children first; the tree is an input (left, right: indices, -1 for a leaf)
    TreeLstm {
        #[command(flatten)]
        options: Options,
        /// Nodes of the tree
        #[arg(long, default_value_t = 200, value_parser = extent)]
        nodes: u32,
        /// Features of a leaf
        #[arg(long, default_value_t = 16, value_parser = extent)]
        inputs: u32,
        /// Features of a node's state
        #[arg(long, default_value_t = 32, value_parser = extent)]
        width: u32,
        /// Classes
        #[arg(long, default_value_t = 5, value_parser = extent)]
        classes: u32,
    },
    /// The small models beside the sources, all of them
    Tiny {
        /// Folder to write into
        #[arg(long)]
        dir: PathBuf,
    },
}

/// A positive extent that products of a few stay within 64 bits with.
fn extent(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|n| (1..=1 << 18).contains(n))
        .ok_or_else(|| "a number from 1 to 262144".to_owned())
}

fn main() -> anyhow::Result<()> {
    let (options, model) = match Cli::parse().model {
        Model::Mlp { options, inputs, hidden, classes } => {
            let model = Mlp { inputs, hidden, classes }.build(&options.common());
            (options, model)
        }
        Model::Resnet { options, depth, width, classes, size, channels } => {
            let model = ResNet { depth, width, classes, size, channels }.build(&options.common());
            (options, model)
        }
        Model::Unet { options, levels, width, classes, size, channels } => {
            if levels > 10 || size % (1 << levels) != 0 {
                bail!("--size {size} is no multiple of 2 to the power of --levels {levels} (at most 10)");
            }
            let model = UNet { levels, width, classes, size, channels }.build(&options.common());
            (options, model)
        }
        Model::Transformer { options, layers, width, heads, vocabulary, sequence } => {
            if heads == 0 || width % heads != 0 {
                bail!("--width {width} is no multiple of --heads {heads}");
            }
            let model = Transformer { layers, width, heads, vocabulary, sequence }.build(&options.common());
            (options, model)
        }
        Model::Springs { options, masses, steps } => {
            let model = Springs { masses, steps }.build(&options.common());
            (options, model)
        }
        Model::LoopLstm { options, layers, inputs, width, steps, classes } => {
            let model = LoopLstm { layers, inputs, width, steps, classes }.build(&options.common());
            (options, model)
        }
        Model::TreeLstm { options, nodes, inputs, width, classes } => {
            let model = TreeLstm { nodes, inputs, width, classes }.build(&options.common());
            (options, model)
        }
        Model::Tiny { dir } => {
            for (name, model) in tiny() {
                let file = dir.join(name);
                fs::write(&file, to_bytes(&model)?)
                    .with_context(|| format!("cannot write {}", file.display()))?;
            }
            return Ok(());
        }
    };
    let bytes = to_bytes(&model)?;
    fs::write(&options.out, &bytes).with_context(|| format!("cannot write {}", options.out.display()))?;
    println!("{}: {} nodes, {} bytes", options.out.display(), model.graph.node.len(), bytes.len());
    Ok(())
}
