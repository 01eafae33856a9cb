from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from synthesizer_attention.data.batch import (
    IGNORED,
    Order,
    Ragged,
    corrupt,
    corrupted_lengths,
    in_order,
    label_batch,
    num_windows,
    own_part,
    pair_batch,
    probe_batch,
    uncorrupted_length,
    window,
    window_batch,
)

ROWS = [np.array([5, 6, 7]), np.array([8, 9])]
PLACES = np.array([4, 2])


def test_lists_end_to_end_come_apart_again():
    ragged = Ragged.of([[1, 2], [], [3]])
    assert [list(ragged[i]) for i in range(len(ragged))] == [[1, 2], [], [3]]
    assert ragged.lengths.tolist() == [2, 0, 1]
    assert [list(row) for row in (ragged.take([2, 0])[i] for i in range(2))] == [[3], [1, 2]]


def test_pairs_are_padded_and_unscored_there():
    batch = pair_batch(ROWS, [np.array([1]), np.array([2, 3])], indices=PLACES, pad=0)
    assert batch.inputs["input_ids"].tolist() == [[5, 6, 7], [8, 9, 0]]
    assert batch.inputs["attention_mask"].tolist() == [[True] * 3, [True, True, False]]
    assert batch.inputs["labels"].tolist() == [[1, IGNORED], [2, 3]]
    assert (batch.num_targets, batch.num_tokens, batch.indices) == (3, 8, (4, 2))


def test_labels_are_counted_per_example():
    batch = label_batch(ROWS, np.array([1, 0]), indices=PLACES, pad=0)
    assert batch.inputs["labels"].tolist() == [1, 0]
    assert (batch.num_targets, batch.num_tokens) == (2, 5)


def test_windows_are_their_own_labels_but_for_the_first():
    """The model compares the output at i with label i + 1, so label 0 is compared with nothing."""
    batch = window_batch(ROWS, indices=PLACES, pad=0)
    assert batch.inputs["labels"].tolist() == [[IGNORED, 6, 7], [IGNORED, 9, IGNORED]]
    assert batch.inputs["attention_mask"].tolist() == [[True] * 3, [True, True, False]]
    assert (batch.num_targets, batch.num_tokens) == (3, 5)
    assert "attention_mask" not in window_batch(ROWS[:1], indices=PLACES[:1], pad=0).inputs


@settings(deadline=None)
@given(st.integers(2, 100), st.integers(2, 12))
def test_each_token_but_the_first_is_predicted_once(tokens, length):
    stream = np.arange(tokens)
    predicted = []
    for place in range(num_windows(tokens, length - 1)):
        row = window(stream, place, length=length, stride=length - 1)
        assert 2 <= len(row) <= length
        predicted += row[1:].tolist()
    assert predicted == stream[1:].tolist()


def test_a_probe_is_asked_for_target_i_at_output_i():
    batch = probe_batch([np.array([5, 6, 1])], [np.array([IGNORED, 5])], indices=PLACES[:1], pad=0)
    labels = batch.inputs["labels"]
    assert labels.tolist() == [[IGNORED, IGNORED, 5]]
    asked = labels[:, 1:]  # what the model compares with outputs 0, 1, ...
    assert asked.tolist() == [[IGNORED, 5]]
    assert batch.num_targets == 1


def batch_of(examples):
    rows = [ROWS[i % 2] for i in examples]
    return pair_batch(rows, rows, indices=examples, pad=0)


@given(st.integers(1, 20), st.integers(1, 7))
def test_processes_share_a_batch_without_overlap(examples, world):
    whole = np.random.default_rng(0).permutation(examples)
    parts = [own_part(whole, batch_of, rank, world) for rank in range(world)]
    sizes = [len(part.indices) for part in parts]
    assert sorted(i for part in parts for i in part.indices) == list(range(examples))
    assert max(sizes) - min(sizes) <= 1
    assert sum(part.num_targets for part in parts) == batch_of(whole).num_targets


def test_a_process_without_an_example_computes_one_that_counts_for_nothing():
    first, idle = (own_part(np.array([1]), batch_of, rank, 2) for rank in range(2))
    assert torch.equal(idle.inputs["input_ids"], first.inputs["input_ids"])
    assert idle.inputs["labels"].unique().tolist() == [IGNORED]
    assert (idle.num_targets, idle.num_tokens, idle.indices) == (0, 0, ())


def test_corruption_of_512_tokens_has_the_lengths_of_t5():
    assert uncorrupted_length(512, 512) == 568
    assert corrupted_lengths(568) == (512, 114)


@settings(deadline=None)
@given(st.integers(2, 300), st.integers(0, 2**31))
def test_a_corrupted_text_can_be_put_together_again(length, seed):
    tokens, sentinels = np.arange(1000, 1000 + length), np.arange(100)
    rng = np.random.default_rng(seed)
    source, target = corrupt(tokens, rng, sentinels=sentinels, eos=-1)
    assert (len(source), len(target)) == corrupted_lengths(length)
    assert source[-1] == target[-1] == -1
    marks = [place for place, token in enumerate(target) if token < 100]
    spans = {target[begin]: target[begin + 1 : end].tolist() for begin, end in pairwise(marks)}
    assert all(spans.values())
    restored = [word for token in source[:-1] for word in spans.get(token, [token])]
    assert restored == tokens.tolist()


@pytest.mark.parametrize("max_len", [4, 33, 128])
def test_the_longest_window_that_fits_is_found(max_len):
    length = uncorrupted_length(max_len, max_len)
    assert max(corrupted_lengths(length)) <= max_len
    assert max(corrupted_lengths(length + 1)) > max_len


def test_corruption_loses_a_sixth_in_spans_of_three():
    rng = np.random.default_rng(0)
    source, target = corrupt(np.arange(100, 1100), rng, sentinels=np.arange(100), eos=-1)
    assert (target >= 100).sum() == 150
    assert ((source >= 0) & (source < 100)).sum() == 50


LENGTHS = np.random.default_rng(0).integers(2, 50, size=(300, 2))


def order(**options):
    return Order(LENGTHS, **{"batch_tokens": 500, "seed": 3, **options})


def cost(batch, lengths=LENGTHS):
    return len(batch) * lengths[batch].max(axis=0).sum()


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
