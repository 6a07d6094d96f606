"""What every workload promises, over one table of workloads; names and options that are mistyped get the nearest."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad_and_value, vmap

from reference_impls.core.errors import UnknownOptionError, UnsupportedError
from suite.workloads import UnknownWorkloadError, code, get, names, options
from suite.workloads.base import draw_parameters
from tests.suite.workloads.cases import CASES, Case, draws


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Runs train on one thread; with two, a batched product of one row splits its inner sum."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


LARGE = ("causal-lm", "code-gpt", "python-gpt", "python-gpt-fp32", "python-gpt-fp32-128")
"""Of the transformers `byte-mlm` alone is looked at by the fast tests where a look takes seconds."""
IN_FULL = ("cifar10", "cifar100", "image-folder", "masked-lm")
"""Of the workloads on files of the user's the fast tests look at `causal-lm` here, and at all of them in `test_models`."""


def parametrized(*in_full: str) -> pytest.MarkDecorator:
    """Over all workloads; these are for the full tests."""
    marked = [pytest.param(case, marks=pytest.mark.full if case.name in in_full else ()) for case in CASES]
    return pytest.mark.parametrize("case", marked, ids=lambda case: case.name)


every_workload = parametrized(*IN_FULL)
every_small_workload = parametrized(*IN_FULL, *LARGE)

Rows = tuple[dict[str, torch.Tensor], tuple[torch.Tensor, ...]]


def test_every_workload_is_in_the_table() -> None:
    assert {case.name for case in CASES} == set(names())


def rows_of(case: Case, count: int, batch_size: int | None = 3) -> Rows:
    """Parameters and batches of `count` rows: four workers a seed, every row with parameters of its own."""
    tasks = [case.task(seed, batch_size=batch_size) for seed in range(math.ceil(count / 4))]
    generator = torch.Generator().manual_seed(7)
    params = {
        name: torch.stack([tasks[row // 4].initial()[name] for row in range(count)])
        for name in tasks[0].initial()
    }
    params = {
        name: value + 0.01 * torch.randn(value.shape, generator=generator) for name, value in params.items()
    }
    batches = (torch.cat(parts)[:count] for parts in zip(*(task.batch(2) for task in tasks), strict=True))
    return params, tuple(batches)


def row_slice(rows: Rows, which: slice) -> Rows:
    return {name: value[which] for name, value in rows[0].items()}, tuple(part[which] for part in rows[1])


@every_workload
def test_batches_have_fixed_shapes_at_any_step_in_any_order(case: Case) -> None:
    for seed, world_size, step in ((0, 4, 0), (1, 4, 9), (0, 2, 1000)):
        batch = case.task(seed, world_size).batch(step)
        assert [(part.shape, part.dtype) for part in batch] == [
            ((world_size, 3, *shape), dtype) for shape, dtype in case.batch
        ]
    forward, backward = case.task(), case.task()
    ahead = {step: forward.batch(step) for step in (0, 1, 2, 150, 151)}
    for step in (151, 2, 150, 0, 1):
        for part, again in zip(ahead[step], backward.batch(step), strict=True):
            assert torch.equal(part, again)
    with pytest.raises(ValueError, match="step must be >= 0, got -1"):
        forward.batch(-1)


@pytest.mark.parametrize("case", [case for case in CASES if not case.data], ids=lambda case: case.name)
def test_gradients_are_computed_where_parameters_and_batches_are(case: Case) -> None:
    """On the device without values, where a tensor that stayed behind is refused as on a GPU."""
    params, batch = rows_of(case, 2)
    there = {name: value.to("meta") for name, value in params.items()}
    gradients, losses = vmap(grad_and_value(case.task().loss))(there, *(part.to("meta") for part in batch))
    assert {found.device.type for found in (losses, *gradients.values())} == {"meta"}
    gathered = case.task().gather(*(part.to("meta") for part in case.task().examples(2)))
    assert [(part.device.type, part.shape[1:]) for part in gathered] == [
        ("meta", part.shape[1:]) for part in batch
    ]


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.workload().stacks], ids=lambda case: case.name
)
def test_stacked_rows_have_the_gradients_of_each_alone_within_rounding(case: Case) -> None:
    task, rows = case.task(), rows_of(case, 6)

    def stacked(rows: Rows) -> dict[str, torch.Tensor]:
        params, batch = rows
        leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
        losses = task.loss(leaves, *batch)
        gradients = torch.autograd.grad(losses.sum(), list(leaves.values()))
        return {**dict(zip(leaves, gradients, strict=True)), "": losses.detach()}

    expected, losses = vmap(grad_and_value(task.loss))(rows[0], *rows[1])
    found, alone = stacked(rows), stacked(row_slice(rows, slice(4, 5)))
    for name, value in {**expected, "": losses}.items():
        close = {"rtol": 1e-4, "atol": 1e-6 * float(value.abs().max())}
        torch.testing.assert_close(found[name], value, **close)
        torch.testing.assert_close(alone[name], value[4:5], **close)


@parametrized(*IN_FULL, "causal-lm")
def test_draws_are_the_same_in_every_process_and_release(case: Case) -> None:
    assert draws(case) == case.draws, "these are other runs than before: raise the workload's version"


@every_workload
def test_seeds_differ_and_ranks_differ(case: Case) -> None:
    zero, one = case.task(0), case.task(1)
    assert not torch.equal(zero.batch(0)[0], one.batch(0)[0])
    assert not torch.equal(zero.batch(0)[0], zero.batch(1)[0])
    assert not torch.equal(zero.batch(0)[0][0], zero.batch(0)[0][1])
    weights = [name for name, value in zero.initial().items() if value.unique().numel() > 1]
    assert weights
    for name in weights:
        assert not torch.equal(zero.initial()[name], one.initial()[name])


@every_workload
def test_initial_parameters(case: Case) -> None:
    initial = case.task().initial()
    assert sum(value.numel() for value in initial.values()) == case.parameters
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in initial.values())
    assert list(initial) == list(case.workload().module(0).state_dict())
    # the seed alone decides, and nobody can spoil them for the next caller
    for value in initial.values():
        value.zero_()
    other = case.task(world_size=2, sharding=case.workload().shardings[-1]).initial()
    assert any(value.any() for value in other.values())
    assert all(torch.equal(other[name], value) for name, value in case.task().initial().items())


