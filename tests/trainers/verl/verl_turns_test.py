"""Rollouts of several turns in veRL, without veRL: a script is the engine. See `tests/verl_env`."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import entrostat.trainers.verl.run as verl_run
from entrostat.agents import Reply
from entrostat.data.generation import answer
from entrostat.model_files import tiny_directory
from entrostat.models.loading import load_policy
from entrostat.models.rollout import Sequences
from entrostat.tasks import Example
from entrostat.tasks.target_sum import TargetSum
from entrostat.trainers.verl import data, model_ref
from entrostat.trainers.verl.driver import noted
from entrostat.trainers.verl.recipe import settings, unseen
from entrostat.trainers.verl.turns import Played, Said, Table, play
from verl_runs import config_of, sets_of

TOKENIZER = AutoTokenizer.from_pretrained(tiny_directory())
EOS = TOKENIZER.eos_token_id


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


class Script:
    """Says these turns, each closed by eos, whatever it is asked; notes what it was asked."""

    def __init__(self, *turns: str, measured: bool = True) -> None:
        self.turns, self.measured = list(turns), measured
        self.asked: list[list[int]] = []

    async def __call__(self, context: list[int]) -> Said:
        tokens = [*ids_of(self.turns[len(self.asked)]), EOS]
        self.asked.append(list(context))
        logps = [-0.1 * (i + 1) for i in range(len(tokens))] if self.measured else None
        return Said(tokens, logps, finished=True)


def table(folder: Path, instead: Any = None, name: str = "", **tables: Any) -> Table:
    """Of a task by name, in whose place another may be played: its training, or an evaluation."""
    config = config_of(**({"task": {"name": "tool_sum"}} | tables))
    made = model_ref.make(config)
    path = folder / f"{len(list(folder.iterdir()))}.json"  # what was read is remembered
    data.write_settings(path, config, made, data.outline(config.model), sets_of(config))
    found = Table(str(path), name)
    found.task = instead or found.task
    return found


def played(found: Table, script: Script, index: int = 0, split: str = "train") -> Played:
    prompt = TOKENIZER(found.task.example(index, split).prompt)["input_ids"]
    return asyncio.run(play(found, split, index, prompt, 13, script))


def call_of(prompt: str) -> str:
    """Three digits with the sum that a prompt asks for."""
    target = int(prompt.split("/")[0])
    a, b = next((a, b) for a in range(1, 10) for b in range(1, 10) if 0 < target - a - b < 10)
    return f"{a}+{b}+{target - a - b}"


def test_masks_turns_and_rewards_by_hand(tmp_path: Path) -> None:
    """`tool_sum`'s first prompt: a call of three digits with its sum, then what the tool hid."""
    found = table(tmp_path)
    example = found.task.example(0, "train")
    call = call_of(example.prompt)
    hidden = str(example.answer)  # "TARGET/1", which one digit answers
    right = hidden.split("/")[0]
    script = Script(call, right)
    one = played(found, script)
    prompt, said, heard = TOKENIZER(example.prompt)["input_ids"], ids_of(call), ids_of(f"{hidden}:")
    assert script.asked == [prompt, [*prompt, *said, EOS, *heard]]
    assert one.rollout.ids == [*said, EOS, *heard, *ids_of(right), EOS]
    own = [True] * (len(said) + 1) + [False] * len(heard) + [True] * 2
    assert one.rollout.sampled == own
    expected = [-0.1 * (i + 1) for i in range(len(said) + 1)] + [0.0] * len(heard) + [-0.1, -0.2]
    assert one.rollout.logp == expected
    assert (one.rollout.turns, one.rollout.observed) == (2, len(heard))
    assert one.rollout.done
    assert one.measured
    assert one.text == f"{call}{hidden}:{right}"
    assert (one.reward, one.failure) == (1.0, "")
    wrong = "1" if right != "1" else "2"
    assert played(found, Script(call, wrong)).reward == 0.5  # training: the share
    once = played(found, Script("1", measured=False))
    assert (once.reward, once.rollout.turns, once.measured) == (0.0, 1, False)


