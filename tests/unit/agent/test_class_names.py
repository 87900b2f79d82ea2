"""No two public classes of the product share a name."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from source_tree import SOURCE

_CLASS = re.compile(r"^class ([A-Z]\w*)", re.MULTILINE)


def _shared_names(folders: list[Path]) -> dict[str, list[str]]:
    """Return each name that several public classes have, and the modules that define them."""
    modules = defaultdict[str, list[str]](list)
    for folder in folders:
        for module in sorted(folder.rglob("*.py")):
            for name in _CLASS.findall(module.read_text()):
                modules[name].append(str(module.relative_to(folder.parent)))
    return {name: found for name, found in modules.items() if len(found) > 1}


def test_no_two_public_classes_share_a_name() -> None:
    assert _shared_names([SOURCE / "bai_agent", SOURCE / "executor", SOURCE / "cloud_init"]) == {}


def test_a_name_that_is_used_twice_is_found(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        (folder / "module.py").write_text("class Twice(dict):\n    class Inner: ...\n\n\nclass _Own: ...\n")

    assert _shared_names([one, other]) == {"Twice": ["one/module.py", "other/module.py"]}
