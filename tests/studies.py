"""Comparisons in this process, where torch is imported already."""

import json
from contextlib import contextmanager

from synthesizer_attention.errors import UserError
from synthesizer_attention.study.compare import conduct, fit_widths, settle
from synthesizer_attention.study.plan import draw_up
from synthesizer_attention.study.worker import perform
from synthesizer_attention.study.workers import Task


class Here:
    """An executor that starts no process."""

    capacity, place, notices = 1, "of one thread", ()

    def grow(self, size):
        pass

    def submit(self, do, **arguments):
        task = Task(do, **arguments)
        task.notes.append({"event": "start"})
        try:
            task.set_result(self.perform(task.order))
        except UserError as error:
            task.set_exception(error)
        return task

    def wait(self, tasks):
        return {*tasks}

    def perform(self, order):
        return perform(order)


@contextmanager
def here(folder, jobs, say=print):
    """In the place of `open_pool`."""
    folder.mkdir(parents=True, exist_ok=True)
    yield Here()


def planned(asked):
    """The plan of a comparison that searches nothing, with the widths of its rows."""
    plan = draw_up(asked)
    settle(plan, lambda line: None)
    fit_widths(plan, Here(), lambda line: None)
    return plan


def conducted(asked, pool=None, say=print):
    """The plan of a comparison that was run."""
    plan = draw_up(asked)
    plan.out.mkdir(exist_ok=True)
    return conduct(plan, pool or Here(), say, plain=True)


def study_of(asked):
    """Its study.json."""
    return json.loads((asked.out / "study.json").read_text())


def rewrite(asked, change):
    """Change study.json in place."""
    study = study_of(asked)
    change(study)
    (asked.out / "study.json").write_text(json.dumps(study))
