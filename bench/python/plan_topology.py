#!/usr/bin/env python3
"""Plans full-size models at several budgets and writes what was reached, beside the proven bound, as CSV.

usage: plan_topology.py --topology DIR [--dtrc BIN] [--out CSV]      (needs no packages; weights may be absent)
"""
import argparse, csv, json, os, subprocess

MODELS = ["resnet18", "resnet50", "densenet121", "vgg16", "unet", "bert", "gpt2"]
BUDGETS = ["100%", "70%", "50%", "35%"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--topology", required=True)
    p.add_argument("--dtrc", default="target/release/dtrc")
    p.add_argument("--out", default="bench/results/plans_topology.csv")
    a = p.parse_args()
    rows = []
    for model in MODELS:
        for budget in BUDGETS:
            path = os.path.join(a.topology, f"{model}.ts_loss.onnx")
            args = [a.dtrc, "--quiet", "--json", "compile", path, "--budget", budget, "-o", "/tmp/plan_topology.dtrc"]
            out = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            r = json.loads(out.stdout.splitlines()[-1])
            if "exit_code" in r:
                rows.append([model, budget, "", "", "", "", "", r["kind"]])
            else:
                bound = r["lower_bound_fraction"]
                rows.append([model, budget, r["keep_all_peak_bytes"], r["arena_bytes"], round(r["extra_time_fraction"], 5),
                             "" if bound is None else round(bound, 5), round(r["seconds"], 2), r["strategy"]])
            print(*rows[-1], flush=True)
    with open(a.out, "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["model", "budget", "keep_all_bytes", "arena_bytes", "extra_time_fraction", "lower_bound_fraction", "seconds", "strategy"])
        w.writerows(rows)


main()
