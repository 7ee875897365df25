#!/usr/bin/env python3
"""Training steps of dtrc beside PyTorch's, on the same cores in one run.

usage: compare_torch.py --topology DIR --torch-step torch_step.py [--part eager|checkpoint] [--dtrc BIN] [--steps N] [--models A,B] [--out CSV]

DIR holds MODEL.ts_dyn.onnx and MODEL.weights (made by make_weights.py); torch_step.py prints one JSON object for PyTorch's side of a model.
Part `eager`: keep-all steps beside PyTorch's eager steps. Part `checkpoint`: what saving memory costs: torch.utils.checkpoint around every
block beside dtrc with the budget at the bytes that PyTorch held there (its peak resident set less that of the process before the model).
The two are timed in turn, so that they meet the same machine. Predictions are by operators that `dtrc profile` measured in the same run. Needs the packages in requirements.txt; `cargo build --release -p dtrc` first.
"""
import argparse, csv, json, os, subprocess, sys, tempfile

# model, batch, sequence, dtrc sizes
CASES = [
    ("resnet18", 8, None, ["batch=8"]),
    ("densenet121", 4, None, ["batch=4"]),
    ("bert", 1, 128, ["batch=1", "seq=128"]),
    ("gpt2", 1, 256, ["batch=1", "seq=256"]),
    ("unet", 1, None, ["batch=1"]),
]
CHECKPOINT_CASES = [
    ("unet", 1, None, ["batch=1"]),
    ("resnet50", 4, None, ["batch=4"]),
    ("gpt2", 1, 256, ["batch=1", "seq=256"]),
]


def profile(a, model, dims, out):
    """Measures the model's operators on this machine, for the predictions and the plans."""
    args = [a.dtrc, "--quiet", "profile", os.path.join(a.topology, f"{model}.ts_dyn.onnx"), "--loss", "cross-entropy", "--threads", "2", "-o", out]
    for d in dims:
        args += ["--dim", d]
    subprocess.run(args, check=True, stdout=subprocess.DEVNULL)


def ours(a, model, dims, budget, costs):
    """Measured and predicted seconds of a step, and the arena's bytes."""
    args = [a.dtrc, "--quiet", "--json", "train", os.path.join(a.topology, f"{model}.ts_dyn.onnx"), "--loss", "cross-entropy",
            "--budget", budget, "--synthetic", "--steps", str(a.steps + 2), "--threads", "2", "--lr", "0.001", "--costs", costs]
    for d in dims:
        args += ["--dim", d]
    lines = subprocess.run(args, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    times = sorted(r["seconds"] for r in rows if "step" in r and r["step"] > 2)
    return times[len(times) // 2], rows[-1]["predicted_seconds_per_step"], rows[-1]["arena_bytes"]


def torch(script, model, batch, seq, mode, steps):
    args = [sys.executable, script, model, "--batch", str(batch), "--steps", str(steps), "--threads", "2", "--mode", mode]
    if seq:
        args += ["--seq", str(seq)]
    out = subprocess.run(args, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.splitlines()[-1])


def eager(a, cases, costs):
    """Keep-all steps beside PyTorch's eager ones."""
    rows, product = [], 1.0
    for model, batch, seq, dims in cases:
        profile(a, model, dims, costs)
        t = torch(a.torch_step, model, batch, seq, "eager", a.steps)
        seconds, predicted, arena = ours(a, model, dims, "100%", costs)
        ratio = seconds / t["median_s"]
        product *= ratio
        rows.append([model, batch, seq or "", round(seconds, 4), round(predicted, 4), t["median_s"], round(ratio, 3), arena,
                     t["peak_rss_bytes"] - t["base_rss_bytes"]])
        print(f"{model:12} dtrc {seconds:.3f} s (predicted {predicted:.3f})   torch {t['median_s']:.3f} s   ratio {ratio:.2f}", flush=True)
    if rows:
        print(f"geometric mean {product ** (1 / len(rows)):.2f}")
    return ["model", "batch", "seq", "dtrc_s", "dtrc_predicted_s", "torch_s", "ratio", "dtrc_arena_bytes", "torch_peak_less_base_bytes"], rows


def checkpoint(a, cases, costs):
    """What a smaller peak costs each of the two: at PyTorch's bytes, and at 70 % of our keep-all."""
    rows = []
    for model, batch, seq, dims in cases:
        profile(a, model, dims, costs)
        t_all = torch(a.torch_step, model, batch, seq, "eager", a.steps)
        t_less = torch(a.torch_step, model, batch, seq, "checkpoint", a.steps)
        held = t_less["peak_rss_bytes"] - t_less["base_rss_bytes"]
        all_s, all_p, all_arena = ours(a, model, dims, "100%", costs)
        t_extra = t_less["median_s"] / t_all["median_s"] - 1
        less_s, less_p, less_arena = ours(a, model, dims, str(held), costs)
        extra = less_s / all_s - 1
        rows.append([model, batch, seq or "", held, all_arena, less_arena, round(all_s, 4), round(all_p, 4), round(less_s, 4), round(less_p, 4),
                     round(extra, 4), t_all["median_s"], t_less["median_s"], round(t_extra, 4)])
        print(f"{model:12} budget {held} (keep-all {all_arena}, arena {less_arena})   dtrc {all_s:.3f} -> {less_s:.3f} s, {100 * extra:+.1f} % "
              f"(predicted {less_p:.3f})   torch {t_all['median_s']:.3f} -> {t_less['median_s']:.3f} s, {100 * t_extra:+.1f} %", flush=True)
    return ["model", "batch", "seq", "budget_bytes", "dtrc_keep_all_arena_bytes", "dtrc_arena_bytes", "dtrc_keep_all_s", "dtrc_keep_all_predicted_s", "dtrc_s",
            "dtrc_predicted_s", "dtrc_extra", "torch_eager_s", "torch_checkpoint_s", "torch_extra"], rows


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--topology", required=True)
    p.add_argument("--torch-step", required=True)
    p.add_argument("--part", default="eager", choices=["eager", "checkpoint"])
    p.add_argument("--dtrc", default="target/release/dtrc")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--models", default="", help="only these, with commas between")
    p.add_argument("--out", default="")
    a = p.parse_args()
    part, cases = (eager, CASES) if a.part == "eager" else (checkpoint, CHECKPOINT_CASES)
    with tempfile.TemporaryDirectory() as scratch:
        header, rows = part(a, [c for c in cases if not a.models or c[0] in a.models.split(",")], os.path.join(scratch, "costs"))
    with open(a.out or f"bench/results/cpu_{a.part}.csv", "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(header)
        w.writerows(rows)


main()
