"""Makes a PATH for the tests, with only the programs of a plain Debian system and of scripts/test-packages.

A test that uses another program fails with that program's name, on the machine of whoever wrote it, instead of on the
first fresh one.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

_LIST = Path(__file__).parents[2] / "scripts" / "test-packages"
_DPKG = Path("/var/lib/dpkg")
_BIN_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_FORMAT = "${db:Status-Abbrev}\t${Package}\t${Architecture}\t${Essential}\t${Priority}\t${Pre-Depends}, ${Depends}\t${Provides}\n"


def listed_packages() -> list[str]:
    """Return the packages whose programs the tests may use."""
    lines = (line.partition("#")[0].strip() for line in _LIST.read_text().splitlines())
    return [line for line in lines if line and line != "root:"]


def link_listed_programs(folder: Path) -> bool:
    """Fill `folder` with links to the listed programs; return False if there is no dpkg."""
    if not (_DPKG / "status").is_file():
        return False
    owned = set(_files_of(_closure(listed_packages())))
    for name in _BIN_FOLDERS:
        for program in Path(name).iterdir() if Path(name).is_dir() else ():
            link = folder / program.name
            if not link.is_symlink() and not owned.isdisjoint(_names(program)):
                link.symlink_to(program)
    return True


def _closure(wanted: list[str]) -> set[str]:
    """Return the installed packages among `wanted`, those of every Debian system, and their dependencies."""
    done = subprocess.run(
        ["dpkg-query", "--show", f"--showformat={_FORMAT}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    depends: dict[str, set[str]] = {}
    providers: dict[str, set[str]] = {}
    base: set[str] = {"apt"}
    for line in done.stdout.splitlines():
        status, package, _, essential, priority, needs, provides = line.split("\t")
        if not status.startswith("ii"):
            continue
        depends[package] = _names_in(needs)
        for name in _names_in(provides):
            providers.setdefault(name, set()).add(package)
        if essential == "yes" or priority == "required":
            base.add(package)
    closure: set[str] = set()
    open_names = [*wanted, *base]
    while open_names:
        name = open_names.pop()
        for package in {name} & depends.keys() or providers.get(name, set()):
            if package not in closure:
                closure.add(package)
                open_names += depends[package]
    return closure


def _names_in(relation: str) -> set[str]:
    """Return the packages that a field such as `a (>= 1), b:any | c` names."""
    return set(re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9.+-]*)", relation))


def _files_of(packages: set[str]) -> Iterator[str]:
    for listing in (_DPKG / "info").glob("*.list"):
        if listing.stem.partition(":")[0] in packages:
            yield from listing.read_text().splitlines()


def _names(program: Path) -> set[str]:
    """Return the paths by which packages may list `program`: its own, its target's, with and without /usr."""
    names = {str(program), str(program.resolve())}
    return names | {name.removeprefix("/usr") for name in names} | {f"/usr{name}" for name in names}
