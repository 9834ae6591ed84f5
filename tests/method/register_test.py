"""A method of the user's own: one decorator, then a name like any other, from Python to resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import json_lines, refused
from entrostat.cli import main
from entrostat.method import METHODS, RECIPES
from entrostat.method.checks import check_class

pytestmark = pytest.mark.usefixtures("unrendered")

SMALL = [
    "--iterations", "2", "--sampling.prompts", "4", "--sampling.rollouts", "4",
    "--eval.prompts", "0",
]  # fmt: skip
SOURCE = '''
from dataclasses import dataclass

import entrostat as es


@dataclass(frozen=True)
class Seen:
    iterations: int
    entropies: tuple[float, ...] = ()

    def to_dict(self):
        return {"iterations": self.iterations, "entropies": list(self.entropies)}

    @classmethod
    def from_dict(cls, data):
        return cls(data["iterations"], tuple(data["entropies"]))


@es.register("fading")
@dataclass(frozen=True)
class Fading(es.Method):
    """Every advantage times `factor` for each iteration seen.

    Parameters:
        factor: of one iteration.
    """

    factor: float = 0.5

    paper = "a note of mine"
    needs = ("entropy",)

    def init(self):
        return Seen(0)

    def observe(self, state, seen):
        return Seen(state.iterations + 1, (*state.entropies, seen.entropy))

    def prepare(self, batch, state):
        return batch.replace(advantages=self.factor**state.iterations * batch.advantages)

    def metrics(self, state):
        return {"control/iterations_seen": float(state.iterations)}
'''


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """In tmp_path; what a test registers and imports is forgotten after it."""
    monkeypatch.chdir(tmp_path)
    methods, modules, path = dict(METHODS), set(sys.modules), list(sys.path)
    yield
    METHODS.clear()
    METHODS.update(methods)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "my_method.py").write_text(SOURCE)
    return tmp_path


def forget() -> None:
    """As a new process would: the module is not imported, its name not registered."""
    del sys.modules["my_method"]
    del METHODS["fading"]


def batch() -> es.TokenBatch:
    lp = torch.tensor([[-1.0, -2.0]], dtype=torch.float64)
    return es.TokenBatch(
        lp, lp, torch.ones(1, 2), torch.tensor([4.0], dtype=torch.float64), entropy=-lp
    )


# ---------------------------------------------------------------------------- in Python


def test_a_registered_class_is_a_name_like_any_other() -> None:
    @es.register("tenfold")
    @dataclass(frozen=True)
    class Tenfold(es.Method):
        """Every advantage times ten."""

        base: ClassVar[str] = "clip_higher"

        def prepare(self, batch, state):
            return batch.replace(advantages=10 * batch.advantages)

    objective = es.make_objective("tenfold")
    assert objective.names == ("ppo", "tenfold")
    terms = objective.plan(objective.prepare(batch()))
    assert terms.advantage.tolist() == [[40, 40]]
    assert_close(terms.ratio_max, torch.full_like(terms.ratio_max, 1.28))  # its base's
    assert es.make_objective(["rloo", "gspo", "tenfold", "repo_r"]).names == (
        "gspo", "tenfold", "repo_r",
    )  # fmt: skip
    info = es.methods()["tenfold"]
    assert (info.kind, info.summary) == ("intervention", "Every advantage times ten.")
    refused(lambda: es.make_objective("tenfolt"), "'tenfold'")
    refused(lambda: es.make_objective(["tenfold", "tenfold"]), "'tenfold'")


def test_a_surrogate_may_be_registered_too() -> None:
    @es.register("narrow")
    @dataclass(frozen=True)
    class Narrow(es.Method):
        """A token's ratio clipped to [1/2, 1]."""

        kind: ClassVar = "surrogate"

        def plan(self, batch, terms, state, generator):
            one = torch.ones_like(terms.weight)
            return terms.replace(ratio_min=one / 2, ratio_max=one)

    objective = es.make_objective(["repo_r", "narrow"])
    assert objective.names == ("narrow", "repo_r")
    refused(lambda: es.make_objective(["ppo", "narrow"]), "two surrogates (ppo, narrow)")


