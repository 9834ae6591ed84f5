"""The wheel as somebody gets it who has no checkout: `make dist-check`.

Holds its files to those of the repository, then installs it into an empty environment in a
directory elsewhere, with the versions of constraints.txt, and runs what the README names there. It
takes a few minutes, most of them pip's, and is no test of the suite, which needs no network.
"""

from __future__ import annotations

import argparse
import email
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST = 3e6  # bytes of the sdist
INFO = {"METADATA", "WHEEL", "entry_points.txt", "licenses/LICENSE", "RECORD"}
# what runs with the hard dependencies alone: words, and a file that must be there afterwards
BARE = [
    (["entrostat", "train", "--iterations", "6", "--output", "bare"],
     "bare/final/model.safetensors"),
    (["entrostat", "diagnose", "bare"], None),
    (["entrostat", "methods"], None),
    (["python", "-c", "import entrostat; entrostat.make_objective('repo_r')"], None),
    (["python", "-m", "pip", "check"], None),
]  # fmt: skip
# what does not, and the extra that it asks for, in one line
ASKING = [
    (["entrostat", "report", "bare"], "page"),
    (["entrostat", "train", "--task", "gym:chain_sum"], "tasks"),
    (["entrostat", "train", "--task", "words"], "tasks"),
    (["entrostat", "train", "--task", "games"], "games"),
    (["entrostat", "train", "--lora.rank", "4", "--output", "lora"], "peft"),
    (["entrostat", "train", "--host", "trl", "--output", "trl"], "trl"),
    (["entrostat", "train", "--log", "wandb"], "wandb"),
    (["python", "-c", "import entrostat; entrostat.grade('math', '$x$', 'x')"], "tasks"),
    (["python", "-c", "from entrostat import metrics; metrics.self_bleu(['a b', 'a c'])"], "eval"),
]  # fmt: skip
# what runs with the extra `all`
COMMANDS = [
    (["entrostat", "--version"], None),
    (["entrostat", "train", "--iterations", "2", "--output", "run"], "run/final/model.safetensors"),
    (["entrostat", "report", "run"], "run/report.html"),
    (["entrostat", "train", "--config", "recipes/grpo.toml", "--iterations", "1", "--eval.prompts",
      "0", "--output", "recipe"], "recipe/report.html"),
    (["entrostat", "tasks"], None),
    (["python", "-m", "entrostat", "methods"], None),
    (["python", "-c", "from entrostat.testing import check_method; check_method('repo_r')"], None),
    (["python", "-m", "pip", "check"], None),
]  # fmt: skip


def tracked(folder: str) -> set[str]:
    """The files of a folder that git knows, relative to it."""
    words = ["git", "-C", str(ROOT / folder), "ls-files", "-z", "."]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return set(filter(None, listed.split("\0")))


def check_files(wheel: zipfile.ZipFile) -> None:
    """The package, its recipes, its licence, and nothing else."""
    names = set(wheel.namelist())
    info = next(name for name in names if name.endswith(".dist-info/METADATA"))
    info = info.removesuffix("METADATA")
    expected = {f"entrostat/{name}" for name in tracked("src/entrostat")}
    expected |= {f"entrostat/recipes/{name}" for name in tracked("recipes")}
    expected |= {info + name for name in INFO}
    if names != expected:
        sys.exit(
            f"not in the wheel: {sorted(expected - names)}; in it though not in the repository: "
            f"{sorted(names - expected)}"
        )
    metadata = email.message_from_bytes(wheel.read(info + "METADATA"))
    wanted = {"Name": "entrostat", "License-Expression": "Apache-2.0", "License-File": "LICENSE"}
    for key, value in wanted.items():
        if metadata[key] != value:
            sys.exit(f"the metadata say {key}: {metadata[key]}, not {value}")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    payload = metadata.get_payload(decode=True)
    if not isinstance(payload, bytes) or payload.decode().strip() != readme.strip():
        sys.exit("the metadata's description is not README.md")
    # the version: that of the file, of the metadata, of the wheel's name
    version = (ROOT / "src/entrostat/_version.py").read_text(encoding="utf-8")
    if f'"{metadata["Version"]}"' not in version:
        sys.exit(f"the metadata's version {metadata['Version']} is not that of _version.py")


