"""Exports the node tests of the ONNX project: every operator's own examples, to check import rules and kernels against.

Usage: export_node_tests.py FOLDER

Each test becomes a folder FOLDER/NAME with
  model.onnx                    the model
  inputs_K.npz, outputs_K.npz   arrays "0", "1", ... of data set K, in the order of the graph's inputs and outputs
  case.json                     op, data_sets, rtol, atol, inputs and outputs (element type each), and skip: why numpy
                                arrays cannot hold the data (sequences, strings, types of less than a byte), or null
FOLDER/complete says which versions made the export; a folder that these versions made is left alone.
"""

import json
import pathlib
import shutil
import sys
import warnings

import numpy as np
import onnx
import onnx.numpy_helper

# numpy's own types, and what holds the bits of the others.
PLAIN = {"bool", "float16", "float32", "float64"} | {f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)}
BITS = {"bfloat16": np.uint16}


def array(value):
    """The array that is stored, its element type, and why it cannot be stored (or None)."""
    if value is None:
        return None, None, "an optional value left out"
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    if isinstance(value, (list, tuple, dict)):
        return None, None, "a sequence or a map"
    a = np.asarray(value)
    kind = a.dtype.name
    if kind in PLAIN:
        return np.array(a, order="C"), kind, None
    if kind in BITS:
        return np.array(a, order="C").view(BITS[kind]), kind, None
    text = a.dtype.kind in "OSUT"
    return None, kind, "strings" if text else f"element type {kind}"


def operator(case, ops):
    """The operator that a test is about."""
    base = case.model_name.split("_expanded")[0]
    if base != case.model_name and base in ops:
        return ops[base]
    names = [n.op_type for n in case.model.graph.node if n.op_type != "Constant"]
    # A model of several nodes is about the one that gives the result.
    return names[-1] if names else "Constant"


def export(case, op, root):
    """Writes one test."""
    folder = root / case.model_name
    folder.mkdir()
    onnx.save(case.model, folder / "model.onnx")
    skip = None
    info = {"op": op, "rtol": case.rtol, "atol": case.atol, "data_sets": len(case.data_sets)}
    for k, data in enumerate(case.data_sets):
        for side, values in zip(("inputs", "outputs"), data, strict=True):
            stored = [array(v) for v in values]
            skip = skip or next((why for _, _, why in stored if why), None)
            info[side] = [kind for _, kind, _ in stored]
            arrays = {str(i): a for i, (a, _, _) in enumerate(stored) if a is not None}
            np.savez(folder / f"{side}_{k}.npz", **arrays)
    (folder / "case.json").write_text(json.dumps({**info, "skip": skip}, indent=1) + "\n")


def main():
    root = pathlib.Path(sys.argv[1])
    stamp = root / "complete"
    versions = f"onnx {onnx.__version__}, numpy {np.__version__}, format 2\n"
    if stamp.exists() and stamp.read_text() == versions:
        print(f"{root} is up to date")
        return
    if root.exists():
        # Never delete a folder that is something else.
        if any(root.iterdir()) and not any(root.glob("test_*/case.json")):
            sys.exit(f"{root} exists and holds no node tests: give another folder")
        shutil.rmtree(root)
    root.mkdir(parents=True)
    # The generators overflow and divide by zero on purpose.
    warnings.simplefilter("ignore")
    from onnx.backend.test.case.node import collect_testcases

    cases = collect_testcases(None)
    ops = {c.model_name: operator(c, {}) for c in cases}
    for case in cases:
        export(case, operator(case, ops), root)
    stamp.write_text(versions)
    print(f"{len(cases)} node tests in {root}")


main()