@pytest.mark.parametrize(
    ("name", "split", "tables"),
    [
        ("test", "test", {}),
        ("seen", "train", {"eval": [{"name": "seen", "split": "train", "prompts": 4}]}),
        ("tool_sum", "test", {"task": {"name": "target_sum"}, "eval": [{"task": "tool_sum"}]}),
    ],
)
def test_an_evaluation_wants_all(
    tmp_path: Path, name: str, split: str, tables: dict[str, Any]
) -> None:
    """Also on what is trained on, and of a task that is not the run's."""
    found = table(tmp_path, name=name, **tables)
    call = call_of(found.task.example(3, split).prompt)
    one = played(found, Script(call, "+"), index=3, split=split)
    assert one.reward == 0.0  # half of it is right
    assert one.rollout.turns == 2
    assert played(found, Script(call, right_after(found, call, split)), 3, split).reward == 1.0


def right_after(found: Table, call: str, split: str) -> str:
    """The digit that a call's answer asks for, "7/1"."""
    return str(found.task.example(3, split).answer).split("/")[0]


class World:
    """Says `5/2:` without end; some fail."""

    def __init__(self, kind: str) -> None:
        self.kind, self.closed = kind, False

    def reply(self, text: str) -> Reply:
        if self.kind == "hang":
            time.sleep(30)
        if self.kind == "raise":
            raise RuntimeError("out of order")
        return Reply("5/2:")

    def reward(self, training: bool) -> float:
        return float("nan") if self.kind == "no number" else 1.0

    def close(self) -> None:
        self.closed = True


class Endless(TargetSum):
    """`tool_sum` by name, played in these."""

    name = "tool_sum"
    kind = "well"

    def environment(self, example: Example) -> Any:
        if self.kind == "none":
            raise RuntimeError("no world")
        self.world = World(self.kind)
        return self.world

    def turns(self, split: str) -> int:
        return 2


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("raise", "raised (RuntimeError: out of order)"), ("hang", "timed out"),
        ("no number", "raised (ValueError: the reward is nan"),
        ("none", "raised (RuntimeError: no world)"),
    ],
)  # fmt: skip
def test_a_world_that_fails_costs_its_rollout(tmp_path: Path, kind: str, why: str) -> None:
    task = Endless()
    task.kind = kind
    found = table(tmp_path, task, scoring={"environment_timeout": 0.5})
    one = played(found, Script("1", "2"))
    assert one.failure.startswith(why)
    assert one.reward == 0.0
    assert not one.rollout.done
    assert one.rollout.turns == (2 if kind == "no number" else 1)
    if kind not in ("none", "hang"):
        assert task.world.closed


@pytest.mark.parametrize(
    ("room", "most"),
    [(None, (2, 2)), (25, (1, 2))],  # 5 + 4 + 4 + 13 tokens do not fit, 5 + 2 + 4 + 13 do
)
def test_turns_and_context_run_out_as_in_the_lab(
    tmp_path: Path, room: int | None, most: tuple[int, int]
) -> None:
    """The lab's own rollouts, of the same turns said by a script, token for token."""
    sampling = {} if room is None else {"max_context": room}
    config = config_of(task={"name": "tool_sum"}, sampling=sampling)
    found, task = table(tmp_path, Endless(), sampling=sampling), Endless()
    policy = load_policy(config)
    turns = [["9+9", "1"], ["3", "4+4"]]
    examples = [task.example(i, "train") for i in range(2)]
    prompts = [policy.encode(e.prompt, False, "") for e in examples]
    spoken: list[int] = [0, 0]

    def sampler(model: Any, contexts: Any, **_: Any) -> Sequences:
        rows = []
        for context in contexts:
            who = next(i for i, p in enumerate(prompts) if context[: len(p)] == p)
            rows.append([*ids_of(turns[who][spoken[who]]), EOS])
            spoken[who] += 1
        T = max(map(len, rows))
        mask = torch.tensor([[i < len(row) for i in range(T)] for row in rows])
        tokens = torch.tensor([row + [0] * (T - len(row)) for row in rows])
        logp = -0.1 * torch.arange(1, T + 1) * mask
        return Sequences(
            tokens, mask.long(), 0, mask, logp, torch.ones(len(rows), dtype=torch.bool),
            torch.arange(len(rows)),
        )  # fmt: skip

    assert prompts[0] != prompts[1]
    lab = answer(
        policy, config, task, "train", examples, prompts, rollouts=1, generator=None,
        training=True, sampler=sampler,
    )  # fmt: skip
    for i in range(2):
        one = played(found, Script(*turns[i]), index=i)
        there = lab.sequences.completed[i]
        assert one.rollout.ids == lab.sequences.completions[i][there].tolist()
        assert one.rollout.sampled == lab.sequences.mask[i][there].tolist()
        logps = lab.sequences.sampler_logp[i][there].tolist()
        assert one.rollout.logp == pytest.approx(logps)
        assert one.text == lab.texts[i]
        assert one.reward == 1.0
        assert one.rollout.turns == most[i]
        assert not one.rollout.done


