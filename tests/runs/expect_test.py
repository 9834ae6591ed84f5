"""`[expect]`: a recipe's assertions on its own figures."""

import pytest

from builders import refused
from entrostat.cli import main
from entrostat.config.instruments import Expectation

VALUES = [1.0, 2.0, 6.0, 3.0]


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("last > 2.5", True), ("last > 3", False), ("last >= 3", True), ("last2 > 4.4", True),
        ("last2 > 4.5", False), ("last10 >= 3", True), ("first <= 1", True), ("first2<1.6", True),
        ("mean < 3.1", True), ("mean<3", False), ("min >= 1", True), ("max < 6", False),
        ("all > 0.5", True), ("all > 1", False), ("last > -1e-3", True),
    ],
)  # fmt: skip
def test_what_holds(text, holds):
    assert (Expectation("reward/mean", text).broken(VALUES) is None) == holds


def test_what_is_said():
    said = Expectation("reward/mean", "last2 > 5").broken(VALUES)
    assert said == "expected reward/mean last2 > 5, got 4.5"
    assert "no iteration has it" in Expectation("reward/maen", "last > 0").broken([])


@pytest.mark.parametrize(
    "text", ["last10", "> 3", "last0 > 1", "mean3 > 1", "last01 > 1", "last > x", "", 3]
)
def test_what_is_no_assertion(text):
    refused(lambda: Expectation("reward/mean", text), "expect:", "'reward/mean'")


@pytest.mark.usefixtures("unrendered")
def test_the_command_fails_where_one_does_not_hold(tmp_path, capsys):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'iterations = 1\noutput = "{tmp_path / "run"}"\nsampling = {{prompts = 2, rollouts = 2}}\n'
        '[eval]\nprompts = 0\n[expect]\n"entropy/exact" = "last > 0"\n"reward/mean" = "last > 2"\n'
    )
    assert main(["train", "--config", str(recipe)]) == 1
    said = capsys.readouterr().err
    assert "expected reward/mean last > 2, got " in said
    assert "entropy/exact" not in said
    assert main(["train", "--resume", str(tmp_path / "run"), "--no-report"]) == 1
