"""The cost of the forest per packet: our kernels, compared with treelite and tl2cgen, which
compiles a forest to C. Same trees, same values, one core, in turns; the peer gets all rows
in one call, whose time is divided by its rows."""

import json
import subprocess
import time

import numpy as np
import tl2cgen
from harness import DISTURBED, Disturbance, median
from treelite.model_builder import Metadata, ModelBuilder, PostProcessorFunc, TreeAnnotation

TITLE = "The forest, ns per packet"
FORESTS = ("3x7", "8x8", "32x8")
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


def in_rounds(speed, path, predictor, values, rounds):
    """Medians of ns per packet by name, and how many rounds were discarded."""
    rows = tl2cgen.DMatrix(values)
    kept, spare = [], []
    for _ in range(rounds):
        disturbance, start = Disturbance(), time.perf_counter()
        predictor.predict(rows)
        seconds = time.perf_counter() - start
        ours = subprocess.run([speed, path, "--json"], capture_output=True, check=True)
        times = json.loads(ours.stdout)["ns_per_packet"]
        times["tl2cgen"] = seconds * 1e9 / len(values)
        (kept if disturbance.share() <= DISTURBED else spare).append(times)
    chosen = kept or spare
    return {name: median([t[name] for t in chosen]) for name in chosen[0]}, len(spare)


def measure(context):
    speed = context.example("strata-classify", "forest_speed")
    subprocess.run([speed, "--write", context.directory], capture_output=True, check=True)
    figures, discarded = {}, 0
    for name in FORESTS[:2] if context.quick else FORESTS:
        path = context.directory / f"{name}.json"
        model = json.loads(path.read_text())
        rows = np.loadtxt(context.directory / f"{name}.csv", delimiter=",", dtype=np.float32)
        predictor = compiled(model, context.directory)
        rounds = 3 if context.quick else ROUNDS
        values = np.tile(rows, (8, 1))
        figures[name], spoilt = in_rounds(speed, path, predictor, values, rounds)
        discarded += spoilt
    columns = list(next(iter(figures.values())))
    return {
        "title": TITLE,
        "setup": "Full trees (trees x depth) with random thresholds over 22 features; every "
        "leaf is reached. Our kernels in batches of 64 packets, a forest compiled by "
        f"tl2cgen {tl2cgen.__version__} (gcc) in one batch of {len(values):,} rows; one core; "
        f"{discarded} rounds discarded.",
        "figures": figures,
        "tables": [
            {
                "columns": ["trees x depth", *columns],
                "rows": [
                    [name, *(round(times[column], 1) for column in columns)]
                    for name, times in figures.items()
                ],
            }
        ],
        "charts": [],
    }
