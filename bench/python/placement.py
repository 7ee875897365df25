#!/usr/bin/env python3
"""How much of the arena is gaps: plans of models in half of keep-all's memory, or the least that has a plan, the arena beside the greatest live bytes.

usage: placement.py --models DIR [--dtrc BIN] [--out CSV]

DIR holds small/, topology/ and reference/MODEL.io.npz, whose shapes bind open sizes; weights may be absent. Needs tests/python/requirements.txt.

Both figures count sizes rounded up to 256 bytes, state included. Models that are made at run time have no placement and are left out.
"""
import argparse, csv, glob, json, os, subprocess, tempfile
import numpy, onnx


def call(a, *args):
    out = subprocess.run([a.dtrc, "--quiet", "--json", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = out.stdout.splitlines()
    return json.loads(lines[-1]) if lines else {"kind": "silent", "message": "no output", "exit_code": out.returncode}


def dims(models, path):
    """Flags that bind the open sizes as in the model's reference inputs."""
    io = os.path.join(models, "reference", os.path.basename(path).split(".")[0] + ".io.npz")
    if not os.path.exists(io):
        return []
    arrays, bound = numpy.load(io), {}
    for i in onnx.load(path, load_external_data=False).graph.input:
        given = arrays[f"in:{i.name}"] if f"in:{i.name}" in arrays else arrays[i.name] if i.name in arrays else None
        for d, n in zip(i.type.tensor_type.shape.dim, given.shape if given is not None else []):
            if d.dim_param:
                bound[d.dim_param] = n
    return [x for name, n in bound.items() for x in ("--dim", f"{name}={n}")]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", required=True)
    p.add_argument("--dtrc", default="target/release/dtrc")
    p.add_argument("--out", default="bench/results/placement.csv")
    a = p.parse_args()
    rows = []
    for path in sorted(glob.glob(os.path.join(a.models, "small", "*_loss.onnx")) + glob.glob(os.path.join(a.models, "topology", "*_loss.onnx"))):
        name = os.path.relpath(path, a.models).removesuffix(".onnx")
        sizes = dims(a.models, path) if "small" in name else []
        with tempfile.TemporaryDirectory() as d:
            plan, budget = os.path.join(d, "m.dtrc"), "50%"
            r = call(a, "compile", path, "--budget", budget, "-o", plan, *sizes)
            if r.get("exit_code") == 2:
                least = call(a, "min-budget", path, *sizes)
                if "exit_code" not in least:
                    budget = str(least["least_budget_bytes"])
                    r = call(a, "compile", path, "--budget", budget, "-o", plan, *sizes)
        if "exit_code" in r:
            print(name, r["message"][:120], flush=True)
            continue
        over = r["arena_bytes"] / r["peak_bytes"] - 1
        rows.append([name, budget, r["keep_all_peak_bytes"], r["peak_bytes"], r["arena_bytes"], round(over, 5)])
        print(*rows[-1], flush=True)
    with open(a.out, "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["model", "budget", "keep_all_bytes", "live_peak_bytes", "arena_bytes", "arena_over_live_less_one"])
        w.writerows(rows)
    worst = max(rows, key=lambda r: r[-1])
    print(f"{len(rows)} models; worst: {worst[0]}, {100 * worst[-1]:.2f} % above its live bytes")


main()
