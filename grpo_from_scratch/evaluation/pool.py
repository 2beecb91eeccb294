"""Many runs on a few worker processes, with one progress bar over all their steps."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import Any

import torch
from tqdm import tqdm
from transformers.utils.logging import disable_progress_bar

Report = Callable[[], None]  # called by a job after each of its steps
_steps = _stop = None  # in a worker: where finished steps are reported, and whether no further job may begin


def run_jobs(
    work: Callable[[Any, Report], Any],
    jobs: Sequence[Any],
    *,
    workers: int,
    steps: Callable[[Any], int],
    description: str,
) -> list[Any]:
    """``[work(job, report) for job in jobs]``, in that order, on ``workers`` processes with one torch thread each.

    Args:
        work: a module's function, since workers are spawned; it saves what must survive an interruption.
        steps: how many times a job calls its ``report``, for the time that is left.

    Raises:
        whatever the first failing job raised, after the jobs under way have ended. Ctrl-C starts no further job.
    """
    with tqdm(total=sum(map(steps, jobs)), desc=description, unit="step", smoothing=0.05) as bar:
        if workers == 1 or len(jobs) == 1:
            torch.set_num_threads(1)
            return [work(job, bar.update) for job in jobs]
        context = multiprocessing.get_context("spawn")  # fork would copy torch's thread pools in an unknown state
        queue, stop = context.SimpleQueue(), context.Event()
        with ProcessPoolExecutor(min(workers, len(jobs)), context, initializer=_begin, initargs=(queue, stop)) as pool:
            futures = [pool.submit(_run, work, job) for job in jobs]
            try:
                _watch(futures, queue, bar)
            except BaseException:
                stop.set()  # the pool hands out one job in advance, which it cannot cancel
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [future.result() for future in futures]


def _begin(queue, stop) -> None:
    global _steps, _stop
    _steps, _stop = queue, stop
    torch.set_num_threads(1)
    disable_progress_bar()  # of loading weights: it would break the one bar that counts


def _run(work: Callable, job: Any) -> Any:
    if _stop.is_set():
        raise KeyboardInterrupt
    return work(job, lambda: _steps.put(1))


def _watch(futures: list, queue, bar: tqdm) -> None:
    running = set(futures)
    while running:
        done, running = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
        while not queue.empty():
            bar.update(queue.get())
        for future in done:
            future.result()  # raises what the job raised
