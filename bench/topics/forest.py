"""What a compiled forest costs per packet: treelite with tl2cgen, beside our kernels.

    cargo run --release -p strata-classify --example forest_speed -- --write DIR
    python bench/forest_peer.py DIR FOREST_SPEED

Needs `pip install treelite tl2cgen numpy` and a C compiler. Both sides evaluate the same
trees on the same values on one core, in turns; the peer gets all rows in one call, with
the time of that call over its rows, the median of rounds.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import tl2cgen
from treelite.model_builder import Metadata, ModelBuilder, PostProcessorFunc, TreeAnnotation

ROUNDS = 11


def compiled(model, folder):
    """The flow trees of a model file as a shared library."""
    features = len(model["features"])
    trees = model["flow_trees"]
    builder = ModelBuilder(
        threshold_type="float32",
        leaf_output_type="float32",
        metadata=Metadata(
            num_feature=features,
            task_type="kRegressor",
            average_tree_output=True,
            num_target=1,
            num_class=[1],
            leaf_vector_shape=(1, 1),
        ),
        tree_annotation=TreeAnnotation(
            num_tree=len(trees), target_id=[0] * len(trees), class_id=[0] * len(trees)
        ),
        postprocessor=PostProcessorFunc(name="identity"),
        base_scores=[0.0],
    )
    for tree in trees:
        builder.start_tree()
        for index, node in enumerate(tree["nodes"]):
            builder.start_node(index)
            if "classes" in node:
                builder.leaf(node["classes"][1])
            else:
                builder.numerical_test(
                    feature_id=node["feature"],
                    threshold=node["at_most"],
                    default_left=True,
                    opname="<=",
                    left_child_key=node["left"],
                    right_child_key=node["right"],
                )
            builder.end_node()
        builder.end_tree()
    library = folder / f"{model['name']}.so"
    tl2cgen.export_lib(
        builder.commit(), toolchain="gcc", libpath=str(library), params={"parallel_comp": 8}
    )
    return tl2cgen.Predictor(str(library), nthread=1)


def main():
    folder, speed = Path(sys.argv[1]), sys.argv[2]
    for name in ("3x7", "8x8", "32x8"):
        path = folder / f"{name}.json"
        model = json.loads(path.read_text())
        rows = np.loadtxt(folder / f"{name}.csv", delimiter=",", dtype=np.float32)
        values = np.tile(rows, (8, 1))
        rows = tl2cgen.DMatrix(values)
        predictor = compiled(model, folder)
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            predictor.predict(rows)
            times.append((time.perf_counter() - start) * 1e9 / len(values))
        ours = subprocess.run([speed, str(path), "--json"], capture_output=True, check=True)
        ours = json.loads(ours.stdout)["ns_per_packet"]
        kernels = ", ".join(f"{k} {v:.1f}" for k, v in ours.items())
        print(f"{name}: ns per packet: tl2cgen {statistics.median(times):.1f}, {kernels}")


if __name__ == "__main__":
    main()
