"""DataParallelOptimizer as a user meets it, and misuse that would give wrong numbers."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from reference_impls import DataParallelOptimizer, SimulatedCluster
from reference_impls.core.collectives import EARLIER, AllReduce, Ledger, Ledgers
from reference_impls.core.errors import LayoutError, UnknownOptionError, UnsupportedError, UsageError
from reference_impls.runtime.step import fingerprint
from tests.reference_impls import problem
from tests.reference_impls.averages import normal
from tests.reference_impls.gloo import told
from tests.reference_impls.problem import Net
from tests.support import each

pytestmark = [pytest.mark.gloo, pytest.mark.usefixtures("one_rank")]


loss = partial(problem.loss, rank=0)


def test_a_second_backward_after_the_buckets_left_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = DataParallelOptimizer(model.named_parameters(), "allreduce-sgd", bucket_bytes=16)
    with optimizer.no_sync():
        with optimizer.no_sync():
            pass
        model(torch.ones(1, 3)).sum().backward()
    model(torch.ones(1, 3)).sum().backward()
    with pytest.raises(UsageError, match=r"second backward since the last step.*no_sync"):
        model(torch.ones(1, 3)).sum().backward()


def test_reentrant_checkpointing_is_refused_by_that_name() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer = DataParallelOptimizer(model, "allreduce-sgd", bucket_bytes=16)
    for reentrant in (False, True):
        x = torch.ones(1, 3, requires_grad=True)
        # the layer is used twice, and reentrant checkpointing completes its gradient twice
        for _ in range(2):
            x = checkpoint(model, x, use_reentrant=reentrant)
        if reentrant:
            with pytest.raises(UsageError, match="use_reentrant=False"):
                x.sum().backward()
        else:
            x.sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def test_parameters_that_are_no_longer_the_optimizers_are_named() -> None:
    for whole in (True, False):
        model = Net()
        optimizer = DataParallelOptimizer(model if whole else model.named_parameters(), "allreduce-sgd")
        loss(model, step=0).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
        loss(model, step=1).backward()
        match = "'first' was replaced" if whole else r"no parameter got a gradient.*'first'.*assign=True"
        with pytest.raises(UsageError, match=match):
            optimizer.step()


@pytest.mark.parametrize(("at_first", "words"), [(False, "'bias' was frozen"), (True, "'bias' was trained")])
def test_a_parameter_made_trainable_or_frozen_after_construction_is_named(at_first: bool, words: str) -> None:
    model = Net()
    model.bias.requires_grad_(at_first)
    optimizer = DataParallelOptimizer(model.named_parameters(), "allreduce-sgd")
    loss(model, step=0).backward()
    model.requires_grad_(False)  # as loops of two models do between backward and step
    optimizer.step()
    model.requires_grad_(True)
    model.bias.requires_grad_(not at_first)
    optimizer.zero_grad()
    loss(model, step=1).backward()
    with pytest.raises(UsageError, match=words):
        optimizer.step()


def test_a_step_without_gradients_is_refused_unless_allowed() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    before = copy.deepcopy(model.state_dict())
    optimizer = DataParallelOptimizer(model, "allreduce-sgd", lr=0.1, bucket_bytes=16)
    with pytest.raises(UsageError, match="no parameter got a gradient since the last step"):
        optimizer.step()
    model[1](torch.ones(1, 3)).sum().backward()
    with pytest.raises(
        UsageError, match=r"parameters of a bucket.*'0.weight', '0.bias'.*allow_empty_buckets=True"
    ):
        optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    optimizer.release()
    optimizer = DataParallelOptimizer(
        model, "allreduce-sgd", lr=0.1, bucket_bytes=16, allow_empty_buckets=True
    )
    optimizer.zero_grad()
    model[1](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(model[0].weight, before["0.weight"])
    assert not torch.equal(model[1].weight, before["1.weight"])


def test_gradients_may_be_assigned_in_place_of_backward() -> None:
    ours, theirs = Net(), Net()
    optimizer = DataParallelOptimizer(ours, "allreduce-sgd", lr=0.1, bucket_bytes=256)
    plain = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for model, opt in ((ours, optimizer), (theirs, plain)):
        used = [p for name, p in model.named_parameters() if name != "unused"]
        for p, gradient in zip(used, torch.autograd.grad(loss(model, step=0), used), strict=True):
            p.grad = gradient
        opt.step()
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))


def test_a_group_that_stands_still_decides_no_round() -> None:
    """H = (0.1 / lr)^2 is 4 by the head's rate; by the backbone's, 0, no round would ever end."""
    backbone, head = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))
    groups = [{"params": [("backbone", backbone)], "lr": 0.0}, {"params": [("head", head)], "lr": 0.05}]
    optimizer, kinds = DataParallelOptimizer(groups, "qsr-sgd", alpha=0.1, h_base=1, total_steps=9), ""
    for _ in range(9):
        (backbone.sum() + head.sum()).backward()
        optimizer.step()
        kinds += optimizer.kind[0]
    assert kinds == "lllalllaa"


def test_sparse_gradients_are_refused() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    optimizer = DataParallelOptimizer(model, "allreduce-sgd")
    with pytest.raises(LayoutError, match="sparse=False"):
        model(torch.tensor([1])).sum().backward()
    optimizer.release()


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="torch has it from 2.13 on")
def test_gradients_of_another_dtype_are_refused() -> None:
    model = nn.Linear(2, 2)
    model.weight.grad_dtype = torch.bfloat16
    with pytest.raises(UnsupportedError, match=r"'weight' has gradients in torch\.bfloat16"):
        DataParallelOptimizer(model, "allreduce-sgd")


def test_what_cannot_be_taken_over_or_added_is_refused_with_the_remedy() -> None:
    model = Net()
    optimizer = DataParallelOptimizer(model, "allreduce-adamw")
    loss(model, step=0).backward()
    optimizer.step()
    with pytest.raises(UnsupportedError, match="build a new optimizer with all groups"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with pytest.raises(LayoutError, match="no state of a DataParallelOptimizer"):
        optimizer.load_state_dict(torch.optim.AdamW(Net().parameters()).state_dict())
    for copied in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(UsageError, match=r"save its state_dict\(\)"):
            copied(optimizer)


def test_release_gives_the_parameters_back_and_what_comes_after_says_so() -> None:
    model = Net()
    optimizer = DataParallelOptimizer(model, "allreduce-sgd")
    loss(model, step=0).backward()
    optimizer.step()
    values = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        optimizer.release()
    for p, value in zip(model.parameters(), values, strict=True):
        assert torch.equal(p, value)
        assert p.untyped_storage().nbytes() == p.numel() * 4
    loss(model, step=0).backward()
    blocks = (optimizer.averaged, optimizer.traced, optimizer.without_communication)
    for use in (
        optimizer.step,
        optimizer.state_dict,
        optimizer.consolidate,
        lambda: optimizer.load_state_dict({}),
        *(lambda block=block: block().__enter__() for block in blocks),
    ):
        with pytest.raises(UsageError, match=r"release\(\) has finished this optimizer"):
            use()


def test_an_optimizer_that_is_gone_or_was_refused_leaves_the_model_to_the_next() -> None:
    model = Net()
    model.register_buffer("odd", torch.eye(3).to_sparse())
    with pytest.raises(UnsupportedError, match="'odd'") as refused:
        DataParallelOptimizer(model, "allreduce-sgd")
    del model.odd
    former = DataParallelOptimizer(model, "allreduce-sgd")
    seen = weakref.ref(former)
    loss(model, step=0).backward()
    former.step()
    del former
    gc.collect()
    assert seen() is None
    optimizer = DataParallelOptimizer(model, "allreduce-sgd")
    optimizer.zero_grad()
    loss(model, step=1).backward()
    optimizer.step()
    assert len(model.first._post_accumulate_grad_hooks) == 1
    second = DataParallelOptimizer(model, "allreduce-sgd")  # while the first still trains it
    with pytest.raises(UsageError, match="built on the model since, release"):
        loss(model, step=2).backward()
    del refused, second  # until here


def test_the_graph_of_a_gradient_is_not_kept() -> None:
    model = Net()
    optimizer = DataParallelOptimizer(model, "root-sgd", bucket_bytes=256)

    def closure() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of the cycle between a parameter and its gradient
            loss(model, step=0).backward(create_graph=True)

    for _ in range(2):
        optimizer.step(closure)
        held = [x for bucket in optimizer._worker.buckets for x in (bucket.grads, *bucket.gradients.values())]
        assert not any(x.requires_grad for x in held)
        optimizer.zero_grad()


EDITS: dict[str, Callable[[nn.Module], Any]] = {
    "clip_grad_norm_": lambda m: nn.utils.clip_grad_norm_([m.first, m.bias, m.second], 1e-3),
    "data.mul_": lambda m: [p.grad.data.mul_(0.5) for p in (m.first, m.bias, m.second)],
    "data.neg_ of one": lambda m: m.first.grad.data.neg_(),
    "one element": lambda m: m.second.grad.data[0, 0].mul_(1 + 1e-6),
    "assigned": lambda m: setattr(m.first, "grad", torch.zeros_like(m.first)),
    "none": lambda m: setattr(m.first, "grad", None),
}


@each("how", EDITS)
@each("bucket_bytes", [256, 1 << 20])
def test_gradients_edited_by_habit_from_the_second_step_on_are_refused(how: str, bucket_bytes: int) -> None:
    """In buckets of which some have left in backward, and in one that cannot, for what is unused."""
    model = Net()
    optimizer = DataParallelOptimizer(model, "allreduce-sgd", lr=0.1, bucket_bytes=bucket_bytes)
    loss(model, step=0).backward()
    optimizer.step()
    optimizer.zero_grad()
    loss(model, step=1).backward()
    before = copy.deepcopy(model.state_dict())
    EDITS[how](model)
    with pytest.raises(UsageError, match="clip_norm="):
        optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("edit", "last"), [("mul_", 21), ("data.mul_", 32)])
def test_an_edit_in_a_late_step_is_refused_at_once_where_torch_sees_it_and_else_in_every_sixteenth(
    edit: str, last: int
) -> None:
    model = Net()
    optimizer = DataParallelOptimizer(model, "allreduce-sgd")
    with pytest.raises(UsageError, match="clip_norm="):
        for step in range(40):
            loss(model, step=step).backward()
            if step >= 21:
                with torch.no_grad():
                    gradient = model.first.grad
                    (gradient.data if edit == "data.mul_" else gradient).mul_(0.5)
            optimizer.step()
            optimizer.zero_grad()
    assert step == last


def test_channels_last_weights_keep_their_strides() -> None:
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    value = model.weight.detach().clone()
    optimizer = DataParallelOptimizer(model.named_parameters(), "allreduce-sgd", lr=0.5)
    assert model.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(model.weight, value)
    model(torch.ones(1, 3, 5, 5)).sum().backward()
    gradient = model.weight.grad.clone()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), value - 0.5 * gradient)


@pytest.mark.parametrize("name", ["dion", "powersgd", "demo", "muloco"])
def test_a_weight_that_lies_column_by_column_trains_like_any_other(name: str) -> None:
    """A matrix is read from its slice of a flat buffer; `qr`, `svd` and ``.t()`` answer such weights."""
    weight = normal(32, 48)
    found = []
    for start in (weight, weight.t().contiguous().t()):
        ours = SimulatedCluster(name, [start], 2, lr=0.1)
        for step in range(3):
            ours.step([[g] for g in normal(2, 32, 48, seed=step)])
        found.append(ours.parameters(0)[0])
    assert torch.equal(*found)
    assert not torch.equal(found[0], weight)


@pytest.mark.parametrize(
    ("error", "match", "build"),
    [
        (LayoutError, "named_parameters", lambda m: DataParallelOptimizer(m.parameters(), "allreduce-sgd")),
        (UnsupportedError, "float32", lambda m: DataParallelOptimizer(m.half().named_parameters(), "allreduce-sgd")),
        (
            UnknownOptionError,
            "momentum_sync",
            lambda m: DataParallelOptimizer(m.named_parameters(), "lion-cub-1bit", momentum_sink=1),
        ),
        (UsageError, "'first' lies on the meta device", lambda m: DataParallelOptimizer(m.to("meta"), "allreduce-sgd")),
        (UnsupportedError, "clip", lambda m: DataParallelOptimizer(m.named_parameters(), "demo", clip_norm=1.0)),
        (LayoutError, "no parameter", lambda m: DataParallelOptimizer([], "allreduce-sgd")),
    ],
)  # fmt: skip
def test_bad_input_says_what_to_do(error: type[Exception], match: str, build: object) -> None:
    with pytest.raises(error, match=match):
        build(Net())


def test_weights_that_share_memory_are_refused_and_those_that_share_a_buffer_are_not() -> None:
    whole, empty = torch.arange(30.0), [(name, nn.Parameter(torch.zeros(0))) for name in ("c", "d")]
    pairs = {
        "transposed": (whole.view(5, 6), whole.view(5, 6).t()),
        "overlapping": (whole[:16], whole[15:]),
        "side by side": (whole[:15], whole[15:]),
        "interleaved": (whole.view(5, 6)[:, :2], whole.view(5, 6)[:, 2:]),
    }
    for how, (a, b) in pairs.items():
        message = told(
            lambda a=a, b=b: DataParallelOptimizer(
                [("a", nn.Parameter(a)), ("b", nn.Parameter(b)), *empty], "allreduce-sgd"
            )
        )
        if how in ("transposed", "overlapping"):
            assert message.startswith("LayoutError: 'b' shares memory with 'a'"), (how, message)
            assert "assigning the Parameter itself" in message
        else:
            assert message == "no error", (how, message)


def test_the_ledger_of_a_rank_answers_for_that_rank_and_names_it_otherwise() -> None:
    ledger = Ledger(1)
    ledger.record(AllReduce(torch.zeros(4), "gradient"), 2)
    assert Ledgers([ledger]).frame()["payload_bytes"].tolist() == [16]
    assert Ledgers([ledger]).frame(rank=None)["rank"].tolist() == [1]
    with pytest.raises(UsageError, match="bytes of rank 0 are not counted here, only those of 1"):
        Ledgers([ledger]).frame(0)


def test_a_ledger_that_keeps_some_steps_adds_up_the_others() -> None:
    short, whole = Ledger(0, keep=3), Ledger(0)
    for step in range(10):
        for ledger in (short, whole):
            ledger.step, ledger.kind = step, "even" if step % 2 == 0 else "odd"
            for stage in ("gradient", "momentum"):
                ledger.record(AllReduce(torch.zeros(4 + step), stage), 3)
    assert Ledgers([short]).totals() == Ledgers([whole]).totals()
    rows, every = short.rows(), whole.rows()
    assert [row for row in rows if row["step"] >= 7] == every[-6:]
    assert [(row["step"], row["calls"]) for row in rows[:-6]] == [(EARLIER, 4)] * 2 + [(EARLIER, 3)] * 2
    short.clear()
    assert short.rows() == []


def test_a_skip_that_was_not_announced_is_refused_with_the_option() -> None:
    with pytest.raises(UsageError, match="skippable=True"):
        DataParallelOptimizer(Net(), "allreduce-sgd").skip_step()


def test_a_fingerprint_shows_signs_and_the_last_bit_of_any_element() -> None:
    """Of lengths that are no multiple of anything; what is not finite is no edit."""
    for length in (1, 63, 64, 65, 4096, 5001):
        x = normal(length)
        edits = [-x, torch.cat([x[: length // 2], -x[length // 2 :]])]
        for i in range(0, length, 37):
            edits.append(x.clone())
            edits[-1][i] = torch.nextafter(x[i], torch.tensor(9.0))
        assert not any(torch.equal(fingerprint(x), fingerprint(edited)) for edited in edits)
    pair, turned = torch.tensor([0.0, 1.0, 0.0, 2.0]), torch.tensor([0.0, -1.0, 0.0, -2.0])
    assert not torch.equal(fingerprint(pair), fingerprint(turned))  # whose bits have the same sum
    x[0] = float("nan")
    assert torch.equal(fingerprint(x), fingerprint(x.clone()))
