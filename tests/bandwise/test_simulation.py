"""`simulate`: any model, any data, any method, and on to real ranks; each promise of its page held."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from bandwise import DataParallelOptimizer, SimulatedCluster, simulate
from bandwise.simulation import DataError, Shards, Simulation, worker_seed
from reference_impls.core.errors import LayoutError, UnsupportedError, UsageError
from reference_impls.core.units import UnitError
from tests.reference_impls.gloo import run_ranks
from tests.reference_impls.states import equal, through_a_file

STEPS, WORKERS = 6, 2


class Awkward(nn.Module):
    """BatchNorm, dropout, a tied weight, a frozen and an unused layer, and control flow that depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.2)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.dropout(self.norm(self.first(x)))
        if bool(h.sum() > 0):
            h = self.second(h).relu()
        return self.last(self.frozen(h))


def plain() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))


def awkward() -> nn.Module:
    return seeded(Awkward)


def seeded(make: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return make()


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def data(rank: int, workers: int, step: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1000 * step + 10 * workers + rank)
    x = torch.randn(8, 6, generator=draw)
    return x, x[:, :3].argmax(1)


def examples(count: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(count, 6, generator=draw)
    return TensorDataset(x, x[:, :3].argmax(1))


def trained(algorithm: str = "allreduce-adamw", **options: Any) -> Simulation:
    given: dict[str, Any] = {"workers": WORKERS, "lr": 1e-2, "steps": STEPS, "seed": 3, **options}
    model, source = given.pop("model", None) or plain(), given.pop("data", data)
    return simulate(model, given.pop("loss", loss), source, algorithm, **given)


# ---- what it is held against


@pytest.mark.parametrize("algorithm", ["qsr-adamw", "lion-cub-1bit", "root-sgd"])
def test_it_equals_a_cluster_fed_by_hand_to_the_bit(algorithm: str) -> None:
    options = {"alpha": 0.02, "h_base": 2} if algorithm == "qsr-adamw" else {}
    found = trained(algorithm, workers=3, **options)
    model = plain()
    known = {"total_steps": STEPS} if algorithm == "qsr-adamw" else {}
    cluster = SimulatedCluster(
        algorithm, list(model.parameters()), 3, 1e-2, 3, names=[n for n, _ in model.named_parameters()], **options, **known
    )  # fmt: skip

    def grads(points: list[list[Tensor]], step: int) -> tuple[list[list[Tensor]], float]:
        gradients, losses = [], []
        for rank, params in enumerate(points):
            for own, param in zip(model.parameters(), params, strict=True):
                own.data, own.grad = param, None
            value = loss(model, data(rank, 3, step))
            value.backward()
            losses.append(value.item())
            gradients.append([own.grad for own in model.parameters()])
        return gradients, math.fsum(losses) / 3

    means = []
    for step in range(STEPS):
        reference_points = {
            name: grads([cluster.reference_parameters(rank, name) for rank in range(3)], step)[0]
            for name in cluster.reference_points
        }
        given, mean = grads([cluster.parameters(rank) for rank in range(3)], step)
        cluster.observe(loss=mean)
        cluster.step(given, reference_points=reference_points)
        means.append(mean)
    assert equal(found.state_dict()["workers"], cluster.state_dict()["workers"])
    assert found.frame["loss"].tolist() == means
    assert found.ledger.frame(rank=None).equals(cluster.ledger.frame(rank=None))


def goes_on(rank: int, size: int, algorithm: str, saved: bytes, options: dict[str, Any]) -> Any:
    """A user's own loop on real ranks, from a simulated state."""
    state = torch.load(io.BytesIO(saved), weights_only=True)
    model = awkward()
    model.load_state_dict(state["buffers"], strict=False)
    optimizer = DataParallelOptimizer(model, algorithm, lr=1e-2, seed=3, allow_empty_buckets=True, **options)
    optimizer.load_state_dict(state)
    for step in range(3, STEPS):
        torch.manual_seed(worker_seed(3, rank, step))
        loss(model, data(rank, size, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    sent = optimizer.ledger.frame().groupby("step")["wire_bytes"].sum().tolist()
    return optimizer.consolidate(), {n: b.clone() for n, b in model.named_buffers()}, sent


@pytest.mark.gloo
def test_real_ranks_go_on_from_its_state_to_the_bit() -> None:
    for algorithm, options in (("local-adamw", {"period": 2, "total_steps": STEPS}), ("lion-cub-1bit", {})):
        half = trained(algorithm, model=awkward(), steps=3, **options)
        state = half.state_dict()
        file = io.BytesIO()
        torch.save(state, file)
        whole = trained(algorithm, model=awkward(), state=through_a_file(state), **options)
        (consolidated, buffers, sent), second = run_ranks(
            goes_on, WORKERS, algorithm, file.getvalue(), options
        )
        final = whole.state_dict()
        for real, simulated in zip(consolidated["workers"], final["workers"], strict=True):
            for part in ("parameters", "slots", "optimizer", "step", "counters"):
                assert equal(real[part], simulated[part]), (algorithm, part)
        assert equal(buffers, final["buffers"])
        assert sent == whole.frame["wire_bytes"].tolist(), "the same bytes, those of the buffers included"
        assert equal(second[1], final["buffers"])
        real_state = {**consolidated, "buffers": buffers}
        on, on_real = (
            trained(algorithm, model=awkward(), state=s, **options, steps=STEPS + 2)
            for s in (final, real_state)
        )
        assert equal(on.parameters, on_real.parameters), "and back from real ranks"


def test_it_goes_on_from_itself_to_the_bit() -> None:
    for source in (data, examples(40)):
        given: dict[str, Any] = {"model": awkward(), "data": source, "total_steps": STEPS, "period": 2}
        if source is not data:
            given["batch_size"] = 8
        whole = trained("local-adamw", **given)
        half = trained("local-adamw", **given, steps=3)
        rest = trained("local-adamw", **given, state=through_a_file(half.state_dict()))
        assert equal(rest.state_dict(), whole.state_dict())
        assert rest.frame["step"].tolist() == [3, 4, 5]
        assert half.frame["loss"].tolist() + rest.frame["loss"].tolist() == whole.frame["loss"].tolist()


def test_the_rate_is_the_one_that_is_given_whatever_the_state_had() -> None:
    half = trained(steps=3, lr=0.1).state_dict()
    by_number, by_function = (trained(state=half, lr=lr) for lr in (1e-4, lambda step: 1e-4))
    assert equal(by_number.parameters, by_function.parameters)
    assert not equal(by_number.parameters, trained(state=half, lr=0.1).parameters)


# ---- what it answers


def test_the_same_seed_gives_the_same_bits_and_nothing_of_the_callers_moves() -> None:
    model = awkward()
    before, drawn = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    one, two = (trained("qsgd", model=model) for _ in range(2))
    assert equal(dict(model.state_dict()), dict(before))
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert equal(one.state_dict(), two.state_dict())
    assert one.frame.equals(two.frame)
    other = trained("qsgd", model=awkward(), seed=4)
    assert not equal(one.parameters, other.parameters)


def test_what_it_answers() -> None:
    found = trained("local-sgd", period=3, steps=6, lr=lambda step: 0.1 / (step + 1))
    frame = found.frame
    assert frame["kind"].tolist() == ["local", "local", "average"] * 2
    elements = sum(p.numel() for p in plain().parameters())
    assert frame["wire_bytes"].tolist() == [0, 0, 4.0 * elements] * 2  # 2 (n - 1) / n x 4 bytes, n = 2
    assert frame["lr"].tolist() == [0.1 / (step + 1) for step in range(6)]
    assert list(found.parameters) == [name for name, _ in plain().named_parameters()]
    assert equal(dict(found.model.named_parameters()), found.parameters)
    workers = found.state_dict()["workers"]
    assert equal(workers[0]["parameters"], workers[1]["parameters"])
    assert found.compute_s > 0
    assert found.diverged_at is None


def test_the_model_is_the_mean_where_workers_differ() -> None:
    found = trained("local-sgd", period=4, steps=6, total_steps=8)
    parts = [worker["parameters"] for worker in found.state_dict()["workers"]]
    assert not equal(parts[0], parts[1])
    for name, value in found.model.named_parameters():
        assert torch.equal(value, (parts[0][name] + parts[1][name]) / 2)


def test_the_correlation_of_gradients() -> None:
    alike = trained(data=lambda rank, workers, step: data(0, 2, step), workers=4)
    assert alike.correlation.tolist() == pytest.approx([1.0] * STEPS, abs=1e-5)
    model = nn.Linear(2, 1, bias=False)
    along = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    found = simulate(
        model, lambda m, x: m(x).sum(), lambda rank, workers, step: along[rank : rank + 1],
        "allreduce-sgd", workers=3, lr=0.1, steps=1,
    )  # fmt: skip
    assert found.correlation[0] == pytest.approx((0 + 0 - 1) / 3)  # of the three pairs' cosines
    assert trained(workers=1).correlation.isna().all()


def test_seconds_are_the_formula_that_was_scored() -> None:
    wide = seeded(lambda: nn.Sequential(nn.Linear(6, 2000), nn.Linear(2000, 3)))
    found = trained("local-sgd", period=3, workers=4, model=wide)
    slow, fast = (found.seconds(rate, compute_s=2e-3) for rate in ("10mbit", 1e9))
    assert slow.index.tolist() == list(range(STEPS))
    assert fast[0] == slow[0] == pytest.approx(2e-3)  # a local step sends nothing
    sent = found.ledger.frame(rank=0).query("step == 2")["wire_bytes"].sum()
    assert slow[2] == pytest.approx(2e-3 + 8 * sent / (0.91 * 10e6))
    assert found.seconds("10gbe").equals(found.seconds("10gbit"))
    assert found.seconds("10mbit", "5ms", 2e-3)[2] == pytest.approx(slow[2] + 2 * 3 * 5e-3)
    assert found.seconds("10mbit", compute_s=2e-3, compressor_s=1e-3)[0] == pytest.approx(3e-3)
    assert found.seconds("10mbit")[0] == pytest.approx(found.compute_s)
    for asked in ({"rate": 0.0}, {"rate": "fast"}, {"rate": 1e6, "compute_s": math.nan}):
        with pytest.raises(UnitError, match=r"give a number|write a number"):
            found.seconds(**asked)


def test_a_training_that_diverges_ends_before_that_step() -> None:
    def explode(model: nn.Module, batch: Any) -> Tensor:
        return loss(model, batch) * (math.inf if batch[0].sum() == want else 1.0)

    want = data(1, 2, 4)[0].sum()
    found = trained(loss=explode)
    assert found.diverged_at == 4
    assert found.frame["step"].tolist() == [0, 1, 2, 3]
    assert equal(found.parameters, trained(steps=4).parameters)


# ---- data


def test_a_data_set_is_cut_into_shards_that_share_no_example() -> None:
    numbers = TensorDataset(torch.arange(43))
    shards = Shards(numbers, 4, seed=2)
    epochs = []
    for epoch in range(2):
        own = [
            torch.cat([shards(rank, 4, 2 * epoch + step)[0] for step in range(2)]).tolist()
            for rank in range(4)
        ]
        assert all(len(set(part)) == 8 for part in own)
        epochs.append(own)
    halves = [set(a) | set(b) for a, b in zip(*epochs, strict=True)]  # 10 examples each, 8 an epoch
    assert all(len(part) <= 10 for part in halves)
    assert sum(map(len, halves)) == len(set().union(*halves))
    assert epochs[0] != epochs[1]
    assert Shards(numbers, 4, seed=2)(1, 4, 3)[0].tolist() == shards(1, 4, 3)[0].tolist()
    assert Shards(numbers, 4, seed=3)(1, 4, 3)[0].tolist() != shards(1, 4, 3)[0].tolist()


def test_batches_are_dealt_in_turn() -> None:
    batches = [data(rank, 2, step) for step in range(STEPS) for rank in range(2)]
    by_function = trained().parameters
    assert equal(trained(data=batches).parameters, by_function)
    assert equal(trained(data=iter(batches)).parameters, by_function)
    half = trained(data=batches, steps=3)
    assert equal(trained(data=batches, state=half.state_dict()).parameters, by_function)
    loader = DataLoader(examples(200), batch_size=8, shuffle=True)
    assert equal(trained(data=loader).parameters, trained(data=loader).parameters)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return (data(0, 1, step) for step in range(5))


# ---- models


def test_models_that_plain_backward_can_train() -> None:
    class Rerun(nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            self.inner, self.reentrant = plain(), reentrant

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = checkpoint(self.inner, x.requires_grad_(), use_reentrant=self.reentrant)
            return out

    def values(found: Simulation) -> list[Tensor]:
        return list(found.parameters.values())

    def half(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(model, batch)

    exact = values(trained())
    for reentrant in (False, True):
        assert equal(values(trained(model=Rerun(reentrant))), exact)
    assert trained(loss=half).frame["loss"].iloc[-1] < trained(loss=half).frame["loss"].iloc[0]
    accumulated = trained(
        loss=lambda model, b: (loss(model, [x[:4] for x in b]) + loss(model, [x[4:] for x in b])) / 2
    )
    torch.testing.assert_close(values(accumulated), exact)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model": nn.Sequential(nn.Linear(6, 3), nn.SyncBatchNorm(3))}, UnsupportedError, "simulate with BatchNorm"),
        ({"model": nn.Sequential(nn.LazyLinear(3))}, UnsupportedError, "run the model on a batch once"),
        ({"model": nn.Linear(6, 3).requires_grad_(False)}, UnsupportedError, "nothing to train"),
        ({"loss": lambda model, batch: 1.0}, UsageError, "answered float: answer the mean loss"),
        ({"loss": lambda model, batch: model(batch[0])}, UsageError, r"shape \(8, 3\)"),
        ({"loss": lambda model, batch: loss(OUTSIDE, batch)}, UsageError, "not with the one outside"),
        ({"loss": lambda model, batch: loss(model, batch).detach()}, UsageError, "without detach"),
        ({"steps": 0}, UsageError, "give at least 1 of each"),
        ({"data": [data(0, 1, 0)] * 11}, DataError, "the data end after 11 batches, and 2 workers for 6 steps take 12"),
        ({"data": Stream()}, DataError, "the data end after 5 batches"),
        ({"data": examples(15)}, DataError, "give batch_size="),
        ({"data": 7}, DataError, "data is a int: give data"),
        ({"data": examples(15), "batch_size": 8}, DataError, "15 examples for 2 workers are 7 each, less than a batch of 8"),
        ({"batch_size": 8}, DataError, "batch_size is for a data set"),
        ({"state": {"version": 1}}, LayoutError, "state holds no workers"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated(change: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        trained(**change)


OUTSIDE = plain()


def test_sparse_gradients_and_models_that_cannot_be_copied_are_refused() -> None:
    table = nn.EmbeddingBag(5, 3, sparse=True)
    with pytest.raises(LayoutError, match="'weight' is sparse: build the embedding with sparse=False"):
        trained(model=table, data=lambda r, w, s: (torch.tensor([[r, s % 5]]), torch.tensor([1])))
    model = plain()
    model.kept = model[0].weight * 2  # type: ignore[assignment]
    with pytest.raises(UnsupportedError, match="cannot be copied"):
        trained(model=model)


def test_a_state_that_does_not_fit_is_refused() -> None:
    state = trained(steps=3).state_dict()
    with pytest.raises(UsageError, match="give seed=3"):
        trained(state=state, seed=4)
    with pytest.raises(UsageError, match="step 3 already"):
        trained(state=state, steps=3)
    with pytest.raises(LayoutError, match="rank 0 of 2, this is rank 0 of 3"):
        trained("lion-cub-1bit", state=trained("lion-cub-1bit", steps=3).state_dict(), workers=3)
    with pytest.raises(LayoutError, match="of the state is not in the model"):
        trained(state={**state, "buffers": {"norm.running_mean": torch.zeros(6)}})
