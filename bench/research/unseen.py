"""What a budget of detail is spent on, by models that have not seen the attack.

Each labelled capture's attacks are judged within the ordinary traffic of a site: that of the same
capture if there is enough, else that of each of several others, where addresses and times of the
two play no part. Of the payload, a tenth is kept, highest scores first, and among equal scores by
lot.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from tqdm import tqdm

from strata import learning
from strata.snapshots import BENIGN, Snapshots
from strata.training import DOUBT_WEIGHT, Options, Trainer

from . import cases as cases_module
from .cases import BUDGET, FIRST, RANDOM, RELATED, TRAINED_ON

POISON = (0.01, 0.1)
SHIPPED, DOUBTING = "shipped, doubt disabled", "shipped"
BY_BYTES, ALONE, BOTH = "trained by bytes", "learnt alone", "learnt and trained"
WITH_SHIPPED = "learnt and shipped"


@dataclass
class Site:
    """Ordinary traffic: what was learnt from, and what comes later."""

    before: Snapshots
    after: Snapshots
    weight: np.ndarray
    kinds: dict[str, learning.Scorer]
    learnt: dict[tuple[str, ...], learning.Scorer] = field(default_factory=dict)
    """By the attacks that it may not know."""


@dataclass
class Case:
    """An attack at a site."""

    name: str
    site: str
    attack: np.ndarray
    payload: np.ndarray
    flow: np.ndarray
    scores: dict[str, np.ndarray]


def run(folder: Path, output: Path, shipped: Path, jobs: int = 2) -> dict[str, Any]:
    """Writes figures to `output` with the endings .json and .md. `shipped` is the model that the
    program has built in, which has seen some of the attacks."""
    with tempfile.TemporaryDirectory(prefix="strata-") as scratch:
        found = cases_module.captures(folder, Path(scratch))
        captures = {name: data for name, _, _, data in found}
        figures = _judge(captures, json.loads(shipped.read_text()), jobs)
    figures["captures"] = sorted(captures)
    output.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")
    output.with_suffix(".md").write_text(in_markdown(figures))
    return figures


def _judge(captures: dict[str, Snapshots], shipped: dict[str, Any], jobs: int) -> dict[str, Any]:
    rows, kinds, repeated = [], {kind: [] for kind in learning.KINDS}, []
    todo = cases_module.cases(captures)
    sites: dict[tuple[str, ...], Site] = {}
    models: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, site_name, names in tqdm(todo, desc="attacks", disable=None):
        if names not in sites:
            sites[names] = _site([captures[n] for n in names])
        related = RELATED.get(name, ())
        if related not in models:
            models[related] = _trained(captures[TRAINED_ON], related, jobs)
        case = _case(
            name, site_name, captures[name], sites[names], models[related], related, shipped
        )
        of = _by_flow(case)
        rows.append(
            {
                "attack": name,
                "site": site_name,
                "flows": len(of[0]),
                "kept": cases_module.shares(of),
            }
        )
        repeated.append(cases_module.bootstrap(of))
        for kind, area in _areas(case, sites[names], captures[name]).items():
            kinds[kind].append(area)
    return {
        "budget": BUDGET,
        "rows": rows,
        "macro": cases_module.macro(rows),
        "differences": cases_module.differences(
            repeated,
            (DOUBTING, BY_BYTES, ALONE, WITH_SHIPPED, BOTH),
            (RANDOM, FIRST, SHIPPED, BY_BYTES),
        ),
        "kinds": {kind: round(float(np.mean(areas)), 3) for kind, areas in kinds.items()},
    }


def _site(captures: Sequence[Snapshots]) -> Site:
    halves = [cases_module.ordinary_halves(data) for data in captures]
    before, after = (cases_module.joined(half) for half in zip(*halves, strict=True))
    before = cases_module.at_most(before)
    weight = learning.weights(before)
    values = before.values(learning.LEARNT)
    kinds = {name: kind(values, weight) for name, kind in learning.KINDS.items()}
    return Site(before, after, weight, kinds)


def _trained(data: Snapshots, related: Sequence[str], jobs: int) -> dict[str, Any]:
    """Trees of the options of the shipped model, which have not seen these sources."""
    options = Options(by_bytes=True, min_leaf=5, jobs=jobs, progress=False)
    trainer = Trainer(cases_module.without(data, related), options)
    columns = list(range(len(trainer.features)))
    trees, _ = trainer.trees(columns, (8, 64, 8), 0.5, 0.5)
    classes = [{"name": c, "anomalous": c != BENIGN} for c in trainer.classes]
    features = [{"name": f} for f in trainer.features]
    return {"classes": classes, "features": features, "flow_trees": trees}


def _case(
    name: str,
    site_name: str,
    capture: Snapshots,
    site: Site,
    trained: dict[str, Any],
    related: Sequence[str],
    shipped: dict[str, Any],
) -> Case:
    attacks = capture.where(capture.attack)
    both = cases_module.joined([site.after, attacks])
    payload = both.columns["payload_len"].astype(float)
    flow = both.columns["flow"]
    known = learning.attacks(related)
    values = both.values(learning.LEARNT)

    def learnt(trees: int, before: np.ndarray, weight: np.ndarray) -> learning.Scorer:
        grown, bins = learning.forest(
            before, weight, learning.LEARNT, learning.Options(), trees, known
        )
        return lambda judged: grown.predict_proba(bins.ranks(judged))[:, 1]

    before = site.before.values(learning.LEARNT)
    half = {**trained, "flow_trees": trained["flow_trees"][: learning.TREES_BESIDE]}
    labelled = learning.anomaly(half, both)
    scores = {
        RANDOM: np.zeros(len(both)),
        FIRST: cases_module.first_bytes(flow, both.columns["in_flow"], payload),
    }
    plain, doubt = learning.anomaly(shipped, both), learning.doubt(shipped, both)
    scores[SHIPPED], scores[DOUBTING] = plain, np.maximum(plain, doubt * DOUBT_WEIGHT)
    scores[BY_BYTES] = learning.anomaly(trained, both)
    key = tuple(related)
    if key not in site.learnt:
        site.learnt[key] = learnt(learning.TREES, before, site.weight)
        site.learnt[(*key, BOTH)] = learnt(learning.TREES_BESIDE, before, site.weight)
    scores[ALONE] = site.learnt[key](values)
    own = site.learnt[(*key, BOTH)](values)
    of_shipped = {**shipped, "flow_trees": learning.half(shipped, "flow_trees")}
    scores[WITH_SHIPPED] = learning.anomaly(of_shipped, both) + own
    scores[BOTH] = labelled + own
    for share in POISON:
        bad = learning.weights(attacks) * share
        rows = np.vstack([before, attacks.values(learning.LEARNT)])
        weight = np.concatenate([site.weight * (1 - share), bad])
        scores[_poisoned(share)] = labelled + learnt(learning.TREES_BESIDE, rows, weight)(values)
    attack = np.repeat([False, True], (len(site.after), len(attacks)))
    return Case(name, site_name, attack, payload, flow, scores)


def _poisoned(share: float) -> str:
    return f"{BOTH}, {share:.0%} poisoned"


def _by_flow(case: Case) -> cases_module.Kept:
    chosen = {n: cases_module.kept(s, case.payload, BUDGET) for n, s in case.scores.items()}
    return cases_module.by_flow(case.attack, case.payload, case.flow, chosen)


def _areas(case: Case, site: Site, capture: Snapshots) -> dict[str, float]:
    """The area under ROC of each kind of trees, on packets with payload."""
    attacks = capture.where(capture.attack)
    values = cases_module.joined([site.after, attacks]).values(learning.LEARNT)
    here = case.payload > 0
    return {
        kind: float(roc_auc_score(case.attack[here], score(values[here])))
        for kind, score in site.kinds.items()
    }


def in_markdown(figures: dict[str, Any]) -> str:
    """The figures as tables."""
    lines = [
        "# What models keep of attacks that they have not seen",
        "",
        "`make unseen`. Share of attack packets / of attack flows of which payload is kept, of "
        f"{figures['budget']:.0%} of all payload, in percent. Models have not seen the attacks, "
        "but for those of mix-test; the shipped one has seen some of cic2019 and westermo too.",
        "",
        *cases_module.table(figures),
    ]
    lines += ["", "Mean area under ROC of trees that learnt from ordinary packets alone:", ""]
    lines += [f"- {kind}: {area:.3f}" for kind, area in figures["kinds"].items()]
    return "\n".join(lines) + "\n"
