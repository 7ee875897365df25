"""One training step of a full-size model in PyTorch, timed on the device: the other side of the part `speed`.

The last line that is printed is a JSON object: seconds, peaks of allocated and reserved memory, the loss, the versions and the settings
of TF32. Data and weights are random and lie on the device; the optimizer is plain SGD; dropout is off. Where a package is missing the
object has only `missing`, which says so.
"""

import argparse
import json
import statistics
import sys
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=["resnet50", "bert", "gpt2", "unet"])
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seq", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--mode", default="eager", choices=["eager", "checkpoint", "compile"])
    parser.add_argument("--memory-budget", type=float, default=1.0, help="share of activations that compile keeps")
    parser.add_argument("--amp", choices=["bf16"])
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    return parser.parse_args()


def leave(text):
    print(json.dumps({"missing": text}))
    sys.exit(0)


ARGS = arguments()
try:
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.checkpoint import checkpoint
except ImportError as error:
    leave(f"PyTorch is not installed: {error}")


class Encode(nn.Module):
    """Two convolutions, each normalised and rectified."""

    def __init__(self, wide_in, wide_out):
        super().__init__()
        layers = []
        for wide in (wide_in, wide_out):
            layers += [nn.Conv2d(wide, wide_out, 3, padding=1, bias=False), nn.BatchNorm2d(wide_out), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


class Unet(nn.Module):
    """Four levels down and up again, with the features of each level handed across."""

    def __init__(self, width=64, levels=4, classes=2):
        super().__init__()
        widths = [width << i for i in range(levels + 1)]
        self.first = Encode(3, width)
        self.down = nn.ModuleList([Encode(a, b) for a, b in zip(widths, widths[1:])])
        self.wider = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(list(zip(widths, widths[1:])))])
        self.up = nn.ModuleList([Encode(2 * a, a) for a in reversed(widths[:-1])])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        kept = [self.first(x)]
        for block in self.down:
            kept.append(block(F.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for widen, block in zip(self.wider, self.up):
            x = block(torch.cat([kept.pop(), widen(x)], dim=1))
        return self.head(x)


def transformer(name):
    try:
        import transformers
    except ImportError as error:
        leave(f"transformers is not installed: {error}")
    if name == "bert":
        config = transformers.BertConfig(num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        model = transformers.BertForSequenceClassification(config)
        return model, list(model.bert.encoder.layer)
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = transformers.GPT2LMHeadModel(config)
    return model, list(model.transformer.h)


def problem(name, batch, seq):
    """Model, its inputs, its loss over them, and the blocks that checkpoints go around."""
    if name == "unet":
        model = Unet()
        data = [torch.randn(batch, 3, 256, 256), torch.randint(2, (batch, 256, 256))]
        return model, data, lambda m, x, y: F.cross_entropy(m(x), y), [*model.down, *model.up]
    if name == "resnet50":
        try:
            from torchvision.models import resnet50
        except ImportError as error:
            leave(f"torchvision is not installed: {error}")
        model = resnet50()
        blocks = [b for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for b in layer]
        data = [torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))]
        return model, data, lambda m, x, y: F.cross_entropy(m(x), y), blocks
    model, blocks = transformer(name)
    if name == "bert":
        data = [torch.randint(30522, (batch, seq)), torch.ones(batch, seq, dtype=torch.long), torch.randint(2, (batch,))]
        return model, data, lambda m, x, mask, y: F.cross_entropy(m(x, attention_mask=mask).logits, y), blocks
    data = [torch.randint(50257, (batch, seq)), torch.randint(50257, (batch, seq))]
    return model, data, lambda m, x, y: F.cross_entropy(m(x, use_cache=False).logits.flatten(0, 1), y.flatten()), blocks


def recompute(block):
    """Keeps only what a block is given, and runs it again for its gradients."""
    inside = block.forward

    def around(*args, **named):
        return checkpoint(inside, *args, use_reentrant=False, **named)

    block.forward = around


def main():
    cuda = ARGS.device.startswith("cuda")
    if cuda and not torch.cuda.is_available():
        leave("PyTorch finds no CUDA device")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = ARGS.tf32
    torch.backends.cudnn.allow_tf32 = ARGS.tf32
    model, data, loss_of, blocks = problem(ARGS.model, ARGS.batch, ARGS.seq)
    model = model.to(ARGS.device).train()
    data = [d.to(ARGS.device) for d in data]
    if ARGS.mode == "checkpoint":
        for block in blocks:
            recompute(block)

    def forward(*inputs):
        return loss_of(model, *inputs)

    if ARGS.mode == "compile":
        from torch._functorch import config

        config.activation_memory_budget = ARGS.memory_budget
        forward = torch.compile(forward)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    times = []
    for number in range(ARGS.steps + 3):
        if cuda and number == 3:
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(ARGS.device, torch.bfloat16, enabled=ARGS.amp == "bf16"):
            loss = forward(*data)
        loss.backward()
        optimizer.step()
        # Reading the loss waits for the whole step.
        value = loss.item()
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    times = times[3:]
    result = {
        "median_seconds": statistics.median(times),
        "least_seconds": min(times),
        "loss": value,
        "batch": ARGS.batch,
        "seq": ARGS.seq,
        "mode": ARGS.mode,
        "memory_budget": ARGS.memory_budget,
        "amp": ARGS.amp,
        "torch": torch.__version__,
        "optimizer": "sgd",
        "attention": "scaled dot product, as transformers chooses" if ARGS.model in ("bert", "gpt2") else None,
        "inputs": "on the device",
        "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
        "tf32_convolution": torch.backends.cudnn.allow_tf32,
    }
    if cuda:
        result["device"] = torch.cuda.get_device_name()
        result["allocated_bytes"] = torch.cuda.max_memory_allocated()
        result["reserved_bytes"] = torch.cuda.max_memory_reserved()
    print(json.dumps(result))


main()
