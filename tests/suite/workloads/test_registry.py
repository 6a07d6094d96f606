"""Names and options: what is known is listed, what is mistyped gets the nearest match."""

from __future__ import annotations

import pytest

from suite.workloads import UnknownWorkloadError, WorkloadOptionError, get, names, options


@pytest.mark.parametrize("name", names())
def test_options_explain_themselves(name: str) -> None:
    known = options(name)
    workload = get(name)
    assert {key: info.default for key, info in known.items()} == workload.options
    for info in known.values():
        assert info.help
        assert isinstance(info.default, info.type)


def test_a_mistyped_name_gets_the_nearest() -> None:
    for ask in (get, options):
        with pytest.raises(UnknownWorkloadError, match=r"\"digit-mlp\"; did you mean 'digits-mlp'\?"):
            ask("digit-mlp")
    assert issubclass(UnknownWorkloadError, ValueError)
    assert issubclass(WorkloadOptionError, ValueError)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("quadratic", {"sigmas": 1.0}, "has no option \"sigmas\"; did you mean 'sigma'?"),
        ("digits-mlp", {"width": 64}, 'has no option "width"; known: none'),
        ("quadratic", {"dim": 1.5}, 'option "dim" of workload quadratic takes an integer, got 1.5'),
        ("quadratic", {"condition": 0.5}, 'option "condition" of workload quadratic must be >= 1.0, got 0.5'),
        ("quadratic", {"sigma": float("nan")}, 'option "sigma" of workload quadratic must be >= 0.0, got nan'),
        ("code-gpt", {"size": "7b"}, 'option "size" of workload code-gpt must be one of 0.14m, 0.9m, 3.3m'),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(name: str, wrong: dict[str, object], message: str) -> None:
    with pytest.raises(WorkloadOptionError) as caught:
        get(name, **wrong)
    assert message in str(caught.value)
