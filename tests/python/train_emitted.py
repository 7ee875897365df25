"""Trains with a step that dtrc wrote as ONNX: `dtrc train`, with onnxruntime in dtrc's place.

Usage: train_emitted.py CASE.json

CASE.json holds
  last, micro   the step's model and that of its earlier parts; micro is null for a step in one part
  parts, updates, batch, lr, seed   numbers
  data          npz: arrays named like the inputs, batch after batch along the first axis
  out           npz to write: "loss" of each update, and every state after the last one under its name

What is fed: a batch of data a part; the learning rate; the update's number, from 1, as "step"; as "seed", 65536 times the seed plus the
part's number, from 0; and all state that an earlier part or update left, where the model has an input of that name.
"""

import json
import pathlib
import sys

import numpy as np
import onnxruntime


def session(path):
    options = onnxruntime.SessionOptions()
    # Sums in one order.
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def main():
    case = json.loads(pathlib.Path(sys.argv[1]).read_text())
    last = session(case["last"])
    micro = session(case["micro"]) if case["micro"] else None
    data = dict(np.load(case["data"]))
    state, losses, batch = {}, [], 0
    for step in range(1, case["updates"] + 1):
        total = 0.0
        for part in range(case["parts"]):
            program = last if part + 1 == case["parts"] else micro
            rows = slice(batch * case["batch"], (batch + 1) * case["batch"])
            given = {name: array[rows] for name, array in data.items()}
            given["lr"] = np.array(case["lr"], np.float32)
            given["step"] = np.array(step, np.int64)
            given["seed"] = np.array(65536 * case["seed"] + part, np.int64)
            given |= state
            inputs = program.get_inputs() + program.get_overridable_initializers()
            names = [o.name for o in program.get_outputs()]
            results = program.run(names, {i.name: given[i.name] for i in inputs if i.name in given})
            state |= {n.removesuffix(".next"): r for n, r in zip(names, results, strict=True) if n.endswith(".next")}
            total += float(results[0])
            batch += 1
        losses.append(total / case["parts"])
    np.savez(case["out"], loss=np.array(losses), **state)


main()
