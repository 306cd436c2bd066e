import numpy as np
from research import cases


def test_a_budget_is_spent_on_the_highest_scores_and_not_exceeded():
    rng = np.random.default_rng(2)
    payload = rng.integers(0, 1500, 5000).astype(float)
    score = rng.random(5000).round(1)
    chosen = cases.kept(score, payload, 0.1)
    spent = payload[chosen].sum() / payload.sum()
    assert 0.099 < spent <= 0.1
    # A twentieth has a score of 1, a tenth of 0.9.
    assert chosen[(score == 1) & (payload > 0)].all()
    assert score[chosen].min() == 0.9
    assert not chosen[payload == 0].any()


def test_first_bytes_come_before_later_ones():
    flow = np.array([7, 7, 3, 7, 3])
    in_flow = np.array([1, 3, 1, 2, 2])
    payload = np.array([10.0, 30, 5, 20, 6])
    before = -cases.first_bytes(flow, in_flow, payload)
    assert before.tolist() == [0, 30, 0, 10, 5]
