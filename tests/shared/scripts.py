"""Scripts that lie outside the package, as modules: tests try what users run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from paths import ROOT


def load_script(path: str) -> ModuleType:
    """The script at `path` from the repository's root."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)  # a dataclass looks its module up
    folder = str((ROOT / path).parent)
    if folder not in sys.path:  # what lies beside it, as when it is run; last: no name is taken
        sys.path.append(folder)
    spec.loader.exec_module(module)
    return module
