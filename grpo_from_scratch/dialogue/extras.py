"""Packages that not everybody needs: each an extra of this one, imported when it is used."""

import importlib
from types import ModuleType


def extra(module: str, name: str, what: str) -> ModuleType:
    """The module, which comes with the extra of this name.

    Raises:
        ImportError: it is not installed: what needs it, and how to get it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs a package: pip install 'grpo-from-scratch[{name}]'") from error
