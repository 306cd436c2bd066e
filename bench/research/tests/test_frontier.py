"""Kinds of trees that are compared."""

import numpy as np
import pytest
from research import frontier


def noisy(rng, rows=600, features=4):
    """Ranks of which the first two decide, but for one packet in ten."""
    ranks = rng.integers(0, 16, (rows, features)).astype(float)
    attack = (ranks[:, 0] > 7) & (ranks[:, 1] > 3)
    return ranks, attack ^ (rng.random(rows) < 0.1)


def test_an_oblivious_level_is_the_split_that_gains_most():
    rng = np.random.default_rng(1)
    ranks, attack = noisy(rng)
    ranks = ranks.astype(int)
    gradient, curvature = rng.normal(size=len(ranks)), rng.random(len(ranks)) + 0.1
    gradient -= attack
    splits, values = frontier._oblivious_tree(ranks, gradient, curvature, 3, rng)
    for level, chosen in enumerate(splits):

        def gain(split, before=splits[:level]):
            # By hand: each side of each node.
            total = 0.0
            nodes = [tuple(row[f] > most for f, most in before) for row in ranks]
            for node in set(nodes):
                here = np.array([n == node for n in nodes])
                for side in (ranks[:, split[0]] > split[1], ranks[:, split[0]] <= split[1]):
                    rows = here & side
                    total += gradient[rows].sum() ** 2 / (curvature[rows].sum() + 3.0)
            return total

        others = [(f, most) for f in {s[0] for s in splits} for most in range(16)]
        assert gain(chosen) == pytest.approx(max(map(gain, others)))
    leaf = frontier._leaf(ranks, splits)
    for number in range(8):
        rows = leaf == number
        expected = -gradient[rows].sum() / (curvature[rows].sum() + 3.0)
        assert values[number] == pytest.approx(expected)


@pytest.mark.parametrize(
    "fit",
    [
        frontier.random_forest(8, 16, 4),
        frontier.boosted(8, 16, 4, 0.5),
        frontier.oblivious(8, 4, 0.5),
    ],
)
def test_each_kind_learns_what_can_be_learnt_and_repeats(fit):
    rng = np.random.default_rng(2)
    ranks, attack = noisy(rng, 4_000)
    fitted = fit(ranks[:2_000], attack[:2_000], 1)
    found = fitted(ranks[2_000:])
    assert np.array_equal(found, fit(ranks[:2_000], attack[:2_000], 1)(ranks[2_000:]))
    assert np.mean((found > 0.5) == attack[2_000:]) > 0.85
    assert ((found >= 0) & (found <= 1)).all()


def test_recall_and_precision_are_those_of_whole_scores():
    attack = np.array([True, False, True, True, False, False])
    score = np.array([0.9, 0.8, 0.8, 0.5, 0.5, 0.1])
    # From 0.9: 1 of 1; from 0.8: 2 of 3; from 0.5: 3 of 5; all: 3 of 6.
    assert frontier._recall_at(attack, score, 0.99) == pytest.approx(1 / 3)
    assert frontier._recall_at(attack, score, 0.65) == pytest.approx(2 / 3)
    assert frontier._recall_at(attack, score, 0.6) == 1.0
    assert frontier._precision_at(attack, score, 0.3) == 1.0
    assert frontier._precision_at(attack, score, 0.5) == pytest.approx(2 / 3)
    assert frontier._precision_at(attack, score, 1.0) == pytest.approx(3 / 5)
