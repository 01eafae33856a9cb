import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from synthesizer_attention.data.batch import Order, in_order

LENGTHS = np.random.default_rng(0).integers(2, 50, size=(300, 2))


def order(**options):
    return Order(LENGTHS, **{"batch_tokens": 500, "seed": 3, **options})


def cost(batch, lengths=LENGTHS):
    return len(batch) * lengths[batch].max(axis=0).sum()


def test_an_epoch_shows_every_example_once():
    for epoch in (0, 7):
        assert sorted(np.concatenate(order().epoch(epoch))) == list(range(300))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 2000), st.integers(0, 3), st.integers(1, 60))
def test_no_batch_of_several_exceeds_its_budget(batch_tokens, epoch, count):
    lengths = LENGTHS[:count]
    batches = Order(lengths, batch_tokens=batch_tokens, seed=1).epoch(epoch)
    assert sorted(np.concatenate(batches)) == list(range(count))
    assert all(cost(batch, lengths) <= batch_tokens for batch in batches if len(batch) > 1)


def test_every_epoch_has_as_many_batches_in_another_order():
    epochs = [order().epoch(epoch) for epoch in range(4)]
    assert {len(batches) for batches in epochs} == {order().batches_per_epoch}
    first = {tuple(sorted(batch)) for batch in epochs[0]}
    second = {tuple(sorted(batch)) for batch in epochs[1]}
    assert len(first & second) < len(first) / 2


def test_the_start_is_found_without_walking_there():
    whole = order().batches()
    steps = [next(whole) for _ in range(3 * order().batches_per_epoch)]
    for start in (0, 1, order().batches_per_epoch - 1, order().batches_per_epoch, 77):
        epoch, batch = next(order().batches(start))
        assert epoch == steps[start][0]
        np.testing.assert_array_equal(batch, steps[start][1])


def test_the_seed_decides_the_order():
    assert not np.array_equal(order().epoch(0)[0], order(seed=4).epoch(0)[0])


def test_little_is_padded():
    real = sum(LENGTHS[batch].sum() for batch in order().epoch(0))
    assert real / sum(cost(batch) for batch in order().epoch(0)) > 0.8


def test_a_group_counts_as_at_most_its_cap():
    """Examples-proportional mixing: 20, 30 and 250 examples with a cap of 30."""
    groups = np.repeat([0, 1, 2], [20, 30, 250])
    mixture = order(groups=groups, cap=30)
    seen = set()
    for epoch in range(60):
        chosen = np.concatenate(mixture.epoch(epoch))
        assert np.bincount(groups[chosen]).tolist() == [20, 30, 30]
        assert len(set(chosen)) == 80
        assert len(mixture.epoch(epoch)) == mixture.batches_per_epoch
        seen |= set(chosen)
    assert len(seen) > 290


def test_in_order_leaves_the_order():
    batches = in_order(LENGTHS, 500)
    assert np.concatenate(batches).tolist() == list(range(300))
    assert all(cost(batch) <= 500 for batch in batches if len(batch) > 1)
