import torch

from synthesizer_attention.training.meter import clock_name, now, peak_memory

CPU = torch.device("cpu")


def test_memory_is_the_most_that_new_tensors_take_at_once():
    """A process that has had the memory before says the same."""
    standing = torch.zeros(10_000_000)
    for _ in range(2):
        with peak_memory(CPU) as memory:
            first = torch.zeros(1_000_000)
            second = torch.zeros(2_000_000)
            del first
            third = torch.zeros(500_000)
        assert memory.peak == 4 * 3_000_000
        del second, third
    assert standing.numel() == 10_000_000


def test_work_that_makes_nothing_takes_no_memory():
    with peak_memory(CPU) as memory:
        pass
    assert memory.peak == 0


def test_one_thread_reads_its_own_clock_and_more_the_walls(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert clock_name(CPU) == "wall clock"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert clock_name(CPU) == "processor time of one thread"
    begin = now(CPU)
    assert now(CPU) >= begin
