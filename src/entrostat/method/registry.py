"""Every method by name: the dict name -> class, and information on a name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..core.advantages import ESTIMATORS
from .aepo import Aepo
from .base import HOSTS, Method
from .ce_gppo import CeGppo
from .checks import check_class
from .cispo import Cispo
from .cov import ClipCov, KlCov
from .dcpo import Dcpo
from .dppo import Dppo
from .entropic import Entropic
from .gmpo import Gmpo
from .icepop import Icepop
from .influence_flow import InfluenceFlow
from .ipo import Ipo
from .kl_reward import KlReward
from .m2po import M2po
from .off_policy_mask import OffPolicyMask
from .opefo import Opefo
from .par import NegOnly, PosAdv, PosOnly, RandPosClip
from .permute_weights import PermuteWeights
from .prime import Prime
from .recipes import RECIPES
from .regularizers import AdaptiveEntropy, EntropyBonus, KlRef
from .repo import Adapo, RepoD, RepoR
from .sapo import Sapo
from .shaping import EdgeGrpo, EntropyAdv, Gtpo, PositionAdv, PplAdv, Unlikeliness
from .stare import Stare
from .steer import Quadrant, Steer
from .surrogates import Gspo, Ppo, Reinforce
from .thermostat import HeldEntropy
from .up import Up
from .vespo import Vespo
from .weights import ForkingTokens, GroupMean, WReinforce

METHODS: dict[str, type[Method]] = {
    # surrogates
    "reinforce": Reinforce,
    "ppo": Ppo,
    "gspo": Gspo,
    "adapo": Adapo,
    "dcpo": Dcpo,
    "cispo": Cispo,
    "sapo": Sapo,
    "vespo": Vespo,
    "gmpo": Gmpo,
    "up": Up,
    "dppo": Dppo,
    "ipo": Ipo,
    "icepop": Icepop,
    "m2po": M2po,
    # the five papers
    "repo_r": RepoR,
    "repo_d": RepoD,
    "clip_cov": ClipCov,
    "kl_cov": KlCov,
    "prime": Prime,
    "opefo": Opefo,
    "steer": Steer,
    "quadrant": Quadrant,
    "pos_adv": PosAdv,
    "pos_only": PosOnly,
    "neg_only": NegOnly,
    "rand_pos_clip": RandPosClip,
    # ours
    "thermostat": HeldEntropy,
    "influence_flow": InfluenceFlow,
    "permute_weights": PermuteWeights,
    # baselines of the papers
    "entropy_bonus": EntropyBonus,
    "adaptive_entropy": AdaptiveEntropy,
    "kl_ref": KlRef,
    "kl_reward": KlReward,
    "aepo": Aepo,
    "ce_gppo": CeGppo,
    "entropic": Entropic,
    "stare": Stare,
    "w_reinforce": WReinforce,
    "forking_tokens": ForkingTokens,
    "group_mean": GroupMean,
    "off_policy_mask": OffPolicyMask,
    "unlikeliness": Unlikeliness,
    "entropy_adv": EntropyAdv,
    "gtpo": Gtpo,
    "edge_grpo": EdgeGrpo,
    "ppl_adv": PplAdv,
    "position_adv": PositionAdv,
}

_Class = TypeVar("_Class", bound=type[Method])


def register(name: str) -> Callable[[_Class], _Class]:
    """Class decorator: register your own method under a name.

    The name then works in `make_objective`, in recipes, and on the command line as
    `--method MODULE:NAME`, which imports the module first. The class is a frozen dataclass that
    derives from `Method`; every parameter has a default.

    Raises:
        ValueError: the name is taken or not an identifier.
        TypeError: the class is not a frozen dataclass that derives from `Method`, a parameter has
            no default or hides an attribute of `Method`, the docstring is missing, `needs` has a
            field that `TokenBatch` lacks, kind or base is unknown, or a hook has the wrong
            arguments.

    Example:
        >>> from dataclasses import dataclass
        >>> @register("half")
        ... @dataclass(frozen=True)
        ... class Half(Method):
        ...     '''Every advantage times `factor`.'''
        ...     factor: float = 0.5
        ...     def prepare(self, batch, state):
        ...         return batch.replace(advantages=self.factor * batch.advantages)
        >>> from entrostat import make_objective
        >>> make_objective("half", factor=0.25).names
        ('ppo', 'half')
    """
    if not name.isidentifier():
        raise ValueError(f"register: a name is letters, digits and underscores, got {name!r}")

    def admit(cls: _Class) -> _Class:
        who = f"register({name!r})"
        check_class(who, cls, METHODS | RECIPES)
        old = METHODS.get(name)
        # the same class again: its module was imported twice, as in a notebook
        ours = (cls.__module__, cls.__qualname__)
        again = old is not None and (old.__module__, old.__qualname__) == ours
        if not again and (old or name in RECIPES or name in ESTIMATORS):
            raise ValueError(f"{who}: the name is taken; choose another")
        METHODS[name] = cls
        return cls

    return admit


def is_ours(name: str) -> bool:
    if name in RECIPES or name in ESTIMATORS:
        return True
    return name in METHODS and METHODS[name].__module__.startswith("entrostat.")


@dataclass(frozen=True)
class MethodInfo:
    """Information on a name that `make_objective` accepts.

    Attributes:
        name: as in `make_objective` and `--method`.
        kind: "surrogate", "intervention" or "recipe".
        summary: one line.
        paper: short name of the source, with its section.
        needs: `TokenBatch` fields beyond logp, old_logp, mask and advantages.
        hosts: the trainers it runs in.
        parameters: name -> default.
        doc: the full docstring: equation, parameters, deviations.
        sits_on: the base of a bare intervention, as "estimator + surrogate"; "" for others.
        advantage: the bare name's estimator.
        aggregation: the bare name's aggregation of the tokens' losses.
        baseline: the name to compare it with, which lacks this method alone; "" for none.
    """

    name: str
    kind: str
    summary: str
    paper: str
    needs: tuple[str, ...] = ()
    hosts: tuple[str, ...] = HOSTS
    parameters: Mapping[str, Any] = field(default_factory=dict)
    doc: str = ""
    sits_on: str = ""
    advantage: str = ""
    aggregation: str = ""
    baseline: str = ""


def methods() -> dict[str, MethodInfo]:
    """Every name that `make_objective` accepts, with its summary, needs and parameters."""
    found: dict[str, MethodInfo] = {}
    for name, cls in METHODS.items():
        doc = inspect.cleandoc(cls.__doc__ or "")
        under = RECIPES[cls.base if cls.base in RECIPES else Method.base]
        found[name] = MethodInfo(
            name, cls.kind, doc.split("\n", 1)[0], cls.paper, cls.needs, cls.hosts,
            cls.parameters(), doc, _sits_on(cls), under.advantage, under.aggregation,
            "" if name in dict(under.chain) else cls.base,
        )  # fmt: skip
    for name, recipe in RECIPES.items():
        parts = [found[part] for part, _ in recipe.chain]
        defaults: dict[str, Any] = {}
        for part, (_, given) in zip(parts, recipe.chain, strict=True):
            defaults |= {**part.parameters, **given}
        chain = " + ".join([recipe.advantage, *(part.name for part in parts), recipe.aggregation])
        found[name] = MethodInfo(
            name,
            "recipe",
            recipe.summary,
            recipe.paper,
            tuple(sorted({need for part in parts for need in part.needs})),
            tuple(host for host in HOSTS if all(host in part.hosts for part in parts)),
            defaults,
            f"{recipe.summary}\n\n{name} = {chain}\n\n" + "\n\n".join(part.doc for part in parts),
            advantage=recipe.advantage,
            aggregation=recipe.aggregation,
            baseline=recipe.baseline,
        )
    return found


def _sits_on(cls: type[Method]) -> str:
    if cls.kind == "surrogate":
        return ""
    if cls.base in METHODS:
        return f"{RECIPES[Method.base].advantage} + {cls.base}"
    recipe = RECIPES[cls.base]
    settings = ", ".join(f"{k} {v}" for _, given in recipe.chain for k, v in given.items())
    chain = " + ".join(part for part, _ in recipe.chain)
    return f"{recipe.advantage} + {chain} ({settings})"
