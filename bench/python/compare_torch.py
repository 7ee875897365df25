#!/usr/bin/env python3
"""Training steps of dtrc beside PyTorch's, on the same cores in one run.

usage: compare_torch.py --topology DIR --torch-step torch_step.py [--dtrc BIN] [--steps N] [--out CSV]

DIR holds MODEL.ts_dyn.onnx and MODEL.weights (made by make_weights.py); torch_step.py prints one JSON object for PyTorch's side of a model.
The two are timed in turn, so that they meet the same machine. Needs the packages in requirements.txt; `cargo build --release -p dtrc` first.
"""
import argparse, csv, json, os, subprocess, sys

# model, batch, sequence, dtrc sizes
CASES = [
    ("resnet18", 8, None, ["batch=8"]),
    ("densenet121", 4, None, ["batch=4"]),
    ("bert", 1, 128, ["batch=1", "seq=128"]),
    ("gpt2", 1, 256, ["batch=1", "seq=256"]),
    ("unet", 1, None, ["batch=1"]),
]


def ours(binary, topology, model, dims, budget, steps):
    args = [binary, "--quiet", "--json", "train", os.path.join(topology, f"{model}.ts_dyn.onnx"), "--loss", "cross-entropy",
            "--budget", budget, "--synthetic", "--steps", str(steps + 2), "--threads", "2", "--lr", "0.001"]
    for d in dims:
        args += ["--dim", d]
    lines = subprocess.run(args, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    times = sorted(r["seconds"] for r in rows if "step" in r and r["step"] > 2)
    return times[len(times) // 2], rows[-1]["arena_bytes"]


def torch(script, model, batch, seq, mode, steps):
    args = [sys.executable, script, model, "--batch", str(batch), "--steps", str(steps), "--threads", "2", "--mode", mode]
    if seq:
        args += ["--seq", str(seq)]
    out = subprocess.run(args, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(out.splitlines()[-1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--topology", required=True)
    p.add_argument("--torch-step", required=True)
    p.add_argument("--dtrc", default="target/release/dtrc")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--models", default="")
    p.add_argument("--out", default="bench/results/cpu_steps.csv")
    a = p.parse_args()
    rows, product = [], 1.0
    for model, batch, seq, dims in CASES:
        if a.models and model not in a.models.split(","):
            continue
        t = torch(a.torch_step, model, batch, seq, "eager", a.steps)
        seconds, arena = ours(a.dtrc, a.topology, model, dims, "100%", a.steps)
        ratio = seconds / t["median_s"]
        product *= ratio
        rows.append([model, batch, seq or "", round(seconds, 4), t["median_s"], round(ratio, 3), arena, t["peak_rss_bytes"] - t["base_rss_bytes"]])
        print(f"{model:12} dtrc {seconds:.3f} s   torch {t['median_s']:.3f} s   ratio {ratio:.2f}", flush=True)
    if rows:
        print(f"geometric mean {product ** (1 / len(rows)):.2f}")
    with open(a.out, "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["model", "batch", "seq", "dtrc_s", "torch_s", "ratio", "dtrc_arena_bytes", "torch_peak_less_base_bytes"])
        w.writerows(rows)


main()
