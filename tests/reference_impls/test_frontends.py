"""What holds of every way into the package: checkpoints go on to the bit, names are the model's, a bad step leaves no trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

from bandwise import simulate
from reference_impls import create, list_algorithms
from reference_impls.frontends.hooks import only_reduces
from tests.reference_impls.frontends import FRONTENDS, LR, SETTINGS, enter, local, loss, net, run, values
from tests.reference_impls.gloo import Ranks, told
from tests.reference_impls.states import contents, equal

pytestmark = pytest.mark.gloo
CUT, STEPS = 3, 6
WRAP = "compiled, checkpointed"
DRAWN = {"rank": 1, "warm_start": False, "min_compression_rate": 1.0}
"""PowerSGD draws its factors by the parameters' names, anew in every step."""
UNDER_WAY = {"period": 4, "fragments": 2, "overlap": 2}
FEEDBACK = {"bits": 4, "error_feedback": True}
CASES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "DataParallelOptimizer": [
        ("powersgd", {"optimizer": "adamw", **DRAWN}),
        ("one-bit-adam", {"warmup_steps": 1}),  # a part of the server
        ("streaming-diloco", UNDER_WAY),
    ],
    "attach": [("powersgd", DRAWN), ("streaming-diloco", UNDER_WAY)],
    "ddp_hook": [("powersgd", DRAWN)],
    "fsdp_hook": [("powersgd", DRAWN)],
    "fsdp_optimizer": [("lion-cub-1bit", {})],
}

# ---- checkpoints and names -------------------------------------------------------------------------------------------------


def _saved(own: Any, folder: str, rank: int) -> None:
    dcp.save({"state": own.state.state_dict()}, checkpoint_id=f"{folder}/dict")
    dcp.save({"state": own.state}, checkpoint_id=f"{folder}/object")
    torch.save(own.state.state_dict(), f"{folder}/{rank}.pt")


def _load(own: Any, folder: str, rank: int, way: str) -> None:
    if way == "object":
        dcp.load({"state": own.state}, checkpoint_id=f"{folder}/object")
        return
    state = {"state": own.state.state_dict()}
    if way == "dict":
        dcp.load(state, checkpoint_id=f"{folder}/dict")
    else:
        state = {"state": torch.load(f"{folder}/{rank}.pt", weights_only=True)}
    own.state.load_state_dict(state["state"])


def _resumed(rank: int, size: int, frontend: str, folder: str) -> list[tuple[str, ...]]:
    """Which trainings do not go on to the bit: saved in each way, wrapped or not, and loaded into what began elsewhere."""
    wrong = []
    for method, options in CASES[frontend]:
        wraps = ["", WRAP] if method == "powersgd" else [""]
        ends, held = {}, {}
        for wrap in wraps:
            own = enter(frontend, method, options, size, wrap=wrap)
            held[wrap] = run(own, rank, 0, CUT)
            _saved(own, f"{folder}/{method}{wrap}", rank)
            ends[wrap] = run(own, rank, CUT, STEPS)
            own.state.release()
            if not all(map(torch.equal, ends[wrap], ends[""])):
                wrong.append((method, wrap))
        for before, after, way in [
            *(("", "", way) for way in ("dict", "object", "a file a rank")),
            *(pair for wrap in wraps[1:] for pair in ((wrap, "", "dict"), ("", wrap, "a file a rank"))),
        ]:
            own = enter(frontend, method, options, size, seed=2, wrap=after)
            with torch.no_grad():  # the model, which is a hook's user's, is saved beside it
                for param, value in zip(own.model.parameters(), held[before], strict=True):
                    local(param).copy_(value)
            _load(own, f"{folder}/{method}{before}", rank, way)
            if not all(map(torch.equal, run(own, rank, CUT, STEPS), ends[""])):
                wrong.append((method, before, after, way))
            own.state.release()
    return wrong


@pytest.mark.parametrize("frontend", FRONTENDS)
def test_a_training_goes_on_to_the_bit_from_every_way_of_saving(frontend, ranks, tmp_path):
    """What `torch.compile` and ``checkpoint_wrapper`` put into names changes neither bits nor checkpoints."""
    size = FRONTENDS[frontend]
    assert ranks(size).run(_resumed, frontend, str(tmp_path)) == [[]] * size


def test_a_simulation_goes_by_the_same_names() -> None:
    def made(wrap: str, steps: int, state: Any = None) -> Any:
        return simulate(
            net(1, wrap),
            lambda model, batch: loss(model, *batch),
            lambda rank, workers, step: (rank, step),
            "powersgd",
            workers=2,
            lr=LR,
            steps=steps,
            state=state,
            optimizer="adamw",
            **SETTINGS,
            **DRAWN,
        )

    bare = made("", 4)
    for result in (made("checkpointed", 4), made("checkpointed", 4, made("", 2).state_dict())):
        assert result.parameters.keys() == bare.parameters.keys()
        assert all(torch.equal(value, bare.parameters[name]) for name, value in result.parameters.items())