def test_bare_parameters_need_a_width() -> None:
    module = torch.nn.Module()
    module.register_parameter("table", torch.nn.Parameter(torch.empty(3)))
    with pytest.raises(
        TypeError, match="Module holds the bare parameter table: give the class an initial_sd"
    ):
        draw_parameters(module, seed=0)


LAYERS = {
    "linear": lambda: nn.Linear(256, 300),
    "conv2d": lambda: nn.Conv2d(16, 256, 3, groups=2),
    "transposed": lambda: nn.ConvTranspose1d(64, 256, 5),
    "lstm": lambda: nn.LSTM(32, 64, num_layers=2, bidirectional=True, proj_size=16),
    "embedding": lambda: nn.Embedding(300, 32, padding_idx=7),
    "batch norm": lambda: nn.BatchNorm1d(32),
    "layer norm": lambda: nn.LayerNorm(32),
    "attention": lambda: nn.MultiheadAttention(128, 4, add_bias_kv=True),
    "prelu": lambda: nn.PReLU(8),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_torchs_layers_start_as_torch_starts_them(layer: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = nn.Sequential(LAYERS[layer]())
    drawn = draw_parameters(model, seed=1)
    for name, theirs in model.named_parameters():
        ours, theirs = drawn[name], theirs.detach()
        assert ours.shape == theirs.shape
        spread = float(theirs.std())
        if spread == 0:
            assert torch.equal(ours, theirs), name
            continue
        loose = 5 / ours.numel() ** 0.5  # five standard errors of either sample's spread, at the most
        assert float(ours.std()) == pytest.approx(spread, rel=loose), name
        tail = [float(one.abs().max() / one.std()) for one in (ours, theirs)]
        assert (tail[0] < 2.1) == (tail[1] < 2.1), f"{name}: uniform ends at 1.73 spreads, normal does not"
        assert torch.equal((ours == 0).all(-1), (theirs == 0).all(-1)), f"{name}: the padding"
    assert any(not torch.equal(draw_parameters(model, 2)[k], v) for k, v in drawn.items()) == any(
        float(p.detach().std()) > 0 for p in model.parameters()
    )


@every_workload
def test_the_module_is_the_loss(case: Case) -> None:
    """A real process that runs the module and a simulated worker start from the same numbers."""
    task, module = case.task(seed=5), case.workload().module(5)
    batch = tuple(part[1] for part in task.batch(0))
    loss = module(*batch)
    loss.backward()
    gradients, functional = grad_and_value(task.loss)(task.initial(), *batch)
    assert loss.shape == ()
    assert torch.equal(loss.detach(), functional)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradients[name]), name


@every_small_workload
@pytest.mark.usefixtures("one_thread")
def test_a_row_does_not_depend_on_its_company(case: Case) -> None:
    """Bit-equal alone, among a few, and among 24, at the workload's own batch size: so the result of a run
    does not hang on what ran beside it."""
    rows = rows_of(case, 24, batch_size=None)
    batched = vmap(grad_and_value(case.task(0).loss))
    gradients, losses = batched(rows[0], *rows[1])
    for which in (slice(0, 1), slice(23, 24), slice(3, 8)):
        params, batch = row_slice(rows, which)
        some, some_losses = batched(params, *batch)
        assert torch.equal(some_losses, losses[which])
        for name, gradient in some.items():
            assert torch.equal(gradient, gradients[name][which]), name


@pytest.fixture
def few_windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Models of bytes are judged on 64 windows, and not on 2,048."""
    monkeypatch.setattr(code, "TEST_WINDOWS", 64)
    code._masks.cache_clear()
    yield
    code._masks.cache_clear()


@every_small_workload
@pytest.mark.usefixtures("few_windows")
def test_evaluate(case: Case) -> None:
    """Beside, that nothing of all this draws from the global generators, and that other scores than the metric are losses."""
    generators = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    workload, task = case.workload(), case.task()
    params = dict(workload.module(1).named_parameters())
    before = {name: value.detach().clone() for name, value in params.items()}
    task.loss(task.initial(), *(part[0] for part in task.batch(0)))
    result = task.evaluate(params)
    assert all(type(value) is float and math.isfinite(value) for value in result.values())
    assert result.keys() - {workload.metric} <= {"nll", "clean_loss", "hessian_trace"} - {workload.metric}
    for score in result:
        assert workload.direction_of(score) == (workload.direction if score == workload.metric else "lower")
    assert case.task(world_size=2).evaluate(params) == result, "all methods of a seed share one test part"
    assert all(value.grad is None and torch.equal(value, before[name]) for name, value in params.items())
    broken = {name: torch.full_like(value, math.nan) for name, value in before.items()}
    assert any(math.isnan(value) for value in task.evaluate(broken).values())
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert (np.random.get_state()[1] == generators[1]).all()  # noqa: NPY002


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seed": -1}, "seed of workload .* must be an integer >= 0, got -1"),
        ({"world_size": True}, "world_size of workload .* must be an integer >= 1, got True"),
        ({"batch_size": 0}, "batch_size of workload .* must be an integer >= 1, got 0"),
        ({"batch_size": 2.5}, "batch_size of workload .* must be an integer >= 1, got 2.5"),
        ({"sharding": "by-clas"}, 'has no sharding "by-clas": use "iid"'),
    ],
)
def test_impossible_tasks_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get("quadratic").task(**{"seed": 0, "world_size": 4, **wrong})


# ---- names and options


@pytest.mark.parametrize("name", names())
def test_options_explain_themselves(name: str) -> None:
    known, values = options(name), get(name).options
    assert known.keys() == values.keys()
    for key, declared in known.items():
        assert declared.help
        assert declared.checked(name, values[key]) == values[key]


def test_a_mistyped_name_gets_the_nearest() -> None:
    for ask in (get, options):
        with pytest.raises(UnknownWorkloadError, match=r"\"digit-mlp\"; did you mean 'digits-mlp'\?"):
            ask("digit-mlp")
    assert issubclass(UnknownWorkloadError, ValueError)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("quadratic", {"sigmas": 1.0}, "workload quadratic has no option 'sigmas'; did you mean 'sigma'?"),
        ("digits-mlp", {"width": 64}, "workload digits-mlp has no option 'width'; known: none"),
        ("quadratic", {"dim": 1.5}, "workload quadratic: dim must be an integer of at least 1; got 1.5"),
        ("quadratic", {"condition": 0.5}, "condition must be a number of at least 1; got 0.5"),
        ("quadratic", {"sigma": float("nan")}, "sigma must be a number of at least 0; got nan"),
        ("code-gpt", {"size": "7b"}, "size must be one of 0.14m, 0.9m, 3.3m, 20m; got '7b'"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(name: str, wrong: dict[str, object], message: str) -> None:
    with pytest.raises((UnknownOptionError, UnsupportedError)) as caught:
        get(name, **wrong)
    assert message in str(caught.value)
