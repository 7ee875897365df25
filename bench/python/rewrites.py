#!/usr/bin/env python3
"""Least budget found, keep-all and predicted time of training steps under each level of rewriting, as CSV, and measured steps of some.

usage: rewrites.py --topology DIR [--small DIR] [--dtrc BIN] [--models A,B] [--rounds N] [--work-limit N] [--step gpt2] [--steps N] [--out CSV]

DIR holds MODEL.ts_dyn.onnx (weights may be absent); --small adds vit_b_16 from a folder of small models. --step MODEL trains it by turns at
exact, fast and memory (synthetic data, everything kept) and adds the median seconds of a step and CPU seconds, which count only as ratios
within the run. Needs no packages.
"""
import argparse, csv, json, os, resource, subprocess

CASES = [
    ("gpt2", ["batch=4", "seq=512"]),
    ("bert", ["batch=4", "seq=512"]),
    ("resnet18", ["batch=8"]),
    ("resnet50", ["batch=4"]),
    ("densenet121", ["batch=4"]),
    ("vgg16", ["batch=4"]),
    ("unet", ["batch=1"]),
]
# Sizes at which steps are measured.
STEP = {"gpt2": ["batch=1", "seq=256"], "bert": ["batch=1", "seq=128"]}
LEVELS = ["exact", "fast", "memory"]


def dtrc(a, *args):
    out = subprocess.run([a.dtrc, "--quiet", "--json", *args], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def planned(a, path, dims, level):
    common = [path, "--rewrites", level, "--work-limit", str(a.work_limit), "--loss", "cross-entropy"] + [x for d in dims for x in ("--dim", d)]
    least = dtrc(a, "min-budget", *common, "--rounds", str(a.rounds))[-1]
    plan = f"/tmp/rewrites.{os.getpid()}.dtrc"
    fired, keep = dtrc(a, "compile", *common, "--budget", "100%", "--explain-rewrites", "-o", plan)
    text = subprocess.run([a.dtrc, "show", "--full", plan], check=True, stdout=subprocess.PIPE, text=True).stdout
    time = next(int(line.split()[1]) for line in text.splitlines() if line.strip().startswith("base-time-ns"))
    os.remove(plan)
    rules = sum(len(p["fired"]) for p in fired["programs"])
    return least["least_budget_bytes"], keep["keep_all_peak_bytes"], round(time / 1e6, 2), rules


def measured(a, path, dims, level):
    args = [path, "--rewrites", level, "--loss", "cross-entropy", "--budget", "100%", "--synthetic", "--steps", str(a.steps + 1), "--threads", "2", "--lr", "0.001"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = dtrc(a, "train", *args, *[x for d in dims for x in ("--dim", d)])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    times = sorted(r["seconds"] for r in rows if "step" in r and r["step"] > 1)
    return times[len(times) // 2], after.ru_utime - before.ru_utime


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--topology", required=True)
    p.add_argument("--small", default="")
    p.add_argument("--dtrc", default="target/release/dtrc")
    p.add_argument("--models", default="", help="only these, with commas between")
    p.add_argument("--rounds", type=int, default=2, help="halvings of the search for the least budget")
    p.add_argument("--work-limit", type=int, default=20000, help="of each plan")
    p.add_argument("--step", default="", help="measure steps of these models, with commas between")
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--out", default="bench/results/rewrites.csv")
    a = p.parse_args()
    cases = [(m, os.path.join(a.topology, f"{m}.ts_dyn.onnx"), d) for m, d in CASES]
    if a.small:
        cases.append(("vit_b_16 (small)", os.path.join(a.small, "vit_b_16.ts_dyn.onnx"), ["batch=64"]))
    if a.models:
        cases = [c for c in cases if c[0].split()[0] in a.models.split(",")]
    rows = []
    for model, path, dims in cases:
        for level in LEVELS:
            least, keep, time, rules = planned(a, path, dims, level)
            step, cpu = ("", "")
            if model in a.step.split(","):
                step, cpu = measured(a, path, STEP.get(model, dims), level)
                step, cpu = round(step, 3), round(cpu, 2)
            rows.append([model, " ".join(dims), level, rules, least, keep, time, step, cpu])
            print(*rows[-1], flush=True)
            with open(a.out, "w", newline="") as f:
                w = csv.writer(f)
                w.writerow(["model", "sizes", "level", "fired", "least_budget_bytes", "keep_all_bytes", "predicted_ms", "step_s", "train_cpu_s"])
                w.writerows(rows)


main()