def test_module_and_name_import_the_module(mine: Path) -> None:
    assert "fading" not in METHODS
    objective = es.make_objective("my_method:fading", factor=0.25)
    assert objective.names == ("ppo", "fading")
    assert es.make_objective({"name": "my_method:fading"}).names == ("ppo", "fading")
    assert es.make_objective(["my_method:fading", "gspo"]).names == ("gspo", "fading")
    assert es.make_objective("fading").names == ("ppo", "fading")  # known from then on
    for entropy in (0.5, 0.25):
        objective.observe(entropy=entropy)
    assert objective.prepare(batch()).advantages.tolist() == [[0.25, 0.25]]  # 4 / 4^2
    assert objective.metrics() == {"control/iterations_seen": 2.0}
    refused(lambda: es.make_objective("my_method:fading", facter=1), "'facter'", "'factor'")
    refused(lambda: es.make_objective("my_method:fading", factor="x"), "factor", "got 'x'")
    refused(lambda: objective.prepare(batch().replace(entropy=None)), "`fading`", "`entropy`")


def test_a_state_of_its_own_is_saved_and_restored(mine: Path) -> None:
    one = es.make_objective(["my_method:fading", "repo_r"])
    for entropy in (0.5, 0.25):
        one.observe(entropy=entropy)
    saved = json.loads(json.dumps(one.state_dict()))
    assert saved["states"][1] == {"iterations": 2, "entropies": [0.5, 0.25]}
    forget()
    two = es.make_objective(["my_method:fading", "repo_r"])
    two.load_state_dict(saved)
    for objective in (one, two):
        objective.observe(entropy=0.125)
    assert two.state_dict() == one.state_dict()
    assert two.state_dict()["states"][1]["entropies"] == [0.5, 0.25, 0.125]


def test_a_module_imported_twice_may_register_again(mine: Path) -> None:
    es.make_objective("my_method:fading")
    first = METHODS["fading"]
    del sys.modules["my_method"]
    es.make_objective("my_method:fading")
    assert METHODS["fading"] is not first


# ---------------------------------------------------------------------------- refusals


def no_method():
    return object


def not_a_dataclass():
    class Plain(es.Method):
        """Does nothing."""

    return Plain


def without_docstring():
    @dataclass(frozen=True)
    class Silent(es.Method):
        x: float = 1.0

    return Silent


def with_an_empty_docstring():
    @dataclass(frozen=True)
    class Blank(es.Method):
        """ """

    return Blank


def without_a_default():
    @dataclass(frozen=True)
    class Bare(es.Method):
        """Does nothing."""

        x: float

    return Bare


def with_a_default_that_is_made():
    @dataclass(frozen=True)
    class Made(es.Method):
        """Does nothing."""

        x: list = field(default_factory=list)

    return Made


def with_an_unknown_need():
    @dataclass(frozen=True)
    class Needy(es.Method):
        """Does nothing."""

        needs: ClassVar[tuple[str, ...]] = ("old_entropy", "hidden_states")

    return Needy


def with_annotated_needs():
    @dataclass(frozen=True)
    class Annotated(es.Method):
        """Does nothing."""

        needs: tuple[str, ...] = ("entropy",)

    return Annotated


def with_a_field_in_the_place_of_a_hook():
    @dataclass(frozen=True)
    class Planned(es.Method):
        """Does nothing."""

        plan: str = "a good one"

    return Planned


def with_a_need_in_brackets():
    @dataclass(frozen=True)
    class Brackets(es.Method):
        """Does nothing."""

        needs = "entropy"

    return Brackets


def with_an_unknown_host():
    @dataclass(frozen=True)
    class Hosted(es.Method):
        """Does nothing."""

        hosts = ("lab", "tlr")

    return Hosted


def with_a_plan_without_generator():
    @dataclass(frozen=True)
    class Short(es.Method):
        """Does nothing."""

        def plan(self, batch, terms, state):
            return terms

    return Short


def with_an_observe_of_two():
    @dataclass(frozen=True)
    class Observer(es.Method):
        """Does nothing."""

        def observe(self, seen):
            return None

    return Observer


def with_an_actuator_that_is_no_parameter():
    @dataclass(frozen=True)
    class Actuated(es.Method):
        """Does nothing."""

        actuator = ("zeta", "zeta_max")

    return Actuated


@pytest.mark.parametrize("name", [*METHODS])
def test_every_method_here_would_be_admitted(name: str) -> None:
    check_class(name, METHODS[name], METHODS | RECIPES)


