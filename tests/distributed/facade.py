"""ParallelGRPO as a user's script has it, which torchrun starts: ``facade.py FIELDS FOLDER``."""

import json
import os
import sys

import torch

from grpo_from_scratch.training.parallel import ParallelGRPO


def main() -> None:
    fields, out = json.loads(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    result = ParallelGRPO(fields.pop("model"), num_groups=3, strategy=fields.pop("strategy")).train(**fields, out=out)
    with open(f"{out}/said.{os.environ['RANK']}", "w") as file:
        json.dump([row["step"] for row in result.metrics], file)


if __name__ == "__main__":
    main()
