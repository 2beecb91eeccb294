"""A job in which one rank does something wrong: ``faults.py raises|hangs|strays|dies``."""

import os
import signal
import sys
import time

import torch

from grpo_from_scratch.distributed.process_group import joined


def main(fault: str) -> None:
    with joined(timeout=5) as world:
        for step in range(3):
            if world.rank == 1 and step == 2:
                if fault == "raises":
                    raise ValueError("the reward of step 3 is broken")
                if fault == "hangs":
                    time.sleep(600)
                if fault == "strays":
                    world.sum("gradients of step 3", torch.ones(5))
                if fault == "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
            world.gather(f"rewards of step {step + 1}", torch.ones(2))


if __name__ == "__main__":
    main(*sys.argv[1:])
