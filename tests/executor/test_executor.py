"""Executors in this process and in threads: outcomes, order, messages and stopping."""

import threading

import pytest

from twoclock.executor import TaskBatch, ThisProcess, Threads


def divide(shared, task, channel):
    channel.report(f"dividing by {task}")
    return shared / task


@pytest.mark.parametrize("executor", [ThisProcess(), Threads()])
def test_outcomes_are_values_or_exceptions_in_the_order_of_the_tasks(executor):
    numbers, outcomes = zip(*executor.map(TaskBatch(divide, 12.0, [1, 2, 0, 4])), strict=True)
    assert numbers == (0, 1, 2, 3)
    assert outcomes[:2] + outcomes[3:] == (12.0, 6.0, 3.0)
    assert isinstance(outcomes[2], ZeroDivisionError)


def test_messages_come_with_the_number_of_their_task():
    heard = []
    list(ThisProcess().map(TaskBatch(divide, 12.0, [1, 2], lambda *message: heard.append(message))))
    assert heard == [(0, None), (0, "dividing by 1"), (1, None), (1, "dividing by 2")]


@pytest.mark.parametrize("executor", [ThisProcess(), Threads()])
def test_no_outcome_comes_after_a_stop(executor):
    done = []
    for number, _ in executor.map(TaskBatch(divide, 12.0, [1, 2, 3, 4, 5], stop=lambda: len(done) == 2)):
        done.append(number)
    assert done == [0, 1]


def test_closing_the_outcomes_starts_no_further_task():
    started, go = [], threading.Event()

    def wait(shared, task, channel):
        started.append(task)
        go.wait(10)

    outcomes = Threads().map(TaskBatch(wait, None, range(10_000)))
    go.set()
    next(outcomes)
    outcomes.close()
    assert len(started) < 10_000
