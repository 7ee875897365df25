"""Runs programs that dtrc wrote as ONNX with onnxruntime and compares the results with dtrc's own.

Usage: run_emitted.py FOLDER

Each FOLDER/NAME holds
  model.onnx    the program
  case.json     inputs: names in the order of inputs.npz; outputs: name, rtol and atol each, in the order of outputs.npz
  inputs.npz, outputs.npz   arrays "0", "1", ...
An output agrees if |x - y| <= atol + rtol * max|y|, both NaN included. One line a program is printed: "ok", "FAILED" or, where onnxruntime
has no kernel for a type, "no kernel". The exit status is 1 if one failed.
"""

import json
import pathlib
import sys

import numpy as np
import onnxruntime


def difference(got, want, spec):
    """What is wrong with an output, or None, and how much of its tolerance it uses."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}", 0.0
    if want.dtype.kind not in "f":
        wrong = int((got != want).sum())
        return (f"{wrong} elements differ" if wrong else None), 0.0
    got, want = got.astype(np.float64), want.astype(np.float64)
    if (np.isnan(got) != np.isnan(want)).any():
        return "NaN in other places", 0.0
    with np.errstate(invalid="ignore"):
        off = np.where(got == want, 0.0, np.abs(got - want))
    finite = np.abs(want[np.isfinite(want)])
    allowed = spec["atol"] + spec["rtol"] * (finite.max() if finite.size else 0.0)
    worst = float(np.nanmax(off)) if off.size and not np.isnan(off).all() else 0.0
    if worst > allowed:
        return f"off by {worst:.3e}, {allowed:.3e} allowed", 0.0
    return None, worst / allowed if allowed else 0.0


def run(folder):
    """The line for one program."""
    case = json.loads((folder / "case.json").read_text())
    options = onnxruntime.SessionOptions()
    # Sums in one order.
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
        with np.load(folder / "inputs.npz") as f:
            inputs = {name: f[str(i)] for i, name in enumerate(case["inputs"])}
        results = session.run([o["name"] for o in case["outputs"]], inputs)
    except Exception as e:
        text = str(e).replace("\n", " ")
        kind = "no kernel" if "NOT_IMPLEMENTED" in text else "FAILED"
        return kind, text[:400]
    worst = 0.0
    with np.load(folder / "outputs.npz") as f:
        for i, (spec, got) in enumerate(zip(case["outputs"], results, strict=True)):
            what, used = difference(np.asarray(got), f[str(i)], spec)
            if what:
                return "FAILED", f"{spec['name']}: {what}"
            worst = max(worst, used)
    return "ok", f"{len(results)} outputs, {100 * worst:.0f} % of the tolerance"


def main():
    folders = sorted(p.parent for p in pathlib.Path(sys.argv[1]).glob("*/case.json"))
    failed = 0
    for folder in folders:
        kind, text = run(folder)
        failed += kind == "FAILED"
        print(f"{kind:9} {folder.name}: {text}", flush=True)
    print(f"onnxruntime {onnxruntime.__version__}: {len(folders)} programs, {failed} failed")
    sys.exit(1 if failed else 0)


main()
