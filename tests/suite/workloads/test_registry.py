"""Names and options: what is known is listed, what is mistyped gets the nearest match."""

from __future__ import annotations

import pytest

from suite.workloads import UnknownWorkloadError, WorkloadOptionError, get, names, options


def test_names_are_sorted() -> None:
    assert names() == [
        "byte-mlm",
        "causal-lm",
        "cifar10",
        "cifar100",
        "code-gpt",
        "code-packages",
        "ctr-zipf",
        "digits-cnn",
        "digits-mlp",
        "digits-noisy",
        "image-folder",
        "label-noise-diagonal",
        "masked-lm",
        "quadratic",
    ]


@pytest.mark.parametrize("name", names())
def test_options_explain_themselves(name: str) -> None:
    known = options(name)
    workload = get(name)
    assert {key: info.default for key, info in known.items()} == workload.options
    for info in known.values():
        assert info.help
        assert isinstance(info.default, info.type)


def test_equal_options_make_equal_workloads() -> None:
    assert get("quadratic", dim=100) == get("quadratic")
    assert get("quadratic", dim=10) != get("quadratic")
    assert get("digits-mlp") != get("digits-cnn")


def test_an_integer_is_taken_where_a_float_is_due() -> None:
    sigma = get("quadratic", sigma=2).options["sigma"]
    assert (sigma, type(sigma)) == (2.0, float)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("digit-mlp", 'unknown workload "digit-mlp": did you mean "digits-mlp"?'),
        ("quadratics", 'unknown workload "quadratics": did you mean "quadratic"?'),
        ("imagenet", 'unknown workload "imagenet": did you mean "image-folder"?'),
        (
            "speech",
            'unknown workload "speech": Choose one of byte-mlm, causal-lm, cifar10, cifar100, code-gpt',
        ),
    ],
)
def test_a_mistyped_name_gets_the_nearest(typed: str, message: str) -> None:
    for ask in (get, options):
        with pytest.raises(UnknownWorkloadError) as caught:
            ask(typed)
        assert str(caught.value).startswith(message)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("quadratic", {"sigmas": 1.0}, 'has no option "sigmas": did you mean "sigma"?'),
        ("quadratic", {"colour": 1.0}, 'has no option "colour": Choose one of condition, dim, heterogeneity'),
        (
            "label-noise-diagonal",
            {"shared": 1},
            'option "shared" of workload label-noise-diagonal takes true or false, got 1',
        ),
        ("digits-mlp", {"width": 64}, 'has no option "width": it has no options'),
        ("quadratic", {"dim": 1.5}, 'option "dim" of workload quadratic takes an integer, got 1.5'),
        ("quadratic", {"dim": True}, 'option "dim" of workload quadratic takes an integer, got True'),
        ("quadratic", {"sigma": "much"}, "option \"sigma\" of workload quadratic takes a number, got 'much'"),
        ("quadratic", {"dim": 0}, 'option "dim" of workload quadratic must be >= 1, got 0'),
        ("quadratic", {"condition": 0.5}, 'option "condition" of workload quadratic must be >= 1.0, got 0.5'),
        (
            "quadratic",
            {"sigma": float("nan")},
            'option "sigma" of workload quadratic must be >= 0.0, got nan',
        ),
        ("code-gpt", {"size": "7b"}, 'option "size" of workload code-gpt must be one of 0.14m, 0.9m, 3.3m'),
        ("code-gpt", {"size": 3}, 'option "size" of workload code-gpt takes a string, got 3'),
    ],
)
def test_wrong_options_are_refused(name: str, wrong: dict[str, object], message: str) -> None:
    with pytest.raises(WorkloadOptionError) as caught:
        get(name, **wrong)
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)
