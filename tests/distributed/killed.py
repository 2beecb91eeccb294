"""A run that is killed: ``killed.py RUN FOLDER KILLS``. In attempt i, KILLS[i] = [rank, where, count] says who dies.

``where`` is "meet", at its so many-th exchange with the other ranks, or "write", at its so many-th checkpoint file.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from jobs import make_config, tensors
from safetensors.torch import save_file

from grpo_from_scratch.distributed.process_group import World, current, joined
from grpo_from_scratch.training import checkpoint
from grpo_from_scratch.training.trainer import RLTrainer

PLACES = {"meet": (World, "_meet"), "write": (checkpoint, "_flush_to_disk")}


def die_at(where: str, count: int) -> None:
    """SIGKILL this process when it has come there so many times: no exception, no clean-up."""
    owner, name = PLACES[where]
    before, calls = getattr(owner, name), []

    def deadly(*arguments, **keywords):
        calls.append(1)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return before(*arguments, **keywords)

    setattr(owner, name, deadly)


def main() -> None:
    run, out, kills = json.loads(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(1)
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with joined(timeout=60):
        trainer = RLTrainer(make_config(run, out / "run"))
        rank = current().rank
        (out / f"began-{attempt}-{rank}").write_text(str(trainer.progress.step))
        if attempt < len(kills) and kills[attempt][0] == rank:
            die_at(*kills[attempt][1:])
        trainer.train()
        save_file(tensors(trainer), out / f"final.{rank}")


if __name__ == "__main__":
    main()