def test_the_driver_has_their_figures() -> None:
    notes = [{"turns": 2, "observed": 4}, {"turns": 1, "observed": 0}, {"turns": 9, "observed": 9}]
    real = torch.tensor([True, True, False])
    assert noted(notes, real) == {"rollout/turns_mean": 1.5, "rollout/observed_mean": 2.0}


def test_lengths_leave_room_for_what_a_world_says() -> None:
    """`tool_sum`: two turns, and as much again; `target_sum`: 6 or 8 digits, eos and one more."""
    config = config_of(task={"name": "tool_sum"})
    task, policy = model_ref.make(config), data.outline(config.model)
    new = task.max_new_tokens("train")
    assert data.room(task, config, policy, "train") == (policy.context - 1, 4 * new)
    facts = unseen(config)
    assert (facts.new, facts.longest) == (2 * new, 4 * new)
    told = settings(config, facts)
    assert told["data.max_response_length"] == 4 * new
    assert told["+actor_rollout_ref.actor.policy_loss.max_length"] == 2 * new
    config.sampling.max_context = 20
    assert data.room(task, config, policy, "train") == (19, 19)
    config = config_of()
    alone = model_ref.make(config)
    assert data.room(alone, config, policy, "train") == (13, 13)
    assert data.room(alone, config, policy, "ood") == (17, 17)
    assert unseen(config).longest is None


def test_a_set_of_several_turns_leaves_training_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollout of `target_sum` takes 13 tokens; one of `tool_sum` may fill the context."""
    monkeypatch.chdir(tmp_path)
    told: list[Any] = []
    monkeypatch.setattr(verl_run, "_ask", lambda python, lines, *more: told.extend([*lines, more]))
    monkeypatch.setattr(verl_run.RunDirectory, "open", stopped)
    config = config_of(eval=[{"samples": 2}, {"task": "tool_sum"}])
    with pytest.raises(KeyboardInterrupt):
        verl_run.train(config)
    context = data.outline(config.model).context
    assert f"data.max_response_length={context - 1}" in told
    assert "+actor_rollout_ref.actor.policy_loss.max_length=13" in told
    tasks = [{"seed": 0, "name": name} for name in ("target_sum", "target_sum", "tool_sum")]
    assert told[-1][1] == tasks  # veRL's environment is asked whether it has them


def test_nothing_that_a_recipe_names_is_imported_for_its_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says is enough to show the command."""
    (tmp_path / "their_world.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = config_of(
        task={"name": "their_world:Task"}, sampling={"max_new_tokens": 9}, optim={"lr": 1e-6}
    )
    assert (unseen(config).new, unseen(config).longest) == (9, None)


def test_a_task_of_ones_own_has_the_turns_that_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The objective of a run is told of all turns, also where the recipe bounds one."""
    told: list[Any] = []
    monkeypatch.setattr(verl_run, "_ask", lambda python, lines, *more: told.extend(lines))
    monkeypatch.setattr(verl_run.RunDirectory, "open", stopped)
    config = config_of(
        task={"name": "verl_turns_test:Endless"}, sampling={"max_new_tokens": 9},
        output=str(tmp_path / "run"),
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        verl_run.train(config)
    assert "+actor_rollout_ref.actor.policy_loss.max_length=18" in told


def stopped(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_budget_holds_the_longest_rollout_and_micro_batches_of_usual_ones() -> None:
    config = config_of(task={"name": "tool_sum"}, optim={"micro_batch": 3})
    key = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    facts = replace(unseen(config), prompt=5, longest=63, usual=28)
    assert settings(config, facts)[key] == 3 * 33
    assert settings(config, replace(facts, longest=1000))[key] == 1005


def test_settings_of_a_task_of_one_turn_have_no_game(tmp_path: Path) -> None:
    config = config_of()
    path = tmp_path / "run.json"
    data.write_settings(path, config, model_ref.make(config), data.outline(config.model), ())
    assert json.loads(path.read_text())["game"] is None
