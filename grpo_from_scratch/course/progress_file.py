"""Which exercises are solved, kept in the user's data folder, never in the repository."""

import json
import os
import tempfile
from datetime import datetime
from pathlib import Path

import platformdirs


def path() -> Path:
    """``progress.json`` in the user's data folder, or in ``GRPO_DATA_DIR`` where that is set."""
    return Path(os.environ.get("GRPO_DATA_DIR") or platformdirs.user_data_dir("grpo_from_scratch")) / "progress.json"


def solved() -> dict[str, str]:
    """When each solved exercise was solved: {name: ISO time}.

    Raises:
        ValueError: the file is not what ``record`` writes.
    """
    try:
        kept = json.loads(path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path()} is not JSON ({error}): mend it or delete it") from None
    if not isinstance(kept, dict):
        raise ValueError(f"{path()} should hold a JSON object of exercises and times: mend it or delete it")
    return kept


def record(name: str) -> None:
    """Keep that this exercise is solved; the first time counts.

    Raises:
        OSError: the folder cannot be written.
        ValueError: the file is not what ``record`` writes.
    """
    kept = solved()
    if name in kept:
        return
    kept[name] = datetime.now().isoformat(timespec="seconds")
    path().parent.mkdir(parents=True, exist_ok=True)
    # written beside and moved into place, so that two notebooks at once or a full disk never leave half a file
    with tempfile.NamedTemporaryFile("w", dir=path().parent, delete=False, encoding="utf-8") as file:
        json.dump(kept, file, indent=1)
    os.replace(file.name, path())