def test_a_hook_may_be_static_and_take_more_than_it_is_given() -> None:
    @es.register("loose")
    @dataclass(frozen=True)
    class Loose(es.Method):
        """Loose: as Python allows."""

        @staticmethod
        def prepare(batch, state):
            return batch

        def plan(self, batch, terms, state, generator, verbose=False):
            return terms

    objective = es.make_objective("loose")
    objective.plan(objective.prepare(batch()))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (no_method, "must derive from entrostat.Method"),
        (not_a_dataclass, r"Plain must be decorated with @dataclass\(frozen=True\)"),
        (without_docstring, "Silent needs a docstring"),
        (with_an_empty_docstring, "Blank needs a docstring"),
        (without_a_default, "parameter 'x' needs a default"),
        (with_a_default_that_is_made, "parameter 'x' needs a default"),
        (with_an_unknown_need, r"needs 'hidden_states', no field of TokenBatch \(.*old_entropy"),
        (with_annotated_needs, r"'needs' is annotated.*hyperparameter.*write `needs = .*ClassVar"),
        (with_a_field_in_the_place_of_a_hook, "'plan' is annotated"),
        (with_a_need_in_brackets, r"needs must be a tuple of names, got 'entropy'"),
        (with_an_unknown_host, r"hosts 'tlr', no host \(lab, trl, verl\)"),
        (
            with_a_plan_without_generator,
            r"plan must take \(batch, terms, state, generator\), it takes \(batch, terms, state\)",
        ),
        (with_an_observe_of_two, r"observe must take \(state, seen\), it takes \(seen\)"),
        (with_an_actuator_that_is_no_parameter, "actuator names 'zeta_max', which is no parameter"),
    ],
)
def test_a_class_that_will_not_do_is_refused_where_it_is_registered(make, words) -> None:
    before = dict(METHODS)
    with pytest.raises(TypeError, match=rf"register\('mine'\): .*{words}"):
        es.register("mine")(make())
    assert before == METHODS


@pytest.mark.parametrize("name", ["repo_r", "ppo", "dapo", "grpo", "rloo", "opo"])
def test_a_name_that_is_taken_is_refused(name: str) -> None:
    @dataclass(frozen=True)
    class Mine(es.Method):
        """Does nothing."""

    before = dict(METHODS)
    refused(lambda: es.register(name)(Mine), f"register('{name}')")
    assert before == METHODS


@pytest.mark.parametrize("name", ["", "two words", "a:b", "a-b", "1st", "a.b", "a,b"])
def test_a_name_that_no_command_line_could_say_is_refused(name: str) -> None:
    refused(lambda: es.register(name), "letters, digits and underscores")


