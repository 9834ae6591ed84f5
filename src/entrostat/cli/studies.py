"""`entrostat study`: the trainings of study files, compared, and claims about them."""

from __future__ import annotations

from .flags import number, options

STUDY = """\
usage: entrostat study FILE.toml|DIR [...] [OPTIONS]

Run the trainings of study files side by side, print tables and write a page
for each file. The same command resumes; what is done is skipped. A training
that fails is shown and stops nothing.

Examples:
  entrostat study recipes/demo.toml --output runs/demo
  entrostat study recipes/three_seeds.toml --quick
  entrostat study recipes/study --ray auto --output /shared/study

  --output DIR     default: runs/NAME for NAME.toml or the directory NAME
  --quick          a try of minutes, by the files' [quick]; into runs/NAME-quick
  --jobs N         trainings at once; default: the file's, or one per processor
  --ray [ADDRESS]  use a Ray cluster (extra `ray`): of this machine, or that at
                   ADDRESS (auto, HOST:PORT), whose nodes share --output
  --record DIR     numbers without weights: reuse what DIR has, add what is done
  --report         train nothing: tables and pages of what is done
  --seeds N,N      train only these of the files' seeds, as 0,1,2
  --lean           with --record: remove weights that are on record and that no
                   training still begins with; write no page for each training
  --claims FILE    claims to decide; default: claims.toml of a directory
  --trust-code     import the code (MODULE:NAME) that the files name

A file: a title, [base] with the settings of all runs, [[runs]] with a name and
what differs, seeds = [0, 1, 2], and [grid] with lists of values;
docs/studies.md describes it. All runs are checked before the first one starts.
"""


def study_verb(args: list[str]) -> int:
    ray, args = _take_ray(args)
    given, args = options(args, STUDY)
    jobs, seeds = number(given["jobs"], "jobs"), given["seeds"]
    if seeds is not None:
        seeds = [number(word, "seeds", 0, 2**32 - 1) for word in seeds.split(",")]
    if not args:
        raise ValueError("study takes one file or more, or a directory of them, got none")
    from ..study import run_study

    return run_study(
        args, given["output"], jobs, given["trust-code"],
        quick=given["quick"], ray=ray, record=given["record"], claims=given["claims"],
        train=not given["report"], lean=given["lean"], seeds=seeds,
    )  # fmt: skip


def _take_ray(args: list[str]) -> tuple[str | None, list[str]]:
    """Parse `--ray`, `--ray=ADDRESS` or `--ray ADDRESS`; a study file is not an address."""
    for place, word in enumerate(args):
        flag, equals, address = word.partition("=")
        if flag == "--ray":
            rest = args[place + 1 :]
            if not equals:
                is_address = bool(rest) and (rest[0] == "auto" or ":" in rest[0])
                address = rest.pop(0) if is_address else "local"
            return address, args[:place] + rest
    return None, args
