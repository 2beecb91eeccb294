"""Jobs of several processes for the tests, started as a user starts them: by torchrun."""

import os
import subprocess
import sys

LIMIT = 300  # seconds after which a job hangs for certain; a healthy one takes a few


def torchrun(*arguments: str, ranks: int = 2, **more) -> subprocess.CompletedProcess:
    """``torchrun --standalone --nproc-per-node=ranks arguments``, with its output as text."""
    flags = ["--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *flags, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **more},
    )