def test_another_class_of_the_same_name_is_refused(mine: Path) -> None:
    (mine / "their_method.py").write_text(SOURCE)
    es.make_objective("my_method:fading")
    refused(lambda: es.make_objective("their_method:fading"), "'their_method:fading'")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "unknown method 'broken:mine': no module 'broken' in the current folder"),
        ("import entrostat\n", "broken was imported but registers no 'mine'; decorate the class"),
        ("\n1 / 0\n", r"'broken:mine': importing it raised Zero.*: .* zero \(broken.py, line 2\)"),
        ("import absent_one\n", "importing it raised ModuleNotFoundError.*absent_one"),
        ("def f(:\n", r"importing it raised SyntaxError: [^(]*\(broken.py, line 1\)$"),
        (SOURCE.replace("(frozen=True)\nclass Fading", "\nclass Fading"),
         "importing it raised TypeError.*non-frozen"),
        (SOURCE.replace('"fading"', '"mine"').replace(": float = 0.5", ": float"),
         "importing it raised TypeError.*'factor' needs a default"),
    ],
)  # fmt: skip
def test_a_module_that_will_not_do_is_one_line(
    source: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    if source is not None:
        (tmp_path / "broken.py").write_text(source)
    with pytest.raises(ValueError, match=words) as caught:
        es.make_objective("broken:mine")
    assert "\n" not in str(caught.value)
    sys.modules.pop("broken", None)
    for verb in (["train", *SMALL, "--output", "run", "--method"], ["methods"]):
        assert main([*verb, "broken:mine"]) == 2
        error = capsys.readouterr().err
        assert error == f"entrostat: error: {caught.value}\n"
        assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------------- the command line


def lines(path: Path) -> list[dict]:
    found = json_lines(path / "metrics.jsonl")
    return [{k: v for k, v in x.items() if not k.startswith("time/")} for x in found]


def test_methods_explains_it(mine: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["methods", "my_method:fading"]) == 0
    shown = capsys.readouterr().out
    for words in ("fading (intervention; a note of mine)", "Every advantage times `factor`",
                  "needs: entropy", "factor = 0.5", "grpo | Ppo(low=0.2"):  # fmt: skip
        assert words in shown
    assert main(["methods"]) == 0
    assert "fading" in capsys.readouterr().out


@pytest.mark.long
def test_a_process_of_its_own_finds_it(mine: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "entrostat.cli", "methods", "my_method:fading"],
        cwd=mine, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Every advantage times `factor`" in done.stdout


@pytest.mark.long
def test_it_trains_and_resumes_as_if_it_had_not_stopped(
    mine: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["train", *SMALL, "--method", "my_method:fading,gspo"]
    words += ["--method.my_method:fading.factor", "0.25"]
    assert main([*words, "--output", "whole", "--iterations", "3"]) == 0
    assert main([*words, "--output", "run"]) == 0
    assert 'name = "my_method:fading"' in (mine / "run/config.toml").read_text()
    assert [line["control/iterations_seen"] for line in lines(mine / "run")] == [1, 2]
    assert (mine / "run/report.html").is_file()
    forget()
    resume = ["train", "--resume", "run", "--trust-code", "--iterations"]
    assert main([*resume, "3"]) == 0
    assert [line["control/iterations_seen"] for line in lines(mine / "run")] == [1, 2, 3]
    assert lines(mine / "run") == lines(mine / "whole")  # to the bit
    capsys.readouterr()
    forget()
    (mine / "my_method.py").unlink()
    assert main([*resume, "4"]) == 2
    assert "no module 'my_method'" in capsys.readouterr().err


def test_a_config_names_it(mine: Path) -> None:
    (mine / "c.toml").write_text(
        'method = [{name = "my_method:fading", factor = 0.0}]\niterations = 1\noutput = "run"\n'
        "sampling = {prompts = 4, rollouts = 4}\neval = {prompts = 0}\n"
    )
    assert main(["train", "--config", "c.toml", "--trust-code"]) == 0
    (line,) = lines(mine / "run")
    assert line["control/iterations_seen"] == 1
    assert line["loss/policy"] == 0  # every advantage times 0


def test_a_built_in_name_is_not_taken_for_the_module_s(tmp_path: Path) -> None:
    (tmp_path / "empty_one.py").write_text("import entrostat\n")
    refused(lambda: es.make_objective("empty_one:ppo"), "empty_one", "'ppo'")


def test_a_state_that_cannot_be_saved_is_found_when_built() -> None:
    @es.register("bare")
    @dataclass(frozen=True)
    class Bare(es.Method):
        """Bare: a number as its state."""

        def init(self):
            return 0

    refused(lambda: es.make_objective("bare"), "bare:", "its state 0 cannot be saved", "to_dict")


def test_a_module_within_a_package_takes_flags_and_makes_a_path(tmp_path: Path) -> None:
    package = tmp_path / "pkg_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mod.py").write_text(SOURCE)
    name = "pkg_of_mine.mod:fading"
    words = ["train", "--method", f"{name},gspo", f"--method.{name}.factor", "0.25"]
    assert main([*words, *SMALL, "--iterations", "1"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name == "pkg_of_mine.mod.fading+gspo-target_sum-s0"
    assert "factor = 0.25" in (run / "config.toml").read_text()


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        ("plan", r"slip.plan returned NoneType; return the Terms"),
        ("prepare", r"slip.prepare returned NoneType; return the TokenBatch"),
        ("shape", r"slip.shape returned NoneType; return the TokenBatch"),
    ],
)
def test_a_hook_that_forgets_to_return_is_named(hook: str, words: str) -> None:
    def forgets(self, *arguments):
        pass

    body = {"__doc__": "Slip: forgets to return.", hook: forgets}
    es.register("slip")(dataclass(frozen=True)(type("Slip", (es.Method,), body)))
    objective = es.make_objective("slip", advantage="reinforce_pp")
    lp, one = torch.zeros(2, 1), torch.ones(2)
    given = es.TokenBatch(lp, lp, torch.ones(2, 1), rewards=one, group=one)
    with pytest.raises(ValueError, match=words):
        objective.plan(objective.prepare(given))


def planning(edit) -> es.Objective:
    """An objective of a method whose `plan` changes the terms by `edit(terms, batch)`."""

    def plan(self, batch, terms, state, generator):
        return terms.replace(**edit(terms, batch))

    body = {"__doc__": "Slip: as the test says.", "plan": plan}
    es.register("slip")(dataclass(frozen=True)(type("Slip", (es.Method,), body)))
    return es.make_objective("slip")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t, b: {"weight": t.weight.sum(-1)}, r"weight must be \[1, 2\], got \[1\]"),
        (lambda t, b: {"weight": 0.5}, r"weight must be \[1, 2\], got 0.5"),
        (lambda t, b: {"frozen": b.mask[:, 0]}, r"frozen must be \[1, 2\], got \[1\]"),
        (lambda t, b: {"frozen": t.weight}, "frozen must be bool, got torch.float64"),
        (lambda t, b: {"weight": b.mask}, "weight must be numbers, got torch.bool"),
        (lambda t, b: {"abs_kl": t.weight[0]}, r"abs_kl must be \[1, 2\], got \[2\]"),
        (lambda t, b: {"entropy": t.count}, r"entropy must be \[1, 2\], got \[\]"),
        (lambda t, b: {"weight": 0 / (b.logp + 1)}, "weight is nan at 1 of 2 places, though all"),
        (lambda t, b: {"advantage": 1 / (b.logp + 1)}, "advantage is inf at 1 of 2 places"),
        (lambda t, b: {"ratio_min": 0 / (b.logp + 1)}, "ratio_min is nan at 1 of 2 places"),
        (lambda t, b: {"ref_kl": -1 / (b.logp + 1)}, "ref_kl is -inf at 1 of 2 places"),
    ],
)
def test_terms_that_no_loss_could_use_are_named(edit, words: str) -> None:
    objective = planning(edit)
    with pytest.raises(ValueError, match=f"slip.plan: {words}"):
        objective.plan(objective.prepare(batch()))


