"""The figures of what updates do to entropy: those that every update gives, and forecasts."""

from __future__ import annotations

from statistics import correlation

from ..logs.run import Run, moving, paired
from .curves import curves_of, scale_of
from .figures import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, Panel
from .runs import drawable


def update_panels(run: Run) -> list[Panel]:
    """Entropy dynamics of every update, but for the flow, which has a section of its own."""
    tokens = curves_of(
        run,
        ("cov/top_0.02", "top 0.02 %", {"color": RED}),
        ("cov/top_0.2", "top 0.2 %", {"color": ORANGE}),
        ("cov/top_2", "top 2 %", {"color": GREEN}),
        ("cov/top_20", "top 20 %", {"color": BLUE}),
        ("cov/mean", "all", {"color": BLACK}),
        ("cov/update", "all, in the updates", {"color": PURPLE, "dash": ":"}),
    )
    touched = curves_of(run, ("touched/entropy", "touched", {"color": RED}))
    return [
        Panel(
            "Token covariance",
            "(log p - mean)(A - mean) of the tokens that are trained on, under the policy that "
            "sampled them, averaged over those where it is largest (COV Table 1)."
            + bool(drawable(run, "cov/update")[0])
            * " In the updates: over their tokens, each under the policy that its update starts "
            "from.",
            "covariance",
            tokens,
            scale_of(y for curve in tokens for y in curve.y),
        ),
        Panel(
            "Touched tokens",
            "Tokens of the iteration's updates that a method touched: weighted, frozen, penalised, "
            "clipped, or given another advantage than the estimator's.",
            "fraction of tokens",
            curves_of(run, ("touched/share", "", {"color": BLUE})),
            low=0,
        ),
        Panel(
            "Entropy of touched tokens",
            "Mean entropy of the tokens that a method touched, beside that of all sampled tokens.",
            "nats per token",
            touched and (
                *touched,
                *curves_of(run, ("entropy/exact", "all", {"color": BLACK, "width": 1.2})),
            ),
            low=0,
            name="touched_entropy",
        ),
        Panel(
            "Quadrants",
            "Tokens of the iteration's updates by advantage and probability (STEER Fig. 2). I: "
            "A > 0, p > .8; II: A > 0, p < .2; III: A < 0, p < .2; IV: A < 0, p > .8. In a softmax "
            "table I and III lower entropy, II and IV raise it.",
            "fraction of tokens",
            curves_of(
                run,
                ("quadrant/I", "I", {"color": BLUE}),
                ("quadrant/II", "II", {"color": GREEN}),
                ("quadrant/III", "III", {"color": ORANGE}),
                ("quadrant/IV", "IV", {"color": RED}),
            ),
            low=0,
        ),
        Panel(
            "Forecast",
            "Change of mean entropy over an iteration's updates on fresh prompts, and what was "
            "foretold before them: by the batch's influences, crossed between its halves; by what "
            "AdamW has in motion from earlier batches; by both together, the step that it makes."
            + _came_true(run),
            "nats per iteration",
            curves_of(
                run,
                ("forecast/crossed", "influences", {"color": ORANGE, "width": 1.2}),
                ("forecast/momentum", "in motion", {"color": GREEN, "width": 1.2}),
                ("forecast/step", "step", {"color": BLUE, "dash": "--"}),
                ("forecast/change", "what came", {"color": BLACK, "width": 2.2}),
            ),
        ),
    ]  # fmt: skip


def _came_true(run: Run) -> str:
    """How well forecasts of the step and what came agree, as a sentence."""
    step, change = (
        dict(zip(*run.series(f"forecast/{key}"), strict=True)) for key in ("step", "change")
    )
    pairs = paired(step, change)
    if not moving(pairs):
        return ""
    r = correlation(*zip(*pairs, strict=True))
    return f" Without the first tenth: r = {r:.2f} between step and what came."