def _lost(rank: int, size: int) -> dict[str, str]:
    def made() -> Any:
        return enter("DataParallelOptimizer", "qsgd", FEEDBACK, size)

    own = made()
    run(own, rank, 0, 1)
    found = {"by parameter": told(lambda: get_state_dict(own.model, own.steps))}
    states: list[Any] = [own.state.state_dict()]
    dist.broadcast_object_list(states, src=0)  # the main process alone has written
    own.state.release()
    other = made().state
    fresh = other.state_dict()["param_groups"][0]
    mixed = {**fresh, "shared": states[0]["param_groups"][0]["shared"]}
    found["mixed"] = told(lambda: other.load_state_dict({"state": {}, "param_groups": [mixed]}))
    found["old"] = told(lambda: other.load_state_dict({**contents(states[0]), "version": 1}))
    found["lone"] = told(lambda: other.load_state_dict(states[0]))
    other.release()
    return found


def test_what_would_be_lost_is_refused_with_the_remedy(ranks: Callable[[int], Ranks]) -> None:
    for rank, found in enumerate(ranks(2).run(_lost)):
        assert 'save {"model": model, "optimizer": optimizer}' in found["by parameter"]
        assert "what ranks share is of step 1" in found["mixed"]
        assert "All ranks must save" in found["mixed"]
        assert "state version 1, this code reads 3" in found["old"]
        if rank == 0:
            assert found["lone"] == "no error"
        else:
            assert "every rank has its own state 'worker_error'" in found["lone"]
            assert "All ranks must save: each a file of its own" in found["lone"]


def _consolidated(rank: int, size: int) -> tuple[bool, bool]:
    """Whether rank 0 alone has the state of all, and whether all go on from it."""

    def made(seed: int) -> Any:
        return enter("DataParallelOptimizer", "local-sgd", {"period": 4}, size, seed)

    own = made(1)
    run(own, rank, 0, CUT)
    states: list[Any] = [own.state.consolidate()]
    whole, first = (states[0] is None) == (rank != 0), states
    dist.broadcast_object_list(first, src=0)
    expected = run(own, rank, CUT, STEPS)
    own.state.release()
    own = made(2)
    own.state.load_state_dict(first[0])
    return whole, all(map(torch.equal, run(own, rank, CUT, STEPS), expected))


def test_one_checkpoint_resumes_all_ranks(ranks: Callable[[int], Ranks]) -> None:
    assert ranks(2).run(_consolidated) == [(True, True)] * 2


# ---- a gradient that is not finite, on one rank, in one step: under a hook the training goes on as if it never had it ------

BAD = 2
OPTIONS: dict[str, dict[str, Any]] = {
    "qsgd": {"error_feedback": True},
    "random-k": {"error_feedback": True},
    "dq-sgd": {"total_steps": STEPS + 1},
    "top-k": {"form": "two-phase"},
}
REDUCE = [name for name in list_algorithms() if only_reduces(create(name, **OPTIONS.get(name, {})).algorithm)]
KEEP = ("powersgd", "qsgd", "top-k")


def _bad_step(rank: int, size: int, frontend: str, name: str, value: float) -> dict[str, Any]:
    """With GradScaler's own rules in the open, since it takes no sharded parameters: state before and after the bad step."""
    own, scale, found = enter(frontend, name, OPTIONS.get(name, {}), size), 1024.0, {}
    for step in range(STEPS):
        own.steps.zero_grad()
        before = contents(own.state.state_dict())
        (loss(own.model, rank, step) * (scale * value if (step, rank) == (BAD, 1) else scale)).backward()
        norm = torch.stack([local(p.grad).norm() for p in own.model.parameters()]).norm()
        if step == BAD:
            after = contents(own.state.state_dict())
            for state in (before, after):
                state["counters"].pop("spent", None)  # of DQ-SGD's budget: what has been sent has been sent
            found = {"before": before, "after": after, "norm": float(norm)}
        if not norm.isfinite():
            scale /= 2
            continue
        for p in own.model.parameters():
            p.grad.div_(scale)
        own.steps.step()
    return {**found, "scale": scale, "parameters": values(own.model)}


@pytest.mark.parametrize(
    ("frontend", "name", "value"),
    [
        *(
            pytest.param("ddp_hook", name, math.inf, marks=() if name in KEEP else pytest.mark.full)
            for name in REDUCE
        ),
        *(pytest.param("ddp_hook", name, math.nan, marks=pytest.mark.full) for name in REDUCE),
        *(("fsdp_hook", name, math.inf) for name in KEEP[:2]),
    ],
)
def test_one_step_that_is_not_finite_leaves_the_state(frontend, name, value, ranks):
    results = ranks(2).run(_bad_step, frontend, name, value)
    for own in results:
        assert own["norm"] == math.inf
        assert own["scale"] == 512
        for key in ("slots", "counters"):
            assert equal(own["before"][key], own["after"][key]), key
        assert all(p.isfinite().all() for p in own["parameters"])
    assert all(map(torch.equal, *(own["parameters"] for own in results)))