def check_places(files: dict[str, bytes]) -> None:
    """No file names the checkout or the environment that it was built in."""
    for name, data in files.items():
        for place in (str(ROOT), sys.prefix):
            if place.encode() in data:
                sys.exit(f"{name} holds {place}")


def contents(path: Path) -> dict[str, bytes]:
    """Every file of a wheel or of an sdist."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(path) as sdist:
        files = [member for member in sdist if member.isfile()]
        return {file.name: sdist.extractfile(file).read() for file in files}


def check_installed(wheel: Path, constraints: Path) -> None:
    """In an empty environment, outside the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        began = time.monotonic()
        venv.create(place / "venv", with_pip=True)
        bin = place / "venv" / "bin"
        keep = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        env = keep | {
            "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}", "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1", "VIRTUAL_ENV": str(place / "venv"),
        }  # fmt: skip
        pip = [bin / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        run([*pip, "--no-compile", "-c", constraints, wheel], place, env)
        print(f"hard dependencies in {time.monotonic() - began:.0f} s", flush=True)
        work = place / "work"
        work.mkdir()
        where = (
            "import entrostat, sys; print(entrostat.__file__); assert 'pytest' not in sys.modules"
        )
        found = run([bin / "python", "-c", where], work, env).strip()
        if not Path(found).is_relative_to(place / "venv"):
            sys.exit(f"entrostat was imported from {found}")
        try_commands(BARE, bin, work, env)
        for words, extra in ASKING:
            asks_for(extra, words, bin, work, env)
        began = time.monotonic()
        run([*pip, "--no-compile", "-c", constraints, f"{wheel}[all]"], place, env)
        print(f"the extra `all` in {time.monotonic() - began:.0f} s", flush=True)
        try_commands(COMMANDS, bin, work, env)


def try_commands(
    commands: list[tuple[list[str], str | None]], bin: Path, work: Path, env: dict[str, str]
) -> None:
    """Each of them ends well and leaves what it should."""
    for words, left in commands:
        began = time.monotonic()
        run([bin / words[0], *words[1:]], work, env)
        print(f"{time.monotonic() - began:6.1f} s  {' '.join(words)}", flush=True)
        if left is not None and not (work / left).stat().st_size:
            sys.exit(f"{' '.join(words)} left {left} empty")


def asks_for(extra: str, words: list[str], bin: Path, work: Path, env: dict[str, str]) -> None:
    """A command ends with an error whose last line names the extra; a verb's is that line alone."""
    done = subprocess.run(
        [str(bin / words[0]), *words[1:]], cwd=work, env=env, text=True, capture_output=True
    )
    said = done.stderr.strip().splitlines()
    errors = [line for line in said if "error" in line.lower() or "Extra" in line]
    if not done.returncode or not errors or f"entrostat[{extra}]" not in errors[-1]:
        sys.exit(f"{' '.join(words)} does not ask for {extra}, it says:\n{done.stderr}")
    if words[0] == "entrostat" and "Traceback" in done.stderr:
        sys.exit(f"{' '.join(words)} shows a traceback:\n{done.stderr}")
    print(f"asks for {extra}: {errors[-1]}", flush=True)


def run(words: list[str | Path], folder: Path, env: dict[str, str]) -> str:
    """What a command printed."""
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env=env, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def main() -> None:
    """Check what `make dist` left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where `make dist` put the wheel and the sdist")
    parser.add_argument("--files-only", action="store_true", help="do not install")
    arguments = parser.parse_args()
    (wheel,) = arguments.folder.glob("*.whl")
    (sdist,) = arguments.folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        check_files(archive)
    for path in (wheel, sdist):
        check_places(contents(path))
    if sdist.stat().st_size > MOST:
        sys.exit(f"{sdist.name} has {sdist.stat().st_size} bytes, more than {MOST:.0f}")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, its files are the repository's")
    if not arguments.files_only:
        check_installed(wheel.resolve(), ROOT / "constraints.txt")


if __name__ == "__main__":
    main()