def test_terms_may_be_left_out_infinite_as_bounds_and_anything_where_masked() -> None:
    def edit(terms, batch):
        infinite = torch.full_like(terms.weight, float("inf"))
        return {"frozen": None, "ratio_max": infinite, "weight": 0 / batch.logp}  # masked: 0/0

    half = batch()
    half = es.TokenBatch(half.logp, half.old_logp, torch.tensor([[1, 0]]), half.advantages)
    terms = planning(edit).plan(half)
    assert terms.weight.isnan().tolist() == [[False, True]]


def test_a_policy_that_has_diverged_is_not_the_method_s_fault() -> None:
    diverged = batch().replace(logp=torch.tensor([[float("nan"), -2.0]], dtype=torch.float64))
    objective = planning(lambda terms, batch: {"weight": batch.logp.exp()})
    assert objective.plan(diverged).weight.isnan().any()  # the host reports it, with the iteration


def test_prepared_advantages_and_shaped_rewards_have_to_be_numbers() -> None:
    for hook, part in (("prepare", "advantages"), ("shape", "rewards")):

        def edit(self, batch, state, part=part):
            return batch.replace(**{part: torch.full_like(getattr(batch, part), float("nan"))})

        name = f"slip_{hook}"
        body = {"__doc__": "Slip: makes NaN.", hook: edit}
        es.register(name)(dataclass(frozen=True)(type(name, (es.Method,), body)))
        lp, one = torch.zeros(2, 1), torch.ones(2)
        given = es.TokenBatch(lp, lp, torch.ones(2, 1), rewards=one, group=one)
        with pytest.raises(ValueError, match=rf"{name}.{hook}: {part} is nan at 2 of 2 places"):
            es.make_objective(name, advantage="reinforce_pp").prepare(given)


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("kind", "Surrogate", "kind must be 'surrogate' or 'intervention', got 'Surrogate'"),
        ("base", "clip_widee", "unknown recipe or surrogate 'clip_widee'.*clip_wide"),
    ],
)
def test_a_kind_or_base_that_there_is_not_is_refused(attribute, value, words) -> None:
    body = {"__doc__": "Odd: as the test says.", attribute: value}
    with pytest.raises(TypeError, match=words):
        es.register("odd")(dataclass(frozen=True)(type("Odd", (es.Method,), body)))
